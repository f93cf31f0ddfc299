"""The claims of docs/results/order.md, from the values of each seed in docs/results/order."""

from __future__ import annotations

from helpers_stored import check_claim, check_listed
from results.order import NAMES, TASKS, VALUES, cost, settings
from results.stored import Array

from roundround.analysis.intervals import half_width

LINEAR = ("nope, hybrid", "rope, hybrid")
CONVOLUTION = "convolution of linear layers"


def interval(values: Array, digits: int) -> str:
    mean, half = values.mean(), float(half_width(values))
    return f"{mean:.{digits}f} ({mean - half:.{digits}f} to {mean + half:.{digits}f})"


def order(setting: str, distance: str, without: str = "") -> float:
    return float(VALUES[setting, without, "order", distance].mean())


def solved(task: str) -> set[str]:
    return {one for one in NAMES if VALUES[one, "", task, "16"].min() >= 0.9}


def test_convolutions_bring_most() -> None:
    losses = {one: VALUES[one, "", "nats_per_token", "128"] for one in ("nope", "nope canon", LINEAR[0])}
    canon, linear = (interval(losses["nope"] - losses[one], 3) for one in ("nope canon", LINEAR[0]))
    check_claim("order", "In models this small", [f"loss by {canon} nats", f"linear layers by {linear};"])


def test_within_eight_bytes() -> None:
    assert max(order(one, "8-15") for one in settings()) < 0.01
    check_claim("order", "Nearly all of it", ["0.01 nats"])


def test_the_convolution_of_linear_layers() -> None:
    left = [order(one, "1", CONVOLUTION) for one in LINEAR]
    assert {f"{order(one, '1'):.1f}" for one in LINEAR} == {"1.1"}
    numbers = [f"{min(left):.2f} to {max(left):.2f} nats of order", "left of 1.1"]
    check_claim("order", "In linear layers", [*numbers, f"costs {cost(LINEAR[1], 'RoPE').mean():.3f} nats"])


def test_the_faster_half() -> None:
    fast, slow = (f"{cost('rope', half).mean():.3f}" for half in ("RoPE, faster half", "RoPE, slower half"))
    check_claim("order", "RoPE's faster half", [f"costs {fast} nats, the slower half {slow}"])


def test_tasks() -> None:
    assert all("nope canon" in solved(task) for task in TASKS if task != "copy")
    assert [set(LINEAR) <= solved(task) for task in TASKS] == [True, False, True, True]
    assert ["rope" in solved(task) for task in TASKS] == [False, False, True, True]
    assert solved("copy") == {"nope canon"}
    twice = {one: VALUES[one, "", "copy", "32"] for one in NAMES}
    canon, convolution = (
        f"{twice[one].min():.2f} to {twice.pop(one).max():.2f}" for one in ("nope canon", "nope conv")
    )
    assert max(values.max() for values in twice.values()) < 0.005
    check_claim("order", "Canon layers solve all four", [f"{canon} of sequences", f"convolution {convolution}, no"])


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("order", __file__, ["The rule"])
