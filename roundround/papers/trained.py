"""Trained models for the statements that can be asked of one: queries, keys and rows of attention, seen in their calls.

Shapes: B batch, T tokens, H heads, R rows, K keys, C head channels, P pairs.

Tested by tests/papers/test_rope_claims.py and tests/loading/test_gemma3_heads.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from roundround.attention.blocks import logits_of_rows, rows_between
from roundround.attention.kernels import repeated
from roundround.attention.keys import AttentionShape
from roundround.attention.row_measures import entropy_of_logits, extreme_logits
from roundround.model.decoder import Decoder
from roundround.model.kinds import LayerKind
from roundround.papers.claim import Trained
from roundround.pe.rope import RoPE
from roundround.probing.layout import PAIRINGS, Layout
from roundround.probing.probe import observe, run
from roundround.probing.probed_model import ProbedDecoder, ProbedModel, watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.row_scale import RowScale
from roundround.softmax.softmax import Softmax
from roundround.support.packaged import packaged_models

FEWEST = 8  # keys of a row that is held against a bound
MOST_TEXTS, MOST_ROWS = 8, 64  # of a model's texts, and rows of each, spread evenly
FIRST_TOKEN = 1  # of stories260k: <s>


@dataclass(frozen=True)
class Call:
    """One layer's call of attention: rotated queries and keys, both for every head, and what multiplies q . k.

    window: keys of this text that a query sees at most, itself included; None for all.
    """

    q_BHTC: Tensor
    k_BHTC: Tensor
    scale: float
    window: int | None


def calls(probed: ProbedModel, rows: Sequence[tuple[Sequence[int], int]]) -> list[Call]:
    """What every layer is called with for rows of (tokens, position of the first); float32 at least, on the CPU."""
    found: dict[int, Call] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        q, k = (x if x.dtype == torch.float64 else x.float() for x in (part.cpu() for part in qkv[:2]))
        k_of_heads = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        found[softmax.shape.layer] = Call(q, k_of_heads, options["scale"], options["keys"].window)

    with torch.no_grad(), watching(probed.normalisers, take_in):
        run(probed, rows)
    return [found[layer] for layer in sorted(found)]


def before_rotation(probed: ProbedModel, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of every layer before they are rotated, [H, T, C] each.

    Nothing rotates at position 0, and a shift of all positions changes no layer's input: so each token in turn is put
    there, in a row of its own.
    """
    at_zero = torch.arange(len(tokens))
    rows = [(tokens, -place) for place in range(len(tokens))]
    return [
        (call.q_BHTC[at_zero, :, at_zero].transpose(0, 1), call.k_BHTC[at_zero, :, at_zero].transpose(0, 1))
        for call in calls(probed, rows)
    ]


def layouts(probed: ProbedModel, texts: Sequence[Sequence[int]]) -> list[Layout]:
    """How each layer pairs its channels: half-split in a decoder of this program, measured in any other model."""
    if not isinstance(probed, ProbedDecoder):
        return observe(probed, texts[:1], rows=False, entropy=False).layouts
    tables, head_dim, found = probed.tables(), probed.normalisers[0].shape.head_dim, []
    for layer in range(len(probed.normalisers)):
        table = tables[layer % len(tables)]  # one for all layers, or one a layer
        frequencies = torch.zeros(head_dim // 2, dtype=torch.float64)
        frequencies[: len(table)] = table
        found.append(Layout(frequencies, PAIRINGS[0], 2 * len(table)))
    return found


def stories260k() -> Trained:
    """The trained model of the package in this program's own decoder, in float64, with one of its stories."""
    from roundround.loading.llama import read_checkpoint  # transformers takes a second to import

    checkpoint = read_checkpoint("stories260k")
    nodes = checkpoint.nodes
    assert nodes.pe is not None, "it is a Llama"
    theta = nodes.pe["theta"]

    def encoding(shape: AttentionShape) -> RoPE:
        return RoPE(shape, theta=theta)

    sizes = {name: value for name, value in nodes.model.items() if name not in ("_target_", "kind")}
    decoder = Decoder(**sizes, n_vocab=nodes.n_vocab, kinds=[LayerKind(make_encoding=encoding, make_softmax=Softmax)])
    checkpoint.load_into(decoder)
    folder = packaged_models()["stories260k"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    probed = ProbedDecoder("stories260k", decoder.double().eval(), tokenizer, FIRST_TOKEN)
    story = (folder / "stories.txt").read_text(encoding="utf-8")[:1500]
    return Trained(probed, [probed.tokens(story)[:256]])


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
