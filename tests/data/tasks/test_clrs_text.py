"""CLRS-Text: its authors' text to the letter, the files with it, the script that writes them, and the errors.

golden/clrs_text.jsonl holds what dm-clrs 2.0.3 makes (Apache-2.0), each row the first of a seed:
python -c "import json; from clrs._src.clrs_text.huggingface_generators import clrs_generator as make; print(json.dumps(
next(make({NAME: [LENGTH]}, num_samples=1, use_hints=True, seed=SEED)) | {'seed': SEED}))"
with the columns 'text' and 'use_hints' left out: all thirty at length 4 with seed 0, then five of other lengths.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import clrs_text
import pytest

from roundround.data.tasks.base import Examples
from roundround.data.tasks.clrs_text import LONGEST_TRAINED, ClrsTextFiles
from roundround.data.tokenizers import Bytes
from roundround.support.errors import UserError

GOLDEN = Path(__file__).parents[2] / "golden" / "clrs_text.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
OF_SPLITS = ("train", "validation", "test")
BYTES = Bytes().build([])
COUNTS = {"train_examples": None, "validation_examples": 8}


def of_files(*path: Path, **changes: Any) -> ClrsTextFiles:
    settings = {"test_path": None, "algorithms": None, "lengths": None, **COUNTS}
    return ClrsTextFiles(**settings | {"path": [str(entry) for entry in path]} | changes)


def texts(examples: Examples) -> list[str]:
    assert examples.n is not None
    return [BYTES.decode(examples[i].tokens.tolist()) for i in range(examples.n)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of dm-clrs, whose text says what was asked for."""

    def build_sampler(name: str, *, num_samples: int, length: int, seed: int, **_: Any) -> Any:
        assert num_samples == -1
        return SimpleNamespace(next=lambda batch_size: (length, seed)), None

    utils = SimpleNamespace(
        format_clrs_example=lambda name, sample, use_hints: (
            f"{name}:\nlength: {sample[0]}\n",
            f"{sample[1]}{' with hints' if use_hints else ''}\n\n",
        )
    )
    package = SimpleNamespace(build_sampler=build_sampler, clrs_text=SimpleNamespace(clrs_utils=utils))
    monkeypatch.setitem(sys.modules, "clrs", package)  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("clrs") is None, reason="dm-clrs is not installed")
def test_what_dm_clrs_makes_is_the_authors_text() -> None:
    clrs = importlib.import_module("clrs")
    for row in ROWS:
        assert clrs_text.example(clrs, row["algo_name"], row["length"], seed=row["seed"], use_hints=True) == row


def test_every_golden_text_is_an_example_to_the_letter() -> None:
    split = {name: Examples(of_files(GOLDEN).with_vocabulary(BYTES), seed=0, split=name) for name in OF_SPLITS}
    found = [text for examples in split.values() for text in texts(examples)]
    assert sorted(found) == sorted(row["question"] + row["answer"] for row in ROWS)


def test_the_scored_tokens_are_the_answer_and_the_end() -> None:
    task = of_files(GOLDEN, test_path=[str(GOLDEN)], algorithms=["heapsort"]).with_vocabulary(BYTES)
    tokens, scored, _, output_at = Examples(task, seed=0, split="test", length=4)[0]
    [row] = [row for row in ROWS if row["algo_name"] == "heapsort"]
    assert bytes(tokens[scored][:-1].tolist()).decode() == row["answer"]
    assert scored.sum() == len(row["answer"]) + 1
    assert bytes(tokens[output_at:-1].tolist()).decode() == row["answer"].split(" | ")[1]


