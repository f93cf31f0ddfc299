"""Theorem 6.1: what a slow pair says about tokens does not last over a long context."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.pe.rotary import apply_rotation, rotation
from roundround.probing.layout import Layout, rotated
from roundround.theory.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_least, near
from roundround.theory.heads import logits
from roundround.theory.real_heads import calls, layouts
from roundround.theory.rows import weights

TARGET, OTHER = 64.0, 8.0  # q . k of the target and of every other key before any rotation
PLACES = 400  # of the target that are tried, spread evenly
LOST = {  # g: share of the places at which the target has at most half the weight, for N = 100, 1,000 and 10,000
    0.1: (0.57, 0.57, 0.57),
    0.01: (0.0, 0.59, 0.58),
    0.001: (0.0, 0.0, 0.60),
    1e-4: (0.0, 0.0, 0.0),
}
LENGTHS = (100, 1000, 10_000)
TOLERANCE = 0.01  # the shares are known to two digits, and those of long contexts come from PLACES alone

TEXT, QUERIES = 256, 32  # of a trained model: tokens of a text that are read, and queries of each head that are asked
LEAD = 1.0  # of the target's logit over the next: below it the channel picks nothing out
DISTANCES = 256  # tried of each context, spread evenly
TURN = 2 * math.pi


@final
class Thm61(Claim):
    """A head that finds a token by one slow pair loses it somewhere, if the context is long enough.

    one frequency g: logits |q| |k| cos(theta + g n), so for N g above about pi / 2 there is a place of the target at
    which alpha <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Theorem 6.1.
    """

    title: ClassVar[str] = "no slow channel lasts"

    def check(self) -> Finding:
        comparisons, curves = [], []
        for g, expected in LOST.items():
            comparisons += [
                near(
                    f"share of places where the target loses, g = {g:g}, {n:,} tokens",
                    share_lost(g, n),
                    share,
                    TOLERANCE,
                )
                for n, share in zip(LENGTHS, expected, strict=True)
            ]
        for g, n_points in ((0.1, 46), (0.01, 34)):
            n_g = [0.5 * 1.12**x for x in range(n_points)]
            curves.append(Curve(f"g = {g:g}", n_g, [share_lost(g, round(x / g)) for x in n_g]))
        lengths = range(100, 181)
        onset = next((n * 0.01 for n in lengths if share_lost(0.01, n) > 0), math.nan)
        comparisons += [
            Comparison("N g at which it loses first, g = 0.01", onset, 1.2, math.pi / 2),
            near("the same without a rotation, 1,000 tokens", share_lost(0.0, 1000), 0.0, 0),
        ]
        curves.append(Curve("N g = pi / 2", [math.pi / 2] * 2, [0.0, 0.7]))
        picture = Picture("N g in radians", "share of places where the target loses", curves, log="x")
        return Finding(comparisons, picture)

    def check_model(self, trained: Trained) -> Finding:
        channels = list(channels_of(trained))
        own = trained.probed.longest
        within = f"{own:,} tokens" + (", or its layer's window" if any(trained.probed.windows()) else "")
        n_targets = sum(len(channel.target_M2) for channel in channels)
        lengths = sorted({2**k for k in range(3, 18)} | {own})
        slowest = min((channel.frequency for channel in channels), default=1.0)
        turn = math.ceil(TURN / slowest)
        lost_here = torch.cat([channel.has_lost() for channel in channels] or [torch.empty(0)])
        picture = Picture(
            "context in tokens",
            "share of targets that lose somewhere",
            [
                Curve("any order of the tokens", lengths, [share_of(channels, n, others_move=True) for n in lengths]),
                Curve(
                    "the target moves, the others stay",
                    lengths,
                    [share_of(channels, n, others_move=False) for n in lengths],
                ),
                Curve("the model's own context", [own, own], [0.0, 1.0]),
            ],
            log="x",
        )
        return Finding(
            [
                at_least("targets looked at", n_targets, 1),
                Comparison(f"share that lose somewhere within the model's own {within}",
                           share_of(channels, None, others_move=True), 0, 1),
                Comparison(f"share that lose there while the others stay, {within}",
                           share_of(channels, None, others_move=False), 0, 1),
                Comparison("share that have lost where they stand", float(lost_here.double().mean()), 0, 1),
                at_least(f"share that lose within one turn of the slowest channel, {turn:,} tokens",
                         share_of(channels, turn, others_move=True), 1.0),
            ],
            picture,
            f"{by_turn(channels)}{len(channels)} channels: of each head the pair with most of the squared norm of "
            "queries and keys among the slower half of the pairs that rotate. A target is the key that the channel "
            f"prefers before rotation, by {LEAD:g} or more to any other token. The shares within the model's own "
            "context are measured, not claimed: the theorem speaks of contexts that are long enough.",
        )  # fmt: skip


def share_lost(g: float, n: int) -> float:
    """Share of the target's places within n tokens at which it has at most half of the last token's weight."""
    frequency, x = torch.tensor([g], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    cosine_N = logits(x, x, torch.arange(n), frequency)
    place_R = torch.linspace(0, n - 1, min(n, PLACES)).round().long()
    rows_RN = (OTHER * cosine_N).repeat(len(place_R), 1)
    rows_RN[torch.arange(len(place_R)), place_R] = TARGET * cosine_N[place_R]
    alpha_R = weights(rows_RN).gather(1, place_R[:, None])
    return float((alpha_R <= 0.5).double().mean())


@dataclass(frozen=True)
class Channel:
    """One pair of one head, as 2-vectors before rotation: queries, their targets and the best other token's, [M, 2].

    context: tokens that its layer sees of the model's own context. target_distance_M, other_distance_M: where the two
    stand, tokens before the query.
    """

    frequency: float
    context: int
    query_M2: Tensor
    target_M2: Tensor
    other_M2: Tensor
    target_distance_M: Tensor
    other_distance_M: Tensor

    def loses(self, length: int, *, others_move: bool) -> Tensor:
        """Whether the target's logit falls below the other's, for some place of the target within `length` tokens.

        others_move: for some place of either. [M], bool.
        """
        distances = torch.linspace(0, length - 1, min(length, DISTANCES)).round().long()
        lowest_M = self.at(self.target_M2, distances).amin(-1)
        if others_move:
            return lowest_M < self.at(self.other_M2, distances).amax(-1)
        return lowest_M < self.at(self.other_M2, self.other_distance_M[:, None])[:, 0]

    def has_lost(self) -> Tensor:
        """Whether it is below the other's where both stand: [M], bool."""
        target_M1 = self.at(self.target_M2, self.target_distance_M[:, None])
        return (target_M1 < self.at(self.other_M2, self.other_distance_M[:, None]))[:, 0]

    def at(self, key_M2: Tensor, distances: Tensor) -> Tensor:
        """Logits of the keys at distances [D], or [M, D], before their queries: [M, D]."""
        frequency = torch.tensor([self.frequency], dtype=torch.float64)
        cos, sin = rotation(-distances.reshape(-1, distances.shape[-1]), frequency)
        keys_MD2 = apply_rotation(key_M2[:, None, None].expand(-1, 1, distances.shape[-1], 2), cos, sin)[:, 0]
        return (keys_MD2 @ self.query_M2[..., None])[..., 0]


