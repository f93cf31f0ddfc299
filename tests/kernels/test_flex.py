"""The forms for FlexAttention against the definitions, by its reference on a CPU, gradients too; what is refused."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from helpers_attention import (
    HEAD_DIM,
    KEYS,
    N_BATCH,
    N_HEADS,
    SCALE,
    VALID_BK,
    build,
    encoding_of,
    in_blocks,
    inputs,
    keys_of,
    layer_bias,
    shape_of,
)
from torch import Tensor

from roundround.kernels import flex, trial
from roundround.kernels.bias import LinearBias, at_each
from roundround.kernels.keys import Keys
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.soft_cap import SoftCap

# the reference says that it is one, and the compiler that some of its own functions are old
pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without",
    "ignore::DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf",
)
LONG = {
    "plain causal": keys_of(300, 300),
    "cache": keys_of(140, 300),
    "window": keys_of(300, 300, window=140),
    "window, both ways": keys_of(300, 300, causal=False, window=10),
    "chunks": keys_of(300, 300, chunk=130),
    "chunks, both ways": keys_of(260, 300, causal=False, chunk=40),
}


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reference has gradients and maxima on a CPU too, which its door does not let through."""
    from torch.nn.attention import flex_attention

    plain = flex_attention._apply_kernel_options

    def options(*args: Any) -> dict[str, Any]:
        return {**plain(*args[:-1], flex_attention.AuxRequest(lse=True)), "OUTPUT_MAX": True}  # type: ignore[dict-item]

    monkeypatch.setattr(flex_attention, "_apply_kernel_options", options)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(flex, "DEVICES", ("cpu",))
    monkeypatch.setattr(trial, "outcomes", {})


def named(name: str, n_key_heads: int = N_HEADS) -> AttentionSoftmax:
    return build(name, shape_of(n_key_heads)).double()


CASES = [
    *((name, None) for name in ("sigmoid", "softpick", "soft_cap")),
    *((name, bias) for name in ("sigmoid", "softpick", "softmax", "ssmax", "sink") for bias in ("alibi", "t5_bias")),
    ("temperature", "t5_bias"),
    ("soft_cap", "alibi"),
    ("log_n", "alibi"),
    ("input_sink", "t5_bias"),
]


# each is compiled for its own kind of logits, which takes a second
OFTEN = {
    ("softpick", None),
    ("sigmoid", "t5_bias"),
    ("sink", "alibi"),
}


