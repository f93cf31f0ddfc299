"""Scale-invariant attention."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from roundround.kernels.bias import Bias, ScoreMod, at_each, relative_positions
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import checked_positive
from roundround.pe.p_rope import FastestPairs


class EqualMass(Bias):
    """Changes the logit at distance t to a(t) e + m(t); future keys count as distance 0."""

    n_hidden = 4

    def __init__(self, tau: float) -> None:
        self.tau = tau

    def at_distance(self, logits: Tensor, distances: Tensor) -> Tensor:
        ln = (distances.clamp(min=0).to(logits.dtype) / self.tau).log1p()
        return logits * (2 * ln + 1).sqrt() - 2 * ln

    def applied(self, logits_BHQK: Tensor, keys: Keys, a: int, b: int) -> Tensor:
        return self.at_distance(logits_BHQK, relative_positions(keys, a, b).neg())

    def score_mod(self, keys: Keys) -> ScoreMod:
        q_pos, k_pos = at_each(keys.q_pos_BQ[:, None]), at_each(keys.k_pos_BK[:, None])
        return lambda score, b, h, i, j: self.at_distance(score, q_pos(b, h, i) - k_pos(b, h, j))


@final
class ScaleInvariant(FastestPairs):
    """Gives each octave of distances the same expected weight, whatever the length; queries and keys have p-RoPE.

    e_ij <- a e_ij + m, a = sqrt(2 ln(t / tau + 1) + 1), m = -2 ln(t / tau + 1), t = i - j tokens

    Anson et al. 2025, arXiv:2505.17083: for standard normal logits, E[exp(a e + m)] = sqrt(exp(1)) / (t / tau + 1).

    `tau`: the distance in tokens from which logits change; the paper has 10. `p`: the share of the pairs that rotate,
    the fastest first.
    """

    def __init__(self, shape: AttentionShape, *, tau: float, p: float, theta: float | None) -> None:
        super().__init__(shape, p=p, theta=theta)
        checked_positive(tau=tau)
        self.tau = tau

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> EqualMass:
        return EqualMass(self.tau)
