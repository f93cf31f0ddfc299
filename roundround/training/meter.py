"""How well a training run uses its machine: model FLOPs utilisation, peak memory, share of time waiting for data."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from roundround.distributed.device import gpus, resident_peak
from roundround.model.block import Block
from roundround.model.decoder import Decoder, belongs_to_a_variant

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
SIDE, N_PRODUCTS = 512, 5  # of the matrices that measure a CPU's peak: 4 ms each on one core
SHARE_OF_MEASURING = 0.01  # of the time, at most: the peak is measured repeatedly, since others may use the cores


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

    flops_per_step: of the model, over all devices. peak: FLOP/s of one device, None if unknown; or a function that
    measures it, which is called repeatedly during the run, and the highest value counts. n_devices: the number of such
    devices; a fraction if processes share cores.
    """

    def __init__(
        self,
        batches: Timed,
        *,
        flops_per_step: float,
        peak: float | Callable[[], float] | None,
        n_devices: float = 1.0,
    ) -> None:
        self.batches, self.flops_per_step, self.n_devices = batches, flops_per_step, n_devices
        self.waited = 0.0
        self.measure = peak if callable(peak) else None
        self.peak = None if callable(peak) else peak
        self.not_before = 0.0  # on the clock, of the next measurement

    def numbers(self, n_steps: int, seconds: float) -> dict[str, float]:
        """mfu: the model's operations as a share of the peak; left out above 1, because then the peak is not known.
        peak_memory_gb: since the start, in 10^9 bytes, of this process's GPU or else of the process. waiting_share: the
        share of the seconds in which it waited for a batch.
        """
        waiting, self.waited = self.batches.seconds - self.waited, self.batches.seconds
        memory = max((cuda.max_memory_allocated(n) for cuda, n in gpus()), default=0) or resident_peak()
        found = {"waiting_share": min(1.0, waiting / seconds)}
        if self.measure is not None and (start := time.perf_counter()) >= self.not_before:
            self.peak = max(self.peak or 0.0, self.measure())
            end = time.perf_counter()
            self.not_before = end + (end - start) / SHARE_OF_MEASURING
        if self.peak is not None:
            mfu = n_steps * self.flops_per_step / seconds / (self.peak * self.n_devices)
            found |= {"mfu": mfu} if mfu <= 1 else {}
        return found if memory is None else found | {"peak_memory_gb": memory / 1e9}

    def start(self, rank: int) -> None:
        """Prepare to measure a peak; called by every process of the run, once they have met."""
        if self.measure is not None:
            self.n_devices = n_shares_of_cores()
        if rank > 0:  # only the first one's numbers are kept; two that measure at once would disturb each other
            self.measure = None


def training_flops(decoder: Decoder, *, length: int, scored: float = 1.0) -> float:
    """Floating-point operations of a token in a forward and a backward pass, attention included.

    3 * 2 * (M + scored V D + 2 L H C T): M weights of the layers' matrices, V D of the output matrix, L layers of H
    heads of C channels that attend to all T tokens of a window, or to a part of them. Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B: the backward pass counts twice the forward pass, a causal mask halves nothing, and
    recomputation is not counted. Encodings and normalisers are left out. scored: share of tokens with a target.
    """
    matrices = sum(
        module.weight.numel()
        for name, module in decoder.layers.named_modules()
        if isinstance(module, nn.Linear) and not belongs_to_a_variant(f"layers.{name}")
    )
    attention = 0
    for kind, layer in zip(decoder.kinds, decoder.layers, strict=True):
        assert isinstance(layer, Block)
        shape, reach = layer.self_attn.shape, min(length, kind.window or length, kind.chunk or length)
        attention += 2 * shape.n_heads * shape.head_dim * reach
    return 6.0 * (matrices + scored * decoder.embed_tokens.weight.numel() + attention)


def peak_flops(device: torch.device, precision: str) -> float | Callable[[], float] | None:
    """The peak of a device in FLOP/s: a GPU's by its name, in 16 bits; for a CPU a function that measures it.

    None for a device whose name is unknown.
    """
    if device.type == "cpu":
        dtype = {"b": torch.bfloat16, "1": torch.float16, "6": torch.float64}.get(precision[0], torch.float32)
        return lambda: measured_flops(dtype)
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


Cores = tuple[str, tuple[int, ...], int]  # a process's machine, the cores that it may use, and its threads


def n_shares_of_cores() -> float:
    """The cores that all processes together keep busy, in units of this process's; all of them call this."""
    if not torch.distributed.is_initialized():
        return 1.0
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    here: Cores = (socket.gethostname(), tuple(cores), torch.get_num_threads())
    everywhere: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, here)
    return shares_of_cores(here, everywhere)


def shares_of_cores(here: Cores, everywhere: Sequence[Cores]) -> float:
    """`n_shares_of_cores` from what all processes have sent: a core that several use counts once."""
    busy = 0
    for machine in {name for name, _, _ in everywhere}:
        processes = [(cores, threads) for name, cores, threads in everywhere if name == machine]
        n_cores = len({core for cores, _ in processes for core in cores})
        busy += min(n_cores, sum(min(threads, len(cores)) for cores, threads in processes))
    return busy / min(here[2], len(here[1]))
