"""The Python interface: `import roundround as rr`, then `rr.load`, `rr.probe`, `rr.patch` and `rr.compare`.

Shapes: L layers, H heads, G key heads, P channel pairs, D distances.

Tested by tests/loading/test_hf_load.py and tests/loading/test_hf_patch.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from roundround.analysis.compare import compare as compare
from roundround.attention.keys import AttentionShape
from roundround.config.options import load_option, named
from roundround.data.tokenizers import Vocabulary
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.probing.probe import BATCH_TOKENS, Probe, observe
from roundround.probing.probed_model import ProbedDecoder, ProbedModel
from roundround.runs.directories import find_run
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError, nearest


class Loaded(NamedTuple):
    """A decoder trained here, in evaluation mode on the CPU, and its tokenizer.

    `model(tokens_BT)` gives logits [B, T, V]; `tokenizer.encode(text)` token ids, `tokenizer.decode(ids)` text.
    """

    model: Decoder
    tokenizer: Vocabulary


def load(run: str | Path, *, checkpoint: str = "best", outputs: str = "outputs", trust: bool = False) -> Loaded:
    """The model and tokenizer of a training run.

    run: its directory, or `last` for the latest finished one under `outputs`. checkpoint: best, last or step-00000100.
    trust: build classes from outside roundround that the run names; their folder, or the copy that the run kept
    (`RUN/variants`), must be on `sys.path`. Raises UserError where there is no such run.
    """
    from roundround.loading.models import TrainedRun

    source = find_run(str(run), outputs, "train", done=True)
    trained = TrainedRun(source, trust=trust)
    return Loaded(trained.decoder(checkpoint), trained.vocabulary())


def probe(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    rows: bool = True,
    entropy: bool = True,
    batch_tokens: int = BATCH_TOKENS,
) -> Probe:
    """How a decoder uses the frequencies of its RoPE, read off one pass over `texts`.

    model, tokenizer: a Hugging Face decoder (patched or not) and its tokenizer, or what `load` returns. rows: also
    sample rows of attention, for labels, logits by frequency, largest weight and logit spread. entropy: also the
    entropy of every row, a second pass of attention. Memory depends on `batch_tokens` and the longest text, not on how
    many texts there are.

    Returns a `Probe`: `probe.arrays()["query_norm"]` is [L, H, P], the mean length of each 2-D chunk, fastest pair
    first; `probe.labels()` names every head. Raises UserError for a model without RoPE, with a layout that is not
    known, or that is not causal.
    """
    if isinstance(model, Decoder):
        if not isinstance(tokenizer, Vocabulary):
            raise UserError("a model of rr.load goes with its tokenizer: model, tokenizer = rr.load(run)")
        own = ProbedDecoder("run", model, tokenizer.tokenizer, tokenizer.first_token)
        return watch(own, texts, rows, entropy, batch_tokens)
    from roundround.loading.load import ProbedHuggingFaceModel, as_pretrained_model
    from roundround.loading.patching.attention import installed, is_patched

    checked = as_pretrained_model(model)
    name = str(checked.config.name_or_path or type(checked).__name__)
    with nullcontext() if is_patched(checked) else installed(checked):
        return watch(ProbedHuggingFaceModel(name, checked, tokenizer), texts, rows, entropy, batch_tokens)


def watch(probed: ProbedModel, texts: Sequence[str], rows: bool, entropy: bool, batch_tokens: int) -> Probe:
    were_training = [module for module in probed.model.modules() if module.training]
    probed.model.eval()
    try:
        return observe(
            probed, [probed.tokens(text) for text in texts], rows=rows, entropy=entropy, batch_tokens=batch_tokens
        )
    finally:
        for module in were_training:
            module.training = True


def patch(
    model: nn.Module,
    softmax: str | Callable[[AttentionShape], AttentionSoftmax] | None = None,
    pe: str | Callable[[AttentionShape], PositionalEncoding] | None = None,
    **numbers: float | bool | list[float] | None,
) -> Any:
    """Put a normaliser, or RoPE of another kind, into a loaded Hugging Face model, in place.

    softmax, pe: the name of an option (`roundround list softmax`), or a function from an AttentionShape to the module.
    An encoding may differ by layer; one whose `theta` is not given keeps the model's own base, that of each layer where
    they have several. numbers: changes to the yamls of the options that are named, such as `temperature=0.5, p=0.25`;
    each goes to the one that has it. Returns a `Patch`: call its `remove()`, or use it in a `with` block, which gives
    the model:

        with rr.patch(model, softmax="adaptive_temperature"):
            model.generate(...)

    Generation with a cache works, and `output_attentions=True` gives the weights of the normaliser. Learned parameters
    start as the yaml says and join `model.parameters()`. Raises UserError for what cannot be honoured, such as a soft
    cap of the model's own beside another normaliser.
    """
    from roundround.loading.load import as_pretrained_model
    from roundround.loading.patching.patch import Patch

    checked = as_pretrained_model(model)
    if softmax is None and pe is None:
        raise UserError("rr.patch needs softmax=... or pe=...")
    families: dict[str, tuple[Any, type[nn.Module]]] = {
        "softmax": (softmax, AttentionSoftmax),
        "pe": (pe, PositionalEncoding),
    }
    known = {
        group: {*load_option(group, of)} - {"_target_"} for group, (of, _) in families.items() if isinstance(of, str)
    }
    makers: dict[str, Any] = {}
    for group, (of, family) in families.items():
        own = {name: value for name, value in numbers.items() if name in known.get(group, ())}
        makers[group] = named(group, of, family, **own) if group in known else of
    for name in numbers:
        n_having = sum(name in names for names in known.values())
        if n_having != 1:
            what = "several options named have" if n_having else "no option named has"
            raise UserError(
                f"{what} a parameter '{name}'{nearest(name, [key for names in known.values() for key in names])}"
            )
    with torch.no_grad():
        patched = Patch(checked, makers["softmax"], makers["pe"])
    if patched.remark is not None:
        warnings.warn(patched.remark, stacklevel=2)
    return patched
