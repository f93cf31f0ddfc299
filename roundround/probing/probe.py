"""The microscope: texts go through a model once, and every statistic watches each call of attention.

Shapes: L layers, B batch, T tokens, H heads, G key heads, C head channels, P pairs, D distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roundround.errors import UserError
from roundround.interface import Keys
from roundround.probing.dispersion import fused_entropies
from roundround.probing.layout import Layout
from roundround.probing.norms import KINDS, PairNorms
from roundround.probing.rows import PLACES, RowStatistics
from roundround.probing.selftest import N_ROWS, SelfTest
from roundround.probing.subject import Subject
from roundround.softmax.base import AttentionSoftmax

BATCH_TOKENS = 1024  # tokens at once: what a probe holds in memory depends on this, not on how much text it reads


@dataclass
class Probe:
    """What a probe found; see docs/probing.md.

    name: the subject's. n_texts, n_tokens: what it read. layouts: the channel pairs of each layer, as the model turns
    them. norms: [layer, head, pair]. rows: where weight goes, from sampled rows; None where not asked for.
    entropies: nats, mean over all rows, [H] for every layer; from the sampled rows where no fused kernel gives it.
    """

    name: str
    n_texts: int
    n_tokens: int
    layouts: list[Layout]
    norms: PairNorms
    rows: RowStatistics | None
    entropies: list[Tensor] | None = field(default=None)

    def labels(self) -> list[list[tuple[str, float]]]:
        """The label of every head and its score, the largest share of its weight: [layer][head]."""
        assert self.rows is not None, "labels come from sampled rows"
        return [
            [(PLACES[int(share_6.argmax())], float(share_6.max())) for share_6 in places_H6]
            for places_H6 in self.rows.places()
        ]

    def arrays(self) -> dict[str, Tensor]:
        """Everything as arrays, float32; layers of another size are filled up with NaN.

        frequencies [L, P] in radians per token; {query,key,value}_{norm,square} [L, heads, P] with the first token of
        each text, and the same without it under `..._without_first`; places [L, H, 6] and places_without_<band>;
        logit_by_pair [L, H, P, D] at distances [D]; entropy, largest_weight, logit_spread [L, H].
        """
        found: dict[str, list[Tensor]] = {"frequencies": [layout.frequencies_P for layout in self.layouts]}
        for kind in KINDS:
            for measure in ("norm", "square"):
                found[f"{kind}_{measure}"] = self.norms.mean(kind, measure)
                found[f"{kind}_{measure}_without_first"] = self.norms.mean(kind, measure, first_token=False)
        if self.rows is not None:
            found["places"] = self.rows.places()
            for band in ("fastest", "fast", "slow", "slowest"):
                found[f"places_without_{band}"] = self.rows.places(band)
            found["logit_by_pair"] = self.rows.split()
            found |= {name: self.rows.per_row(name) for name in ("entropy", "largest_weight", "logit_spread", "ln_n")}
        if self.entropies is not None:
            found["entropy"] = self.entropies
        arrays = {name: stacked(layers) for name, layers in found.items()}
        if self.rows is not None:
            arrays["distances"] = torch.tensor(self.rows.distances, dtype=torch.float32)
        return arrays


def stacked(layers: Sequence[Tensor]) -> Tensor:
    """Layers as one float32 array, the smaller ones filled up with NaN."""
    size = [max(sizes) for sizes in zip(*(layer.shape for layer in layers), strict=True)]
    out = torch.full((len(layers), *size), torch.nan)
    for place, layer in zip(out, layers, strict=True):
        place[tuple(slice(n) for n in layer.shape)] = layer
    return out


@torch.no_grad()
def observe(
    subject: Subject,
    texts: Sequence[Sequence[int]],
    *,
    batch_tokens: int = BATCH_TOKENS,
    rows: bool = True,
    entropy: bool = True,
    ablated: bool = False,
) -> Probe:
    """Put texts (token ids) through the model and look at every layer.

    rows: also sample rows of attention. entropy: also the entropy of every row, which costs a second pass of attention.
    ablated: whether a model none of whose pairs turns is as it should be. Memory depends on `batch_tokens` and the
    longest text. Raises UserError for a text shorter than two tokens, for a model that is not causal, and for one whose
    channels turn in an unknown way.
    """
    check_texts(texts)
    n_layers = len(subject.normalisers)
    seen = Watch(n_layers, max(map(len, texts)), rows=rows, entropy=entropy)
    test = SelfTest([token for text in texts for token in text], subject.tables(), subject.name)
    with watching(subject.normalisers, seen.add):
        for number, batch in enumerate(batches(texts, batch_tokens)):
            seen.begin(batch, None if number else test)
            hidden_BTD = run(subject, batch, None if number else test)
            if not number:
                test.check_causality(hidden_BTD)
    layouts = [layout for layout in seen.layouts if layout is not None]
    if len(layouts) < n_layers:
        raise UserError(f"not every attention layer of {subject.name} was called; roundround cannot look inside")
    if not ablated and not any(layout.n_turning for layout in layouts):
        raise UserError(f"{subject.name} has no RoPE: no layer turns its queries; there are no frequencies to probe")
    return Probe(subject.name, len(texts), sum(map(len, texts)), layouts, seen.norms, seen.rows, seen.mean_entropies())


class Watch:
    """Takes in every call of attention, once a layer and batch."""

    def __init__(self, n_layers: int, longest: int, *, rows: bool, entropy: bool) -> None:
        self.layouts: list[Layout | None] = [None] * n_layers
        self.norms = PairNorms(n_layers)
        self.rows = RowStatistics(n_layers, longest) if rows else None
        self.entropy_sums: list[Tensor | None] | None = [None] * n_layers if entropy else None

    def begin(self, batch: Sequence[Sequence[int]], test: SelfTest | None) -> None:
        """What the next calls of all layers will be about."""
        self.batch, self.test = batch, test
        longest = max(len(text) for text in batch)
        lengths_B = torch.tensor([len(text) for text in batch])
        even = bool((lengths_B == longest).all())
        self.longest = longest
        self.valid_BT = None if even else torch.arange(longest) < lengths_B[:, None]
        self.norms.count(len(batch), int(lengths_B.sum()))

    def add(self, softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        layer = softmax.shape.layer
        if self.test is not None:
            self.layouts[layer] = self.test.layout(layer, qkv[0])
        layout = self.layouts[layer]
        assert layout is not None
        first = N_ROWS if self.test is not None else 0
        q, k, v = (x[first:, :, : self.longest] for x in qkv)
        valid_BT = None if self.valid_BT is None else self.valid_BT.to(q.device)
        self.norms.add(layer, layout, q, k, v, valid_BT)
        if self.entropy_sums is not None:
            self.add_entropy(softmax, q, k, options, valid_BT)
        if self.rows is not None:
            self.add_rows(softmax, layout, q, k, options, first)

    def add_entropy(
        self, softmax: AttentionSoftmax, q: Tensor, k: Tensor, options: dict[str, Any], valid_BT: Tensor | None
    ) -> None:
        assert self.entropy_sums is not None
        keys = replaced(options["keys"], self.longest)
        own = fused_entropies(softmax, q, k, options["scale"], keys, options["bias"])[1]
        if own is None:
            return
        entropy_BHT = own[0][..., 0] if valid_BT is None else own[0][..., 0] * valid_BT[:, None]
        sum_H, layer = entropy_BHT.double().sum((0, 2)).cpu(), softmax.shape.layer
        before = self.entropy_sums[layer]
        self.entropy_sums[layer] = sum_H if before is None else before + sum_H

    def add_rows(
        self, softmax: AttentionSoftmax, layout: Layout, q: Tensor, k: Tensor, options: dict[str, Any], first: int
    ) -> None:
        assert self.rows is not None
        for number, text in enumerate(self.batch):
            n = len(text)
            per_row = {name: value[first + number][None, :, :n] for name, value in options["rows"].items()}
            self.rows.add(
                layout,
                softmax,
                q[number, :, :n],
                k[number, :, :n],
                scale=options["scale"],
                keys=options["keys"],
                rows=per_row,
            )

    def mean_entropies(self) -> list[Tensor] | None:
        if self.entropy_sums is None or any(sums is None for sums in self.entropy_sums):
            return None
        return [sums / self.norms.n_tokens["all"] for sums in self.entropy_sums if sums is not None]


def replaced(keys: Keys, n: int) -> Keys:
    """The same for the first n tokens alone."""
    return Keys(q_pos_BQ=keys.q_pos_BQ[:1, :n], k_pos_BK=keys.k_pos_BK[:1, :n], window=keys.window)


@contextmanager
def watching(
    normalisers: Sequence[AttentionSoftmax],
    take_in: Callable[[AttentionSoftmax, Sequence[Tensor], dict[str, Any]], None],
) -> Iterator[None]:
    """Inside, every call of a normaliser is shown to `take_in` first: (normaliser, (q, k, v), options of `attend`)."""
    hooks = [softmax.register_forward_pre_hook(take_in, with_kwargs=True) for softmax in normalisers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def run(subject: Subject, batch: Sequence[Sequence[int]], test: SelfTest | None = None) -> Tensor:
    """The model's output for texts filled up at the end, which causality makes harmless: [B, T, D]."""
    tokens_BT, pos_BT = filled_up(batch)
    if test is not None:
        longest = max(tokens_BT.shape[1], test.tokens_BT.shape[1])
        tokens_BT = torch.cat([widened(test.tokens_BT, longest), widened(tokens_BT, longest)])
        pos_BT = torch.cat([widened_positions(test.pos_BT, longest), torch.arange(longest).expand(len(batch), -1)])
    device = subject.device
    return subject.hidden(tokens_BT.to(device), pos_BT.to(device))


def filled_up(batch: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens and positions of texts of several lengths, each filled up with its last token."""
    longest = max(map(len, batch))
    tokens_BT = torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in batch])
    return tokens_BT, torch.arange(longest).expand(len(batch), -1)


def widened(tokens_BT: Tensor, longest: int) -> Tensor:
    return torch.cat([tokens_BT, tokens_BT[:, -1:].expand(-1, longest - tokens_BT.shape[1])], 1)


def widened_positions(pos_BT: Tensor, longest: int) -> Tensor:
    return pos_BT[:, :1] + torch.arange(longest)


def batches(texts: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[Sequence[int]]]:
    """Texts in their order, as many at once as hold `batch_tokens` tokens when filled up; at least one."""
    batch: list[Sequence[int]] = []
    for text in texts:
        if batch and (len(batch) + 1) * max(map(len, [*batch, text])) > batch_tokens:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def check_texts(texts: Sequence[Sequence[int]]) -> None:
    """UserError where there is no text, or one of fewer than two tokens."""
    if not texts:
        raise UserError("there is no text to probe with; give text=FILE or data=...")
    for number, text in enumerate(texts, 1):
        if len(text) < 2:
            raise UserError(f"text {number} has {len(text)} token; a probe needs at least two in every text")
