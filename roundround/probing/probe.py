"""The probe: texts go through a model once, and all statistics are computed from the inputs of the calls of attention.

Shapes: L layers, B batch, T tokens, H heads, G key heads, C head channels, P pairs, D distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from roundround.kernels.keys import Keys
from roundround.probing.dispersion import OF_GAPS, fused_entropies
from roundround.probing.layout import KINDS, N_ROWS, Layout, PairNorms, SelfTest, stacked
from roundround.probing.probed_model import ObservedModel, run, watching
from roundround.probing.rows import (
    BANDS,
    FIRST_ROW,
    LONGEST,
    LayerRecord,
    PromptRecord,
    RowStatistics,
    record_layer,
)
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.row_scale import RowScale
from roundround.support.errors import UserError

OF_ROWS = ("entropy", "largest_weight", "logit_spread", "ln_n", *OF_GAPS)
QUERIES_AT_ONCE = 2**23  # elements: 32 MiB of float32; the entropies need several copies
SHARED_BATCH_MAX_TOKENS = 256  # with longer texts the self-test and the prompt get a batch of their own
BATCH_TOKENS = 2048  # tokens of a batch: the memory of a probe depends on this number, not on how much text it reads


@dataclass(repr=False)
class Probe:
    """What a probe found; see docs/howto/probing.md. Fields that were not requested are None.

    name: the name of the model. train_length: the model's training context in tokens. windows: for each layer, the
    largest number of tokens that a query sees; None if it sees all. n_texts, n_tokens: the numbers of texts and of
    tokens that the model read. layouts: the channel pairs of each layer, with their frequencies. layers: the index of
    each attention layer among all layers of the model. norms: the mean norms of channel pairs. rows: the statistics of
    sampled attention rows. entropies: for each layer, the mean entropy in nats over all rows, [H]; also None if no
    fused kernel can compute it (`rows` has the mean over sampled rows). prompt: the record of a prompt, token by
    token. kinds: the kind of each layer; empty if all layers are alike. others: the kind of each layer without
    attention, by its index among all layers.

    Without a layer that rotates at known frequencies, all that depends on frequencies is left out.
    """

    name: str
    train_length: int
    windows: list[int | None]
    n_texts: int
    n_tokens: int
    layouts: list[Layout]
    layers: list[int]
    norms: PairNorms
    rows: RowStatistics | None
    entropies: list[Tensor] | None = None
    prompt: PromptRecord | None = None
    kinds: Sequence[str] = ()
    others: Mapping[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"probe of {self.name}: {len(self.layers)} layers; {self.n_texts:,} texts, {self.n_tokens:,} tokens"

    def layer_name(self, layer: int) -> str:
        """The number of a layer, and its kind if the model has several: `layer 3, global`."""
        own = dict(zip(self.layers, self.kinds, strict=False))
        return f"layer {layer}, {own[layer]}" if layer in own else f"layer {layer}"

    @property
    def rotates(self) -> bool:
        """Whether some layer rotates at known frequencies."""
        return any(layout.n_rotated for layout in self.layouts)

    def contexts(self) -> list[int]:
        """For each layer, the largest number of tokens that a query sees within the training context."""
        return [min(self.train_length, window or self.train_length) for window in self.windows]

    def strongest_pairs(self, kind: str) -> list[tuple[int, float]]:
        """For each layer, the pair with the largest share of the squared norm of `query` or `key`, and that share."""
        found = []
        for square_HP in self.norms.mean(kind, "square"):
            share_P = square_HP.sum(0) / square_HP.sum()
            found.append((int(share_P.argmax()), float(share_P.max())))
        return found

    def labels(self) -> list[list[tuple[str, float]]]:
        """The place that names each head, and the head's weight there, see `RowStatistics`: `[layer][head]`.

        The list of a layer without attention is empty.
        """
        assert self.rows is not None, "labels come from sampled rows"
        found = dict(zip(self.layers, self.rows.labels(), strict=True))
        return [found.get(layer, []) for layer in range(1 + max(self.layers))]

    def arrays(self) -> dict[str, Tensor]:
        """All numbers as float32 arrays; NaN for layers without attention, and for heads or pairs that a layer lacks.

        frequencies: the frequencies of pairs in radians per token, [L, P]. {query,key,value}_{norm,square}: the means
        over all tokens, [L, heads, P]. {query,key,value}_{norm,square}_without_first: the means over all tokens except
        the first of each text. places: the share of the weight at each of PLACES, [L, H, 7]. places_without_<band>:
        these shares after one band of frequencies is taken away. logit_by_pair: the mean contribution of each pair to
        the logits at each distance, [L, H, P, D]. distances: these distances between query and key in tokens, [D].
        entropy, largest_weight, logit_spread, ln_n, gap_counting, collapsed: the means over rows, [L, H], as in
        `Dispersion`. rotated_share_of_logits: see
        `RowStatistics.rotated_shares`, [L, H]. What depends on frequencies is missing if no layer rotates.
        """
        found: dict[str, list[Tensor]] = {}
        if self.rotates:
            found["frequencies"] = [layout.frequencies_P for layout in self.layouts]
        for kind in KINDS:
            for measure in ("norm", "square"):
                found[f"{kind}_{measure}"] = self.norms.mean(kind, measure)
                found[f"{kind}_{measure}_without_first"] = self.norms.mean(kind, measure, first_token=False)
        if self.rows is not None:
            found["places"] = self.rows.places()
            found |= {name: self.rows.per_row(name) for name in OF_ROWS}
        if self.rows is not None and self.rotates:
            found |= {f"places_without_{band}": self.rows.places(band) for band in BANDS[1:]}
            found["logit_by_pair"] = self.rows.split()
        if self.rows is not None and any(layout.is_mixed for layout in self.layouts):
            found["rotated_share_of_logits"] = self.rows.rotated_shares()
        if self.entropies is not None:
            found["entropy"] = self.entropies
        arrays = {name: stacked(layers, self.layers) for name, layers in found.items()}
        if self.rows is not None and self.rotates:
            arrays["distances"] = torch.tensor(self.rows.distances, dtype=torch.float32)
        return arrays


@torch.no_grad()
def observe(
    probed: ObservedModel,
    texts: Sequence[Sequence[int]],
    *,
    batch_tokens: int = BATCH_TOKENS,
    rows: bool = True,
    entropy: bool = True,
    prompt: Sequence[int] | None = None,
) -> Probe:
    """Put texts (token ids) through the model and measure every layer.

    rows: whether to sample rows of attention. entropy: whether to measure the entropy of every row, which costs a
    second pass of attention. prompt: the token ids of one short text to record token by token. Memory depends on
    `batch_tokens` and the longest text. Raises UserError if a text or the prompt has too few tokens, if the prompt has
    too many, if the model is not causal, or if it rotates its channels in an unknown way.
    """
    check_texts(texts)
    longest = max(map(len, texts))
    if rows and longest <= FIRST_ROW:
        raise UserError(f"no text has more than {FIRST_ROW} tokens; give longer texts, or rows=false to sample no rows")
    if prompt is not None and not 2 <= len(prompt) <= LONGEST:
        raise UserError(f"the prompt has {len(prompt)} tokens; it must have from 2 to {LONGEST}")
    seen = Watch(probed.layers, longest, rows=rows, entropy=entropy)
    test = SelfTest([token for text in texts for token in text], probed.tables(), probed.name)
    n_apart = int(longest > SHARED_BATCH_MAX_TOKENS)  # batches without texts: the self-test is not filled up
    if probed.follows_length:  # all rows of a batch rotate as its longest row does
        n_apart = 1 if prompt is None else 2
    with watching(probed.normalisers, seen.add):
        for number, batch in enumerate(batches(texts, batch_tokens, apart=n_apart, alike=probed.follows_length)):
            own_prompt = prompt if number == max(0, n_apart - 1) else None
            seen.begin(batch, None if number else test, own_prompt)
            extra_rows = [*([] if number else test.rows), *([] if own_prompt is None else [(own_prompt, None)])]
            hidden_BTD = run(probed, [*extra_rows, *((text, None) for text in batch)])
            if not number:
                test.check_causality(hidden_BTD)
    layouts = [layout for layout in seen.layouts if layout is not None]
    entropies = [sums / seen.norms.n_tokens["all"] for sums in seen.entropy_sums or () if sums is not None]
    return Probe(
        name=probed.name,
        train_length=probed.longest,
        windows=probed.windows(),
        kinds=probed.kinds(),
        others=probed.others(),
        n_texts=len(texts),
        n_tokens=sum(map(len, texts)),
        layouts=layouts,
        layers=probed.layers,
        norms=seen.norms,
        rows=seen.rows,
        entropies=entropies if len(entropies) == len(layouts) else None,
        prompt=None if prompt is None else PromptRecord(probed.words(prompt), seen.records),
    )


def check(probed: ObservedModel, tokens: Sequence[int]) -> list[Layout]:
    """The layout of each layer, from the self-test on rows of these tokens.

    Raises UserError if a layout is unknown or the model is not causal.
    """
    return observe(probed, [tokens[:SHARED_BATCH_MAX_TOKENS]], rows=False, entropy=False).layouts


class Watch:
    """Collects the statistics of every call of attention: one call for each layer and batch."""

    def __init__(self, layers: Sequence[int], longest: int, *, rows: bool, entropy: bool) -> None:
        n_layers, self.place_of = len(layers), {layer: place for place, layer in enumerate(layers)}
        self.layouts: list[Layout | None] = [None] * n_layers
        self.norms = PairNorms(n_layers)
        self.rows = RowStatistics(n_layers, longest) if rows else None
        self.entropy_sums: list[Tensor | None] | None = [None] * n_layers if entropy else None
        self.records: dict[int, LayerRecord] = {}

    def begin(self, batch: Sequence[Sequence[int]], test: SelfTest | None, prompt: Sequence[int] | None) -> None:
        """Prepare for the calls of one batch: first the rows of `test`, then `prompt`, then the texts of `batch`.

        If `test` or `prompt` is None, the batch has no such rows.
        """
        self.batch, self.test, self.prompt, self.called = batch, test, prompt, set[int]()
        self.longest = max(map(len, batch), default=0)
        lengths_B1 = torch.tensor([[len(text)] for text in batch])
        even = all(len(text) == self.longest for text in batch)
        self.valid_BT = None if even else torch.arange(self.longest) < lengths_B1
        self.norms.n_tokens["all"] += sum(map(len, batch))
        self.norms.n_tokens["first"] += len(batch)

    def add(self, softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        layer, first = self.place_of[softmax.shape.layer], 0
        if layer in self.called:
            raise UserError("the model calls an attention layer twice in one pass; a probe cannot measure such a model")
        self.called.add(layer)
        if options["keys"].valid_BK is not None:
            raise UserError("the model hides tokens as padding; a probe measures texts without padding")
        if self.test is not None:
            self.layouts[layer] = self.test.layout(softmax.shape.layer, qkv[0])
            first = N_ROWS
        layout = self.layouts[layer]
        assert layout is not None
        if self.prompt is not None:
            q, k, own = alone(first, len(self.prompt), qkv, options)
            self.records[softmax.shape.layer] = record_layer(softmax, layout, q, k, **own)
            first += 1
        if not self.batch:
            return
        q, k, v = (x[first:, :, : self.longest] for x in qkv)
        valid_BT = None if self.valid_BT is None else self.valid_BT.to(q.device)
        self.norms.add(layer, layout, q, k, v, valid_BT)
        if self.entropy_sums is not None:
            self.add_entropy(softmax, qkv, first, options, valid_BT)
        if self.rows is not None:
            for number, text in enumerate(self.batch, first):
                q, k, own = alone(number, len(text), qkv, options)
                self.rows.add(layer, layout, softmax, q, k, **own)

    def add_entropy(
        self,
        softmax: AttentionSoftmax,
        qkv: Sequence[Tensor],
        first: int,
        options: dict[str, Any],
        valid_BT: Tensor | None,
    ) -> None:
        assert self.entropy_sums is not None
        if not isinstance(softmax, RowScale):
            return
        keys, bias, sums = first_tokens(options["keys"], self.longest), options["bias"], []
        q, k = (x[first:, :, : self.longest] for x in qkv[:2])
        if bias is not None:  # it is made for all rows of the batch
            q, k, keys = *qkv[:2], options["keys"]
        n_groups = q.shape[1] // k.shape[1]
        at_once = max(1, QUERIES_AT_ONCE // max(1, q[:, :n_groups].numel()))  # key heads, to save memory
        if bias is not None or next(softmax.parameters(), None) is not None:  # each head has its own: all at once
            at_once = k.shape[1]
        for g in range(0, k.shape[1], at_once):
            q_part, k_part = q[:, g * n_groups : (g + at_once) * n_groups], k[:, g : g + at_once]
            own = fused_entropies(softmax, q_part, k_part, options["scale"], keys, bias)[1]
            if own is None:
                return
            entropy_BHT = own[0][-len(self.batch) :, :, : self.longest, 0]
            if valid_BT is not None:
                entropy_BHT = entropy_BHT.masked_fill(~valid_BT[:, None], 0.0)
            sums.append(entropy_BHT.sum((0, 2)).cpu().double())
        layer, sum_H = self.place_of[softmax.shape.layer], torch.cat(sums)
        before = self.entropy_sums[layer]
        self.entropy_sums[layer] = sum_H if before is None else before + sum_H


def first_tokens(keys: Keys, n: int) -> Keys:
    """The keys and queries of the first n tokens of the first text."""
    return Keys(q_pos_BQ=keys.q_pos_BQ[:1, :n], k_pos_BK=keys.k_pos_BK[:1, :n]).within(keys.window, keys.chunk)


def alone(number: int, n: int, qkv: Sequence[Tensor], options: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The queries [H, n, C], keys [G, n, C] and options of one text of n tokens, from a call of attention on a batch.

    number: the index of the text in the batch. The options are `scale`, `keys`, `rows` and, with a bias, `change`.
    """

    def change(logits_HRK: Tensor, rows_R: Tensor) -> Tensor:
        changed, keys, n_texts = [], options["keys"], len(qkv[0])
        for row, logits_HK in zip(rows_R.tolist(), logits_HRK.unbind(1), strict=True):
            first, last = keys.span(row, row + 1)
            alike = logits_HK[:, None, first:last].repeat(n_texts, 1, 1, 1)  # the bias is made for all texts
            own_HK = options["bias"].applied(alike, keys, row, row + 1)[number, :, 0]
            changed.append(nn.functional.pad(own_HK, (first, n - last)))
        return torch.stack(changed, 1)

    q, k, _ = (x[number, :, :n] for x in qkv)
    each = {name: value.expand(len(qkv[0]), *value.shape[1:]) for name, value in options["rows"].items()}
    rows = {name: value[number : number + 1, :, :n] for name, value in each.items()}
    own = {"scale": options["scale"], "keys": first_tokens(options["keys"], n), "rows": rows}
    return q, k, own if options["bias"] is None else {**own, "change": change}


def batches(
    texts: Sequence[Sequence[int]], batch_tokens: int, *, apart: int = 0, alike: bool = False
) -> Iterator[list[Sequence[int]]]:
    """Texts in their order, in batches of at most `batch_tokens` tokens; the tokens that fill up short texts count too.

    A longer text is a batch by itself. apart: the number of empty batches before the first text; the caller uses them
    for rows that are not texts. alike: whether all texts of a batch must have the same length.
    """
    yield from ([] for _ in range(apart))
    batch: list[Sequence[int]] = []
    for text in texts:
        full = (len(batch) + 1) * max(map(len, [*batch, text])) > batch_tokens
        if batch and (full or (alike and len(text) != len(batch[0]))):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def check_texts(texts: Sequence[Sequence[int]]) -> None:
    """Raises UserError if there is no text, or if a text has fewer than two tokens."""
    if min(map(len, texts), default=0) < 2:
        raise UserError("a probe needs at least one text, and two tokens in every text")
