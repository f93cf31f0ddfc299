"""How well a training run uses its machine: model FLOPs utilisation, peak memory, share of time waiting for data."""

from __future__ import annotations

import re
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.runs.peak_memory import gpus, resident_peak

# dense 16-bit peaks in TFLOP/s, of NVIDIA's data sheets; the first whose name is in the device's
TERAFLOPS = {
    "B200": 2250,
    "H200": 989,
    "GH200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "V100-PCIE": 112,
    "V100": 125,
    "T4": 65,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
SIDE, N_PRODUCTS = 512, 5  # of the matrices that tell a CPU's peak: 4 ms each on one core


class Timed(Dataset[Any]):
    """Batches, and the seconds that have been spent waiting for them."""

    def __init__(self, batches: Dataset[Any]) -> None:
        self.batches, self.seconds = batches, 0.0

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        start = time.perf_counter()
        batch = self.batches[index]
        self.seconds += time.perf_counter() - start
        return batch


class Meter:
    """The numbers of the steps since the last record.

    flops_per_step: of the model, over all devices. peak: FLOP/s of all devices together; None where it is not known.
    """

    def __init__(self, batches: Timed, *, flops_per_step: float, peak: float | None) -> None:
        self.batches, self.flops_per_step, self.peak = batches, flops_per_step, peak
        self.waited = 0.0

    def numbers(self, n_steps: int, seconds: float) -> dict[str, float]:
        """mfu: share of the peak that the model's own operations make up. peak_memory_gb: since the start, in 10^9
        bytes, of this process's GPU or else of itself. waiting_share: of the seconds, those without a batch.
        """
        waiting, self.waited = self.batches.seconds - self.waited, self.batches.seconds
        memory = max((cuda.max_memory_allocated(n) for cuda, n in gpus()), default=0) or resident_peak()
        found = {"waiting_share": min(1.0, waiting / seconds)}
        if self.peak is not None:
            found["mfu"] = n_steps * self.flops_per_step / seconds / self.peak
        return found if memory is None else found | {"peak_memory_gb": memory / 1e9}


def training_flops(decoder: Decoder, *, length: int, scored: float = 1.0) -> float:
    """Floating-point operations of a token in a forward and a backward pass, attention included.

    3 * 2 * (M + scored V D + 2 L H C T): M weights of the layers' matrices, V D of the output matrix, L layers of H
    heads of C channels that look at all T tokens of a window. Chowdhery et al. 2022, arXiv:2204.02311, appendix B:
    the backward pass is twice the forward one, a causal mask halves nothing, and nothing counts twice that is
    computed twice. What an encoding or a normaliser computes is left out. scored: share of tokens with a target.
    """
    matrices = sum(
        module.weight.numel()
        for name, module in decoder.layers.named_modules()
        if isinstance(module, nn.Linear) and not belongs_to_a_variant(f"layers.{name}")
    )
    shape = decoder.encoding.shape
    attention = 2 * len(decoder.layers) * shape.n_heads * shape.head_dim * length
    return 6.0 * (matrices + scored * decoder.embed_tokens.weight.numel() + attention)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of a device at the most: of a GPU by its name, in 16 bits; of a CPU by a matrix product in `precision`.

    None for a device whose name is not known.
    """
    if device.type == "cpu":
        dtype = {"b": torch.bfloat16, "1": torch.float16, "6": torch.float64}.get(precision[0], torch.float32)
        return measured_flops(dtype)
    return flops_by_name(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def flops_by_name(name: str) -> float | None:
    known = (peak for part, peak in TERAFLOPS.items() if re.search(rf"\b{part}\b", name))
    peak = next(known, None)
    return None if peak is None else peak * 1e12


@torch.no_grad()
def measured_flops(dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of a few matrix products on this process's threads."""
    a, b = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(1 + N_PRODUCTS):  # the first sets the library up
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return float(2 * SIDE**3 / min(seconds[1:]))
