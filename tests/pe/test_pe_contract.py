"""What every encoding promises, checked for each yaml in conf/pe; a new variant is tested by being there.

The docstring of a test is the promise, with the file that makes it: it is printed where the test fails.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from conftest import class_of
from helpers_attention import made
from helpers_pe import (
    NAMES,
    ROOT,
    attention_shape,
    bias_of,
    keys_at,
    layer_bias,
    logits,
    noise,
    positions,
    rotated,
    rotated_keys,
    tunables,
)

from roundround.config.options import options_in
from roundround.kernels import blocks
from roundround.kernels.keys import AttentionShape
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.softmax.softmax import Softmax


def build(name: str, shape: AttentionShape | None = None, moved: float = 0.3) -> PositionalEncoding:
    """The encoding of conf/pe/<name>.yaml, its parameters moved away from where they start."""
    encoding = made("pe", name, shape or attention_shape(), {}, moved)
    assert isinstance(encoding, PositionalEncoding)
    return encoding


def has_bias(name: str) -> bool:
    """Whether an encoding adds a bias; one that fails is tested as if it did, and told what it breaks."""
    try:
        return layer_bias(build(name), keys_at(positions(2))) is not None
    except Exception:
        return True


BIASED = [name for name in NAMES if has_bias(name)]
ROTARY = [name for name in NAMES if isinstance(build(name), RotaryEncoding)]
ADDED = [name for name in NAMES if class_of("pe", name).embed is not PositionalEncoding.embed]
WITH_PARAMETERS = [name for name in NAMES if list(build(name).parameters())]

every_encoding = pytest.mark.parametrize("name", NAMES)
every_packaged = pytest.mark.parametrize("name", sorted(options_in(ROOT / "conf" / "pe")))


def test_the_kinds_of_encoding_are_all_there() -> None:
    kinds = (BIASED, ROTARY, ADDED, WITH_PARAMETERS)
    assert [len(kind) >= 2 for kind in kinds] == [True] * 4


@every_packaged
def test_yaml_starts_with_the_command_that_uses_it(name: str) -> None:
    lines = (ROOT / "conf" / "pe" / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith((f"# roundround train pe={name}", f"# roundround eval run=last pe={name} pe.factor="))


@every_packaged
def test_class_is_final_and_its_numbers_live_in_yaml(name: str) -> None:
    cls = class_of("pe", name)
    _, *parameters = inspect.signature(cls).parameters.values()
    assert cls.__dict__.get("__final__") is True
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert all(p.default is p.empty for p in parameters if p.name != "learned_frequencies"), "an option that came later"
    assert {p.name for p in parameters} | {"_target_"} == tunables("pe", name).keys()


@every_encoding
@pytest.mark.parametrize("weights", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_hooks_keep_the_shape_and_dtype_of_activations(name: str, weights: torch.dtype, dtype: torch.dtype) -> None:
    """Hooks keep shape and dtype, whatever the precision of the module; only a rotation may change the number of
    channels; positions are int64 (pe/base.py).
    """
    encoding = build(name).to(weights)
    pos_1T = positions(7)
    x_BTD, q_BHTC = noise(2, 7, 64, dtype=dtype), noise(2, 4, 7, 16, dtype=dtype)
    for step in (None, 3):
        chosen = encoding.positions(pos_1T, step)
        assert (chosen.shape, chosen.dtype) == (pos_1T.shape, torch.int64)
    embedded = encoding.embed(x_BTD, pos_1T)
    assert (embedded.shape, embedded.dtype) == (x_BTD.shape, dtype)
    queries, keys = (rotate(encoding, q_BHTC, pos_1T) for rotate in (rotated, rotated_keys))
    assert queries.shape == keys.shape == (*q_BHTC.shape[:-1], queries.shape[-1])
    assert queries.dtype == keys.dtype == dtype


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_changed_logits_keep_their_shape_and_dtype_and_stay_finite(name: str, dtype: torch.dtype) -> None:
    """Changed logits keep their shape and dtype, which is at least float32, and stay finite (kernels/bias.py)."""
    keys, wide = keys_at(positions(9)), torch.float64 if dtype == torch.float64 else torch.float32
    bias = layer_bias(build(name).to(dtype), keys, noise(1, 9, 64, dtype=dtype))
    found = bias.applied(noise(1, 4, 4, 6, dtype=wide), keys, 2, 6)
    assert (found.shape, found.dtype) == ((1, 4, 4, 6), wide)
    assert found.isfinite().all()


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": False}, {"causal": False, "window": 3}], ids=str)
def test_a_block_of_changed_logits_is_each_row_by_itself(name: str, options: dict[str, object]) -> None:
    """Changed logits of some rows are those of a call for one row alone, causal or not (kernels/bias.py)."""
    encoding, logits_1HQK = build(name).double(), noise(1, 4, 9, 11)
    keys = keys_at(positions(11, 600), n_queries=9, **options)  # beyond the threshold of FIRE
    alone = keys_at(positions(11, 600), n_queries=9, **{**options, "causal": True})
    bias, of_alone = layer_bias(encoding, keys), layer_bias(encoding, alone)
    first, last = keys.span(4, 7)
    block = bias.applied(logits_1HQK[:, :, 4:7, first:last], keys, 4, 7)
    for row in (4, 5, 6):
        start, end = alone.span(row, row + 1)
        expected = of_alone.applied(logits_1HQK[:, :, row : row + 1, start:end], alone, row, row + 1)
        found = block[:, :, row - 4 : row - 3, start - first : end - first]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)  # of content: sums of other lengths


@pytest.mark.parametrize("name", BIASED)
def test_changed_logits_do_not_depend_on_hidden_ones(name: str) -> None:
    """Logits of keys that a query does not see, whatever they are, change no other logit (kernels/bias.py)."""
    valid_BK = torch.ones(1, 11, dtype=torch.bool)
    valid_BK[0, :2] = False
    keys, logits_1HQK = keys_at(positions(11, 600), window=5, valid_BK=valid_BK), noise(1, 4, 11, 11)
    bias, seen = layer_bias(build(name).double(), keys), keys.visible(0, 11).expand(1, 4, 11, 11)
    expected = bias.applied(logits_1HQK, keys, 0, 11)[seen]
    for hidden in (-30.0, 1e4, torch.nan, torch.inf):
        assert torch.equal(bias.applied(torch.where(seen, logits_1HQK, hidden), keys, 0, 11)[seen], expected)


@every_encoding
def test_a_batch_of_positions_is_each_row_by_itself(name: str) -> None:
    """The texts of a batch do not see each other, and each has positions of its own (pe/base.py)."""
    encoding = build(name).double()
    pos_BT = torch.tensor([[0, 1, 2, 3, 4], [2, 5, 30, 31, 77]])
    q, k, x_BTD = noise(2, 4, 5, 16), noise(2, 4, 5, 16, seed=1), noise(2, 5, 64)
    together, embedded = logits(encoding, q, k, pos_BT, x_BTD), encoding.embed(x_BTD, pos_BT)
    for row in (0, 1):
        alone = slice(row, row + 1)
        by_itself = logits(encoding, q[alone], k[alone], pos_BT[alone], x_BTD[alone])
        torch.testing.assert_close(together[alone], by_itself)
        torch.testing.assert_close(embedded[alone], encoding.embed(x_BTD[alone], pos_BT[alone]))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ADDED])
def test_logits_depend_on_distance_alone(name: str) -> None:
    """Logits depend on the distance alone, not on where a text begins, unless `embed` is overridden (pe/base.py)."""
    # FIRE promises it up to its threshold, position 512
    encoding = build(name).double()
    q, k = noise(2, 4, 12, 16), noise(2, 4, 12, 16, seed=1)
    here, there = (logits(encoding, q, k, positions(12, start)) for start in (0, 131))
    assert (here - there).abs().max() < 1e-10


@every_encoding
def test_one_query_and_one_key_at_all_positions_have_logits_that_depend_on_distance_alone(name: str) -> None:
    """One token again and again has logits that depend on the distance alone: nothing else differs (pe/base.py)."""
    encoding, n_tokens = build(name).double(), 40
    q, k, x_D = noise(1, 4, 1, 16), noise(1, 4, 1, 16, seed=1), noise(1, 1, 64, seed=2)
    repeated = (q.expand(-1, -1, n_tokens, -1), k.expand(-1, -1, n_tokens, -1), positions(n_tokens, 20))
    found_HTT = logits(encoding, *repeated, x_D.expand(-1, n_tokens, -1))[0].detach()
    for distance in range(n_tokens):
        diagonal_HT = found_HTT.diagonal(-distance, 1, 2)[:, 4:]  # a convolution reads less at the first tokens
        spread = (diagonal_HT - diagonal_HT[:, :1]).abs().max() if diagonal_HT.numel() else 0
        assert spread < 1e-10, f"{distance} tokens apart"


@pytest.mark.parametrize("name", ADDED)
def test_an_added_encoding_tells_positions_apart(name: str) -> None:
    """What `embed` adds differs from position to position (pe/base.py)."""
    encoding = build(name)
    vectors = encoding.embed(torch.zeros(1, 160, 64), positions(160))[0].detach()
    assert torch.pdist(vectors).min() > 1e-3


@pytest.mark.parametrize("name", ROTARY)
def test_a_bfloat16_module_keeps_its_angles(name: str) -> None:
    """Frequencies are as exact in a bfloat16 module: a learned one is a factor that starts at 1 (pe/rotary.py)."""
    shape = attention_shape(head_dim=128)
    encoding = build(name, shape, moved=0.0)
    cast = build(name, shape, moved=0.0).bfloat16()
    assert torch.equal(cast.frequencies(), encoding.frequencies())
    at = (
        8191 if type(encoding).prepare is RotaryEncoding.prepare else shape.train_length - 1
    )  # or it follows the length
    cos, sin = cast.prepare(torch.tensor([[at]]), torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.float32
    n_pairs = len(encoding.frequencies())
    cos, sin = cos[..., n_pairs:], sin[..., n_pairs:]  # the first half is that of the channels' partners
    exact = at * encoding.frequencies(torch.float64)
    phase_error = torch.atan2(sin * exact.cos() - cos * exact.sin(), cos * exact.cos() + sin * exact.sin())
    assert phase_error.abs().max() < 1e-3


@pytest.mark.parametrize("name", ROTARY)
def test_a_rotation_keeps_the_length_of_every_vector(name: str) -> None:
    """A RotaryEncoding multiplies every vector's length by its attention factor, which is 1 but for YaRN's and its like
    (pe/rotary.py); one that changes it otherwise is a PositionalEncoding.
    """
    x_BHTC, encoding = noise(2, 4, 12, 16), build(name)
    for rotate in (rotated, rotated_keys):
        x_rotated = rotate(encoding, x_BHTC, positions(12, 1000))
        torch.testing.assert_close(x_rotated.norm(dim=-1), encoding.attention_factor * x_BHTC.norm(dim=-1))


@pytest.mark.parametrize("name", ROTARY)
def test_facts_count_the_pairs_that_rotate(name: str) -> None:
    """The facts of a RotaryEncoding are the pairs of a head and those that rotate (pe/rotary.py)."""
    encoding = build(name)
    x_rotated = rotated(encoding, torch.ones(1, 1, 1, 16), torch.tensor([[1]]))[0, 0, 0]
    expected = {"rotated_pairs": int((x_rotated != 1).sum()) // 2, "pairs": 8}
    assert encoding.facts() == encoding.facts() | expected


@pytest.mark.parametrize("name", BIASED)
def test_autocast_leaves_a_bias_in_float32(name: str) -> None:
    """Autocast leaves a bias in float32: it is turned off where a bias multiplies (kernels/bias.py)."""
    encoding = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bias_of(encoding, 20)
    assert torch.equal(inside, bias_of(encoding, 20))


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_gradients_reach_every_parameter(name: str) -> None:
    """A loss of embeddings and logits has a gradient for every parameter, not zero and finite (pe/base.py)."""
    encoding = build(name)
    q, k, x_BTD = (noise(*size, dtype=torch.float32) for size in ((1, 4, 160, 16), (1, 4, 160, 16), (1, 160, 64)))
    out = (encoding.embed(x_BTD, positions(160)) ** 2).sum()
    weighed = logits(encoding, q, k, positions(160), x_BTD) * noise(4, 160, 160, dtype=torch.float32).tril()
    (out + weighed.sum()).backward()
    for key, parameter in encoding.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.count_nonzero() > 0, key


@pytest.mark.parametrize("name", BIASED)
def test_recomputed_query_blocks_give_the_same_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that the backward pass computes again give the gradients of the whole (kernels/bias.py)."""
    encoding, softmax = build(name).double(), Softmax(attention_shape())
    q, k, v = (noise(2, 4, 12, 16, seed=seed).requires_grad_() for seed in range(3))
    gradients, keys = [], keys_at(positions(12))
    for logits_per_block in (5 * 12 * 2 * 4, 10**9):
        monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", logits_per_block)
        # the definition in blocks, whatever fast form a linear bias may have
        bias = layer_bias(encoding, keys, qk=(q, k))
        out = softmax.attend_in_blocks(q, k, v, scale=0.25, keys=keys, bias=bias, rows={})
        gradients.append(torch.autograd.grad((out**3).sum(), [q, k, v, *encoding.parameters()]))
    torch.testing.assert_close(*gradients)


