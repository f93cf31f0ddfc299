"""Encodings and normalisers in a model that is not a `Decoder`: one function for its attention, or a replacement.

`attend` calls the hooks in the order of `MultiHeadAttention`. In a `with` block a `Normaliser` computes every call of
`F.scaled_dot_product_attention`.
Shapes: B batch, T tokens, Q queries, K keys, H heads, G key heads, C head channels, D model width.

Tested by tests/model/test_parts.py and tests/model/test_replaced.py.
"""

from __future__ import annotations

from dataclasses import replace
from traceback import walk_stack
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import CheckpointFunction

from roundround.kernels.bias import Bias, GivenBias
from roundround.kernels.blocks import times_of_key_heads
from roundround.kernels.calls import calling_modules
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.torch_internals import function_modes, outside_compilation
from roundround.model.block import check_order
from roundround.model.decoder import keys_of
from roundround.pe.base import PositionalEncoding
from roundround.pe.scaled import FollowsLength
from roundround.softmax.base import AttentionSoftmax


class Sizes(AttentionShape):
    """An `AttentionShape` of which the user gave some sizes; a part that reads another one raises ValueError."""

    def __init__(self, **given: Any) -> None:
        vars(self).update({name: size for name, size in given.items() if size is not None})

    def __getattr__(self, name: str) -> Any:
        raise (ValueError if name in AttentionShape.__annotations__ else AttributeError)(
            f"{name} is needed; give {name}="
        )


def attend(
    q_BHTC: Tensor,
    k_BGTC: Tensor,
    v_BGTC: Tensor,
    *,
    encoding: PositionalEncoding | None,
    normaliser: Normaliser | AttentionSoftmax,
    x_BTD: Any,
    pos_BT: Tensor | None,
    valid_BT: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float | None,
) -> Tensor:
    """The output of attention, [B, H, T, C]; the arguments are those of `rr.attend`."""
    encoding, none = PositionalEncoding(Sizes()) if encoding is None else encoding, PositionalEncoding
    softmax: Any = normaliser.layers[0] if isinstance(normaliser, Normaliser) else normaliser
    if not isinstance(encoding, PositionalEncoding) or not isinstance(softmax, AttentionSoftmax):
        raise ValueError("attend takes modules: encoding=rr.encoding(name, ...), normaliser=rr.normaliser(name, ...)")
    own, reads = type(encoding), type(softmax).row_parameters is not AttentionSoftmax.row_parameters
    sizes = {"n_heads": q_BHTC.shape[1], "n_key_heads": k_BGTC.shape[1], "head_dim": q_BHTC.shape[-1]}
    for wrong, message in (
        *(
            (
                vars(part.shape).get(name, n) != n,
                f"the tensors have {name}={n}; make {type(part).__name__} with {name}={n}",
            )
            for part in (encoding, softmax)
            for name, n in {**sizes, **({} if x_BTD is None else {"d_model": x_BTD.shape[-1]})}.items()
        ),
        (
            q_BHTC.shape[2] != k_BGTC.shape[2],
            "attend reads whole texts, without a cache; give the queries of all tokens",
        ),
        (own.embed is not none.embed, f"{own.__name__} changes embeddings; call its embed(x, pos), attend without it"),
        (
            own.positions is not none.positions,
            f"{own.__name__} draws positions in each step, which attend does not know",
        ),
        (
            x_BTD is None and (reads or encoding.reads_input),
            f"{type(softmax if reads else encoding).__name__} reads the input of the layer; give x= [B, T, D]",
        ),
    ):
        if wrong:
            raise ValueError(message)
    check_order(softmax, encoding)
    keys = replace(keys_of(encoding, k_BGTC[:, 0, :, 0], None, pos_BT, valid_BT, None), causal=causal).within(window)
    qkv, bias, prepared = encoded(encoding, q_BHTC, k_BGTC, v_BGTC, x_BTD, keys)
    scale = q_BHTC.shape[-1] ** -0.5 if scale is None else scale
    out_BHTC = softmax(*qkv, scale=scale, keys=keys, bias=bias, rows=softmax.row_parameters(x_BTD))
    return encoding.rotate_outputs(out_BHTC, prepared)