def test_a_test_set_of_its_own_is_tested_whole_by_algorithm_and_length() -> None:
    task = of_files(GOLDEN, test_path=[str(GOLDEN)]).with_vocabulary(BYTES)
    counts = {name: Examples(part, seed=3, split="test", length=4).n for name, part in task.groups().items()}
    assert counts == dict.fromkeys(LONGEST_TRAINED, 1)
    assert task.groups()["minimum"].test_lengths() == [4, 31]
    [text] = texts(Examples(task.groups()["minimum"], seed=3, split="test", length=31))
    assert text.startswith("minimum:\nkey: [")


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": "a", "algo_name": "bfs", "length": 4} for i in range(64)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = of_files(tmp_path / "rows.jsonl", algorithms=["bfs"]).with_vocabulary(BYTES)
    examples = Examples(task, seed=0, split="train")
    assert examples.n is not None
    epochs = [[BYTES.decode(examples[i + e * examples.n].tokens.tolist()) for i in range(examples.n)] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert len(set(epochs[0])) == examples.n
    assert 3 * 64 // 5 < examples.n < 64


def test_parquet_and_csv_say_the_same_as_jsonl(tmp_path: Path) -> None:
    import pandas

    table = pandas.DataFrame(ROWS)
    table.to_parquet(tmp_path / "rows.parquet")
    table.to_csv(tmp_path / "rows.csv", index=False)
    drawn = [
        texts(Examples(of_files(path).with_vocabulary(BYTES), seed=0, split="train"))
        for path in (GOLDEN, tmp_path / "rows.parquet", tmp_path / "rows.csv")
    ]
    assert drawn[0] == drawn[1] == drawn[2]


def test_the_lengths_in_training_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": "a", "algo_name": "bfs", "length": 5 + i % 56} for i in range(99)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert of_files(tmp_path / "rows.jsonl").train_lengths == (5, 60)
    assert of_files(tmp_path / "rows.jsonl").groups()["bfs"].train_lengths == (5, 60)
    assert of_files(tmp_path / "rows.jsonl", lengths=[6, 9]).train_lengths == (6, 9)
    assert of_files(tmp_path / "rows.jsonl", algorithms=["bfs"]).context(60) == len("q98a") + 4, "bytes, and the ends"
    for row in rows:
        del row["length"]
    (tmp_path / "none.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert of_files(tmp_path / "none.jsonl", algorithms=["bfs"]).train_lengths == (4, 31)


def test_examples_of_the_test_that_are_in_training_are_counted(tmp_path: Path) -> None:
    def written(name: str, numbers: range) -> Path:
        rows = [{"question": f"q{i}", "answer": "a", "algo_name": "bfs", "length": 4} for i in numbers]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / name

    train, test = written("train.jsonl", range(40)), written("test.jsonl", range(30, 80))
    said = of_files(train, test_path=[str(test)]).shared_with_test()
    assert said == "10 of 50 test examples are in the training set too"
    assert of_files(train, test_path=[str(test)], algorithms=["dfs"]).shared_with_test() is None
    assert of_files(train).shared_with_test() is None, "one set, which is split by hash"


def test_a_file_that_the_script_writes_is_read_back_whole(
    stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    wanted = ["--algorithms", "bfs,minimum", "--lengths", "4,9", "--examples", "3", "--first-seed", "7"]
    monkeypatch.setattr(sys, "argv", ["clrs_text.py", str(path), *wanted])
    monkeypatch.setenv("JAX_PLATFORMS", "")
    clrs_text.main()
    task = of_files(path, test_path=[str(path)]).with_vocabulary(BYTES)
    assert task.train_lengths == (4, 9)
    for name in ("bfs", "minimum"):
        for length in (4, 9):
            found = texts(Examples(task.groups()[name], seed=0, split="test", length=length))
            assert sorted(found) == [f"{name}:\nlength: {length}\n{seed} with hints\n\n" for seed in (7, 8, 9)]


def test_the_identity_knows_the_rows_the_algorithms_and_the_lengths() -> None:
    one = of_files(GOLDEN, algorithms=["bfs", "dfs"])
    others = [of_files(GOLDEN, algorithms=["bfs"]), of_files(GOLDEN, algorithms=["bfs", "dfs"], lengths=[4])]
    assert one.identity() == of_files(GOLDEN, algorithms=["dfs", "bfs"]).identity()
    assert len({task.identity() for task in (one, *others)}) == 3


def test_a_length_that_a_file_has_not_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(UserError, match=r"no row is of bfs of length \[5\], .* length=5 \(it has lengths: \[4, 7\]\)"):
        of_files(GOLDEN, algorithms=["bfs"]).check_length(5, "length")
    of_files(GOLDEN).check_length(31, "length")


def test_a_file_too_small_to_be_divided_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer,algo_name\nq,a,bfs")
    task = of_files(tmp_path / "rows.csv", algorithms=["bfs"]).with_vocabulary(BYTES)
    for split in ("validation", "test"):  # its text falls to train
        with pytest.raises(UserError, match=f"{split} has none of the 1 rows .it takes 8 in 64, by their text.: more"):
            Examples(task, seed=0, split=split)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["question,answer\nq,a"], r"no column 'algo_name'"),
        (["question,answer,algo_name\nq,a,bsf"], r"row 1: algo_name is 'bsf', which is no .*; did you mean 'bfs'"),
        (["question,answer,algo_name\nq,a,dfs"], r"bfs of any length, as needed for train \(it has lengths: \[\]\)"),
        (["question,answer,algo_name,length\n" + "q,a,bfs,7\n" * 9], r"bfs of length .4., .*lengths: \[7\]"),
        (["question,answer,algo_name\n" + "q,a,bfs\n" * 9], r"no column 'length'; data.lengths=null takes all rows"),
    ],
)
def test_what_a_file_lacks_is_said_in_one_line(rows: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / ("rows.jsonl" if rows[0].startswith("{") else "rows.csv")
    path.write_text(rows[0])
    task = of_files(path, algorithms=["bfs"], lengths=[4] if "bfs" in rows[0] else None)
    with pytest.raises(UserError, match=message) as told:
        Examples(task.with_vocabulary(BYTES), seed=0, split="train")
    assert "\n" not in str(told.value)
