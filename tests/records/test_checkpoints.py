"""Checkpoints: every prefix of what a writer does is consistent; what is damaged or elsewhere is refused by name."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_kills import killed_before
from torch import nn

from roundround.records import checkpoints
from roundround.records.checkpoints import load_into
from roundround.support.errors import UserError

LOSSES = [3.0, 1.0, 2.0, 2.5, 0.5]  # the second is the best for three steps, in which two others are deleted
BEST = {n: 1 + LOSSES[:n].index(min(LOSSES[:n])) for n in range(1, len(LOSSES) + 1)}  # after n steps


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def save(folder: Path, step: int, best: int | None = None) -> None:
    parameter = nn.Parameter(torch.full((2, 3), float(step)))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(2, 3)
    optimizer.step()
    state: dict[str, Any] = {}
    if best is not None:
        state = {name: {"step": best, "nats_per_token": LOSSES[best - 1]} for name in ("best", "validated")}
    weights = {"weight": parameter.detach()}
    checkpoints.save(folder, step=step, weights=weights, optimizer=optimizer.state_dict(), state=state)


def go_on(folder: Path) -> None:
    """What a run does: from the newest checkpoint, the steps that are left."""
    newest = checkpoints.newest(folder)
    first = checkpoints.load(newest).state["step"] if newest else 0
    for step in range(first + 1, len(LOSSES) + 1):
        save(folder, step, BEST[step])


def tree(folder: Path) -> dict[str, str]:
    return {path.name: os.readlink(path) if path.is_symlink() else "folder" for path in folder.iterdir()}


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3, 4):
        save(folder, step, BEST[step])
    names = {f"step-0000000{n}": "folder" for n in (2, 3, 4)}
    assert tree(folder) == names | {"last": "step-00000004", "best": "step-00000002"}


def test_a_kill_before_any_change_leaves_what_a_resume_makes_right(tmp_path: Path) -> None:
    whole = tmp_path / "whole" / "checkpoints"
    with killed_before(sys.maxsize, tmp_path) as watch:
        go_on(whole)
    n_changes, last = watch.seen, len(LOSSES)
    assert n_changes > 50
    for n in range(1, n_changes + 1):
        run = tmp_path / str(n)
        folder = run / "checkpoints"
        with killed_before(n, tmp_path):
            go_on(folder)
        there = checkpoints.steps(folder)
        for step in there:
            checkpoints.load(step)  # none is half-written or half-deleted
        if there:
            done = checkpoints.step_of(there[-1])
            assert checkpoints.find(run, "best").name == checkpoints.folder_of(BEST[done]), n
            assert checkpoints.find(run, "last") == there[-1], n
            checkpoints.clean_up(folder)
            assert not list(folder.glob(".*"))
        go_on(folder)
        checkpoints.clean_up(folder)
        assert tree(folder) == tree(whole), n
        assert checkpoints.find(run, "best").name == checkpoints.folder_of(last)
        shutil.rmtree(run)


def test_a_run_without_a_loss_to_choose_by_has_no_best(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path / "checkpoints", step)
    assert tree(tmp_path / "checkpoints").keys() == {"step-00000002", "step-00000003", "last"}
    with pytest.raises(UserError, match=r"no checkpoint 'best' \(there are: step-00000002, step-00000003\)"):
        checkpoints.find(tmp_path, "best")


def test_a_copy_under_another_name_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 1, 1)
    for name in ("step-00000001.bak", "step-00000001 (copy)", "step-9", "step-"):
        shutil.copytree(folder / "step-00000001", folder / name)
    save(folder, 2, 2)
    checkpoints.clean_up(folder)
    assert [path.name for path in checkpoints.steps(folder)] == ["step-00000001", "step-00000002"]
    assert checkpoints.find(tmp_path, "last").name == "step-00000002"
    assert (folder / "step-00000001.bak" / "model.safetensors").is_file()


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("renamed"), rename(a, b)))
    save(tmp_path, 1, 1)
    flushed = events[: events.index("renamed")]
    assert {"model.safetensors", "trainer.safetensors", ".step-00000001"} <= set(flushed)
    assert any(name.startswith(".state.json") for name in flushed)
    assert "step-00000001" not in events
    assert tmp_path.name in events[events.index("renamed") :], "and the folder that holds the new name"


@pytest.mark.parametrize("name", ["../other/checkpoints/step-00000001", "best/..", "", ".", "step-1", "/etc", "step-*"])
def test_a_name_never_leads_out_of_the_run(tmp_path: Path, name: str) -> None:
    for run in ("mine", "other"):
        save(tmp_path / run / "checkpoints", 1, 1)
    with pytest.raises(UserError, match=r"has no checkpoint .* \(there are: step-00000001\)"):
        checkpoints.find(tmp_path / "mine", name)


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_link_never_leads_out_of_the_run(tmp_path: Path, name: str) -> None:
    for run in ("mine", "other"):
        save(tmp_path / run / "checkpoints", 1, 1)
    link = tmp_path / "mine" / "checkpoints" / name
    link.unlink()
    link.symlink_to("../../other/checkpoints/step-00000001")
    assert checkpoints.find(tmp_path / "mine", name) == tmp_path / "mine" / "checkpoints" / "step-00000001"


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.safetensors"])
def test_what_a_resume_reads_is_hashed_wherever_the_links_lead(tmp_path: Path, name: str) -> None:
    for step in (1, 2):
        save(tmp_path, step, 1)
    checkpoints.set_link(tmp_path, "last", tmp_path / "step-00000001")
    path = tmp_path / "step-00000002" / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    newest = checkpoints.newest(tmp_path)
    assert newest is not None
    with pytest.raises(UserError, match=f"{name} is damaged"):
        checkpoints.load(newest)


def test_the_weights_of_another_model_are_refused_in_one_short_line(tmp_path: Path) -> None:
    weights = {"weight": torch.zeros(2, 2), "zzz": torch.zeros(1)}
    with pytest.raises(UserError) as caught:
        load_into(nn.Linear(2, 2), weights, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/model.safetensors does not fit the model of the run: "
        "bias is missing in the file and [2] in the model"
    )


def test_weights_are_as_readable_as_the_users_own_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(tmp_path, 1)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "step-00000001").iterdir()}
    assert modes == dict.fromkeys(("model.safetensors", "trainer.safetensors", "state.json"), 0o640)
