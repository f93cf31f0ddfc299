"""Steps per second of max retrieval for one and ten seeds, against plain PyTorch one seed at a time.

They are timed in interleaved rounds.

    python benchmarks/max_retrieval.py
    python benchmarks/max_retrieval.py --device cuda --rounds 20

Every form trains the same model at the paper's protocol: batches of 128 sets of 5 to 16 items, width 128, Adam with an
L2 penalty. A round runs each form for some steps; printed are medians over rounds. The plain form is what one would
write with torch.nn: every item goes forward through encoder, K and V, and its random numbers are drawn by torch.
`docs/inside/benchmarks.md` holds the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.papers.max_retrieval.model import MaxRetrieval, TrainingSets, head_shape, train
from roundround.softmax.softmax import Softmax

WIDTH, CLASSES, BATCH = 128, 10, 128


class Plain(nn.Module):
    """Max retrieval of one seed by torch.nn's layers and F.scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()

        def mlp(n_in: int, n_out: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(n_in, WIDTH), nn.GELU(), nn.Linear(WIDTH, n_out))

        self.items, self.queries, self.answer = mlp(CLASSES + 1, WIDTH), mlp(1, WIDTH), mlp(WIDTH, CLASSES)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x_BNI: Tensor, query_B1: Tensor) -> Tensor:
        h_BND = self.items(x_BNI)
        query = self.q(self.queries(query_B1))[:, None]
        return self.answer(F.scaled_dot_product_attention(query, self.k(h_BND), self.v(h_BND))[:, 0])


def plain(device: torch.device) -> Callable[[int], None]:
    """Steps of one seed in plain PyTorch."""
    torch.manual_seed(0)
    model = Plain().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3, fused=True)

    def run(n_steps: int) -> None:
        for _ in range(n_steps):
            n = int(torch.randint(5, 17, ()))
            priority = torch.rand(BATCH, n, device=device)
            kind = torch.randint(CLASSES, (BATCH, n), device=device)
            answer = kind.gather(1, priority.argmax(1, keepdim=True))[:, 0]
            x = torch.cat([priority[..., None], F.one_hot(kind, CLASSES)], -1)
            loss = F.cross_entropy(model(x, torch.rand(BATCH, 1, device=device)), answer)
            adam.zero_grad()
            loss.backward()
            adam.step()

    return run


def ours(n_seeds: int, device: torch.device) -> Callable[[int], None]:
    """Steps of several seeds as the command takes them, data included."""
    seeds = list(range(n_seeds))
    model = MaxRetrieval(
        seeds, n_classes=CLASSES, width=WIDTH, scaled_logits=True, tanh_gelu=False, uniform_init=False
    ).to(device)
    sets = TrainingSets(seeds, batch_size=BATCH, n_min=5, n_max=16, n_classes=CLASSES)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3, fused=True)
    steps = train(model, Softmax(head_shape(WIDTH, 16)), adam, sets, first_step=0, n_steps=10**9)

    def run(n_steps: int) -> None:
        for _ in range(n_steps):
            next(steps)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="of each form in a round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None, help="write the rows there as well")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_flush_denormal(True)  # as the command does
    forms = {
        "plain, one seed": (plain(device), 1),
        "one seed": (ours(1, device), 1),
        "ten seeds": (ours(10, device), 10),
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for i in range(options.rounds + 1):
        for name, (run, _) in forms.items():
            start = time.perf_counter()
            run(options.steps)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if i:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / options.steps)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {options.rounds} rounds")
    rows = []
    for name, (_, n_seeds) in forms.items():
        ratios = [a * n_seeds / b for a, b in zip(seconds["plain, one seed"], seconds[name], strict=True)]
        median = statistics.median(seconds[name])
        rows.append({"name": name, "ms_a_step": 1e3 * median, "times_plain": statistics.median(ratios)})
        print(
            f"  {name:18} {1e3 * median:7.2f} ms a step  {1 / median:6.0f} steps/s  "
            f"{1e3 * median / n_seeds:6.2f} ms a seed  {statistics.median(ratios):5.2f} x plain"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
