"""`roundround runs` and `roundround show`, as they are typed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from conftest import Done, assert_refused, metrics_of
from helpers_runs import write_run

from roundround.report.drawing.tables import shown as shown_number

Command = Callable[..., Done]


def test_runs_lists_the_newest_first(roundround: Command) -> None:
    for minute, pe in enumerate(("rope", "nope", "p_rope")):
        write_run(Path(f"outputs/eval/2026-01-01/12-0{minute}-00"), minute, overrides=[f"pe={pe}"], choices={"pe": pe})
    listed = roundround("runs")
    rows = [line.split() for line in listed.out.splitlines() if "12-0" in line]
    assert [(row[2], row[3], row[4], row[5]) for row in rows] == [
        (f"pe={pe}", "done", "30.0", "s") for pe in ("p_rope", "nope", "rope")
    ]
    assert "perplexity 12.35" in listed.out
    assert listed.err == ""


def test_a_filter_and_a_limit_leave_runs_out_and_say_so(roundround: Command) -> None:
    for minute in range(9):
        pe = "rope" if minute % 2 else "nope"
        write_run(Path(f"outputs/eval/2026-01-01/12-0{minute}-00"), minute, choices={"pe": pe})
    listed = roundround("runs", "pe=rope", "limit=2")
    assert "12-07-00" in listed.out
    assert "12-05-00" in listed.out
    assert listed.out.count("12-0") == 2
    assert listed.err == "2 of 9 runs are shown; limit=all shows every run that passes the filters\n"
    assert roundround("runs", "pe=nope", "limit=all").out.count("12-0") == 5


def test_a_damaged_run_is_named_and_passed_over(roundround: Command) -> None:
    write_run(Path("outputs/eval/2026-01-01/12-00-00"))
    broken = write_run(Path("outputs/eval/2026-01-01/12-01-00"), 1)
    (broken / "run.json").write_text((broken / "run.json").read_text()[:400])
    listed = roundround("runs")
    assert (listed.code, listed.out.count("12-0")) == (0, 1)
    assert listed.err.startswith("passed over: ")
    assert "12-01-00 is not a run directory: its run.json cannot be read" in listed.err
    (broken / "run.json").unlink()
    os.mkfifo(broken / "run.json")  # nobody writes into it
    listed = roundround("runs")
    assert listed.out.count("12-0") == 1
    assert "run.json cannot be read: it is not a regular file" in listed.err


def test_show_says_what_was_given(train: Command, roundround: Command) -> None:
    trained = train("pe=p_rope", "pe.p=0.5", "seed=3", "optim.lr=0.01")
    shown = roundround("show")
    settings = {tuple(line.split()) for line in shown.out.splitlines()}
    assert {("pe", "p_rope"), ("pe.p", "0.5"), ("seed", "3"), ("optim.lr", "0.01")} <= settings
    assert shown.out.startswith(str(trained.directory.relative_to(Path.cwd())))
    assert shown_number(trained.value("perplexity")) in shown.out
    losses = metrics_of(trained.directory)
    losses = [line["loss"] for line in losses if "loss" in line]
    (curve,) = [line for line in shown.out.splitlines() if line.startswith("loss ")]
    assert curve.endswith(f"{shown_number(losses[0])} to {shown_number(losses[-1])}")


def test_show_takes_one_run(roundround: Command) -> None:
    assert_refused(roundround("show", "a", "b"), "show takes one run, but 2 are given")
    assert_refused(roundround("show"), "last: there are no runs under outputs")
    for minute in range(2):
        write_run(Path(f"outputs/eval/2026-01-01/12-0{minute}-00"), minute)
    assert "outputs holds 2 runs, and show takes one" in roundround("show", "outputs").err
    assert "no key pe" in roundround("show", "last", "pe=rope").err
