"""Three short rows that are added to the first batch of a probe, and check two properties of the model.

Row 0 is a text, row 1 the same text SHIFT positions later, row 2 the same with other tokens in its second half. Rows 0
and 1 show how each layer rotates its channels. Rows 0 and 2 must not differ before the change: else the model is not
causal.
Shapes: B batch, T tokens, H heads, C head channels, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roundround.attention.precision import at_least_float32
from roundround.probing.layout import SHIFT, Layout, read_layout
from roundround.support.errors import UserError

N_ROWS = 3
N_TOKENS = 16
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the output, relative to its size; half precision: 0.05


class SelfTest:
    """The rows, and what follows from the model's answers to them."""

    def __init__(self, tokens: Sequence[int], tables: Sequence[Tensor], name: str) -> None:
        """`tokens`: ids to take the rows from, at least two different ones; `tables`: see `read_layout`."""
        different = list(dict.fromkeys(tokens))
        if len(different) < 2:
            raise UserError("the texts hold a single token again and again; a probe needs at least two different ones")
        own = [different[i % len(different)] for i in range(N_TOKENS)]
        self.changed_from = N_TOKENS // 2
        changed = own[: self.changed_from] + [
            different[(i + 1) % len(different)] for i in range(N_TOKENS // 2, N_TOKENS)
        ]
        self.rows = [(own, 0), (own, SHIFT), (changed, 0)]  # tokens, and the position of the first
        self.tables, self.name = tables, name

    def layout(self, layer: int, q_BHTC: Tensor) -> Layout:
        """The layout of a layer from its queries of a batch that begins with the rows. UserError for an unknown one."""
        layout = read_layout(q_BHTC[0, :, :N_TOKENS], q_BHTC[1, :, :N_TOKENS], self.tables)
        if layout is None:
            raise UserError(
                f"layer {layer} of {self.name} rotates its channels in a way that roundround does not know "
                "(neither half-split nor interleaved RoPE at the model's own frequencies)"
            )
        return layout

    def check_causality(self, hidden_BTD: Tensor) -> None:
        """UserError where the model's output of a batch that begins with the rows depends on later tokens."""
        before, after = (at_least_float32(hidden_BTD[row, :N_TOKENS]) for row in (0, 2))
        leak = (before - after)[: self.changed_from].norm() / before[: self.changed_from].norm()
        if not float(leak) <= TOLERANCE.get(hidden_BTD.dtype, 0.05):
            raise UserError(f"{self.name} is not causal: a later token changes earlier outputs; probes need a decoder")
        if not bool((before - after)[self.changed_from :].any()):
            raise UserError(f"{self.name} ignores its input: other tokens give the same output")
