"""Parameters whose rows are shared out among processes: which rows lie here, and how they get their numbers.

Tested by tests/training/test_sharding.py.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Protocol

import torch
from torch import Tensor, nn


class Numbers(Protocol):
    """A tensor, or one in a file of which only what is asked for is read (`safe_open(...).get_slice(name)`)."""

    def __getitem__(self, rows: slice | EllipsisType, /) -> Tensor: ...


def is_sharded(parameter: Tensor) -> bool:
    """Whether `fully_shard` has dealt its rows out: it is a DTensor then, a class that takes a second to import."""
    return type(parameter) not in (Tensor, nn.Parameter)


@torch.no_grad()
def fill(parameter: Tensor, whole: Numbers) -> None:
    """Give a parameter its numbers, or its rows in this process theirs.

    The ranks hold blocks of ceil(n / ranks) rows, the last ones fewer or none.
    """
    if not is_sharded(parameter):
        parameter.copy_(whole[...])
        return
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor), "fully_shard makes nothing else"
    own, mesh, n_rows = parameter.to_local(), parameter.device_mesh, parameter.shape[0]
    first = min(n_rows, mesh.get_local_rank() * -(-n_rows // mesh.size()))
    if len(own):
        own.copy_(whole[first : first + len(own)])
