"""Training throughput against two other implementations of the same model, timed in interleaved rounds.

    python benchmarks/train_throughput.py                    # tiny and small, float32 and bf16-mixed
    python benchmarks/train_throughput.py --sizes tiny --rounds 9
    python benchmarks/train_throughput.py --compile          # against compiled transformers
    python benchmarks/train_throughput.py --compile --sizes small --profile
    python benchmarks/train_throughput.py --only patterns    # Gemma 3's pattern, a window, and a look at attention
    python benchmarks/train_throughput.py --only normalisers # steps of small at 2,048 tokens

Same architecture, batch, precision, loss, clipping and optimiser (fused AdamW) for all; a round times a few steps of
each in turn, so a machine whose speed drifts is fair to all. Printed are the median over rounds, and the median and
the range of the ratios of each round. `--profile` adds where a step of each goes. A second table gives the share of a
real `roundround train` step that is spent outside forward, backward and optimiser. `--only patterns` compares the
pattern of Gemma 3 with transformers' own, a layer with a window with one without, and a look at attention with a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from roundround.distributed.device import describe_device
from roundround.model.decoder import Decoder, n_parameters
from roundround.trained.models import build_decoder
from roundround.training.bookkeeping import peak_flops
from roundround.training.optim import AdamW

CONF = Path(__file__).resolve().parent.parent / "conf"
N_VOCAB = 4096
BATCH = {"tiny": 16, "small": 4, "base": 8, "30m": 32, "125m": 16}
PROCESSOR_TIME = "--processor-time"
STEPS = {"tiny": 4, "small": 1, "base": 4, "30m": 10, "125m": 10}
# for a GPU, by their parameters: beside those of `base`, sizes and vocabulary
OF_GPUS = {
    "30m": ({"d_model": 512, "n_layers": 8, "n_heads": 8, "n_key_heads": 8, "d_mlp": 1408}, 8192),
    "125m": ({}, 50304),
}


def read(group: str, name: str) -> DictConfig:
    own, _ = OF_GPUS.get(name, ({}, N_VOCAB))
    config = OmegaConf.merge(OmegaConf.load(CONF / group / f"{'base' if name in OF_GPUS else name}.yaml"), own)
    assert isinstance(config, DictConfig)
    return config


def vocabulary(size: str) -> int:
    return OF_GPUS.get(size, ({}, N_VOCAB))[1]


def ours(model: DictConfig, n_vocab: int = N_VOCAB) -> nn.Module:
    return build_decoder(model, read("pe", "rope"), read("softmax", "softmax"), n_vocab)


def hugging_face(model: DictConfig, n_vocab: int = N_VOCAB) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=n_vocab,
        hidden_size=model.d_model,
        intermediate_size=model.d_mlp,
        num_hidden_layers=model.n_layers,
        num_attention_heads=model.n_heads,
        num_key_value_heads=model.n_key_heads,
        max_position_embeddings=model.train_length,
        tie_word_embeddings=model.tied_embeddings,
        rms_norm_eps=model.norm_eps,
        use_cache=False,
        attn_implementation="sdpa",
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(config)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(input_ids=tokens).logits

    return Logits()


def x_transformers(model: DictConfig, n_vocab: int = N_VOCAB) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=n_vocab,
        max_seq_len=model.train_length,
        use_abs_pos_emb=False,
        tie_embedding=model.tied_embeddings,
        attn_layers=Decoder(
            dim=model.d_model,
            depth=model.n_layers,
            heads=model.n_heads,
            attn_dim_head=model.d_model // model.n_heads,
            attn_kv_heads=model.n_key_heads,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=model.d_model // model.n_heads,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=model.d_mlp / model.d_model,
        ),
    )


def gemma3(model: DictConfig) -> dict[str, nn.Module]:
    """Gemma 3's pattern at this size, six layers at least, windows of a quarter of the context; and transformers'."""
    from transformers import AutoModelForCausalLM

    from roundround.config.options import compose
    from roundround.trained.export.stock import fitting_config
    from roundround.trained.patterns import parts_of

    sizes = {"norms": "both", "geglu": True, "scaled_embeddings": True, "norm_eps": 1e-6}
    model = DictConfig({**model, **sizes, "n_layers": max(6, model.n_layers)})
    parts = parts_of(compose("train", ["pattern=gemma3", f"pattern.local.window={model.train_length // 4}"], None))
    decoder = build_decoder(model, n_vocab=N_VOCAB, **parts)
    config = fitting_config(decoder, OmegaConf.to_container(model))  # type: ignore[arg-type]
    config.use_cache = False

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(input_ids=tokens).logits

    return {"roundround": decoder, "transformers": Logits()}


IMPLEMENTATIONS: dict[str, Callable[[DictConfig, int], nn.Module]] = {
    "roundround": ours,
    "transformers": hugging_face,
    "x-transformers": x_transformers,
}


def mean_loss(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """As each implementation has it: ours takes the targets and makes the logits a few rows at a time."""
    if isinstance(module, Decoder):
        loss: Tensor = module(inputs, targets_BT=targets).mean()
        return loss
    return F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())


def stepper(module: nn.Module, tokens: Tensor, precision: str) -> Callable[[], None]:
    """One optimiser step of the module on the tokens."""
    adam = AdamW(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1).create(module)
    mixed = precision == "bf16-mixed"

    def step() -> None:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=mixed):
            loss = mean_loss(module, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def compare(
    size: str, precision: str, rounds: int, device: torch.device, *, names: list[str], compiled: bool, profiled: bool
) -> list[dict[str, Any]]:
    model = read("model", size)
    modules = {name: IMPLEMENTATIONS[name](model, vocabulary(size)).to(device) for name in names}
    for module in modules.values():
        if compiled:
            module.compile()
    what = "compiled" if compiled else "eager"
    return race(modules, size, precision, rounds, device, what=what, profiled=profiled)


def race(
    modules: dict[str, nn.Module],
    size: str,
    precision: str,
    rounds: int,
    device: torch.device,
    *,
    what: str,
    profiled: bool = False,
) -> list[dict[str, Any]]:
    """Print how fast each trains, in interleaved rounds; the rows of the table."""
    torch.manual_seed(0)
    tokens = torch.randint(vocabulary(size), (BATCH[size], read("model", size).train_length + 1), device=device)
    n_tokens = tokens[:, 1:].numel() * STEPS[size]
    steps = {name: stepper(module, tokens, precision) for name, module in modules.items()}
    for step in steps.values():
        step(), step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds[name].append(timed(step, STEPS[size], device))
    rows = []
    for name, values in seconds.items():
        median = statistics.median(values)
        ratios = sorted(a / b for a, b in zip(values, seconds["roundround"], strict=True))
        print(
            f"{size:6} {precision:11} {what:9} {name:15} "
            f"{n_parameters(modules[name]):>12,} parameters  "  # type: ignore[arg-type]
            f"{n_tokens / median:>10,.0f} tokens/s  roundround is {statistics.median(ratios):.2f} times as fast "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})" + mfu(modules[name], n_tokens / median, device),
            flush=True,
        )
        row = {"size": size, "precision": precision, "how": what, "name": name, "tokens_per_second": n_tokens / median}
        rows.append(row | {"parameters": n_parameters(modules[name]), "ratio": statistics.median(ratios)})  # type: ignore[arg-type]
        rows[-1]["mfu"] = mfu(modules[name], n_tokens / median, device).removeprefix("  MFU ")
    if profiled:
        for name, step in steps.items():
            print(f"{size} {precision}: a step of {name}")
            print(where_time_goes(step, device), flush=True)
    return rows


def where_time_goes(step: Callable[[], None], device: torch.device) -> str:
    """The ten operations of one step that take longest."""
    on_gpu = [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, *on_gpu]) as profile:
        step()
    column = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table: str = profile.key_averages().table(sort_by=column, row_limit=10, max_name_column_width=50)
    return table


def timed(step: Callable[[], None], n: int, device: torch.device) -> float:
    clock = time.process_time if PROCESSOR_TIME in sys.argv else time.perf_counter
    start = clock()
    for _ in range(n):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def mfu(module: nn.Module, tokens_per_second: float, device: torch.device) -> str:
    """Share of a GPU's dense 16-bit peak, where its name is known, by six operations a parameter and token."""
    peak = peak_flops(device, "bf16-mixed") if device.type == "cuda" else None
    if not isinstance(peak, float):
        return ""
    return f"  MFU {6 * n_parameters(module) * tokens_per_second / peak:.1%}"  # type: ignore[arg-type]


