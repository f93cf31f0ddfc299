"""Which numbers of runs count, for which setting, against which baseline, in which family."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers_compare import NODE, write_eval, write_results, write_train
from helpers_runs import write_run

from roundround.analysis.comparison import Comparison, compare, place_of


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "found.csv"
    path.write_text(text)
    return path


def rows(found: Comparison, **where: Any) -> list[Any]:
    return [row for row in found.table if all((row | row["settings"]).get(k) == where[k] for k in where)]


def max_retrieval(directory: Path, accuracy: dict[tuple[str, int], float]) -> Path:
    """A run of several normalisers and seeds, whose records say which."""
    config = {"model": NODE, "normalisers": {name: NODE for name, _ in accuracy}, "seed": 0, "seeds": 2}
    write_run(directory, verb="max-retrieval", config=config, choices={}, seed=0)
    places = [{"softmax": softmax, "seed": seed, "n": 16} for softmax, seed in accuracy]
    values = zip(places, accuracy.values(), strict=True)
    write_results(directory, [{"metric": "accuracy", **place, "value": value} for place, value in values])
    return directory


def test_numbers_of_layers_heads_and_bands_are_each_a_place(tmp_path: Path) -> None:
    for seed in (1, 2):
        trained = write_train(tmp_path / f"train-{seed}", "rope", seed)
        directory = write_eval(tmp_path / f"probe-{seed}", trained, {}, ablate=["lowest:0.25"], layer=0, head=0)
        places = [{"layer": layer, "head": head} for layer in (0, 1) for head in (0, 1)]
        records = [{"metric": "entropy", **place, "value": seed + sum(place.values())} for place in places]
        records += [{"metric": "perplexity", "ablate": band, "value": 9.0} for band in ("none", "lowest:0.25")]
        write_results(directory, records)
    found = compare([str(path) for path in tmp_path.glob("probe-*")])
    assert (
        sorted(
            [place_of(row) for row in rows(found, metric="entropy")],
            key=lambda place: (place["layer"], place["head"]),
        )
        == places
    )
    assert len(rows(found, metric="perplexity")) == 2
    assert {place_of(row)["layer"] for row in compare(tmp_path, where={"layer": 1}).table} == {1}


def test_evaluations_whose_training_is_gone_keep_the_settings_that_were_typed(tmp_path: Path) -> None:
    for lr in (0.001, 0.01):
        for seed in (1, 2):
            trained = write_train(tmp_path / "train" / f"{lr}-{seed}", "rope", seed, lr=lr)
            directory = write_eval(tmp_path / "eval" / f"{lr}-{seed}", trained, {})
            typed = {"pe": "rope", "optim.lr": lr, "batch_size": 8, "seed": seed, "length": 16}
            write_results(directory, [{"metric": "perplexity", **typed, "value": 100 * lr + seed}])
    shutil.rmtree(tmp_path / "train")
    found = compare(tmp_path / "eval")
    assert [(row["settings"], row["seeds"], place_of(row)) for row in found.table] == [
        ({"optim.lr": 0.001}, [1, 2], {"length": 16}),
        ({"optim.lr": 0.01}, [1, 2], {"length": 16}),
    ]
    [line] = [line for line in found.remarks if "training run that no longer exists" in line]
    assert "and 1 more measured" in line


def test_a_family_is_as_large_whatever_came_out_at_its_place(tmp_path: Path) -> None:
    """Counted is who is compared and has no number there: not the baseline, and none for a number lost elsewhere."""
    for pe in ("rope", "nope", "alibi"):
        for seed in (1, 2, 3):
            lost = pe == "rope" and seed == 1
            values = {8: 10.0 + seed + len(pe) * seed, 16: 10.0 + seed + len(pe) * seed**2}
            records = [
                {"metric": "perplexity", "length": n, "value": "nan" if lost and n == 16 else value}
                for n, value in values.items()
            ]
            write_train(tmp_path / f"{pe}-{seed}", pe, seed, records=records)
    found = compare(tmp_path, baseline="pe=rope")
    for row in (row for row in found.table if row["baseline"] is not None):
        others = [other for other in found.table if place_of(other) == place_of(row) and other["p"] is not None]
        if row["p"] == min(other["p"] for other in others):
            assert row["p_holm"] == pytest.approx(min(1.0, 2 * row["p"])), row


def test_each_verb_has_the_plain_baseline_that_it_can_have(tmp_path: Path) -> None:
    for pe in ("rope", "nope"):
        for seed in (1, 2):
            write_train(tmp_path / f"{pe}-{seed}", pe, seed, seed + len(pe))
    max_retrieval(
        tmp_path / "max", {(name, seed): len(name) / 9 + seed / 9 for name in ("softmax", "hard") for seed in (0, 1)}
    )
    found = compare(tmp_path)
    assert {*found.baseline} == {"pe=rope", "softmax=softmax"}
    assert {(row["verb"], *row["baseline"].items()) for row in found.table if row["baseline"] is not None} == {
        ("train", ("pe", "rope")),
        ("max-retrieval", ("softmax", "softmax")),
    }
    lines = [
        f"{pe},{softmax},{seed},{seed}" for pe in ("rope", "nope") for softmax in ("ssmax", "sink") for seed in (1, 2)
    ]
    found = compare(written(tmp_path, "\n".join(["pe,softmax,seed,value", *lines])))
    assert found.baseline == ["pe=rope"], "no row has the plain softmax"
    assert {tuple(row["baseline"].values()) for row in found.table if row["baseline"]} == {
        ("rope", "sink"),
        ("rope", "ssmax"),
    }


def test_filters_ask_the_records_of_max_retrieval_and_the_rows_of_files(tmp_path: Path) -> None:
    run = max_retrieval(tmp_path / "max", {(name, seed): 0.5 for name in ("softmax", "hard") for seed in (0, 1)})
    assert [group.name for group in compare(run, where={"softmax": "hard"}).groups] == ["all runs"]
    assert {seed for row in compare(run, where={"seed": 1}).table for seed in row["seeds"]} == {1}
    file = written(tmp_path, "verb,seed,tied,p,value\neval,1,True,0.5,1\neval,2,False,1,2\ntrain,1,True,1,3\n")
    assert [row["values"] for row in compare(file, where={"seed": 2}).table] == [[2.0]]
    assert [row["values"] for row in compare(file, where={"verb": "train"}).table] == [[3.0]]
    assert [row["values"] for row in compare(file, where={"tied": False}).table] == [[2.0]]
    assert compare(file, where={"verb": "eval"}, baseline="tied=true").baseline == ["tied=true"]
    frame = compare(file).data_frame()
    assert set(frame["settings.p"].dropna()) == {0.5, 1}, "a setting that is called as a result is"