@pytest.mark.parametrize(
    ("name", "bias_name", "mode"),
    [
        pytest.param(
            *case,
            mode,
            marks=()
            if case in OFTEN and mode in ("plain causal", "window, padded, with a cache")
            else pytest.mark.slow,
        )
        for case in CASES
        for mode in KEYS
    ],
)
def test_the_fused_form_is_the_definition(
    name: str, bias_name: str | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Keys] = []
    plain = flex.attend
    monkeypatch.setattr(
        flex, "attend", lambda *args, **options: (calls.append(options["keys"]), plain(*args, **options))[1]
    )
    monkeypatch.setattr(flex, "flex_passes", lambda *key: True)
    keys = KEYS[mode]
    q, k, v, cotangent = inputs(keys, 2)
    softmax, encoding = named(name, 2), encoding_of(bias_name).double()
    rows = softmax.row_parameters(torch.zeros(N_BATCH, keys.n_queries, 32, dtype=torch.float64))
    options: dict[str, Any] = {"scale": SCALE, "keys": keys, "rows": rows}
    bias = None if bias_name is None else layer_bias(encoding, keys, q, k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.FallsBack)
        out = softmax(q, k, v, bias=bias, **options)
    expected = softmax.attend_in_blocks(q, k, v, bias=bias, **options)
    assert bool(calls) == (keys.n_queries > 1)
    torch.testing.assert_close(out, expected)
    leaves = [q, k, v, *softmax.parameters(), *encoding.parameters()]
    mine, its = (
        torch.autograd.grad((x * cotangent).sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        for x in (out, expected)
    )
    torch.testing.assert_close(mine, its)


def test_another_number_within_the_logits_is_honoured_wherever_it_comes_second() -> None:
    for n, cap in ((20, 50.0), (30, 5.0), (40, 2.0)):
        keys = keys_of(n, n)
        q, k, v, _ = inputs(keys, 2)
        softmax = SoftCap(shape_of(2), cap=cap).double()
        options: dict[str, Any] = {"scale": 10 / cap, "keys": keys, "rows": {}, "bias": None}
        expected = softmax.attend_in_blocks(q, k, v, **options)
        torch.testing.assert_close(softmax.attend_fused(q, k, v, **options), expected)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mode", LONG)
def test_blocks_of_the_mask_hold_all_that_is_visible_and_no_more(mode: str, padded: bool) -> None:
    keys = LONG[mode]
    if padded and keys.chunk is not None:
        pytest.skip("chunks beside padding begin where each text does, which FlexAttention is not given")
    if padded:
        valid_BK = torch.ones(2, 300, dtype=torch.bool)
        valid_BK[0, :150] = valid_BK[1, -9:] = False
        keys = keys_of(keys.n_queries, 300, valid_BK=valid_BK, causal=keys.causal, window=keys.window, chunk=keys.chunk)
    mask = flex.block_mask(keys)
    visible = keys.visible_to(torch.arange(keys.n_queries), 0, 300)[:, 0]
    rows, columns = torch.arange(keys.n_queries)[:, None], torch.arange(300)
    batch = torch.arange(len(visible))[:, None, None]
    assert torch.equal(mask.mask_mod(batch, 0, rows, columns).expand_as(visible), visible)
    listed, full = (torch.zeros(3, 3, dtype=torch.bool) for _ in range(2))
    for found, number, which in (
        (listed, mask.kv_num_blocks, mask.kv_indices),
        (full, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for row in range(number.shape[-1]):
            found[row, which[0, 0, row, : int(number[0, 0, row])].long()] = True
    assert not (listed & full).any()
    for row in range(number.shape[-1]):
        for column in range(3):
            block = visible[:, row * 128 : row * 128 + 128, column * 128 : column * 128 + 128]
            if block.any():
                assert (listed | full)[row, column]
            if full[row, column]:
                assert block.all()
    assert full.any() == (not padded and mode in ("plain causal", "cache"))


def test_a_gradient_for_coordinates_is_left_to_a_channel() -> None:
    keys = KEYS["plain causal"]
    slopes = torch.ones(N_HEADS, 1, 1)
    assert LinearBias(slopes).score_mod(keys) is not None
    learned = LinearBias(slopes.requires_grad_())
    assert learned.score_mod(keys) is None
    with torch.no_grad():
        assert learned.score_mod(keys) is not None


def test_rows_that_see_nothing_are_zero_and_pass_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "flex_passes", lambda *key: True)
    keys = keys_of(valid_BK=VALID_BK)
    q, k, v, cotangent = inputs(keys)
    out = named("sigmoid")(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
    assert not out[0, :, :3].any()
    grads = torch.autograd.grad((out * cotangent).sum(), (q, k, v))
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][0, :, :3].any()


def test_logarithms_of_weights_and_their_derivatives() -> None:
    x = torch.tensor([-800.0, -3.0, -1e-9, 0.0, 1e-9, 3.0, 800.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(flex.log_sigmoid(x), torch.nn.functional.logsigmoid(x))
    (slope,) = torch.autograd.grad(flex.log_sigmoid(x).sum(), x)
    torch.testing.assert_close(slope, torch.sigmoid(-x.detach()))
    found = flex.log_expm1(x)
    expected = [-torch.inf] * 4 + [
        torch.tensor(1e-9).double().log().item(),
        torch.tensor(3.0).double().expm1().log().item(),
        800.0,
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    (slope,) = torch.autograd.grad(found.nan_to_num(0.0, 0.0, 0.0).sum(), x)
    assert slope[:4].tolist() == [0.0] * 4
    torch.testing.assert_close(slope[4:], 1 / -torch.expm1(-x[4:].detach()))


def test_the_trial_passes_here_and_fails_where_the_kernel_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flex.flex_passes("cpu", torch.float32, 16)
    monkeypatch.setattr(trial, "outcomes", {})
    plain = flex.attend
    monkeypatch.setattr(
        flex, "attend", lambda *args, **options: plain(*args, **(options | {"keys": keys_of(200, 200)}))
    )
    with pytest.warns(trial.FallsBack, match="^FlexAttention fails on cpu in float32 .*: attention is computed as on"):
        assert not flex.flex_passes("cpu", torch.float32, 16)


class OnCuda(Tensor):
    device = torch.device("cuda")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("dtype", "n_channels", "why"),
    [
        (torch.bfloat16, 64, None),
        (torch.float64, 64, "takes only float32 and half precision"),
        (torch.float16, 8, "takes 16 to 256 channels per head, not 8"),
        (torch.float32, 512, "takes 16 to 256 channels per head, not 512"),
    ],
)
def test_what_it_does_not_take_on_cuda_has_a_reason(
    dtype: torch.dtype, n_channels: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "DEVICES", ("cuda",))
    monkeypatch.setattr(flex, "flex_passes", lambda *key: True)
    q, keys = torch.empty(1, N_HEADS, 11, n_channels, dtype=dtype).as_subclass(OnCuda), keys_of()
    if why is None:
        assert flex.serves(q, keys, None)
    else:
        with pytest.warns(trial.FallsBack, match=f"^FlexAttention {why}"):
            assert not flex.serves(q, keys, None)
    assert not flex.serves(q[:, :, :1], keys_of(1), None)  # a token after its cache: a row of logits is no matrix


def test_a_cpu_never_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert flex.DEVICES == ("cuda",)
    q, k, v, _ = inputs(KEYS["plain causal"])
    assert not flex.serves(q, KEYS["plain causal"], None)
    softmax = named("sigmoid")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trial.FallsBack)
        out = softmax(q, k, v, scale=SCALE, keys=KEYS["plain causal"], bias=None, rows={})
    assert torch.equal(out, in_blocks(softmax, q, k, v, KEYS["plain causal"], None))
    assert out.shape[-1] == HEAD_DIM


@pytest.mark.parametrize("shape", [(), (1, 1, 1), (4, 1), (1, 4, 1), (3, 1, 5), (3, 4, 5), (5,)])
def test_an_element_is_found_by_the_axes_that_there_are(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(math.prod(shape))).reshape(shape)
    whole = x.expand(3, 4, 5) if x.dim() < 3 else x.broadcast_to(3, 4, 5)
    for b, h, t in ((0, 0, 0), (2, 3, 4), (1, 2, 3)):
        found = at_each(x)(*map(torch.tensor, (b, h, t)))
        assert float(found) == float(whole[b, h, t])
