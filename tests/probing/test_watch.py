"""`rr.watch` in training loops that nobody here wrote: its numbers against dense attention in float64, and that it
changes nothing.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lightning
import pytest
import torch
from conftest import ROOT
from ranks import on_ranks
from rounding import rounding
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import checkpoint as checkpointing
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import roundround as rr
from roundround.probing import watch as watching
from roundround.support.errors import UserError

VOCABULARY, WIDTH, HEADS, CONTEXT = 13, 32, 4, 24


# -- a small GPT as people write it: it gains one line


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)


def rotated(x: Tensor, how: str, n_rotary: int) -> Tensor:
    """Queries or keys turned by position: half-split or interleaved, the first channels alone."""
    frequencies = 100.0 ** -(torch.arange(n_rotary // 2) / (n_rotary // 2))
    angles = torch.arange(x.shape[-2])[:, None] * frequencies
    angles = torch.cat([angles, angles], -1) if how == "half-split" else angles.repeat_interleave(2, -1)
    part, rest = x[..., :n_rotary], x[..., n_rotary:]
    other = halves(part) if how == "half-split" else neighbours(part)
    return torch.cat([part * angles.cos() + other * angles.sin(), rest], -1)


class SelfAttention(nn.Module):
    def __init__(self, how: str = "learned", dropout: float = 0.0, n_rotary: int = WIDTH // HEADS) -> None:
        super().__init__()
        self.how, self.dropout, self.n_rotary = how, dropout, n_rotary
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.how != "learned":
            q, k = (rotated(y, self.how, self.n_rotary) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), SelfAttention(**options)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, n_layers: int = 2, call: Callable[..., Tensor] = lambda block, x: block(x), **options: Any):
        super().__init__()
        self.wte, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.wpe = nn.Embedding(CONTEXT, WIDTH) if options.get("how", "learned") == "learned" else None
        self.h = nn.ModuleList(Block(**options) for _ in range(n_layers))
        self.call = call

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = self.call(block, x)
        return self.head(x)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def batches(n: int) -> Iterator[Tensor]:
    for step in range(n):
        yield torch.randint(VOCABULARY, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(step))


def trained(model: nn.Module, n_steps: int, *, parts: int = 1, context: Any = nullcontext) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for tokens in batches(n_steps):
        for part in tokens.chunk(parts):
            with context():
                loss = loss_of(model, part)
            (loss / parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def gpt(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(**options)


def watched(**options: Any) -> Any:
    return rr.watch(**{"every": 2} | options)


def layer(record: dict[str, Any], number: int = 0) -> dict[str, Any]:
    end = f"_layer_{number}"
    return {name.removesuffix(end): value for name, value in record.items() if name.endswith(end)}


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# -- numbers


def dense(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float, rows: list[int]
) -> dict[str, float | list[float]]:
    """The numbers of one text, [H, T, C] and [G, T, C], one row after the other in float64."""
    found: dict[str, list[float]] = {}
    for h in range(len(q)):
        for i in rows:
            key = k[h * len(k) // len(q)].double()
            logits = key @ q[h, i].double() * scale
            sees = torch.ones(len(key), dtype=torch.bool)
            if causal:
                sees &= torch.arange(len(key)) <= i
            if mask is not None and mask.dtype == torch.bool:
                sees &= mask[h, i]
            elif mask is not None:
                sees &= mask[h, i] > -1e30
                logits = logits + mask[h, i].double()
            if not sees.any():
                continue
            logits[~sees] = -torch.inf
            weights = (logits - logits.max()).exp()
            weights /= weights.sum()
            n, entropy = int(sees.sum()), -sum(float(w) * math.log(w) for w in weights if w > 0)
            row = {
                "largest_logit": float(logits.max()),
                "logit_spread": float(logits.max() - logits[sees].min()),
                "attention_entropy": entropy,
            }
            if n > 1:
                row["attention_entropy_share"] = entropy / math.log(n)
            if i:
                row["first_token_share"] = float(weights[0])
            if i and len(key) == q.shape[1]:
                row["previous_token_share"] = float(weights[i - 1])
            if len(key) == q.shape[1]:
                row["diagonal_share"] = float(weights[i])
                row["mean_distance"] = sum(float(w) * abs(i - j) for j, w in enumerate(weights))
            for name, value in row.items():
                found.setdefault(name, []).append(value)
    means: dict[str, Any] = {name: sum(values) / len(values) for name, values in found.items()}
    means["largest_logit"] = max(found["largest_logit"])
    for name, pairs in (("half_split", (slice(0, 4), slice(4, 8))), ("interleaved", (slice(0, 8, 2), slice(1, 8, 2)))):
        norms = torch.stack([q[:, rows, pair].double() for pair in pairs]).norm(dim=0).flatten(0, 1)
        means[f"query_norms_{name}"] = norms.mean(0).tolist()
        square = norms.square().sum(0)
        means[f"query_share_of_slowest_quarter_{name}"] = float(square[-1] / square.sum())
    return means


def bools(*shape: int) -> Tensor:
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[..., 2, :] = False  # a row that sees nothing
    return mask


def floats(*shape: int) -> Tensor:
    bias = torch.randn(*shape, generator=torch.Generator().manual_seed(4))
    return bias.masked_fill(~bools(*shape), torch.finfo(torch.float32).min)


CALLS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "everything is seen": {},
    "bool mask": {"attn_mask": bools(3, 1, 12, 12)},
    "bool mask of two axes": {"attn_mask": bools(12, 12)},
    "float mask": {"attn_mask": floats(3, 4, 12, 12)},
    "scale": {"is_causal": True, "scale": 0.9},
    "dropout": {"is_causal": True, "dropout_p": 0.5},
    "grouped queries": {"is_causal": True, "enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_the_numbers_are_those_of_dense_attention_in_float64(name: str, dtype: torch.dtype) -> None:
    options, generator = CALLS[name], torch.Generator().manual_seed(1)
    if dtype == torch.bfloat16 and options.get("attn_mask") is not None and options["attn_mask"].dtype != torch.bool:
        options = {"attn_mask": options["attn_mask"].clamp(min=-3e38).to(dtype)}
    q, k, v = (2 * torch.randn(3, 4, 12, 8, generator=generator).to(dtype) for _ in range(3))
    if "enable_gqa" in options:
        k, v = k[:, :2], v[:, :2]
    with watched(every=1, seed=5) as seen:
        F.scaled_dot_product_attention(q, k, v, **options)
        seen.step()
    text = int(torch.randint(3, (), generator=torch.Generator().manual_seed(5)))
    mask = options.get("attn_mask")
    mask = mask.expand(3, 4, 12, 12)[text] if mask is not None else None
    scale = options.get("scale", 8**-0.5)
    expected = dense(q[text], k[text], mask, options.get("is_causal", False), scale, list(range(12)))
    found = layer(seen.records[0])
    tolerance = rounding(12 * 8, 40.0)
    assert {name: found[name] for name in expected} == {
        name: pytest.approx(value, abs=tolerance) for name, value in expected.items()
    }
    assert sum(name.startswith("key_") for name in found) == 4


def test_of_a_long_text_a_few_rows_are_drawn_by_the_seed_the_same_on_every_step() -> None:
    q, k = (torch.randn(2, 100, 8, generator=torch.Generator().manual_seed(n)) for n in range(2))  # three axes
    found = []
    for seed in (0, 0, 1):
        with watched(every=1, seed=seed) as seen:
            for _ in range(2):
                F.scaled_dot_product_attention(q, k, k, is_causal=True)
                seen.step()
        found.append([layer(record)["attention_entropy"] for record in seen.records])
    assert found[0] == found[1]
    assert len({*found[0]}) == 1
    assert found[0] != found[2]
    rows = torch.randperm(100, generator=torch.Generator().manual_seed(0))[: watching.ROWS].sort().values.tolist()
    expected = dense(q, k, None, True, 8**-0.5, rows)
    assert found[0][1] == pytest.approx(expected["attention_entropy"], abs=rounding(100 * 8, 5.0))


def test_positions_are_compared_in_self_attention_alone() -> None:
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8)
    with watched(every=1) as seen:
        F.scaled_dot_product_attention(q, k, k)
        seen.step()
    found = layer(seen.records[0])
    assert "mean_distance" not in found
    assert found["first_token_share"] > 0


# -- pairs of channels


@pytest.mark.parametrize(("how", "n_rotary"), [("half-split", 8), ("half-split", 4), ("interleaved", 8)])
@pytest.mark.parametrize("context", [nullcontext, partial(torch.autocast, "cpu", torch.bfloat16)])
def test_the_pairing_is_told_by_tokens_that_occur_twice(how: str, n_rotary: int, context: Any) -> None:
    with watched() as seen:
        trained(gpt(how=how, n_rotary=n_rotary), 4, context=context)
    layout = seen.layouts[""]
    assert layout.pairing == how
    assert how == "interleaved" or layout.n_rotary == n_rotary
    assert len(layer(seen.records[1], 1)["query_norms"]) == 4
    assert not any("half_split" in name or "interleaved" in name for record in seen.records for name in record)


def test_both_pairings_are_reported_if_nothing_tells_which() -> None:
    with watched() as seen:
        trained(gpt(), 2)
    found = layer(seen.records[0])
    for name in ("norms", "share_of_slowest_quarter"):
        assert {f"{kind}_{name}_{how}" for kind in ("query", "key") for how in ("half_split", "interleaved")} < {*found}
        assert f"query_{name}" not in found


def test_heads_with_an_odd_number_of_channels_have_no_pairs() -> None:
    q = torch.randn(1, 2, 6, 5)
    with watched(every=1) as seen:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
        seen.step()
    assert not any("norm" in name for name in seen.records[0])


# -- training is the same


CHECKPOINTED = {
    "checkpoint": partial(checkpointing.checkpoint, use_reentrant=False),
    "reentrant": partial(checkpointing.checkpoint, use_reentrant=True),
    "selective": partial(
        checkpointing.checkpoint,
        use_reentrant=False,
        context_fn=partial(
            checkpointing.create_selective_checkpoint_contexts,
            [torch.ops.aten.addmm.default, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor],
        ),
    ),
}


@pytest.mark.parametrize(
    "loop",
    [
        {},
        {"parts": 3},
        {"context": partial(torch.autocast, "cpu", torch.bfloat16)},
        *({"call": call} for call in CHECKPOINTED.values()),
    ],
    ids=["plain", "accumulation", "autocast", *CHECKPOINTED],
)
def test_training_is_bit_for_bit_the_same_and_each_layer_is_counted_once(loop: dict[str, Any]) -> None:
    options = {"dropout": 0.2, "how": "half-split"} | {name: loop.pop(name) for name in ("call",) if name in loop}
    plain = trained(gpt(**options), 4, **loop)
    state = torch.get_rng_state()
    with watched(every=2) as seen:
        model = trained(gpt(**options), 4, **loop)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_weights(plain, model)
    assert [record["step"] for record in seen.records] == [2, 4]
    assert seen.layers == ["h.0.attn", "h.1.attn"]
    assert {name.rpartition("_layer_")[2] for record in seen.records for name in record if name != "step"} == {"0", "1"}


@pytest.mark.parametrize("call", CHECKPOINTED.values(), ids=CHECKPOINTED)
def test_what_a_backward_pass_computes_again_is_no_call(call: Callable[..., Tensor]) -> None:
    made = gpt(call=call)
    with watched(every=1) as seen:
        torch.autograd.backward(loss_of(made, next(batches(1))))  # a mode sees into this, not into Tensor.backward
        seen.step()
    assert seen.layers == ["h.0.attn", "h.1.attn"]


def test_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def hooks() -> tuple[int, int, object]:
        from torch.optim.optimizer import _global_optimizer_post_hooks

        return len(_global_optimizer_post_hooks), torch._C._len_torch_function_stack(), F.scaled_dot_product_attention

    before = hooks()
    with watched(every=1) as seen:
        assert hooks()[:2] == (before[0] + 1, before[1] + 1)
        trained(gpt(), 1)
    assert hooks() == before
    with pytest.raises(ZeroDivisionError), watched(every=1):
        _ = 1 / 0
    assert hooks() == before
    assert all(isinstance(value, float | int | list) for value in seen.records[0].values())


def test_only_measured_steps_have_a_mode() -> None:
    found, model = [], gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched(every=3):
        for tokens in batches(6):
            loss_of(model, tokens).backward()
            found.append(torch._C._len_torch_function_stack())
            optimizer.step()
    assert found == [0, 0, 1, 0, 0, 1]


# -- what is a step, a layer, a call


def test_the_first_optimizer_counts_the_steps_of_several() -> None:
    model = gpt()
    optimizers = [torch.optim.SGD(model.h.parameters(), 0.1), torch.optim.Adam(model.wte.parameters())]
    with watched(every=2) as seen:
        for tokens in batches(4):
            loss_of(model, tokens).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert [record["step"] for record in seen.records] == [2, 4]


def test_explicit_steps_replace_those_of_optimizers_and_may_have_numbers() -> None:
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched(every=2) as seen:
        for n, tokens in enumerate(batches(4)):
            loss_of(model, tokens).backward()
            optimizer.step()
            if n:
                optimizer.step()  # no longer counts
            seen.step()
    assert [record["step"] for record in seen.records] == [2, 4]
    with watched(every=2) as seen:
        for tokens in batches(4):
            loss_of(model, tokens)
            seen.step()
    assert [record["step"] for record in seen.records] == [2, 4]
    with watched(every=10) as seen:
        for n, tokens in enumerate(batches(12), 100):
            loss_of(model, tokens)
            seen.step(n)
    assert [record["step"] for record in seen.records] == [110]


def test_a_validation_in_a_measured_step_is_not_the_training() -> None:
    model = gpt()
    found = []
    for validates in (False, True):
        torch.manual_seed(1)
        with watched(every=1) as seen:
            if validates:
                with torch.no_grad():
                    loss_of(model.eval(), torch.zeros(3, CONTEXT + 1, dtype=torch.long))
                model.train()
            loss_of(model, next(batches(1)))
            if validates:  # and of the parts that are accumulated, the first is measured
                loss_of(model, torch.ones(3, CONTEXT + 1, dtype=torch.long))
                loss_of(model.eval(), torch.zeros(3, CONTEXT + 1, dtype=torch.long))
                model.train()
            seen.step()
        found.append(seen.records)
    assert found[0] == found[1]
    with watched(every=1) as seen:  # a model that only reads is seen too
        loss_of(model.eval(), next(batches(1)))
        seen.step()
    assert seen.layers == ["h.0.attn", "h.1.attn"]


def test_a_module_with_two_calls_is_two_layers() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = F.scaled_dot_product_attention(x, x, x)
            return F.scaled_dot_product_attention(y, x, x)

    model = nn.Sequential(nn.Identity(), Two())
    with watched(every=1) as seen:
        for _ in range(2):
            model(torch.randn(1, 2, 4, 8))
            model(torch.randn(1, 2, 4, 8))
            seen.step()
    assert seen.layers == ["1", "1"]
    assert "largest_logit_layer_1" in seen.records[1]


@pytest.mark.parametrize("wrap", [lambda layer: layer, torch.compile], ids=["plain", "compiled"])
def test_attention_of_torch_itself_is_seen(wrap: Any) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watched(every=1) as seen:
            wrap(model)(torch.randn(2, 6, 16)).sum().backward()
            seen.step()
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]


# -- compiled models


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_seen_and_one_line_says_how(fullgraph: bool, in_place: bool) -> None:
    torch.compiler.reset()
    plain = trained(gpt(how="half-split"), 4)
    model = gpt(how="half-split")
    compiled: nn.Module = model
    if in_place:
        model.compile(backend="aot_eager", fullgraph=fullgraph)
    else:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
    with watched(every=2) as seen, pytest.warns(UserWarning, match="compiled model runs uncompiled"):
        trained(compiled, 4)
    assert seen.layers == ["h.0.attn", "h.1.attn"]
    assert len(seen.records) == 2
    pairs = zip(plain.state_dict().values(), model.state_dict().values(), strict=True)
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    assert difference < 1e-3  # dropout is drawn the same; only rounding differs


# -- where the numbers go


def test_numbers_go_to_a_file_a_function_tensorboard_and_wandb(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from wandb.sdk.wandb_run import Run

    path, told = tmp_path / "attention.jsonl", []
    path.write_text('{"step": 0}\n')
    writer, run = Mock(spec=SummaryWriter), Mock(spec=Run)
    for to in (path, str(path), lambda step, numbers: told.append((step, numbers)), writer, run):
        with watched(to=to) as seen:
            trained(gpt(), 4)
    numbers = [{name: value for name, value in record.items() if name != "step"} for record in seen.records]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 0}, *seen.records, *seen.records]
    assert told == [(2, numbers[0]), (4, numbers[1])]
    single = {name: value for name, value in numbers[1].items() if not isinstance(value, list)}
    assert len(single) > 10
    assert [call.args for call in writer.add_scalar.call_args_list][-len(single) :] == [
        (name, value, 4) for name, value in single.items()
    ]
    (data,), options = run.log.call_args
    assert data == {**single, "attention_step": 4}
    assert options == {"commit": False}


def test_the_page_has_a_curve_for_each_layer_and_their_modules(tmp_path: Path) -> None:
    with watched() as seen:
        trained(gpt(how="interleaved", n_layers=10), 4)
    text = seen.page(tmp_path / "attention.html").read_text()
    for title in ("Entropy of attention", "Largest logit", "Weight on the first token", "Norms of queries at the last"):
        assert title in text
    assert "h.9.attn" in text
    assert "Where it comes from" not in text
    assert "One of every 2 layers." in text
    assert text.count("<svg viewBox") == 12
    entropy = seen.records[1]["attention_entropy_layer_8"]
    assert f"layer 8: {entropy:.3f} at 4" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_a_diverged_number_is_left_out(tmp_path: Path) -> None:
    q = torch.full((1, 1, 4, 8), 1e30)
    with watched(every=1, to=tmp_path / "a.jsonl") as seen:
        F.scaled_dot_product_attention(q, q, q)
        seen.step()
    assert "largest_logit_layer_0" not in json.loads((tmp_path / "a.jsonl").read_text())


# -- what is refused, and what is said


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_every_is_a_whole_number(every: Any) -> None:
    with pytest.raises(UserError, match=r"every=.* must be a whole number of steps, 1 or more"):
        rr.watch(every=every)


@pytest.mark.parametrize("to", [3, "attention.csv", "nowhere/attention.jsonl"])
def test_numbers_cannot_go_anywhere(to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"to=.* must be a path that ends in \.jsonl, in a folder that exists"):
        rr.watch(to=to)


def test_two_watches_at_once_are_refused_and_the_first_goes_on() -> None:
    with watched() as seen:
        with pytest.raises(UserError, match="a watch is active already"), watched():
            pass
        trained(gpt(), 2)
    assert len(seen.records) == 1
    with watched() as seen:
        trained(gpt(), 2)
    assert len(seen.records) == 1


def test_steps_that_never_come_are_said() -> None:
    said = "3 steps were counted and every=5, so none was measured; give a smaller"
    with pytest.warns(UserWarning, match=said), watched(every=5) as seen:
        trained(gpt(), 3)
    with pytest.raises(UserError, match="measured no step yet"):
        seen.page("attention.html")
    with pytest.warns(UserWarning, match=r"0 steps were counted .* or call step\(\) of the watch"), watched():
        gpt()(next(batches(1))[:, :-1])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_calls_of_other_functions_are_not_seen_and_that_is_said() -> None:
    q = torch.randn(1, 1, 16, 16)
    for attend in (lambda: (q @ q.mT).softmax(-1) @ q, lambda: flex_attention(q, q, q)):
        with watched(every=1) as seen:
            attend()
            with pytest.warns(UserWarning, match="no call of scaled_dot_product_attention was seen on step 1"):
                seen.step()
        assert seen.records == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_not_read_and_that_is_said() -> None:
    q = torch.nested.nested_tensor([torch.randn(3, 2, 8), torch.randn(5, 2, 8)], layout=torch.jagged).transpose(1, 2)
    with watched(every=1) as seen:
        with pytest.warns(UserWarning, match="nested tensors or a subclass"):
            F.scaled_dot_product_attention(q, q, q)
        with pytest.warns(UserWarning, match="no call"):
            seen.step()
    assert seen.records == []


def test_the_number_of_layers_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with watched(every=1):
        trained(gpt(), 3)
    assert capsys.readouterr().err == "watch: 2 layers seen on step 1: h.0.attn, h.1.attn\n"


# -- trainers


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation="sdpa"))


def trainer_of(model: nn.Module, folder: Path, callbacks: list[Any], **options: Any) -> Trainer:
    data = [{"input_ids": row, "labels": row} for tokens in batches(8) for row in tokens]
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        dataloader_pin_memory=False, **options,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=data, callbacks=callbacks)


@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}])
def test_transformers_trainer(tmp_path: Path, options: dict[str, Any]) -> None:
    plain, model = llama(), llama()
    trainer_of(plain, tmp_path, [], **options).train()
    seen = watched()
    trainer_of(model, tmp_path, [seen], **options).train()
    assert same_weights(plain, model)
    assert seen.layers == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [record["step"] for record in seen.records] == [2, 4]
    assert seen.layouts[""].pairing == "half-split"


def test_a_training_of_transformers_that_failed_does_not_stop_the_next(tmp_path: Path) -> None:
    broken = llama()
    broken.model.norm.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer_of(broken, tmp_path, [watched()]).train()
    seen = watched()
    trainer_of(llama(), tmp_path, [seen]).train()
    assert len(seen.records) == 2


class Module(lightning.LightningModule):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.model, self.breaks = gpt(), breaks

    def training_step(self, tokens: Tensor) -> Tensor:
        if self.breaks:
            raise ZeroDivisionError
        return loss_of(self.model, tokens)

    def validation_step(self, tokens: Tensor) -> None:
        loss_of(self.model, torch.zeros_like(tokens))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(module: Module, folder: Path, callbacks: list[Any]) -> Module:
    loader = DataLoader([row for tokens in batches(8) for row in tokens], 2)
    trainer = lightning.Trainer(
        max_steps=4, accumulate_grad_batches=2, val_check_interval=2, callbacks=callbacks, accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    return module


@pytest.mark.filterwarnings("ignore")
def test_lightnings_trainer(tmp_path: Path) -> None:
    plain = fit(Module(), tmp_path, [])
    seen = watched()
    assert same_weights(plain, fit(Module(), tmp_path, [seen]))
    assert seen.layers == ["model.h.0.attn", "model.h.1.attn"]
    assert [record["step"] for record in seen.records] == [2, 4]
    with pytest.raises(ZeroDivisionError):
        fit(Module(breaks=True), tmp_path, [watched(every=1)])
    with watched() as seen:
        trained(gpt(), 2)
    assert len(seen.records) == 1


# -- several processes


def of_one_process(mesh: Any, folder: Path) -> Tensor:
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(gpt())
    with watched(to=folder / f"{rank}.jsonl") as seen:
        trained(model, 4)
    return torch.tensor([len(seen.records), seen.layers == ["h.0.attn", "h.1.attn"]])


def test_the_first_of_several_processes_writes_alone(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, of_one_process, tmp_path)
    assert first.tolist() == [2, 1]
    assert second.tolist() == [0, 0]
    assert (tmp_path / "0.jsonl").exists()
    assert not (tmp_path / "1.jsonl").exists()


# -- the page about it


def test_the_snippet_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "howto" / "your_code.md").read_text()
    (snippet,) = re.findall(r"```python\n(import roundround.+?)```", page, re.DOTALL)[:1]
    exec(snippet, {"train": lambda model: trained(model, 100), "model": gpt()})
    record = json.loads((tmp_path / "attention.jsonl").read_text())
    assert record["step"] == 100
    assert "Weight on the first token" in (tmp_path / "attention.html").read_text()
    names = {re.sub(r"_(half_split|interleaved)$", "", name) for name in layer(record)}
    assert [name for name in names if f"`{name}`" not in page and not name.startswith("key_share")] == []
