"""The entropy of a row from one pass over its keys: what the adaptive temperature needs beside fused attention."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention import fused
from roundround.attention.keys import Keys
from roundround.papers.claim import Claim, Comparison, Finding, near
from roundround.papers.constructions import random_vector
from roundround.papers.softmax.temperature import adaptive, beta_by_listing
from roundround.support.panels import Curve, Panel

CHANNELS, TILE = 16, 64
LENGTHS, SPREADS = (17, 300, 4096, 16_384), (0.1, 1.0, 5.0, 20.0)  # keys of one row; deviations of its logits
CAUSAL, WINDOWS = 512, (None, 100)  # a text of which every row is asked, and what its rows see of it
EPS = 2.0**-52
STEEPEST = 2.6  # d beta / dH where the polynomial exceeds 1, at its upper end


@final
class StreamingEntropy(Claim):
    """The entropy of a row comes from one pass over tiles of its keys, with three numbers kept for a row; a second
    pass, ordinary attention with the logits times beta, gives the adaptive temperature.

    kept: m = max e, Z = sum exp(e - m), S = sum e exp(e - m), both times exp(m_old - m) where m rises; H = m + ln Z -
    S / Z

    Velickovic et al. 2024, arXiv:2410.01104, appendix. Its listing was not seen; this recurrence is derived here. The
    program keeps the log-sum-exp and the mean key instead: H = log-sum-exp - q . E[k].
    """

    title: ClassVar[str] = "entropy in one pass"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        found: dict[str, list[float]] = {"this program, one fused pass": [], "three numbers a row, by numpy": []}
        for spread in SPREADS:
            heads = [Head.drawn(1, n, spread) for n in LENGTHS]
            (rows,) = zip(*(head.logits() for head in heads), strict=True)
            expected = np.array([entropy(row) for row in rows])
            ours = (
                np.array([float(head.entropy()) for head in heads]),
                np.array([entropy_in_tiles(row) for row in rows]),
            )
            for (name, errors), entropies in zip(found.items(), ours, strict=True):
                errors.append(float(np.abs(entropies - expected).max()))
                what = f"largest error in nats, 17 to 16,384 keys, logits of deviation {spread:g}: {name}"
                comparisons.append(near(what, errors[-1], 0.0, rounding(rows)))
        for window in WINDOWS:
            head, name = (
                Head.drawn(CAUSAL, CAUSAL, 3.0, window),
                "causal" if window is None else f"a window of {window}",
            )
            rows = head.logits()
            error = np.abs(head.entropy().numpy() - [entropy(row) for row in rows]).max()
            of_weights = rounding(rows) * (1 + STEEPEST * largest(rows))  # of beta times a logit
            comparisons += [
                near(f"largest error in nats, every row of {CAUSAL} tokens, {name}", float(error), 0.0, rounding(rows)),
                near(f"largest error of the adaptive temperature's output by two passes, {name}",
                     head.error_of_adaptive(), 0.0, 8 * of_weights),
            ]  # fmt: skip
        curves = [Curve(name, SPREADS, errors, points=True) for name, errors in found.items()]
        return Finding(comparisons, Panel("deviation of the logits", "largest error in nats", curves, "x"))


class Head(NamedTuple):
    """Queries of the last tokens and all keys and values, [1, 1, N, C] each, float64, logits q . k."""

    q: Tensor
    k: Tensor
    v: Tensor
    keys: Keys

    @classmethod
    def drawn(cls, n_queries: int, n: int, spread: float, window: int | None = None) -> Head:
        """Normal, so that the logits have this standard deviation."""
        k, v, q = random_vector(3, 1, 1, n, CHANNELS, seed=n)
        pos = torch.arange(n)[None]
        keys = Keys(q_pos_BQ=pos[:, n - n_queries :], k_pos_BK=pos, window=window)
        return cls(q[:, :, n - n_queries :] * spread / CHANNELS**0.5, k, v, keys)

    def logits(self) -> list[np.ndarray]:
        """Of every query with its visible keys, by numpy."""
        q, k = self.q[0, 0].numpy(), self.k[0, 0].numpy()
        ends = range(len(k) - len(q) + 1, len(k) + 1)
        return [k[max(0, end - (self.keys.window or end)) : end] @ one for one, end in zip(q, ends, strict=True)]

    def entropy(self) -> Tensor:
        """Of every row, by this program."""
        return fused.entropy(self.q, self.k, scale=1.0, keys=self.keys)[0, 0, :, 0]

    def error_of_adaptive(self) -> float:
        """Of a coordinate of the output, against weights written out; the values are standard normal."""
        ours = adaptive()(self.q, self.k, self.v, scale=1.0, keys=self.keys, bias=None, rows={})[0, 0].numpy()
        values, worst = self.v[0, 0].numpy(), 0.0
        for end, logits in enumerate(self.logits(), start=1):
            p = softmax(beta_by_listing(entropy(logits)) * logits)
            worst = max(worst, float(np.abs(p @ values[end - len(p) : end] - ours[end - 1]).max()))
        return worst


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max())
    return np.asarray(p / p.sum())


def entropy(logits: np.ndarray) -> float:
    """-sum p ln p, written out."""
    p = softmax(logits)
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum())


def entropy_in_tiles(logits: np.ndarray) -> float:
    """The recurrence, TILE keys at a time."""
    m, z, s = -np.inf, 0.0, 0.0
    for start in range(0, len(logits), TILE):
        e = logits[start : start + TILE]
        risen = max(m, float(e.max()))
        p, shrink = np.exp(e - risen), np.exp(m - risen)
        m, z, s = risen, z * shrink + p.sum(), s * shrink + (e * p).sum()
    return float(m + np.log(z) - s / z)


def largest(rows: list[np.ndarray] | tuple[np.ndarray, ...]) -> float:
    """Size of a logit."""
    return max(float(np.abs(row).max()) for row in rows)


def rounding(rows: list[np.ndarray] | tuple[np.ndarray, ...]) -> float:
    """Of an entropy in nats: a difference of means of logits, each a sum of CHANNELS products, and of logarithms."""
    return 4 * CHANNELS * EPS * (largest(rows) + math.log(max(map(len, rows))))
