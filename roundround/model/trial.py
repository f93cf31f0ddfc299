"""A trial of a decoder's encodings on eight tokens, before anything is trained or measured with them.

Shapes: B batch, T tokens, Q queries, K keys, H heads, C head channels, D model width.

Tested by tests/model/test_encoding_trial.py.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.model.block import Block, MultiHeadAttention
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding

N_TOKENS = 8


@torch.no_grad()
def check_encodings(decoder: Decoder) -> None:
    """Raises ValueError if an encoding breaks a rule of `Bias.applied`, or if its rotation does not fit the layer.

    It tries the decoder's own encodings, one for each kind of layer, or new ones if the decoder is on the meta device.
    """
    layers = cast("list[Block]", list(decoder.layers))
    for kind, number in {kind: number for number, kind in enumerate(decoder.kinds)}.items():
        attention, encoding = layers[number].self_attn, decoder.all_encodings[decoder.encoding_of_layer[number]]
        norm = attention.qk_norm if isinstance(attention, MultiHeadAttention) else None
        changes, rotates = (
            getattr(type(encoding), hook) is not getattr(PositionalEncoding, hook)
            for hook in ("bias", "rotate_queries")
        )
        if not changes and not (rotates and norm is not None and norm.after_rotation):
            continue
        with torch.random.fork_rng(devices=[]):
            if decoder.embed_tokens.weight.is_meta:
                encoding = kind.make_encoding(attention.encoding_shape)
            rotated, found = tried(encoding)
        name, n_channels = type(encoding).__name__, attention.encoding_shape.head_dim
        if norm is not None and norm.after_rotation and rotated.shape[-1] != n_channels:
            raise ValueError(
                f"{name} gives heads {rotated.shape[-1]} channels, but qk_norm= after the rotation takes {n_channels}; "
                "give one before the rotation, such as qk_norm=rms"
            )
        if found is not None:
            raise ValueError(f"what {name} does to logits {found}; docs/howto/logits.md has the rules")


def tried(encoding: PositionalEncoding) -> tuple[Tensor, str | None]:
    """The queries after their rotation, and what is wrong with the encoding's change of logits; None if nothing is."""
    shape, weight, n = encoding.shape, next(encoding.parameters(), torch.zeros(())), N_TOKENS
    pos_1T, generator = torch.arange(n, device=weight.device)[None], torch.Generator().manual_seed(0)
    x_BTD, q, k, logits = (
        torch.randn(1, *size, generator=generator, device="cpu").to(weight)
        for size in ((n, shape.d_model), *((h, n, shape.head_dim) for h in (shape.n_heads, shape.n_key_heads)),
                     (shape.n_heads, n, n))
    )  # fmt: skip
    whole, keys = Keys(q_pos_BQ=pos_1T, k_pos_BK=pos_1T), Keys(q_pos_BQ=pos_1T[:, -1:], k_pos_BK=pos_1T)
    prepared = encoding.prepare_layer(x_BTD, encoding.prepare(pos_1T, x_BTD.dtype), whole)
    q, k = encoding.rotate_queries(q, prepared), encoding.rotate_keys(k, prepared)
    bias, of_last = encoding.bias(q, k, prepared), encoding.bias(q[:, :, -1:], k, prepared)
    if bias is None or of_last is None:
        return q, None
    logits, past = at_least_float32(logits), torch.ones(n, n, dtype=torch.bool, device=weight.device).tril()
    calls = [(bias, whole, hidden, 0, n, 0) for hidden in (0.0, torch.nan, 7.0)]
    calls += [(bias, whole, torch.nan, 3, 6, 0), (of_last, keys, torch.nan, 0, 1, n - 1)]
    expected = logits
    for change, seen, hidden, a, b, offset in calls:
        rows, n_keys = slice(a + offset, b + offset), seen.span(a, b)[1]
        given, visible = logits.masked_fill(~past, hidden)[:, :, rows, :n_keys], past[rows, :n_keys]
        try:
            found = change.applied(given.clone(), seen, a, b)
            kind = f"{tuple(found.shape)} {found.dtype}"
        except Exception as error:  # of a user's own code
            return q, f"fails: {type(error).__name__}: {' '.join(str(error).split())}"
        if kind != f"{tuple(given.shape)} {given.dtype}":
            return q, f"gives {kind} for logits of {tuple(given.shape)} {given.dtype}"
        if not found[..., visible].isfinite().all():
            return q, "is not finite for a key that the query sees, or it reads logits of other keys, which may be NaN"
        expected = found if change is bias and hidden == 0 else expected
        if not torch.allclose(found[..., visible], expected[:, :, rows, :n_keys][..., visible], rtol=1e-3, atol=1e-3):
            return q, "depends on logits of keys that the query does not see, or on which rows a call has"
    return q, None