def encoded(
    encoding: PositionalEncoding, q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, x_BQD: Any, keys: Keys
) -> tuple[tuple[Tensor, Tensor, Tensor], Bias | None, Any]:
    """Queries, keys and values after their rotation, the change of logits, and what `rotate_outputs` needs.

    x_BQD: the layer's input, of the queries' tokens. With fewer queries than keys, those before them come from a cache
    that keeps keys and values without positions.
    """
    if keys.n_queries == keys.n_keys:
        prepared = of_keys = encoding.prepare_layer(x_BQD, encoding.prepare(keys.q_pos_BQ, q_BHQC.dtype), keys)
    else:
        length = int(keys.k_pos_BK.max()) + 1
        follows = isinstance(encoding, FollowsLength) and length > encoding.original_length
        if follows or encoding.reads_input:
            why = "follows the length of the text" if follows else "reads the input of a layer"
            raise ValueError(
                f"{type(encoding).__name__} {why}, so a loaded model takes no cache with it, and cannot generate with "
                "one; in transformers give use_cache=False"
            )
        prepared, of_keys = (encoding.prepare_part(pos, q_BHQC.dtype, length) for pos in (keys.q_pos_BQ, keys.k_pos_BK))
    q_BHQC, k_BGKC = encoding.rotate_queries(q_BHQC, prepared), encoding.rotate_keys(k_BGKC, of_keys)
    return (q_BHQC, k_BGKC, encoding.rotate_values(v_BGKC, of_keys)), encoding.bias(q_BHQC, k_BGKC, prepared), prepared


@final
class Normaliser(nn.Module, torch.overrides.TorchFunctionMode):
    """A normaliser for `attend`, or, in a `with` block, for every call of `F.scaled_dot_product_attention`.

    layers: the normaliser of each layer, or one for all layers if `n_layers` is None.

    A layer is the innermost module on the stack of a call; its number is its place in the order of first calls. So a
    layer keeps its normaliser if it is called twice, also if activation checkpointing calls it again.
    """

    def __init__(self, layers: list[AttentionSoftmax], n_layers: int | None) -> None:
        super().__init__()
        self.layers, self.n_layers = nn.ModuleList(layers), n_layers
        self.numbers: dict[nn.Module | None, int] = {}  # of the modules that have called attention

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        super().__exit__(kind, *error)  # type: ignore[no-untyped-call]
        if kind is None and len(self.numbers) != (self.n_layers or len(self.numbers) or 1):
            raise ValueError(
                f"{len(self.numbers)} modules in the block called F.scaled_dot_product_attention, and "
                f"{self.n_layers or 'at least one'} must; n_layers= is their number"
            )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function is F.scaled_dot_product_attention:
            return self.attention(*args, **options)
        if function is F.multi_head_attention_forward:
            raise ValueError("nn.MultiheadAttention hides its attention; call F.scaled_dot_product_attention yourself")
        if function is Tensor.backward:
            function, args, options["grad_tensors"] = torch.autograd.backward, (args,), options.pop("gradient", None)
        if function not in (torch.autograd.backward, torch.autograd.grad) or not self.numbers:
            return function(*args, **options)
        # layers may be computed again; given edges in place of tensors, torch leaves this mode on
        with self:
            return function(
                *(tuple(map(get_gradient_edge, some)) for some in args),
                **{
                    name: tuple(map(get_gradient_edge, some)) if name == "inputs" and some else some
                    for name, some in options.items()
                },
            )

    @outside_compilation  # it asks who calls
    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        caller = next((module for module, _ in calling_modules() if module is not self), None)
        number, reentrant = self.numbers.setdefault(caller, len(self.numbers)), CheckpointFunction.forward.__code__
        softmax: Any = self.layers[min(number, len(self.layers) - 1)]
        for wrong, message in (
            (any(isinstance(mode, Normaliser) for mode in function_modes()), "is inside another one; leave one block"),
            (isinstance(caller, AttentionSoftmax), "meets attention of roundround; use rr.patch for that model"),
            (
                type(softmax).row_parameters is not AttentionSoftmax.row_parameters,
                f"with {type(softmax).__name__} needs the layer's input, which a plain call lacks; use rr.attend",
            ),
            (
                self.n_layers is None and next(self.parameters(), None) is not None,
                f"with {type(softmax).__name__} learns, and each layer needs its own; give n_heads= and n_layers=",
            ),
            (
                number >= (self.n_layers or len(self.numbers)),
                f"has n_layers={self.n_layers}, and more modules call attention; give n_layers= their number",
            ),
            (any(frame.f_code is reentrant for frame, _ in walk_stack(None)), "needs use_reentrant=False"),
            (query.dim() != 4 or query.is_nested or len(query) != len(key), "takes only tensors [B, H, T, C]"),
            (query.shape[1] != key.shape[1] > 1 and not enable_gqa, "takes fewer key heads only with enable_gqa=True"),
            (is_causal and attn_mask is not None, "takes is_causal=True or attn_mask, not both"),
            (is_causal and query.shape[-2] > key.shape[-2], "takes is_causal=True for no more queries than keys"),
        ):
            if wrong:
                raise ValueError(f"rr.normaliser {message}")
        q, k, v = (
            x.to(torch.get_autocast_dtype(x.device.type))
            if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
            else x
            for x in (query, key, value)
        )
        keys, bias, sees_BHQ1 = read_mask(q, k, attn_mask, is_causal)
        k, v, scale = k[:, :, : keys.n_keys], v[:, :, : keys.n_keys], q.shape[-1] ** -0.5 if scale is None else scale
        options: dict[str, Any] = {"scale": scale, "keys": keys, "bias": bias, "rows": {}}
        out: Tensor = (
            softmax(q, k, v, **options)
            if dropout_p == 0  # dropout is of weights, which are then made as a whole, as in PyTorch's own formula
            else times_of_key_heads(F.dropout(softmax.all_weights(q, k, **options), dropout_p).to(v.dtype), v)
        )
        # it saves a bool, as PyTorch does not: a layer that is computed again outside the block raises CheckpointError
        return out.masked_fill(~sees_BHQ1, 0.0)