def overhead(size: str) -> None:
    """Share of a step of the real command outside forward, backward and optimiser: data, logging, display, saving."""
    import lightning

    from roundround.command_line.launch import dispatch
    from roundround.training.module import LanguageModel
    from roundround.verbs import verb_named

    marks: list[tuple[float, float]] = []
    plain = LanguageModel.optimizer_step

    def measured(self: LanguageModel, *args: object, **kwargs: object) -> None:
        start = time.perf_counter()
        plain(self, *args, **kwargs)  # type: ignore[arg-type]
        marks.append((start, time.perf_counter()))

    LanguageModel.optimizer_step = measured  # type: ignore[method-assign, assignment]
    os.environ["WANDB_MODE"] = "offline"
    n_steps = {"tiny": 220, "small": 40}[size]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        batch = ["pe=p_rope", f"model={size}", f"batch_size={BATCH[size]}", f"trainer.max_steps={n_steps}"]
        code = dispatch(verb_named("train"), [*batch, "validate_every=100000"])
        os.chdir("/")
    assert code == 0
    LanguageModel.optimizer_step = plain  # type: ignore[method-assign]
    first = 10  # warm-up
    wall = marks[-1][1] - marks[first][0]
    inside = sum(end - start for start, end in marks[first:])
    print(
        f"{size}: {wall / (len(marks) - first) * 1e3:.1f} ms a step, {(wall - inside) / wall:.2%} of it outside "
        f"forward, backward and optimiser (lightning {lightning.__version__}, W&B offline, checkpoints every 100)"
    )


