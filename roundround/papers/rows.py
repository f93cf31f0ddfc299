"""Rows of attention for the statements about softmax: of logits that are given, of keys that are alike, of a model.

All weights come from this program's own normalisers. Shapes: H heads, R rows, K keys, C head channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundround.attention.blocks import logits_of_rows, rows_between
from roundround.attention.kernels import repeated
from roundround.attention.keys import AttentionShape, Keys
from roundround.attention.row_measures import entropy_of_logits, extreme_logits, shannon_entropy
from roundround.probing.probe import run
from roundround.probing.probed_model import ProbedModel, watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.row_scale import RowScale
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature

SHAPE = AttentionShape(n_heads=1, n_key_heads=1, head_dim=16, d_model=16, layer=0, train_length=2048)
FEWEST = 8  # keys of a row that is held against a bound
MOST_TEXTS, MOST_ROWS = 8, 64  # of a model's texts, and rows of each, spread evenly


def weights(logits_RK: Tensor, softmax: AttentionSoftmax | None = None) -> Tensor:
    """Weights of rows that see all their keys, by the plain softmax where no other is given: [R, K]."""
    visible_RK = torch.ones_like(logits_RK, dtype=torch.bool)
    n_visible = visible_RK.sum(-1)[None, None, :, None]
    softmax = Softmax(SHAPE) if softmax is None else softmax
    return softmax.weights(logits_RK[None, None], visible_RK, {"n_visible": n_visible})[0, 0].detach()


def causal_weights(q_NC: Tensor, k_NC: Tensor) -> Tensor:
    """Weights of a causal head with these queries and keys, rotated already, logits q . k: [N, N]."""
    pos_1N = torch.arange(len(q_NC))[None]
    keys = Keys(q_pos_BQ=pos_1N, k_pos_BK=pos_1N)
    logits, visible = logits_of_rows(q_NC[None, None], k_NC[None, None], 1.0, keys, None, 0, len(q_NC))
    return Softmax(SHAPE).weights(logits, visible, rows_between({}, visible, 0, len(q_NC)))[0, 0]


def weights_at(temperature: float, logits_RK: Tensor) -> Tensor:
    """The same at a fixed temperature."""
    return weights(logits_RK, Temperature(SHAPE, temperature=temperature))


def lone_weight(lead: float, n: float, softmax: RowScale | None = None) -> float:
    """Weight of one key that leads n - 1 keys, all alike, by `lead`; any n: those are one key with ln(n - 1) more.

    A row scale multiplies the lead, at the entropy that the row has without it.
    """
    if softmax is not None:
        one_11 = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        beta = softmax.beta(n * one_11, lambda: lone_entropy(lead, n) * one_11)
        lead = lead if beta is None else lead * float(torch.as_tensor(beta).flatten()[0])
    return float(weights(torch.tensor([[lead, math.log(n - 1)]], dtype=torch.float64))[0, 0])


def lone_entropy(lead: float, n: float) -> float:
    """Entropy in nats of that row under the plain softmax: of one against the rest, and within the rest."""
    share = lone_weight(lead, n)
    of_two = shannon_entropy(torch.tensor([share, 1 - share], dtype=torch.float64))
    return float(of_two) + (1 - share) * math.log(n - 1)


def first_length(is_reached: Any, longest: float) -> float:
    """Smallest whole n from 2 to `longest` at which `is_reached(n)`, which stays so once it is; infinite where none."""
    low, high = 1, int(longest)
    if not is_reached(high):
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return float(high)


def slope(x: Sequence[float], y: Sequence[float] | Tensor) -> float:
    """Of the straight line through the points, by least squares, in log-log."""
    x_N = torch.tensor(x, dtype=torch.float64).log()
    y_N = torch.as_tensor(y, dtype=torch.float64).log()
    x_N = x_N - x_N.mean()
    return float((x_N * (y_N - y_N.mean())).sum() / x_N.square().sum())


@dataclass(frozen=True)
class ModelRows:
    """Sampled rows of one text in one layer.

    logits_HRK: what the exponential takes: scaled, biased, times the inverse temperature of the model's normaliser
    where it is a row scale. alpha_HRK: the softmax of them, as the model's normaliser gives it where it is a row
    scale, else the plain one. visible_RK, and n_R, the number of visible keys. q_HRC is scaled, k_HKC is not.
    """

    layer: int
    logits_HRK: Tensor
    alpha_HRK: Tensor
    visible_RK: Tensor
    q_HRC: Tensor
    k_HKC: Tensor
    scale: float

    @property
    def n_R(self) -> Tensor:
        return self.visible_RK.sum(-1)

    @property
    def many_R(self) -> Tensor:
        """Rows that see enough keys for a bound to mean something: one key alone has every bound, two nearly so."""
        return self.n_R >= min(FEWEST, int(self.n_R.max()))

    @property
    def spread_HR(self) -> Tensor:
        """delta of each row."""
        largest, smallest = extreme_logits(self.logits_HRK, self.visible_RK)
        return largest - smallest

    @property
    def largest_HR(self) -> Tensor:
        return self.alpha_HRK.amax(-1)

    @property
    def smallest_HR(self) -> Tensor:
        """The smallest weight of a visible key."""
        return self.alpha_HRK.masked_fill(~self.visible_RK, torch.inf).amin(-1)


@torch.no_grad()
def rows_of_model(
    probed: ProbedModel, texts: Sequence[Sequence[int]], lengths: Sequence[int] | None = None
) -> Iterator[ModelRows]:
    """Rows of each layer for the first texts, float64; those that see `lengths` keys, else some spread evenly."""
    found: list[ModelRows] = []

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        n = qkv[0].shape[2]
        if lengths is None:
            rows_R = torch.linspace(0, n - 1, min(n, MOST_ROWS)).round().long()
        else:
            rows_R = torch.tensor([length - 1 for length in lengths if length <= n])
        found.append(sampled(softmax, qkv[0], qkv[1], rows_R, options))

    for text in texts[:MOST_TEXTS]:
        with watching(probed.normalisers, take_in):
            run(probed, [(text, 0)])
        yield from found
        found.clear()


def sampled(
    softmax: AttentionSoftmax, q_BHQC: Tensor, k_BGKC: Tensor, rows_R: Tensor, options: dict[str, Any]
) -> ModelRows:
    """Some rows of the first text of a call of attention, computed one by one from its queries and keys."""
    q, k, keys = q_BHQC[:1].double(), k_BGKC[:1].double(), options["keys"]
    scaled: list[Tensor] = []
    alpha: list[Tensor] = []
    visible: list[Tensor] = []
    for row in rows_R.tolist():
        first, last = keys.span(row, row + 1)
        around = (first, k.shape[2] - last)
        logits, seen = logits_of_rows(q, k, options["scale"], keys, options["bias"], row, row + 1)
        own = rows_between(options["rows"], seen, row, row + 1)
        beta, normaliser = inverse_temperature_of(softmax, logits, seen, own["n_visible"])
        weights_1H1K = normaliser.weights(logits, seen, own)
        for parts, value in ((scaled, logits * beta), (alpha, weights_1H1K), (visible, seen)):
            parts.append(torch.nn.functional.pad(value[0], around))
    return ModelRows(
        layer=softmax.shape.layer,
        logits_HRK=torch.cat(scaled, 1).cpu(),
        alpha_HRK=torch.cat(alpha, 1).cpu(),
        visible_RK=torch.cat(visible, 1)[0].cpu(),
        q_HRC=(q[0, :, rows_R] * options["scale"]).cpu(),
        k_HKC=repeated(k, q)[0].cpu(),
        scale=options["scale"],
    )


def inverse_temperature_of(
    softmax: AttentionSoftmax, logits_BHQK: Tensor, visible_B1QK: Tensor, n_visible: Tensor
) -> tuple[Tensor | float, AttentionSoftmax]:
    """What a row scale multiplies these logits by, and that row scale; 1 and the plain softmax for any other."""
    if not isinstance(softmax, RowScale):
        return 1.0, Softmax(softmax.shape)
    beta = softmax.beta(n_visible.double(), lambda: entropy_of_logits(logits_BHQK, visible_B1QK))
    return 1.0 if beta is None else beta, softmax
