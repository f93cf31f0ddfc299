"""Heads of trained models: their queries and keys, as rotated and as they were before.

Shapes: B batch, T tokens, H heads, G key heads, C head channels, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.model.decoder import Decoder
from roundround.papers.claim import Trained
from roundround.pe.rope import RoPE
from roundround.probing.layout import PAIRINGS, Layout
from roundround.probing.probe import observe, run
from roundround.probing.probed_model import ProbedDecoder, ProbedModel, watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.packaged import packaged_models

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
    from roundround.loading.llama_checkpoint import read_checkpoint  # transformers takes a second to import

    checkpoint = read_checkpoint("stories260k")
    nodes = checkpoint.nodes

    def encoding(shape: AttentionShape) -> RoPE:
        return RoPE(shape, theta=nodes.pe["theta"])

    sizes = {name: value for name, value in nodes.model.items() if name not in ("_target_", "kind")}
    decoder = Decoder(**sizes, n_vocab=nodes.n_vocab, make_encoding=encoding, make_softmax=Softmax)
    checkpoint.load_into(decoder)
    folder = packaged_models()["stories260k"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    probed = ProbedDecoder("stories260k", decoder.double().eval(), tokenizer, FIRST_TOKEN)
    story = (folder / "stories.txt").read_text(encoding="utf-8")[:1500]
    return Trained(probed, [probed.tokens(story)[:256]])
