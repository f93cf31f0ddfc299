"""What Lightning says beside the training: hints about the machine are left out, all else goes to the run's log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")
# Where messages for the first rank are logged, hence the tips about other products of its makers
RANK_ZERO_LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero")
# Beginnings of warnings that depend on what is installed, and that ask for what the run has decided: it may be started
# without `srun`, `trainer.accelerator` names the device, batches come from a memory map and need no workers.
HINTS = (
    r"The `srun` command is available on your system but is not used",
    r"[GT]PU available but not used",
    r"The '\w+_dataloader' does not have many workers",
    r"FSDP2-wrapped module \(FSDPDecoder\) returned a view tensor",  # its losses, which nothing changes in place
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # lightning 2.6 uses what torch 2.13 deprecates
)


@contextmanager
def lightning_messages_in_log() -> Iterator[None]:
    """Inside, Lightning prints nothing to the terminal and its hints reach not even the log."""
    for name in LOGGERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in RANK_ZERO_LOGGERS:
        logging.getLogger(name).addFilter(is_no_tip)
    with warnings.catch_warnings():
        for hint in HINTS:
            warnings.filterwarnings("ignore", message=hint)
        yield


def is_no_tip(record: logging.LogRecord) -> bool:
    """False for advice to install another package."""
    return "Tip: " not in record.getMessage()
