"""The choice of the code that computes an attention call. The docstring of `choose` has a table of all cases.

Tested by tests/kernels/test_kernel_choice.py.
"""

from __future__ import annotations

from enum import Enum, auto

from torch import Tensor

from roundround.kernels import flex
from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.sdpa import Kernel, kernel_for, varlen_kernel_for


class Form(Enum):
    """What a fused kernel must compute for a normaliser."""

    SOFTMAX = auto()  # the softmax of logits that are multiplied by one number for each row, which is known beforehand
    ENTROPY = auto()  # the same, but the number depends on the entropy of the row: needs log-sum-exps
    NULL_KEY = auto()  # the softmax with a null key, whose value is zero: needs log-sum-exps
    LOGITS = auto()  # a function of each single logit: needs a kernel that takes such a function
    OWN = auto()  # none of these: the normaliser overrides `has_fused_form`


class Path(Enum):
    """The code that computes a call."""

    WHOLE_ROWS = auto()
    DOCUMENTS = auto()
    FLEX = auto()
    SDPA = auto()
    TILES = auto()


def choose(form: Form, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> Path | None:
    """The fused path of a call: the first row of the table that fits the call.

    If no row fits, the result is None, and `blocks.py` computes the normaliser's definition.

    | path      | code               | devices   | forms                      | keys                  | bias           |
    |-----------|--------------------|-----------|----------------------------|-----------------------|----------------|
    | DOCUMENTS | sdpa.py            | CUDA      | SOFTMAX                    | documents, no windows | none           |
    | FLEX      | flex.py            | CUDA      | LOGITS, SOFTMAX, NULL_KEY  | see `flex.serves`     | with score_mod |
    | FLEX      | flex.py            | CUDA      | LOGITS                     | see `flex.serves`     | none           |
    | SDPA      | sdpa.py            | all       | SOFTMAX                    | causal, or all seen   | none           |
    | TILES     | tiled_attention.py | CPU, CUDA | SOFTMAX, ENTROPY, NULL_KEY | one document          | none or linear |

    On CUDA a path also needs a kernel for the precision and the number of channels (`sdpa.kernel_for`). On MPS, XPU and
    ROCm, whose log-sum-exps could not be checked, SDPA is the only fused path.

    Two cases are decided before this function is called. On a CPU, `AttentionSoftmax.forward` first tries WHOLE_ROWS
    (`whole_rows.cpp`). This path needs a C++ compiler, a normaliser with a `row_function`, and inputs that
    `whole_rows.fits` accepts. A normaliser of the form OWN decides by itself: alpha-entmax runs by `adasplash` on CUDA
    (`softmax/projection.py`).
    """
    if keys.documents is not None:
        alone = form is Form.SOFTMAX and bias is None
        return Path.DOCUMENTS if alone and varlen_kernel_for(q_BHQC) is not None else None
    takes_scores = form is Form.LOGITS or (bias is not None and form is not Form.ENTROPY)
    if takes_scores and flex.serves(q_BHQC, keys, bias):
        return Path.FLEX
    if form is Form.LOGITS:
        return None
    plain = form is Form.SOFTMAX and bias is None and (keys.is_plain_causal or keys.is_unmasked)
    if plain and kernel_for(q_BHQC) is not None:
        return Path.SDPA
    return Path.TILES if gives_log_sum_exps(q_BHQC, bias) else None


def gives_log_sum_exps(q_BHQC: Tensor, bias: Bias | None) -> bool:
    """Whether a kernel can return log-sum-exps for this call. No kernel can if the bias is not a `LinearBias`."""
    if not (bias is None or isinstance(bias, LinearBias)):
        return False
    row_11QC = q_BHQC[:1, :1, :1]  # with a bias tiles are float32, and they may need a mask
    kernel = kernel_for(row_11QC if bias is None else at_least_float32(row_11QC), masked=True)
    return kernel not in (None, Kernel.SDPA)
