"""The parts around a training loop's steps: display, checkpoints, stop signal, and a meter of the machine's use.

Tested by tests/training/test_train.py, test_stopping_together.py and test_meter.py.
"""

from __future__ import annotations

import re
import sys
import time
import timeit
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import Dataset

from roundround.distributed.device import gpus, resident_peak
from roundround.distributed.interruption import StopSignal
from roundround.model.block import Block
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.records import checkpoints
from roundround.records.run import Run
from roundround.support.console import print_status
from roundround.support.errors import NotFinite

if TYPE_CHECKING:
    from roundround.records.sharded_checkpoints import ShardedSaver

SECONDS_BETWEEN_LINES = 5.0
# dense 16-bit peaks in TFLOP/s, from NVIDIA's data sheets; the first key that is part of the device's name applies
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
SIDE, N_PRODUCTS = 512, 5  # side of the matrices and number of products that measure a CPU's peak: 4 ms each on a core


class Bookkeeping:
    """The display, the clock, the stop signal and the checkpoints of a process that trains."""

    saver: ShardedSaver | None = None

    def __init__(self, run: Run, *, first_step: int, n_steps: int) -> None:
        self.run, self.first_step = run, first_step
        self.display = Display(n_steps, first_step, shown=run.writes)
        self.stop_signal = StopSignal()

    def start(self, *, sharded: bool = False) -> None:
        """Start training; all processes must call this. sharded: whether weights are divided among the processes."""
        self.run.forget_after(self.first_step)
        self.folder = self.run.directory / "checkpoints"
        if sharded:
            from roundround.records.sharded_checkpoints import (
                ShardedSaver,  # torch.distributed takes a second to import
            )

            self.saver = ShardedSaver(self.folder)
        self.display.start()
        self.stop_signal.start()
        self.clock = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap, or since the clock was last set."""
        seconds = time.monotonic() - self.clock
        self.clock += seconds
        return seconds

    def skip(self) -> None:
        """Set the clock again, because the time since the last lap was not spent on training."""
        self.clock = time.monotonic()

    def save(
        self,
        step: int,
        *,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any],
        state: dict[str, Any],
    ) -> None:
        """Write the checkpoint of a step, and delete checkpoints that are neither the best nor among the newest.

        If the weights are sharded, all processes must call this, and a thread writes the checkpoint.
        """
        if self.saver is None:
            checkpoints.save(self.folder, step=step, weights=weights, optimizer=optimizer, state=state)
        else:
            self.saver.save(step, weights=weights, optimizer=optimizer, state=state)

    def wait_until_saved(self) -> None:
        """Wait until the last checkpoint is written. Raises the error of a failed write."""
        if self.saver is not None:
            self.saver.wait()

    def not_finite(self, what: str, step: int) -> NotFinite:
        """The error to raise if numbers of a step are not finite. Its message names the newest checkpoint.

        what: the beginning of the message, which says what is not finite.
        """
        self.wait_until_saved()
        newest = checkpoints.newest(self.folder)
        left = f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"
        return NotFinite(f"{what} at step {step}; {left}; try a lower optim.lr")

    def close(self) -> None:
        """Restore the signal handlers and the terminal."""
        self.stop_signal.close()
        self.display.close()


class Display:
    """A display of the step, some numbers and the remaining time. shown: whether this process prints anything."""

    def __init__(self, n_steps: int, first_step: int, *, shown: bool, unit: str = "step") -> None:
        self.n_steps = n_steps
        self.first_step = first_step
        self.shown = shown
        self.unit = unit
        self.live: Progress | None = None

    def start(self) -> None:
        self.started = self.last_line = time.monotonic()
        if self.shown and sys.stderr.isatty():
            self.live = Progress(
                TextColumn(f"{self.unit} {{task.completed}}/{{task.total}}"),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=Console(file=sys.stderr, soft_wrap=True),  # the terminal wraps what is printed meanwhile
                transient=True,
            )
            self.task = self.live.add_task("", total=self.n_steps, completed=self.first_step, numbers="")
            self.live.start()

    def advance(self, step: int) -> None:
        if self.live is not None:
            self.live.update(self.task, completed=step)

    def metrics(self, step: int, numbers: str) -> None:
        """Show the numbers of a logging step. Without a terminal this prints a line, at most one every few seconds."""
        if self.live is not None:
            self.live.update(self.task, numbers=numbers)
        elif time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES or step == self.n_steps:
            self.last_line = time.monotonic()
            seconds_per_step = (self.last_line - self.started) / max(1, step - self.first_step)
            left = str(timedelta(seconds=round(seconds_per_step * (self.n_steps - step)))).removeprefix("0:")
            self.say(f"{self.unit} {step}/{self.n_steps}  {numbers}  {left} left")

    def say(self, text: str) -> None:
        """Print a line that the progress bar does not overwrite."""
        if not self.shown:
            return
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print_status(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


# -- how well the machine is used: model FLOPs utilisation, peak memory, share of time waiting for data


class Timed(Dataset[Any]):
    """A dataset of batches that measures the time of reading them. seconds: the sum of these times so far."""

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
    """Measures how well the machine was used since the last call of `numbers`.

    flops_per_step: the model's floating-point operations in a step, summed over all devices. peak: the FLOP/s that one
    device can reach at most; None if unknown.
    """

    def __init__(self, batches: Timed, *, flops_per_step: float, peak: float | None, n_devices: int = 1) -> None:
        self.batches, self.flops_per_step, self.peak, self.n_devices = batches, flops_per_step, peak, n_devices
        self.waited = 0.0

    def numbers(self, n_steps: int, seconds: float) -> dict[str, float]:
        """Numbers about the last `n_steps` steps, which took `seconds`.

        mfu: the model's operations per second as a share of the peak. A share above 1 is left out, because it shows
        that the assumed peak is wrong. peak_memory_gb: the most memory that this process has used at a time since the
        start, in 10^9 bytes: memory of the GPU, or main memory if there is no GPU. waiting_share: the share of the time
        that was spent waiting for a batch.
        """
        waiting, self.waited = self.batches.seconds - self.waited, self.batches.seconds
        memory = max((cuda.max_memory_allocated(n) for cuda, n in gpus()), default=0) or resident_peak()
        found = {"waiting_share": min(1.0, waiting / seconds)}
        if self.peak is not None:
            mfu = n_steps * self.flops_per_step / seconds / (self.peak * self.n_devices)
            found |= {"mfu": mfu} if mfu <= 1 else {}
        return found if memory is None else found | {"peak_memory_gb": memory / 1e9}


def training_flops(decoder: Decoder, *, length: int, scored: float = 1.0) -> float:
    """Floating-point operations for each token in a forward and a backward pass, attention included.

    3 * 2 * (M + scored * V * D + 2 * L * H * C * T), for M weights in the matrices of the layers, V * D weights in the
    output matrix, and L layers of H heads of C channels. T is the number of tokens to which a head attends: `length`,
    or the size of the layer's window or chunk if that is smaller. Chowdhery et al. 2022, arXiv:2204.02311, appendix B:
    the backward pass counts as two forward passes; masked logits count like all others; recomputation does not count.
    Encodings and normalisers are left out.

    length: the number of tokens of a text in training. scored: the share of tokens that have a target.
    """
    matrices = sum(
        module.weight.numel()
        for name, module in decoder.layers.named_modules()
        if isinstance(module, nn.Linear) and not belongs_to_a_variant(f"layers.{name}")
    )
    attention = 0
    for kind, layer in zip(decoder.kinds, decoder.layers, strict=True):
        assert isinstance(layer, Block)
        attention += layer.self_attn.products(min(length, kind.window or length, kind.chunk or length))
    return 6.0 * (matrices + scored * decoder.embed_tokens.weight.numel() + attention)


def peak_flops(device: torch.device, precision: str, *, n_devices: int = 1) -> float | None:
    """The peak of a device in FLOP/s: a GPU's 16-bit peak from the table TERAFLOPS, or a CPU's measured peak.

    None if the table lacks the GPU's name, or if several processes share the cores of a CPU.
    """
    if device.type == "cpu" and n_devices == 1:
        dtype = {"b": torch.bfloat16, "1": torch.float16, "6": torch.float64}.get(precision[0], torch.float32)
        return measured_flops(dtype)
    return flops_by_name(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def flops_by_name(name: str) -> float | None:
    peak = next((peak for part, peak in TERAFLOPS.items() if re.search(rf"\b{part}\b", name)), None)
    return None if peak is None else peak * 1e12


@torch.no_grad()
def measured_flops(dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of a few matrix products on this process's threads."""
    a, b = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    seconds = timeit.repeat(lambda: a @ b, number=1, repeat=1 + N_PRODUCTS)  # in the first the library sets itself up
    return float(2 * SIDE**3 / min(seconds[1:]))