def channels_of(trained: Trained) -> Iterator[Channel]:
    """The slow channel of every head of a model with a target that it prefers clearly, on the first text."""
    tokens = torch.tensor(trained.texts[0][:TEXT])
    of_layers = calls(trained.probed, [(tokens.tolist(), 0)])
    layouts_of_all, windows = layouts(trained.probed, trained.texts), trained.probed.windows()
    for layout, call, window in zip(layouts_of_all, of_layers, windows, strict=True):
        if not layout.n_rotated:
            continue
        q_HTP2, k_HTP2 = (unrotated(x[0].double(), layout) for x in (call.q_BHTC * call.scale, call.k_BHTC))
        for q_TP2, k_TP2 in zip(q_HTP2, k_HTP2, strict=True):
            pair = slow_pair(q_TP2, k_TP2, layout)
            context = min(trained.probed.longest, window or trained.probed.longest)
            channel = channel_of(q_TP2[:, pair], k_TP2[:, pair], tokens, float(layout.frequencies_P[pair]), context)
            if len(channel.query_M2):
                yield channel


def unrotated(x_HTC: Tensor, layout: Layout) -> Tensor:
    """Pairs of channels turned back from position t to 0: [H, T, P, 2]."""
    angles_TP = -torch.arange(x_HTC.shape[1])[:, None] * layout.frequencies_P
    return rotated(layout.split(x_HTC), angles_TP)


def slow_pair(q_TP2: Tensor, k_TP2: Tensor, layout: Layout) -> int:
    """The pair with the largest share of the squared norm among the slower half of those that rotate."""
    share_P = sum(x.square().sum((0, 2)) / x.square().sum() for x in (q_TP2, k_TP2))
    assert isinstance(share_P, Tensor)
    by_speed = [int(pair) for pair in layout.frequencies_P.argsort(descending=True) if layout.frequencies_P[pair] > 0]
    slower = by_speed[len(by_speed) // 2 :]
    return max(slower, key=lambda pair: float(share_P[pair]))


def channel_of(q_T2: Tensor, k_T2: Tensor, tokens_T: Tensor, frequency: float, context: int) -> Channel:
    """The channel with those of QUERIES late queries that prefer one token by LEAD or more before any rotation.

    The best other token is one of another kind: copies of the target are not its rivals. The first token is no target.
    """
    n = len(tokens_T)
    at = torch.arange(n // 2, n, max(1, n // 2 // QUERIES))
    distance_MT = at[:, None] - torch.arange(n)
    logits_MT = (q_T2[at] @ k_T2.T).masked_fill((distance_MT < 0) | (distance_MT >= context), -torch.inf)
    logits_MT[:, 0] = -torch.inf
    best_M = logits_MT.argmax(-1)
    of_others_MT = logits_MT.masked_fill(tokens_T == tokens_T[best_M][:, None], -torch.inf)
    next_M = of_others_MT.argmax(-1)
    lead_M = logits_MT.amax(-1) - of_others_MT.amax(-1)
    clear = (lead_M >= LEAD) & lead_M.isfinite()
    chosen = (q_T2[at], k_T2[best_M], k_T2[next_M], at - best_M, at - next_M)
    return Channel(frequency, context, *(x[clear] for x in chosen))


def share_of(channels: list[Channel], length: int | None, *, others_move: bool) -> float:
    """Of the targets of all channels, those that lose somewhere within a context, None for each channel's own.

    NaN where there is no target.
    """
    found = [channel.loses(length or channel.context, others_move=others_move) for channel in channels]
    return float(torch.cat(found).double().mean()) if found else math.nan


def by_turn(channels: list[Channel]) -> str:
    """A sentence about the channels that turn far enough within the model's own context, and about the others."""
    sentences = []
    for name, far in (("above", True), ("below", False)):
        some = [channel for channel in channels if (channel.frequency * channel.context > math.pi / 2) == far]
        if some:
            lost = share_of(some, None, others_move=False)
            sentences.append(f"Of the {len(some)} channels with N g {name} pi / 2, {lost:.2f} of the targets lose. ")
    return "".join(sentences)
