"""Theorem 5.3: with RoPE one head can attend to any fixed distance, as sharply as its norms allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.probing.probe import Probe, observe
from roundround.theory.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_least, at_most, near
from roundround.theory.heads import HEAD_DIM, frequencies, ladder_by_formula, logits, turned
from roundround.theory.rows import weights

WEIGHT = 0.99
LENGTHS = (20, 1024, 8192)
BANDS = {  # pairs from 0, and the norm |psi|^2 needed at each length
    "8 fastest": (range(8), (15.6, 19.1, 34.2)),
    "16 fastest": (range(16), (23.0, 23.0, 23.6)),
    "32 fastest": (range(32), (41.7, 41.7, 41.7)),
    "all 128": (range(128), (165, 165, 165)),
    "32 middle": (range(48, 80), (4.0e4, 4.0e4, 4.0e4)),
    "32 slowest": (range(96, 128), (4.0e7, 4.0e7, 4.0e7)),
    "fastest alone": (range(1), (407, 2.5e9, 2.5e9)),
}
JUMPS = {45: 2.9e4, 711: 2.5e9}  # length at which the fastest pair alone has a new near miss, and the norm needed there
PLACES_ASKED = ("itself", "the token before")  # the first two of probing's PLACES
BANDS_TAKEN = {
    "none": "all pairs",
    "fastest": "without the fastest quarter",
    "slowest": "without the slowest quarter",
}
CLEAR = 0.3  # of a trained head's weight on one place: to call it a head for that place


@final
class Thm53(Claim):
    """With RoPE a head can put as much weight as it likes on the token itself, or on the one before, at any length.

    q = k = psi: alpha_ii = 1 / (1 + sum_n exp(|psi|^2 (f(n) - 1))) -> 1 as |psi|^2 grows, f(n) = sum_k w_k cos(n g_k);
    k = R psi moves the maximum to the token before

    Barbero et al. 2024, arXiv:2410.06205, Theorem 5.3.
    """

    title: ClassVar[str] = "RoPE can attend to a fixed distance"

    def check(self) -> Finding:
        comparisons, curves = [], []
        lengths = sorted({2**k for k in range(1, 14)} | {n - 1 for n in JUMPS} | set(JUMPS))
        for name, (pairs, expected) in BANDS.items():
            f_N = shares(pairs)
            comparisons += [
                near(f"|psi|^2 for weight {WEIGHT}, {name}, {n:,} tokens", needed(f_N[:n]), norm, half_a_digit(norm))
                for n, norm in zip(LENGTHS, expected, strict=True)
            ]
            if name in ("8 fastest", "all 128", "32 middle", "32 slowest", "fastest alone"):
                curves.append(Curve(name, lengths, [needed(f_N[:n]) for n in lengths]))
        picture = Picture("tokens N", f"|psi|^2 needed for weight {WEIGHT}", curves, log="xy")
        return Finding([*comparisons, *jumps(), *to_the_token_before()], picture)

    def check_model(self, trained: Trained) -> Finding:
        return of_probe(observe(trained.probed, trained.texts, entropy=False))


def shares(pairs: range) -> Tensor:
    """f(n) for n = 0 .. 8191: the logit of q = k = psi over |psi|^2, which lies equally on these pairs: [N]."""
    psi = equal_norms(pairs)
    return logits(psi, psi, torch.arange(max(LENGTHS)), frequencies())


def equal_norms(pairs: range) -> Tensor:
    """A vector of length 1, of equal norm on these pairs: [C]."""
    psi = torch.zeros(HEAD_DIM, dtype=torch.float64)
    psi[list(pairs)] = len(pairs) ** -0.5
    return psi


def needed(f_N: Tensor, place: int = 0) -> float:
    """The norm |psi|^2 at which the key at this distance has the weight WEIGHT, by bisection of its logarithm."""
    low, high = 0.0, 40.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        enough = float(weights(math.exp(middle) * f_N[None])[0, place]) >= WEIGHT
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def half_a_digit(value: float) -> float:
    """Half a unit of the last digit of a number given to three digits, or to two from 1e4 on."""
    digits = 3 if value < 1e4 else 2
    return 0.501 * 10.0 ** (math.floor(math.log10(value)) + 1 - digits)


def jumps() -> list[Comparison]:
    """Where a single frequency of 1 all but repeats: 44 is near 7 turns and 710 near 113."""
    f_N, found = shares(range(1)), []
    for n, expected in JUMPS.items():
        there, before = needed(f_N[:n]), needed(f_N[: n - 1])
        alone = math.log(WEIGHT / (1 - WEIGHT)) / (1 - math.cos(n - 1))  # against the near miss and no other key
        found += [
            near(f"|psi|^2 needed by the fastest pair alone, {n} tokens", there, expected, half_a_digit(expected)),
            near(f"the same over that for the near miss alone, {n} tokens", there / alone, 1.0, 0.01),
            at_most(f"what one token less needs, as a share, {n - 1} tokens", before / there, 0.1),
        ]
    return found


def to_the_token_before() -> list[Comparison]:
    """k = R psi; its weight against the formula, which has a key at distance 0 beside those beyond."""
    psi, distances, norm = equal_norms(range(8)), torch.arange(1024), 20.0
    ladder = ladder_by_formula()
    logits_N = norm * logits(psi, turned(psi, ladder), distances, frequencies())
    f_N = (torch.cos((distances[:, None] - 1) * ladder[None, :8])).mean(-1)
    formula = float(1 / (norm * (f_N - 1)).exp().sum())
    drawn_N = logits(turned(psi, ladder), psi, torch.arange(-5, 6), frequencies())
    return [
        near("distance of the largest weight with k = R psi", int(logits_N.argmax()), 1, 0),
        near(f"weight on the token before, |psi|^2 = {norm:g}", float(weights(logits_N[None])[0, 1]), formula, 1e-9),
        at_least(f"the same for |psi|^2 = {2 * norm:g}", float(weights(2 * logits_N[None])[0, 1]), WEIGHT),
        near("distance of the largest weight with the vectors of figure 1, q = R psi and k = psi: one token ahead",
             int(drawn_N.argmax()) - 5, -1, 0, published=1),
    ]  # fmt: skip


def of_probe(probe: Probe) -> Finding:
    """The head with most weight on itself and that with most on the token before, and the band on which each rests.

    That a model has no head for one of the places refutes nothing; it does where it has one for neither.
    """
    assert probe.rows is not None, "weights come from sampled rows"
    by_band = {band: probe.rows.places(band) for band in BANDS_TAKEN}
    comparisons, remarks, best = [], [], []
    for place, name in enumerate(PLACES_ASKED):
        layer, head = strongest_head(by_band["none"], place)
        share = {band: float(places[layer][head, place]) for band, places in by_band.items()}
        where = f"layer {layer}, head {head}"
        if share["none"] >= CLEAR:
            what = f"weight on {name} without the fastest quarter, at most that without the slowest, {where}"
            comparisons.append(at_most(what, share["fastest"], share["slowest"]))
        remarks.append(
            f"On {name}: {where}, {share['none']:.2f}; without its fastest quarter {share['fastest']:.2f}, without its "
            f"slowest {share['slowest']:.2f}; {strongest_pairs(probe, layer, head)}."
        )
        best.append(share)
    largest = max(share["none"] for share in best)
    comparisons.append(at_least("largest weight of a head on itself or on the token before", largest, CLEAR))
    labels = [label for heads in probe.labels() for label, _ in heads]
    counts = f"{labels.count('diagonal')} rest on the token itself and {labels.count('previous')} on the one before."
    curves = [
        Curve(name, list(PLACES_ASKED), [share[band] for share in best], points=True)
        for band, name in BANDS_TAKEN.items()
    ]
    picture = Picture("of the head with most weight there", "share of the weight", curves)
    return Finding(comparisons, picture, " ".join([*remarks, f"Of {len(labels)} heads {counts}"]))


def strongest_head(places: Sequence[Tensor], place: int) -> tuple[int, int]:
    """Layer and head with most weight on this place; `places` is [H, 7] for every layer."""
    largest = [float(shares_H7[:, place].max()) for shares_H7 in places]
    layer = largest.index(max(largest))
    return layer, int(places[layer][:, place].argmax())


def strongest_pairs(probe: Probe, layer: int, head: int) -> str:
    """The pair with most of the squared norm of this head's queries, and of its keys; the first token apart."""
    n_heads, parts = len(probe.norms.mean("query", "square")[layer]), []
    for kind in ("query", "key"):
        square_HP = probe.norms.mean(kind, "square", first_token=False)[layer]
        square_P = square_HP[head * len(square_HP) // n_heads]
        pair = int(square_P.argmax())
        g = float(probe.layouts[layer].frequencies_P[pair])
        parts.append(f"{kind} strongest on pair {pair} (g = {g:.2g}) with norm {float(square_P[pair]) ** 0.5:.1f}")
    return ", ".join(parts)
