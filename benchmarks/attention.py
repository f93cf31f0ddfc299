"""Every normaliser's attention against other implementations, timed in interleaved rounds, and its peak memory.

    python benchmarks/attention.py                        # the whole table, 1k to 32k: about 30 minutes on two cores
    python benchmarks/attention.py --lengths 1024,4096 --rounds 5
    python benchmarks/attention.py --batch 16 --key-heads 2 --lengths 1024 --only entmax15 --memory 0
    python benchmarks/attention.py --device cuda --dtype bfloat16 --lengths 4096,32768,131072

Eight heads of 64 channels, causal, batch 1 unless told otherwise. A round times each implementation once; printed is
the median over rounds of the time, and of its ratio to the plain `F.scaled_dot_product_attention` of the same round,
with its range, and the rate of arithmetic as a share of that of one large matrix product in the same rounds: of the two
products of the forward pass, or the seven of both, over all visible keys, whether or not an implementation skips some.
Memory is the peak of a process of its own above what it held before the call, as the kernel of the operating system
counts it.

`docs/inside/benchmarks.md` holds the table, `docs/inside/attention_speed.svg` the chart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import entmax
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from roundround.config.build import maker
from roundround.kernels.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.report.drawing.figures import save_drawing
from roundround.softmax.adaptive_temperature import inverse_temperature
from roundround.softmax.base import AttentionSoftmax, RunsInBlocks
from roundround.support.panels import Curve, Drawing, Panel

ROOT = Path(__file__).resolve().parent.parent
N_HEADS, HEAD_DIM = 8, 64
SCALE = HEAD_DIM**-0.5
FUSED = ["softmax", "temperature", "log_n", "ssmax", "softmax1", "sink"]
WHOLE_ROWS = ["entmax15", "sparsemax", "alpha_entmax", "as_entmax", "sigmoid", "softpick", "soft_cap", "top_k", "hard"]
IN_BLOCKS = ["stieltjes", "stick_breaking"]
WITH_BIAS = {"softmax + T5 bias": ("softmax", "t5_bias"), "softmax + KERPLE": ("softmax", "kerple")}
WITH_BIAS |= {"softmax + FIRE": ("softmax", "fire"), "entmax15 + FIRE": ("entmax15", "fire")}
WITH_BIAS |= {"sink + T5 bias": ("sink", "t5_bias"), "entmax15 + ALiBi": ("entmax15", "alibi")}
WITH_BIAS |= {"softmax + CoPE": ("softmax", "cope"), "softmax + scale-invariant": ("softmax", "scale_invariant")}
DENSE_UP_TO = 4096  # tokens; beyond, matrices of logits take minutes and most of the memory
WHOLE_ROWS_UP_TO = 8192
SIDE = 2048  # of the matrices of one large product
ALL_FUSED_UP_TO = 8192  # beyond, one of each kind
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(softmax: str, pe: str | None, n: int, device: torch.device, **tunables: Any) -> Attention:
    """Attention of n tokens with the normaliser of a yaml."""
    shape = AttentionShape(
        n_heads=N_HEADS,
        n_key_heads=N_HEADS,
        head_dim=HEAD_DIM,
        d_model=N_HEADS * HEAD_DIM,
        layer=0,
        train_length=1024,
    )
    node = OmegaConf.merge(OmegaConf.load(ROOT / "conf" / "softmax" / f"{softmax}.yaml"), tunables)
    module = maker(node, AttentionSoftmax)(shape).to(device)  # type: ignore[arg-type]
    encoding = PositionalEncoding(shape)
    if pe is not None:
        encoding = maker(OmegaConf.load(ROOT / "conf" / "pe" / f"{pe}.yaml"), PositionalEncoding)(shape).to(device)  # type: ignore[arg-type]
    pos_1T = torch.arange(n, device=device)[None]
    keys = Keys(q_pos_BQ=pos_1T, k_pos_BK=pos_1T)
    x_BTD = torch.randn(1, n, shape.d_model, device=device)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = encoding.bias(q, k, encoding.prepare_layer(x_BTD, None, keys))
        out: Tensor = module(q, k, v, scale=SCALE, keys=keys, bias=bias, rows=module.row_parameters(x_BTD))
        return out

    return attention


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=q.shape[1] != k.shape[1])


def hidden(n: int, device: torch.device) -> Tensor:
    return ~torch.ones(n, n, dtype=torch.bool, device=device).tril()


def dense_adaptive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The paper's formula on a matrix of logits."""
    logits, mask = q @ k.mT * SCALE, hidden(q.shape[2], q.device)
    log_p = logits.masked_fill(mask, -torch.inf).log_softmax(-1)
    entropy = -(log_p.exp() * log_p.masked_fill(mask, 0.0)).sum(-1, keepdim=True)
    return (logits * inverse_temperature(entropy)).masked_fill(mask, -torch.inf).softmax(-1) @ v


