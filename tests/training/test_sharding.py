"""FSDP2 on several processes computes what one computes: weights, gradients, clipping, updates, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import option, variants
from omegaconf import OmegaConf
from ranks import on_ranks
from rounding import rounding
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from roundround.model.decoder import Decoder, n_parameters
from roundround.records import checkpoints
from roundround.records.checkpoints import split_optimizer
from roundround.records.sharded_checkpoints import ShardedSaver, load_shards_into, load_shards_of_optimizer
from roundround.trained.models import build_decoder
from roundround.training.module import clip, sharded_decoder
from roundround.training.optim import Adam, AdamW

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
SIZES = {
    "kind": "architecture", "_target_": "roundround.model.decoder.Decoder", "d_model": 16, "n_layers": 2, "n_heads": 2,
    "n_key_heads": 1, "head_dim": None, "d_mlp": 24, "train_length": 16, "tied_embeddings": True, "geglu": False,
    "scaled_embeddings": False, "norm_eps": 1e-5, "initializer_range": 0.02,
}  # fmt: skip
VOCABULARY = 33  # not a multiple of the ranks


def maker(sizes: dict[str, Any] | None = None, **parts: str) -> Callable[..., Decoder]:
    model = OmegaConf.create(SIZES | (sizes or {}))
    nodes: Any = {part: option(part, name) for part, name in ({"pe": "rope", "softmax": "softmax"} | parts).items()}
    return lambda shard_layer=None: build_decoder(model, n_vocab=VOCABULARY, shard_layer=shard_layer, **nodes)


def of_one_process(make: Callable[..., Decoder]) -> Decoder:
    torch.manual_seed(7)
    return make()


def step_of(decoder: nn.Module, tokens_BT: Tensor) -> Tensor:
    loss: Tensor = decoder(tokens_BT[:, :-1], targets_BT=tokens_BT[:, 1:], step=0).mean()
    loss.backward()
    return loss.detach()


def whole(x: Tensor) -> Tensor:
    """All of what the processes hold parts of."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def gradients(decoder: Decoder) -> dict[str, Tensor]:
    return {name: whole(p.grad).clone() for name, p in decoder.named_parameters() if p.grad is not None}


def halves(mesh: DeviceMesh, tokens_BT: Tensor) -> Tensor:
    """This process's rows of a batch."""
    return tokens_BT.chunk(mesh.size())[mesh.get_local_rank()]


OF_A_STEP = 4 * 16  # a gradient is a sum over the tokens of a batch


def differences(expected: dict[str, Tensor], found: dict[str, Tensor], roundings: int = 0) -> list[str]:
    """What is further apart than this many roundings of its largest number, or of the 0.1 of what it is summed from."""
    wrong = [f"names: {expected.keys() ^ found.keys()}"] if expected.keys() != found.keys() else []
    for name in expected.keys() & found.keys():
        allowed = rounding(roundings, max(0.1, float(expected[name].abs().max())))
        if not torch.allclose(found[name], expected[name], rtol=0, atol=allowed):
            wrong.append(f"{name} is off by {float((found[name] - expected[name]).abs().max()):.2g}")
    return wrong


def compare(mesh: DeviceMesh, makers: dict[str, Callable[..., Decoder]]) -> dict[str, list[str]]:
    """By variant, what differs between the decoder of one process and the sharded one: weights, then gradients."""
    tokens_BT = torch.randint(VOCABULARY, (4, 17), generator=torch.Generator().manual_seed(0))
    wrong = {}
    for name, make in makers.items():
        plain, sharded = of_one_process(make), sharded_decoder(make, mesh, seed=7, compiled=False)
        drawn = {key: whole(value) for key, value in sharded.state_dict().items()}
        held = sum(p.to_local().numel() for p in sharded.parameters())
        wrong[name] = differences(plain.state_dict(), drawn)
        wrong[name] += [] if held < 0.6 * n_parameters(plain) else [f"a process holds {held} numbers"]
        step_of(plain, tokens_BT)
        step_of(sharded, halves(mesh, tokens_BT))
        wrong[name] += differences(gradients(plain), gradients(sharded), roundings=OF_A_STEP)
    return wrong


@pytest.mark.slow  # twenty models in each of two processes
def test_shards_of_every_variant_are_drawn_and_learn_as_in_one_process(tmp_path: Path) -> None:
    makers = {"untied": maker({"tied_embeddings": False}), "adaptive": maker(softmax="adaptive_temperature_trained")}
    for group in ("pe", "softmax", "mix", "attention"):
        for name in sorted(variants(group)):
            make = maker(**{group: name})
            learned = [key for key, _ in of_one_process(make).named_parameters()]
            of_variants = any(".softmax." in key or ".mix." in key or key.startswith("encodings.") for key in learned)
            if of_variants or group == "attention":
                makers[name] = make
    assert {
        "learned",
        "fox",
        "kerple",
        "as_entmax",
        "sink",
        "ssmax",
        "canon",
        "smear",
        "latent",
        "gated_deltanet",
        "diff",
        "diff_v1",
        "cope",
        "pope",
        "selective_rope",
    } <= makers.keys()
    nothing: dict[str, list[str]] = {name: [] for name in makers}
    assert on_ranks(2, tmp_path, compare, makers) == [nothing, nothing]


