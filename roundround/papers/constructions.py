"""Inputs for the checks of the statements: vectors and rows as the papers build them, and calls of trained models.

The checks send the vectors through this program's rotation and softmax. They make keys by the paper's formula, because
a check with the same code on both sides would not notice a rotation of the wrong pairs or in the wrong direction.
Shapes: N positions, B batch, T tokens, H heads, R rows, K keys, C head channels, P pairs.

Tested by tests/papers/test_claims.py and tests/hf/test_gemma3_heads.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, rows_between
from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.pe.p_rope import PRoPE
from roundround.pe.rope import RoPE
from roundround.pe.rotary import apply_rotation, rotation
from roundround.probing.probed_model import ProbedDecoder, ProbedModel, run, watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature
from roundround.support.packaged import packaged_models

HEAD_DIM, THETA = 256, 10_000.0  # Gemma's
SHAPE = AttentionShape(n_heads=1, n_key_heads=1, head_dim=16, d_model=16, layer=0, train_length=2048)


def shape(head_dim: int = HEAD_DIM) -> AttentionShape:
    """The shape of one head of this width."""
    return AttentionShape(n_heads=1, n_key_heads=1, head_dim=head_dim, d_model=head_dim, layer=0, train_length=8192)


def frequencies(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """RoPE's frequencies in radians per token, fastest first: [P], float64."""
    return RoPE(shape(head_dim), theta=theta).frequencies(torch.float64)


def p_rope_frequencies(p: float, head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """p-RoPE's frequencies, 0 for the pairs that do not rotate: [P], float64."""
    return PRoPE(shape(head_dim), p=p, theta=theta).frequencies(torch.float64)


def rotated(x_NC: Tensor, pos_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Each row of x, rotated by RoPE for its position: [N, C].

    If x is a single row [C], it is used at all positions. If there is a single position, it is used for all rows.
    """
    cos, sin = rotation(pos_N[None], frequencies_P)
    x_NC = x_NC.expand(len(pos_N), -1) if x_NC.ndim == 1 else x_NC
    return apply_rotation(x_NC[None, None], cos, sin)[0, 0]


def logits(q_C: Tensor, k_C: Tensor, distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """The logit of a query with a key at each of these distances before it: [N], without division by sqrt(head_dim)."""
    return rotated(k_C, -distances_N, frequencies_P) @ q_C


def aligned(distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """The logits of a query and an equal key at these distances, divided by the logit at distance 0: [N].

    All pairs of the query's channels have the same norm.
    """
    unit_C = torch.cat([torch.ones_like(frequencies_P), torch.zeros_like(frequencies_P)])
    unit_C = unit_C / math.sqrt(len(frequencies_P))
    return torch.cat([logits(unit_C, unit_C, some, frequencies_P) for some in torch.split(distances_N, 4096)])


def turned(x_C: Tensor, angles_P: Tensor) -> Tensor:
    """x with each pair of channels (m, m + P) rotated by the pair's angle (arXiv:2410.06205, equation 2): [C]."""
    first_P, second_P = x_C.chunk(2)
    cos_P, sin_P = angles_P.cos(), angles_P.sin()
    return torch.cat([cos_P * first_P - sin_P * second_P, sin_P * first_P + cos_P * second_P])


def ladder_by_formula(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """g_k = theta^(-2(k-1)/d) for k = 1 .. d/2, as the paper writes it: [P], float64."""
    return torch.tensor([theta ** (-2 * (k - 1) / head_dim) for k in range(1, head_dim // 2 + 1)], dtype=torch.float64)


def random_vector(*sizes: int, seed: int) -> Tensor:
    """A tensor of these sizes with standard normal numbers, float64."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_pair(first: float, second: float, pair: int, head_dim: int = HEAD_DIM) -> Tensor:
    """The vector that is (first, second) on the channels (pair, pair + P) and 0 elsewhere; pairs count from 0: [C]."""
    x_C = torch.zeros(head_dim, dtype=torch.float64)
    x_C[pair], x_C[pair + head_dim // 2] = first, second
    return x_C


def weights(logits_RK: Tensor, softmax: AttentionSoftmax | None = None) -> Tensor:
    """Weights of rows that see all their keys: [R, K]. softmax: the normaliser; None for the plain softmax."""
    visible_RK = torch.ones_like(logits_RK, dtype=torch.bool)
    n_visible = visible_RK.sum(-1)[None, None, :, None]
    softmax = Softmax(SHAPE) if softmax is None else softmax
    return softmax.weights(logits_RK[None, None], visible_RK, {"n_visible": n_visible})[0, 0].detach()


def causal_weights(q_NC: Tensor, k_NC: Tensor) -> Tensor:
    """Weights of a causal head whose logits are q . k; the queries and keys are already rotated: [N, N]."""
    pos_1N = torch.arange(len(q_NC))[None]
    keys = Keys(q_pos_BQ=pos_1N, k_pos_BK=pos_1N)
    logits, visible = logits_of_rows(q_NC[None, None], k_NC[None, None], 1.0, keys, None, 0, len(q_NC))
    return Softmax(SHAPE).weights(logits, visible, rows_between({}, visible, 0, len(q_NC)))[0, 0]


def weights_at(temperature: float, logits_RK: Tensor) -> Tensor:
    """Weights of rows that see all their keys, at a fixed temperature: [R, K]."""
    return weights(logits_RK, Temperature(SHAPE, temperature=temperature))


@dataclass(frozen=True)
class Call:
    """One layer's call of attention: its rotated queries and keys. Each key head is repeated for its query heads.

    scale: the factor of q . k. window: the largest number of keys that a query sees, including its own; None for all.
    """

    q_BHTC: Tensor
    k_BHTC: Tensor
    scale: float
    window: int | None


def calls(probed: ProbedModel, rows: Sequence[tuple[Sequence[int], int]]) -> list[Call]:
    """The `Call` of each layer for a batch of texts. Tensors are on the CPU and at least float32.

    rows: for each text, its tokens and the position of its first token.
    """
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

    The model reads the whole text once for each token, with the positions shifted so that this token is at position 0.
    RoPE does not rotate a vector at position 0, and shifting all positions changes no layer's input.
    """
    at_zero = torch.arange(len(tokens))
    return [
        (call.q_BHTC[at_zero, :, at_zero].transpose(0, 1), call.k_BHTC[at_zero, :, at_zero].transpose(0, 1))
        for call in calls(probed, [(tokens, -place) for place in range(len(tokens))])
    ]


def stories260k() -> tuple[ProbedDecoder, list[int]]:
    """The package's trained model stories260k, in this program's own decoder in float64, and 256 tokens of a story."""
    from roundround.hf.checkpoint import read_checkpoint  # transformers takes a second to import

    checkpoint = read_checkpoint("stories260k")
    nodes = checkpoint.nodes
    assert nodes.pe is not None, "it is a Llama"
    kinds = [LayerKind(make_encoding=partial(RoPE, theta=nodes.pe["theta"]), make_softmax=Softmax)]
    sizes = {name: value for name, value in nodes.model.items() if name not in ("_target_", "kind")}
    decoder = Decoder(**sizes, n_vocab=nodes.n_vocab, kinds=kinds)
    checkpoint.load_into(decoder)
    folder = packaged_models()["stories260k"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    probed = ProbedDecoder("stories260k", decoder.double().eval(), tokenizer, 1)  # <s> comes first
    story = (folder / "stories.txt").read_text(encoding="utf-8")[:1500]
    return probed, probed.tokens(story)[:256]