def read_mask(q_BHQC: Tensor, k_BGKC: Tensor, mask: Tensor | None, causal: bool) -> tuple[Keys, Bias | None, Tensor]:
    """A mask as `Keys`, without the last keys that no query sees; what it adds to logits; which rows see a key.

    With `causal` row i sees the keys 0 to i, however many there are. In a mask of numbers -inf and the smallest number
    hide a key. Raises ValueError for a mask that is neither causal nor a window nor padding.
    """
    n_queries, n_keys, device = q_BHQC.shape[2], k_BGKC.shape[2], q_BHQC.device
    pos_1N = torch.arange(max(n_queries, n_keys), device=device)[None]  # only encodings would read them
    q_pos_1Q, n = pos_1N[:, :n_queries], n_queries if causal else n_keys
    if mask is None:
        return (
            Keys(q_pos_BQ=q_pos_1Q, k_pos_BK=pos_1N[:, :n], causal=causal),
            None,
            torch.ones((), dtype=torch.bool, device=device),
        )
    mask = mask[(None,) * (4 - mask.dim())].expand(-1, -1, n_queries, n_keys)
    visible = mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min)
    n = max(int(((1 + pos_1N[0, :n_keys]) * visible.flatten(0, 2).any(0)).max()), min(n_queries, n_keys))
    visible, added, sees = visible[..., :n], mask[..., :n], visible.any(-1, keepdim=True)
    reach = int(((q_pos_1Q + 1 + n - n_queries - visible.int().argmax(-1)) * sees[..., 0]).max())
    valid_BK = None if visible[:, 0].any(1).all() else visible[:, 0].any(1)
    for causal, window in ((True, None), (True, max(1, reach)), (False, None), (False, max(1, reach))):
        keys = Keys(q_pos_BQ=q_pos_1Q, k_pos_BK=pos_1N[:, :n], valid_BK=valid_BK, causal=causal).within(window)
        if torch.equal((keys.visible_to(q_pos_1Q[0], 0, n) & sees).expand_as(visible), visible):
            return keys, None if mask.dtype == torch.bool else GivenBias(added.masked_fill(~visible, 0.0)), sees
    raise ValueError("rr.normaliser takes no attn_mask that is neither causal nor a window nor padding")