@every_encoding
def test_construction_on_the_meta_device_costs_nothing(name: str) -> None:
    """Parameters are made on the device that is asked for, in `reset_parameters` or with `torch.empty` (pe/base.py)."""
    with torch.device("meta"):
        encoding = build(name)
    assert all(tensor.is_meta for tensor in encoding.state_dict().values())


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_reset_parameters_repeats_the_construction(name: str) -> None:
    """Every module with parameters has `reset_parameters`, which draws them as the construction does (pe/base.py)."""
    torch.manual_seed(0)
    built = build(name, moved=0.0).state_dict()
    encoding = build(name).to_empty(device="cpu")
    torch.manual_seed(0)
    for module in encoding.modules():
        if list(module.parameters(recurse=False)):
            module.reset_parameters()
    assert all(torch.equal(built[key], value) for key, value in encoding.state_dict().items())


@every_encoding
def test_only_parameters_are_saved(name: str) -> None:
    """A state dict holds parameters alone; tables are computed where they are used (pe/base.py)."""
    encoding = build(name)
    assert encoding.state_dict().keys() == dict(encoding.named_parameters()).keys()


@every_encoding
def test_an_encoding_that_reads_its_layer_is_built_for_each(name: str) -> None:
    """An encoding that differs by layer sets `per_layer`; all others are built once, for layer 0 (pe/base.py)."""
    if class_of("pe", name).per_layer:
        return
    q, k, x_BTD = noise(1, 4, 12, 16), noise(1, 4, 12, 16, seed=1), noise(1, 12, 64)
    found = []
    for layer in (0, 1, 2, 3):
        torch.manual_seed(0)
        encoding = build(name, attention_shape(layer=layer)).double()
        found.append((logits(encoding, q, k, positions(12), x_BTD), encoding.embed(x_BTD, positions(12))))
    assert all(torch.equal(one, first) for of_layer in found for one, first in zip(of_layer, found[0], strict=True))
