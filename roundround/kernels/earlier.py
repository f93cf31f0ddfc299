"""The features of the few tokens before each token, as short convolutions read them.

Shapes: B batch, T new tokens, N earlier tokens, W channels, K all tokens so far.

Tested by tests/model/test_mix.py and tests/pe/test_selective_rope.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roundround.kernels.keys import Keys


def earlier_tokens(x_BTW: Tensor, n: int, keys: Keys, past_BNW: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """The features of the token before, of the one before that, and so on, n tensors [B, T, W]; and the last n to keep.

    They are 0 at padding and beyond the beginning of a document. keys: the `Keys` of all tokens so far. past_BNW: what
    this function gave to keep when the tokens before these were read; None at the beginning of a text.
    """
    n_new, valid_BK, documents = x_BTW.shape[1], keys.valid_BK, keys.documents
    if valid_BK is not None:
        x_BTW = x_BTW * valid_BK[:, -n_new:, None]
    if past_BNW is None:
        past_BNW = x_BTW.new_zeros(len(x_BTW), n, x_BTW.shape[2])
    both = torch.cat([past_BNW, x_BTW], 1)
    found = [both[:, n - i : n - i + n_new] for i in range(1, n + 1)]
    if documents is not None:
        place_BT = torch.arange(n_new, device=x_BTW.device) - documents.first_BT  # of a token in its document
        found = [x * (place_BT >= i)[..., None] for i, x in enumerate(found, 1)]
    return found, both[:, -n:]


def filtered(x_BTW: Tensor, earlier: list[Tensor], weight_W1N: Tensor) -> Tensor:
    """Causal depthwise convolution, y_t = sum_i w_(N - i) x_(t - i) for i < N; the weight is that of `nn.Conv1d`.

    earlier: the features of the N - 1 tokens before each token, from `earlier_tokens`.
    """
    taps = weight_W1N.squeeze(1).flip(-1).unbind(-1)
    return sum((x * w for x, w in zip(earlier, taps[1:], strict=True)), x_BTW * taps[0])
