"""Stick-breaking attention.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.softmax.base import AttentionSoftmax, exp_or_zero


@final
class StickBreaking(AttentionSoftmax):
    """From the latest key back, each key takes a share of what later keys left; the query's own token gets the rest.

    alpha_j = sigmoid(e_j) prod_{j<l<i} (1 - sigmoid(e_l)) for j < i, alpha_i = prod_{l<i} (1 - sigmoid(e_l))

    Tan et al. 2024, arXiv:2410.17980, section 2; the rest goes to token i as in the authors' tests
    (shawntan/stickbreaking-attention, `out + rem v`).

    The own token i is the last key that the query sees; its logit is not used. The order of the keys is the position,
    so there is no encoding beside it (`pe=nope`).
    """

    orders_keys: ClassVar[bool] = True
    cost_in_blocks: ClassVar[float] = 9

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        n_from_here_B1QK = visible_B1QK.flip(-1).cumsum(-1).flip(-1)
        own_B1QK = visible_B1QK & (n_from_here_B1QK == 1)
        # at -80 a key takes nothing and leaves all; what is filled in passes no gradient
        taken_BHQK = logits_BHQK.masked_fill(~visible_B1QK | own_B1QK, -80.0)
        log_left = F.logsigmoid(-taken_BHQK)
        # each sum leaves out its own key instead of subtracting it, which would round by the largest logit
        log_left_by_later = F.pad(log_left, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
        alpha_BHQK = taken_BHQK.sigmoid() * exp_or_zero(log_left_by_later)
        return torch.where(own_B1QK, exp_or_zero(log_left.sum(-1, keepdim=True)), alpha_BHQK)
