"""A run that is killed before any one of its changes to the disk, and resumed, is the run that was never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from stopping import (
    MAX_RETRIEVAL,
    RESTLESS,
    TRAIN,
    AssertNoFaults,
    Bench,
    Reference,
    contents,
    differences,
    killed_and_finished,
    never_stopped,
    place_of,
    runs_in,
    text_in,
)

VERBS = ["train", "max-retrieval"]
PARTS = 16  # tests that share the changes of a run, every 16th each, so that workers can share them
SECOND_KILLS = 7  # every so manieth change of the resumed run


@pytest.fixture(scope="session")
def references(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """By verb, each run once."""
    made: dict[str, Reference] = {}

    def reference(verb: str) -> Reference:
        if verb not in made:
            folder = tmp_path_factory.mktemp(f"never-stopped-{verb}")
            corpus = text_in(tmp_path_factory.mktemp("corpus"))
            args = [*TRAIN, *RESTLESS, *corpus] if verb == "train" else MAX_RETRIEVAL
            made[verb] = never_stopped(bench, args, folder, watch=True)
        return made[verb]

    return reference


@pytest.mark.slow  # of the tests below, which make test-faults runs
def test_the_run_that_is_killed_gets_worse_deletes_checkpoints_and_repeats_itself(
    bench: Bench, references: Callable[[str], Reference], tmp_path: Path
) -> None:
    reference = references("train")
    checkpoints = runs_in(reference.folder)[0] / "checkpoints"
    steps = sorted(path.name for path in checkpoints.iterdir() if not path.is_symlink())
    assert ((checkpoints / "best").resolve().name, (checkpoints / "last").resolve().name) == (steps[0], steps[-1])
    assert len(steps) == 3
    assert any("step-00000002" in change for change in reference.changes)
    assert bench.run(reference.args, tmp_path).code == 0
    assert differences(reference.contents, contents(tmp_path)) == []


def test_a_run_killed_between_its_best_checkpoint_and_the_link_is_the_run_never_stopped(
    bench: Bench, references: Callable[[str], Reference], tmp_path: Path
) -> None:
    reference = references("train")
    kill = reference.number_of("rename .*/.step-00000004 ") + 1
    assert killed_and_finished(bench, reference.args, tmp_path, [kill], reference.contents) == []


@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("verb", VERBS)
def test_a_run_killed_before_any_change_and_resumed_is_the_run_never_stopped(
    verb: str,
    part: int,
    bench: Bench,
    references: Callable[[str], Reference],
    tmp_path: Path,
    assert_no_faults: AssertNoFaults,
) -> None:
    reference = references(verb)
    kills = range(part + 1, len(reference.changes) + 1, PARTS)
    faults = {
        f"{verb}, change {kill}": killed_and_finished(
            bench, reference.args, tmp_path / str(kill), [kill], reference.contents
        )
        for kill in kills
    }
    assert_no_faults(f"killed before each change: {verb}", faults)


@pytest.mark.faults
@pytest.mark.parametrize(
    "change",
    [
        "rename .*/.run.json",
        "open .*metrics",
        "mkdir .*/.step-00000004",
        "mkdir .*/.step-00000006",
        "rename .*/.results",
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_resume_that_is_killed_too_changes_nothing(
    verb: str,
    change: str,
    bench: Bench,
    references: Callable[[str], Reference],
    tmp_path: Path,
    assert_no_faults: AssertNoFaults,
) -> None:
    reference = references(verb)
    first = reference.number_of(change) + 1
    watched = tmp_path / "watched"
    watched.mkdir()
    assert bench.run(reference.args, watched, kill_before=first).code == -9
    run = runs_in(watched)[0]
    n_changes = len(bench.run([verb, f"resume={run}", "logger=none"], watched, watch=True).changes)
    faults = {
        f"{verb}, changes {first} and {second}": killed_and_finished(
            bench, reference.args, tmp_path / str(second), [first, second], reference.contents
        )
        for second in range(2, n_changes + 1, SECOND_KILLS)
    }
    assert_no_faults(f"killed twice: {verb}", faults)


@pytest.mark.faults
@pytest.mark.parametrize("part", range(4))
def test_eval_of_a_run_that_was_killed_scores_the_best_step_so_far(
    part: int, bench: Bench, references: Callable[[str], Reference], tmp_path: Path, assert_no_faults: AssertNoFaults
) -> None:
    reference = references("train")
    renames = [
        n for n, change in enumerate(reference.changes, 1) if "os.rename" in change and "/checkpoints/" in change
    ]
    first = reference.number_of("rename .*/.step-00000002 ") + 1
    faults = {}
    for kill in [kill for kill in renames if kill >= first][part::4]:
        folder = tmp_path / str(kill)
        folder.mkdir()
        bench.run(reference.args, folder, kill_before=kill)
        run = runs_in(folder)[0]
        newest = sorted((run / "checkpoints").glob("step-*"))[-1]
        best = json.loads((newest / "state.json").read_text())["best"]
        ended = bench.run(["eval", f"run={run}", "length=32", "max_tokens=512", "logger=none"], folder)
        wrong = [f"eval ends with {ended.code}: {ended.err[-200:]!r}"]
        if ended.code == 0:
            records = json.loads((Path(ended.out.split()[-1]) / "results.json").read_text())
            score = next(record["value"] for record in records if record["metric"] == "nats_per_token")
            right = score == pytest.approx(best["nats_per_token"], rel=1e-5)
            wrong = [] if right else [f"{score} where best is {best}"]
        faults[place_of(reference.changes[kill - 1], reference.folder)] = wrong
    assert_no_faults("eval of a killed run", faults)