RECIPES = {  # optimizer, largest gradient, whether of each number, layers computed again
    "no clipping": (AdamW, None, False, False),
    "clipped by norm": (AdamW, 0.01, False, False),
    "clipped by value": (Adam, 1e-4, True, False),
    "layers computed again": (Adam, 0.01, False, True),
}


def updated(mesh: DeviceMesh) -> dict[str, list[str]]:
    """By recipe, what differs after three updates."""
    wrong, tokens_SBT = {}, torch.randint(VOCABULARY, (3, 4, 17), generator=torch.Generator().manual_seed(0))
    for name, (kind, limit, by_value, again) in RECIPES.items():
        make = maker(pe="learned", softmax="sink")
        plain, sharded = of_one_process(make), sharded_decoder(make, mesh, seed=7, compiled=False)
        sharded.activation_checkpointing = again
        factory = kind(lr=0.01, betas=[0.9, 0.95], eps=1e-3, weight_decay=0.1)
        one, many = factory.create(plain), factory.create(sharded)
        wrong[name] = []
        for tokens_BT in tokens_SBT:
            loss, share = step_of(plain, tokens_BT), step_of(sharded, halves(mesh, tokens_BT))
            dist.all_reduce(share)
            norms = [float(clip(decoder, limit, by_value=by_value)) for decoder in (plain, sharded)]
            wrong[name] += [] if norms[0] == pytest.approx(norms[1], rel=1e-5) else [f"norms {norms}"]
            wrong[name] += [] if share / 2 == pytest.approx(float(loss), rel=1e-6) else ["loss"]
            wrong[name] += differences(gradients(plain), gradients(sharded), roundings=OF_A_STEP)
            for optimizer in (one, many):
                optimizer.step()
                optimizer.zero_grad()
        after = {key: whole(value) for key, value in sharded.state_dict().items()}
        wrong[name] += differences(plain.state_dict(), after, roundings=3 * OF_A_STEP)
    return wrong


def test_shards_are_clipped_and_updated_as_in_one_process(tmp_path: Path) -> None:
    nothing: dict[str, list[str]] = {name: [] for name in RECIPES}
    assert on_ranks(2, tmp_path, updated) == [nothing, nothing]


# -- checkpoints


def trained(mesh: DeviceMesh | None) -> tuple[Decoder, torch.optim.Optimizer]:
    """A decoder, sharded where there is a mesh, and an optimizer that has made one update."""
    make = maker(pe="kerple", softmax="as_entmax")
    decoder = of_one_process(make) if mesh is None else sharded_decoder(make, mesh, seed=7, compiled=False)
    optimizer = AdamW(lr=0.01, betas=[0.9, 0.95], eps=1e-3, weight_decay=0.1).create(decoder)
    step_of(decoder, torch.arange(34).view(2, 17) % VOCABULARY)
    optimizer.step()
    optimizer.zero_grad()
    return decoder, optimizer


def saved(mesh: DeviceMesh, folder: Path, steps: list[int]) -> None:
    decoder, optimizer = trained(mesh)
    saver = ShardedSaver(folder)
    for step in steps:
        saver.save(step, weights=decoder.state_dict(), optimizer=optimizer.state_dict(), state={})
    saver.wait()


def read_back(mesh: DeviceMesh, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint read by the processes of a mesh into another decoder, put together again."""
    decoder = sharded_decoder(maker(pe="kerple", softmax="as_entmax"), mesh, seed=8, compiled=False)
    optimizer = AdamW(lr=0.5, betas=[0.5, 0.5], eps=1e-3, weight_decay=0).create(decoder)
    past = checkpoints.Checkpoint({}, {}, checkpoints.read_state(folder), folder)
    load_shards_into(decoder, past)
    load_shards_of_optimizer(optimizer, past)
    assert optimizer.param_groups[0]["lr"] == 0.01
    weights = {name: whole(value) for name, value in decoder.state_dict().items()}
    return weights, {name: whole(value) for name, value in split_optimizer(optimizer.state_dict()).items()}


QUICK = [(0, 2), (4, 2)]  # 0: whole, by a run that does not shard
READERS = [(n_wrote, n_read) for n_wrote in (0, 1, 2, 4) for n_read in (1, 2, 4)]


@pytest.mark.parametrize(
    ("n_wrote", "n_read"), [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in READERS]
)
def test_any_number_of_processes_reads_what_any_other_wrote(n_wrote: int, n_read: int, tmp_path: Path) -> None:
    decoder, optimizer = trained(None)
    if n_wrote:
        on_ranks(n_wrote, tmp_path, saved, tmp_path / "checkpoints", [3])
    else:
        own = {"weights": decoder.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.save(tmp_path / "checkpoints", step=3, state={}, **own)
    folder = checkpoints.find(tmp_path, "last")
    alone = checkpoints.load(folder)
    expected = split_optimizer(optimizer.state_dict())
    for weights, moments in [
        (alone.weights, split_optimizer(alone.optimizer)),
        *on_ranks(n_read, tmp_path, read_back, folder),
    ]:
        assert differences(decoder.state_dict(), weights, roundings=3 * OF_A_STEP) == []
        assert differences(expected, moments, roundings=3 * OF_A_STEP) == []
    assert differences(alone.weights, checkpoints.load_weights(folder)) == []
