"""Learning-rate schedules: the factor on the peak rate at each step.

Not torch's `SequentialLR` of `LinearLR` and `CosineAnnealingLR`: those multiply the last rate by a ratio, so only 60 of
600 rates come out bit-equal, and a resumed run would have to replay them. Here a rate is a function of the step alone.

Tested by tests/training/test_recipe.py.
"""

from __future__ import annotations

import math
from typing import final


class Schedule:
    """Base: a linear warm-up, then whatever the variant does with the rest."""

    def __init__(self, *, warmup_steps: int, final_fraction: float) -> None:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps={warmup_steps} must be at least 0")
        if not 0 <= final_fraction <= 1:
            raise ValueError(f"final_fraction={final_fraction} must lie between 0 and 1")
        self.warmup_steps, self.final_fraction = warmup_steps, final_fraction

    def factor(self, step: int, n_steps: int) -> float:
        """Factor on the peak rate for the update after `step` updates, of `n_steps` in all."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        rest = max(1, n_steps - self.warmup_steps)
        return self.after_warmup(min(1.0, (step - self.warmup_steps) / rest))

    def after_warmup(self, progress: float) -> float:
        """The factor at `progress` in 0..1 of the steps that follow the warm-up."""
        raise NotImplementedError


@final
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to a fraction of the peak.

    f + (1 - f) (1 + cos(pi t)) / 2

    Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
    """

    def after_warmup(self, progress: float) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * progress)) / 2


@final
class WarmupStableDecay(Schedule):
    """Linear warm-up, a plateau at the peak, then a linear decay over the last share of the steps after the warm-up.

    1 until t = 1 - d, then linear down to f at t = 1

    Hu et al. 2024, arXiv:2404.06395, section 4.
    """

    def __init__(self, *, warmup_steps: int, decay_fraction: float, final_fraction: float) -> None:
        super().__init__(warmup_steps=warmup_steps, final_fraction=final_fraction)
        if not 0 < decay_fraction <= 1:
            raise ValueError(f"decay_fraction={decay_fraction} must lie above 0 and at most at 1")
        self.decay_fraction = decay_fraction

    def after_warmup(self, progress: float) -> float:
        into_decay = max(0.0, (progress - (1 - self.decay_fraction)) / self.decay_fraction)
        return 1 - (1 - self.final_fraction) * into_decay
