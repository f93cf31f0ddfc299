"""`with rr.normaliser(name):` against PyTorch's attention and the definition over one matrix of logits, in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from torch.utils.checkpoint import CheckpointError, checkpoint

import roundround as rr
from roundround.kernels.blocks import times_of_key_heads
from roundround.support.errors import UserError

T, EPS = 9, torch.finfo(torch.float64).eps
ROUNDING = 64 * EPS  # of sums over 9 keys and 8 channels, of numbers up to 10
CAUSAL = torch.ones(T, T).tril().bool()
VALID = torch.ones(2, 1, 1, T).bool().index_fill(-1, torch.tensor([0, 1, 2]), False)  # padding to the left
VALID[1] = True
RIGHT = VALID.flip(-1)


def numbers(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(n_queries: int = T, n_keys: int = T, n_key_heads: int = 2) -> list[Tensor]:
    sizes = [(2, 4, n_queries, 8), *[(2, n_key_heads, n_keys, 8)] * 2]
    return [numbers(seed, *size).requires_grad_() for seed, size in enumerate(sizes)]


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "causal mask": {"attn_mask": CAUSAL},
    "two axes and a scale": {"attn_mask": CAUSAL, "scale": 0.3},
    "left padding": {"attn_mask": VALID},
    "left padding, causal": {"attn_mask": VALID & CAUSAL},
    "right padding, causal": {"attn_mask": RIGHT & CAUSAL},
    "padding of both": {"attn_mask": RIGHT & RIGHT.mT & CAUSAL},
    "window": {"attn_mask": CAUSAL.triu(-2)},
    "window, padding": {"attn_mask": CAUSAL.triu(-2) & VALID},
    "symmetric window": {"attn_mask": torch.ones(T, T).tril(2).triu(-2).bool()},
    "-inf": {"attn_mask": torch.zeros(T, T, dtype=torch.float64).masked_fill(~CAUSAL, -torch.inf)},
    "the smallest number": {
        "attn_mask": torch.zeros(2, 1, T, T).double().masked_fill(~(CAUSAL & RIGHT), torch.finfo(torch.float64).min)
    },
    "numbers": {"attn_mask": numbers(7, 4, T, T).masked_fill(~CAUSAL, -torch.inf)},
}


@pytest.mark.parametrize("mask", MASKS)
def test_a_replaced_softmax_is_pytorchs_gradients_included(mask: str) -> None:
    found, expected = qkv(), qkv()
    with rr.normaliser("softmax"):
        out = F.scaled_dot_product_attention(*found, **MASKS[mask], enable_gqa=True)
    theirs = F.scaled_dot_product_attention(*expected, **MASKS[mask], enable_gqa=True)
    torch.testing.assert_close(out, theirs, atol=ROUNDING, rtol=0)
    weights = numbers(5, *out.shape)
    (out * weights).sum().backward()
    (theirs * weights).sum().backward()
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=4 * ROUNDING, rtol=0)


def visible_in(mask: dict[str, Any]) -> tuple[Tensor, Tensor | float]:
    """What a mask shows, and what it adds to the logits."""
    given = CAUSAL if mask.get("is_causal") else mask.get("attn_mask", torch.ones(T, T).bool())
    if given.dtype == torch.bool:
        return given.expand(2, 1, T, T), 0.0
    visible = given > torch.finfo(given.dtype).min
    return visible[(None,) * (4 - visible.ndim)].expand(2, -1, T, T)[:, :1], given.masked_fill(~visible, 0.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["entmax15", "sigmoid", "top_k", "adaptive_temperature"])
def test_a_replaced_normaliser_is_its_definition_on_one_matrix(name: str, mask: str) -> None:
    options: dict[str, Any] = {"k": 3} if name == "top_k" else {}
    normaliser = rr.normaliser(name, **options)
    q, k, v = (x.detach() for x in qkv())
    visible, added = visible_in(MASKS[mask])
    logits = times_of_key_heads(q, k.mT) * MASKS[mask].get("scale", 8**-0.5) + added
    alpha = normaliser.layers[0].weights(logits, visible, {"n_visible": visible.sum(-1, keepdim=True)})  # type: ignore[operator]
    expected = times_of_key_heads(alpha.masked_fill(~visible.any(-1, keepdim=True), 0.0), v)
    with normaliser:
        found = F.scaled_dot_product_attention(q, k, v, **MASKS[mask], enable_gqa=True)
    torch.testing.assert_close(found, expected, atol=100 * ROUNDING, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_queries_than_keys_align_as_in_pytorch(causal: bool) -> None:
    q, k, v = qkv(n_queries=4)
    with rr.normaliser("softmax"):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        last = F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL[-4:], enable_gqa=True)
        first = F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL[:4], enable_gqa=True)
    plain = partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    torch.testing.assert_close(found, plain(is_causal=causal), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(last, plain(attn_mask=CAUSAL[-4:]), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(first, plain(attn_mask=CAUSAL[:4]), atol=ROUNDING, rtol=0)


def test_more_queries_than_keys_and_one_key_head_and_values_of_another_width() -> None:
    q, k, _ = qkv(n_keys=4, n_key_heads=1)
    v = numbers(3, 2, 1, 4, 6)
    with rr.normaliser("softmax"):
        found = imported_by_name(q, k, v)
    torch.testing.assert_close(found, imported_by_name(q, k, v), atol=ROUNDING, rtol=0)


def test_dropout_is_of_weights() -> None:
    q, k, _ = (x.detach() for x in qkv(n_key_heads=4))
    ones = torch.ones(2, 4, T, 1, dtype=torch.float64).expand(-1, -1, -1, 8)
    eye = torch.eye(T, dtype=torch.float64).expand(2, 4, T, T)
    normaliser = rr.normaliser("entmax15")
    with normaliser:
        alpha = F.scaled_dot_product_attention(q, k, eye, is_causal=True)
        torch.manual_seed(0)
        dropped = F.scaled_dot_product_attention(q, k, eye, is_causal=True, dropout_p=0.25)
        sums = [F.scaled_dot_product_attention(q, k, ones, dropout_p=0.25).mean() for _ in range(200)]
    kept = (dropped - alpha / 0.75).abs() < ROUNDING
    assert bool((kept | (dropped == 0)).all())
    assert 0.6 < kept[alpha > 0].double().mean() < 0.9
    assert abs(float(torch.stack(sums).mean()) - 1) < 0.01  # 200 x 72 rows; a row's deviation is below 0.6


def test_autocast_computes_in_its_precision() -> None:
    q, k, v = (x.detach().float() for x in qkv(n_key_heads=4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = F.scaled_dot_product_attention(q, k, v.bfloat16(), is_causal=True)
        with rr.normaliser("softmax"):
            found = F.scaled_dot_product_attention(q, k, v.bfloat16(), is_causal=True)
    assert found.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(found, theirs, atol=0.03, rtol=0)  # bfloat16 has 8 bits


def test_a_compiled_function_is_replaced_too() -> None:
    q, k, v = (x.detach() for x in qkv(n_key_heads=4))
    compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q.sin(), k, v).cos(), backend="eager")
    with rr.normaliser("entmax15"):
        found, expected = compiled(q), F.scaled_dot_product_attention(q.sin(), k, v).cos()
    torch.testing.assert_close(found, expected, atol=ROUNDING, rtol=0)
    assert not torch.allclose(found, compiled(q), atol=1e-3)


def test_layers_of_a_compiled_model_are_those_of_the_model() -> None:
    model = Model()
    with an_ssmax(), torch.no_grad():
        expected = model(X)
    with an_ssmax(), torch.no_grad():
        found = torch.compile(model, backend="eager")(X)
    torch.testing.assert_close(found, expected, atol=ROUNDING, rtol=0)


# -- layers


class Layer(nn.Module):
    """Attention with its own projections, as people write it."""

    def __init__(self, helper: nn.Module | None = None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48).double(), nn.Linear(16, 16).double()

    def forward(this, x_BTD: Tensor) -> Tensor:  # whatever its name
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in this.qkv(x_BTD).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x_BTD + this.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, n_layers: int = 3, again: bool = False, twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.again, self.twice = nn.ModuleList([Layer() for _ in range(n_layers)]), again, twice

    def forward(self, x_BTD: Tensor) -> Tensor:
        for layer in self.layers:
            for _ in range(1 + self.twice):
                x_BTD = checkpoint(layer, x_BTD, use_reentrant=False) if self.again else layer(x_BTD)
        return x_BTD


X = numbers(9, 2, 6, 16)


def an_ssmax(n_layers: int = 3) -> Any:
    normaliser = rr.normaliser("ssmax", n_heads=4, train_length=6, n_layers=n_layers).double()
    with torch.no_grad():
        for number, layer in enumerate(normaliser.layers):
            layer.s.copy_(torch.linspace(0.2, 1.5, 4) + number)  # type: ignore[operator, union-attr]
    return normaliser


def gradients(model: nn.Module, normaliser: nn.Module) -> list[Tensor]:
    found = [x.grad.clone() for x in [*model.parameters(), *normaliser.parameters()] if x.grad is not None]
    assert len(found) == len([*model.parameters(), *normaliser.parameters()])
    return found


def loss(model: nn.Module) -> Tensor:
    return model(X).square().mean()  # type: ignore[no-any-return]


def test_each_layer_has_its_own_and_layers_are_in_the_order_of_calls() -> None:
    model, normaliser = Model(), an_ssmax()
    with normaliser:
        out = model(X)
    x = X
    for number, layer in enumerate(model.layers):
        alone = an_ssmax()
        alone.layers, alone.n_layers = alone.layers[number : number + 1], 1
        with alone:
            x = layer(x)
    torch.testing.assert_close(out, x, atol=ROUNDING, rtol=0)
    assert [name for name, _ in normaliser.named_parameters()] == [f"layers.{i}.s" for i in range(3)]


def backward(model: nn.Module) -> None:
    loss(model).backward()


def backward_of_torch(model: nn.Module) -> None:
    value = loss(model)
    torch.autograd.backward(value, torch.ones_like(value), inputs=EVERY)


def grad_of_torch(model: nn.Module) -> None:
    for parameter, grad in zip(EVERY, torch.autograd.grad(loss(model), EVERY), strict=True):
        parameter.grad = grad


EVERY: list[Tensor] = []


@pytest.mark.parametrize("step", [backward, backward_of_torch, grad_of_torch])
@pytest.mark.parametrize("twice", [False, True])
def test_activation_checkpointing_changes_no_gradient(step: Callable[[nn.Module], None], twice: bool) -> None:
    found = []
    for again in (False, True):
        model, normaliser = Model(again=again, twice=twice), an_ssmax()
        EVERY[:] = [*model.parameters(), *normaliser.parameters()]
        with normaliser:
            step(model)
        found.append(gradients(model, normaliser))
    for plain, computed_again in zip(*found, strict=True):
        torch.testing.assert_close(computed_again, plain, atol=ROUNDING, rtol=0)


def test_accumulated_gradients_are_those_of_each_batch() -> None:
    model, normaliser = Model(again=True), an_ssmax()
    with normaliser:
        backward(model)
        once = gradients(model, normaliser)
        backward(model)
    for own, both in zip(once, gradients(model, normaliser), strict=True):
        torch.testing.assert_close(both, 2 * own, atol=ROUNDING, rtol=0)
    with normaliser:  # a second block keeps the order
        model.zero_grad()
        normaliser.zero_grad()
        backward(model)
    for own, third in zip(once, gradients(model, normaliser), strict=True):
        torch.testing.assert_close(third, own, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", ["softmax", "temperature", "entmax15", "sigmoid"])
def test_layers_that_are_computed_again_outside_the_block_raise(name: str) -> None:
    with rr.normaliser(name):
        value = loss(Model(again=True))
    with pytest.raises(CheckpointError):
        value.backward()


def test_parameters_learn() -> None:
    model, normaliser = Model(), an_ssmax()
    optimizer, losses = torch.optim.Adam([*model.parameters(), *normaliser.parameters()], lr=1e-2), []
    before = {name: value.clone() for name, value in normaliser.state_dict().items()}
    with normaliser:
        for _ in range(20):
            optimizer.zero_grad()
            losses.append(loss(model))
            losses[-1].backward()
            optimizer.step()
    assert losses[-1] < losses[0] / 2
    assert all(not torch.equal(value, before[name]) for name, value in normaliser.state_dict().items())


# -- refusals


def call(**options: Any) -> None:
    F.scaled_dot_product_attention(*qkv(n_key_heads=4), **options)


def nested() -> None:
    with rr.normaliser("sigmoid"):
        call()


def run(model: Callable[[Tensor], Tensor] | nn.Module, x: Tensor = X) -> None:
    model(x)


def two_models() -> None:
    run(Model())
    run(Model())


def reentrant() -> None:
    checkpoint(Layer(), X.clone().requires_grad_(), use_reentrant=True)


RING = CAUSAL.roll(1, -1)
REFUSED: list[tuple[Callable[[], AbstractContextManager[Any]], Callable[[], None], str]] = [
    (lambda: rr.normaliser("entmax15"), partial(call, attn_mask=RING), "neither causal nor a window nor padding"),
    (lambda: rr.normaliser("entmax15"), partial(call, attn_mask=CAUSAL.expand(4, -1, -1).clone().logical_and(
        torch.arange(4)[:, None, None] != torch.arange(T))), "neither causal nor a window"),
    (lambda: rr.normaliser("entmax15"), partial(call, attn_mask=CAUSAL, is_causal=True), "not both"),
    (lambda: rr.normaliser("entmax15"), nested, "inside another one"),
    (lambda: rr.normaliser("entmax15"), lambda: run(nn.MultiheadAttention(16, 2).double(), X) or None, "needs"),
    (lambda: rr.normaliser("as_entmax", n_heads=4, d_model=16, n_layers=1), call, "ASEntmax needs the layer's input"),
    (lambda: rr.normaliser("input_sink", n_heads=4, d_model=16), call, "InputSink needs the layer's input"),
    (lambda: rr.normaliser("ssmax", n_heads=4, train_length=6), call, "SSMax learns.*give n_heads= and n_layers="),
    (lambda: an_ssmax(2), lambda: run(Model()), "n_layers=2, and more modules"),
    (lambda: an_ssmax(4), lambda: run(Model()), "3 modules in the block called.* and 4 must; n_layers= is"),
    (lambda: an_ssmax(4), lambda: backward(Model()), "^3 modules .*and 4 must"),
    (lambda: an_ssmax(3), two_models, "n_layers=3, and more modules"),
    (lambda: rr.normaliser("entmax15"), lambda: None, "0 modules .*and at least one must"),
    (lambda: rr.normaliser("entmax15"), reentrant, "use_reentrant=False"),
    (lambda: rr.normaliser("entmax15"), lambda: F.scaled_dot_product_attention(*qkv()) and None, "enable_gqa=True"),
    (lambda: rr.normaliser("entmax15"), lambda: F.scaled_dot_product_attention(
        *qkv(n_keys=4, n_key_heads=4), is_causal=True) and None, "no more queries than keys"),
    (lambda: rr.normaliser("entmax15"), lambda: F.scaled_dot_product_attention(X, X, X) and None, "B, H, T, C"),
]  # fmt: skip
REFUSED[4] = (
    REFUSED[4][0],
    lambda: nn.MultiheadAttention(16, 2).double()(X, X, X) and None,
    "nn.MultiheadAttention hides its attention",
)


@pytest.mark.parametrize(("block", "inside", "line"), REFUSED, ids=[line for *_, line in REFUSED])
def test_what_cannot_be_replaced_is_one_line(
    block: Callable[[], AbstractContextManager[Any]], inside: Callable[[], None], line: str
) -> None:
    with pytest.raises(ValueError, match=line) as error, block():
        inside()
    assert "\n" not in str(error.value)
    call(is_causal=True)  # and the block has ended


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (partial(rr.normaliser, "entmax"), "no softmax=entmax; did you mean 'entmax15'"),
        (partial(rr.normaliser, "top_k", kk=3), "no parameter 'kk'; did you mean 'k'"),
        (partial(rr.normaliser, "ssmax", n_layers=2), "n_heads is needed; give n_heads="),
        (partial(rr.normaliser, "as_entmax", n_heads=2), "d_model is needed"),
        (partial(rr.normaliser, "log_n"), "train_length is needed"),
        (partial(rr.normaliser, "entmax15", encoding="rope"), "no parameter 'encoding'"),
        (partial(rr.normaliser, nn.Identity), "that makes a AttentionSoftmax"),
    ],
)
def test_a_wrong_name_or_number_is_one_line(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        make()
    assert "\n" not in str(error.value)


def test_attention_of_roundround_in_a_block_is_refused() -> None:
    q, k, v = (x.detach() for x in qkv(n_key_heads=4))
    with pytest.raises(ValueError, match=r"use rr\.patch"), rr.normaliser("entmax15"):
        rr.attend(q, k, v, normaliser=rr.normaliser("softmax"))