def dense_entmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The package as its documentation calls it."""
    logits = (q @ k.mT * SCALE).masked_fill(hidden(q.shape[2], q.device), -torch.inf)
    return entmax.entmax15(logits, dim=-1) @ v  # type: ignore[no-any-return]


def x_transformers() -> dict[str, Attention]:
    """Its attention with the fused kernel and without, which is what its own normalisers need."""
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import CoPE

    flash, plain, sparse = (
        Attend(heads=N_HEADS, causal=True, scale=SCALE, **options)
        for options in ({"flash": True}, {"flash": False}, {"flash": False, "sparse_topk": 64})
    )
    made: dict[str, Attention] = {}
    for name, attend in (("flash", flash), ("plain", plain), ("top-k 64", sparse)):
        made[f"x-transformers {name}"] = lambda q, k, v, attend=attend: attend(q, k, v)[0]  # type: ignore[misc]
    cope = CoPE(HEAD_DIM, N_HEADS, max_pos=64)

    def contextual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (q @ k.mT * SCALE).masked_fill(hidden(q.shape[2], q.device), -torch.inf)
        return (logits + cope(q, logits)).softmax(-1) @ v

    made["x-transformers CoPE"] = contextual
    return made


def implementations(n: int, device: torch.device, only: list[str]) -> dict[str, Attention]:
    """What is timed at n tokens: all, or SDPA and those of these names."""
    made: dict[str, Attention] = {"SDPA": sdpa}
    fused = FUSED if n <= ALL_FUSED_UP_TO else ["ssmax", "sink"]
    made |= {name: ours(name, None, n, device) for name in fused}
    trained = "adaptive_temperature_trained"
    made["adaptive, beta detached"] = ours(trained, None, n, device, gradient_through_beta=False)
    made["adaptive, full gradient"] = ours(trained, None, n, device)
    made |= {
        f"{name} + ALiBi": ours(name, "alibi", n, device) for name in fused if name in ("softmax", "ssmax", "sink")
    }
    made["softmax + FoX"] = ours("softmax", "fox", n, device)
    made["adaptive, full gradient + ALiBi"] = ours(trained, "alibi", n, device)
    if n <= WHOLE_ROWS_UP_TO:
        made |= {name: ours(name, None, n, device) for name in (*WHOLE_ROWS, *IN_BLOCKS)}
        made |= {name: ours(*parts, n, device) for name, parts in WITH_BIAS.items()}
    if n <= DENSE_UP_TO:
        made["dense adaptive (the paper)"] = dense_adaptive
        if not only or any(name.startswith("x-transformers") for name in only):
            made |= x_transformers()
    if n <= DENSE_UP_TO // 2:
        made["dense entmax15 (package)"] = dense_entmax
    return {name: attention for name, attention in made.items() if not only or name == "SDPA" or name in only}


def inputs(
    n: int, device: torch.device, dtype: torch.dtype, n_batch: int = 1, n_key_heads: int = N_HEADS
) -> list[Tensor]:
    """Queries, keys, values and the gradient of the output."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((n_batch, n_heads, n, HEAD_DIM) for n_heads in (N_HEADS, n_key_heads, n_key_heads, N_HEADS))
    return [torch.randn(shape, device=device, generator=generator).to(dtype) for shape in shapes]


def forward(attention: Attention, tensors: list[Tensor]) -> None:
    with torch.no_grad():
        attention(*tensors[:3])


def both(attention: Attention, tensors: list[Tensor]) -> None:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    torch.autograd.grad(attention(*leaves), leaves, tensors[3])


PASSES = {"forward": forward, "forward+backward": both}
CHARTED = (
    "adaptive, full gradient", "entmax15", "softpick", "softmax + ALiBi", "softmax + FIRE",
    "dense adaptive (the paper)", "x-transformers plain", "dense entmax15 (package)",
)  # fmt: skip


def seconds(call: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compare(direction: str, tensors: list[Tensor], rounds: int, only: list[str]) -> list[dict[str, Any]]:
    """Times of the implementations on these tensors, printed and returned; `only` names some, beside SDPA."""
    run, n, device = PASSES[direction], tensors[0].shape[2], tensors[0].device
    attentions = implementations(n, device, only)
    times: dict[str, list[float]] = {name: [] for name in attentions}
    square, of_product = torch.randn(SIDE, SIDE, device=device, dtype=tensors[0].dtype), []
    # on a CPU the overhead of a first long call is lost in the seconds it takes; on a GPU it compiles kernels
    warm = 1 if n <= 4096 or device.type == "cuda" else 0
    for i in range(rounds + warm):
        for name, attention in attentions.items():
            spent = seconds(lambda attention=attention: run(attention, tensors), device)  # type: ignore[misc]
            if i >= warm:
                times[name].append(spent)
        of_product.append(seconds(lambda: torch.mm(square, square), device))
    rate = 2 * SIDE**3 / statistics.median(of_product)
    flops = (2 if direction == "forward" else 7) * tensors[0].numel() * n  # half of the keys, 2 operations each
    rows = []
    print(f"\n{n:,} tokens, {direction}, {rounds} rounds")
    for name, spent_times in times.items():
        median = statistics.median(spent_times)
        ratios = sorted(a / b for a, b in zip(spent_times, times["SDPA"], strict=True))
        ratio, share = statistics.median(ratios), flops / median / rate
        rows.append({"n": n, "pass": direction, "name": name, "ms": 1e3 * median, "ratio": ratio})
        spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"  {name:34} {1e3 * median:10.1f} ms  {ratio:7.2f} x SDPA {spread:18} {share:5.0%}", flush=True)
    return rows