def window_against_all(rounds: int, n_tokens: int = 8192, window: int = 512) -> None:
    """The time, forward and backward, of attention with a window as a share of that without, of `small`'s layers."""
    from roundround.kernels.keys import Keys

    decoder = build_decoder(read("model", "small"), read("pe", "rope"), read("softmax", "softmax"), N_VOCAB)
    layer, shape = decoder.layers[0].self_attn, decoder.encoding.shape
    positions = torch.arange(n_tokens)[None]
    keys = Keys(q_pos_BQ=positions, k_pos_BK=positions)
    prepared = decoder.encoding.prepare(positions, torch.float32)
    x = torch.randn(1, n_tokens, shape.d_model, requires_grad=True)
    q, k, v = (
        torch.randn(1, n, n_tokens, shape.head_dim, requires_grad=True)
        for n in (shape.n_heads, shape.n_key_heads, shape.n_key_heads)
    )
    calls = {
        "attention": lambda own: layer.softmax(q, k, v, scale=shape.scale, keys=own, bias=None, rows={}),
        "with its projections": lambda own: layer(x, decoder.encoding, prepared, own),
    }
    for name, call in calls.items():
        ratios = []
        for _ in range(rounds):
            within, everything = (
                timed(lambda call=call, own=own: call(own).sum().backward(), 1, torch.device("cpu"))  # type: ignore[misc]
                for own in (keys.within(window, None), keys)
            )
            ratios.append(within / everything)
        print(
            f"{name}: a window of {window} at {n_tokens} tokens takes {statistics.median(ratios):.3f} times as long as "
            f"all of them ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


def other_normalisers(rounds: int, n_tokens: int = 2048) -> None:
    """What a step of small takes with other normalisers, beside one with the plain softmax in turn."""
    names = ["softmax", "adaptive_temperature_trained", "entmax15", "sparsemax", "softpick", "sigmoid"]
    device, model = torch.device("cpu"), read("model", "small")
    tokens = torch.randint(N_VOCAB, (1, n_tokens + 1))
    steps = {
        name: stepper(build_decoder(model, read("pe", "rope"), read("softmax", name), N_VOCAB), tokens, "float32")
        for name in names
    }
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + 1):
        for name, step in steps.items():
            taken = timed(step, 1, device)
            if i:
                seconds[name].append(taken)
    for name, values in seconds.items():
        ratios = sorted(a / b for a, b in zip(values, seconds["softmax"], strict=True))
        print(
            f"small, {n_tokens} tokens: a step with {name} takes {statistics.median(values):.2f} s, "
            f"{statistics.median(ratios):.2f} times that with softmax ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def looking(size: str, rounds: int, every: int = 100) -> None:
    """What `attention_stats_every` costs of a step: one look and one step in turn."""
    from roundround.probing.rows import attention_statistics

    model, device = read("model", size), torch.device("cpu")
    decoder = ours(model)
    assert isinstance(decoder, Decoder)
    tokens = torch.randint(N_VOCAB, (8, model.train_length + 1))
    step = stepper(decoder, tokens, "float32")
    step()
    shares = []
    for _ in range(rounds):
        taken = timed(step, 1, device)
        shares.append(timed(lambda: attention_statistics(decoder, tokens[:1, :-1], step=0), 1, device) / taken)  # type: ignore[arg-type, return-value]
    print(
        f"{size}: a look at attention takes {statistics.median(shares):.3f} of a step of 8 windows "
        f"({min(shares):.3f} to {max(shares):.3f}), {statistics.median(shares) / every:.3%} at every {every}th step",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=list(BATCH))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bf16-mixed"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="compile both; minutes for small on a CPU")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--skip-overhead", action="store_true")
    parser.add_argument("--only-ours", action="store_true", help="against nothing")
    parser.add_argument("--json", type=Path, default=None, help="write the rows there as well")
    parser.add_argument(PROCESSOR_TIME, action="store_true", help="of one thread, on a machine that others use")
    parser.add_argument("--only", choices=["patterns", "normalisers"], help="these alone, on a CPU")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{describe_device(device)}, torch {torch.__version__}")
    if options.only == "normalisers":
        other_normalisers(options.rounds)
        return
    if options.only:
        for size in options.sizes:
            looking(size, options.rounds)
        window_against_all(options.rounds)
        for size in options.sizes:
            for precision in options.precisions:
                race(gemma3(read("model", size)), size, precision, options.rounds, torch.device("cpu"), what="gemma3")
        return
    names = ["roundround", "transformers"] if options.compile else list(IMPLEMENTATIONS)
    how = {"names": names[: 1 if options.only_ours else None], "compiled": options.compile, "profiled": options.profile}
    rows = []
    for size in options.sizes:
        for precision in options.precisions:
            rows += compare(size, precision, options.rounds, device, **how)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if not (options.skip_overhead or options.compile):
        for size in options.sizes:
            overhead(size)


if __name__ == "__main__":
    main()
