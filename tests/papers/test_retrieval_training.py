"""Seeds of max retrieval over several processes: the shares are all of them, and come together again."""

from __future__ import annotations

import pytest
import torch

from roundround.papers.max_retrieval.model import joined, seeds_of, share_of
from roundround.support.errors import UserError


def test_every_seed_belongs_to_one_process() -> None:
    seeds = list(range(10))
    assert [seeds[seeds_of(rank, 4, 10)] for rank in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_more_processes_than_seeds_are_refused() -> None:
    with pytest.raises(UserError, match="seeds=2 are fewer than the 3 processes"):
        seeds_of(0, 3, 2)


def test_shares_of_a_state_come_together_again() -> None:
    weight = torch.nn.Parameter(torch.arange(12.0).view(3, 4))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    state = {"weights": {"layer": weight.detach()}, "optimizer": optimizer.state_dict()}
    shares = [share_of(state, seeds_of(rank, 2, 3)) for rank in range(2)]
    assert shares[1]["weights"]["layer"].tolist() == weight[2:].tolist()
    again = joined(shares)
    assert torch.equal(again["weights"]["layer"], weight)
    assert again["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    before, after = (one["optimizer"]["state"][0] for one in (state, again))
    assert all(torch.equal(before[name], after[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