def peak_of(name: str, n: int, direction: str) -> float:
    """MiB by which one call raises the peak of this process above what it held; run in a process of its own."""
    device = torch.device("cpu")
    PASSES[direction](measured_for_memory(256)[name], inputs(256, device, torch.float32))  # code and threads are there
    tensors, attention = inputs(n, device, torch.float32), measured_for_memory(n)[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status("VmRSS")
    PASSES[direction](attention, tensors)
    return (status("VmHWM") - before) / 1024


def status(field: str) -> int:
    """KiB that the kernel of the operating system counts for this program; its `getrusage` counts the parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measured_for_memory(n: int) -> dict[str, Attention]:
    device, trained = torch.device("cpu"), "adaptive_temperature_trained"
    return {
        "SDPA": sdpa,
        "softmax": ours("softmax", None, n, device),
        "sink": ours("sink", None, n, device),
        "adaptive, beta detached": ours(trained, None, n, device, gradient_through_beta=False),
        "adaptive, full gradient": ours(trained, None, n, device),
        "adaptive, full gradient + ALiBi": ours(trained, "alibi", n, device),
        "entmax15": ours("entmax15", None, n, device),
        "softpick": ours("softpick", None, n, device),
    }


def memory(n: int, names: list[str]) -> None:
    """Peak memory of each, in processes of their own."""
    print(f"\npeak memory above the inputs at {n:,} tokens; one tensor of q's size is {n * 512 * 4 / 2**20:.0f} MiB")
    for name in names:
        peaks = {}
        for direction in PASSES:
            command = [sys.executable, __file__, "--peak", json.dumps([name, n, direction])]
            peaks[direction] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"  {name:34}" + "".join(f"  {direction} {peak:8.0f} MiB" for direction, peak in peaks.items()), flush=True
        )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Chart of the ratio to SDPA against length, forward and forward+backward, of those in `CHARTED`."""
    panels = []
    for direction in PASSES:
        curves = []
        for name in CHARTED:
            points = [(row["n"], row["ratio"]) for row in rows if row["name"] == name and row["pass"] == direction]
            if points:
                curves.append(Curve(name, *zip(*points, strict=True)))
        lengths = sorted({row["n"] for row in rows})
        panels.append(Panel("tokens", "time / SDPA's", curves, "xy", title=direction, x_ticks=lengths))
    drawing = Drawing(path.stem, "Attention on a CPU, times PyTorch's F.scaled_dot_product_attention", panels)
    save_drawing(drawing, path.parent, kinds=[path.suffix[1:]], alike=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    parser.add_argument("--rounds", type=int, default=7, help="at 4k and below; fewer beyond")
    parser.add_argument("--only", default="", help='of the table\'s names, such as "sink;adaptive, full gradient"')
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--key-heads", type=int, default=N_HEADS, help="fewer for grouped queries; name what to time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory", type=int, default=32768, help="length at which memory is measured; 0 for none")
    parser.add_argument("--chart", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None, help="write the rows there as well")
    parser.add_argument("--peak", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RunsInBlocks)
    if options.peak:
        print(peak_of(*json.loads(options.peak)))
        return
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    rows = []
    for n in map(int, options.lengths.split(",")):
        fewest = 3 if device.type == "cuda" else 1
        rounds = options.rounds if n <= 4096 else max(fewest, options.rounds * 4096 // n)  # fewer at 8k and beyond
        for direction in PASSES:
            tensors = inputs(n, device, dtype, options.batch, options.key_heads)
            rows += compare(direction, tensors, rounds, options.only.split(";") if options.only else [])
        if options.json:  # after each length, should the next not fit
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.memory and device.type == "cpu":
        memory(options.memory, ["SDPA", "sink", "adaptive, beta detached", "adaptive, full gradient"])
        memory(min(options.memory, 16384), ["SDPA", "entmax15", "softpick"])
    if options.chart:
        draw(rows, options.chart)


if __name__ == "__main__":
    main()
