"""What every task promises, checked for each yaml in conf/data that is one; a new task is tested by being there."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import class_of, variants
from helpers_tasks import NAMES, ROOT, build, drawn, tunables
from scipy.stats import chisquare

from roundround.config.options import options_in
from roundround.data.tasks.base import SPECIAL, SPLITS, Examples
from roundround.data.tasks.batches import padded
from roundround.support.errors import UserError

PACKAGED = sorted(set(NAMES) & options_in(ROOT / "conf" / "data").keys())
every_task = pytest.mark.parametrize("name", NAMES)
every_packaged = pytest.mark.parametrize("name", PACKAGED)


# -- form


@every_packaged
def test_yaml_starts_with_the_command_that_uses_it_and_the_idea(name: str) -> None:
    lines = (ROOT / "conf" / "data" / f"{name}.yaml").read_text().splitlines()
    assert lines[0].split(" pe=")[0] == f"# roundround train data={name}"
    assert lines[1] == f"# {inspect.getdoc(class_of('data', name)).splitlines()[0]}"


@every_packaged
def test_docstring_is_idea_then_layout_then_reference(name: str) -> None:
    idea, layout, reference = inspect.getdoc(class_of("data", name)).split("\n\n")
    assert idea.endswith(".")
    assert idea.count(". ") == 0, "one sentence"
    assert len(layout.splitlines()) == 1
    assert "; length is " in layout
    assert re.search(r"\b20\d\d, arXiv:\d{4}\.\d{5}", reference)


@every_packaged
def test_class_is_final_and_its_numbers_live_in_yaml(name: str) -> None:
    cls = class_of("data", name)
    parameters = inspect.signature(cls).parameters.values()
    assert cls.__dict__.get("__final__") is True
    assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    assert {p.name for p in parameters} | {"_target_"} == tunables("data", name).keys()


# -- which examples there are


@every_task
def test_an_example_is_the_same_whatever_was_read_before_it(name: str) -> None:
    in_order = drawn(build(name), 8, split="train")
    task = build(name)
    task.example(np.random.default_rng(5), task.train_lengths[1])
    examples = Examples(task, seed=0, split="train")
    for i in (7, 3, 7, 0):
        assert np.array_equal(examples[i].tokens, in_order[i].tokens)
        assert np.array_equal(examples[i].scored, in_order[i].scored)


def test_examples_are_the_same_in_another_process() -> None:
    source = (
        "import json, sys; from omegaconf import OmegaConf; from roundround.config.build import build;"
        "from roundround.data.tasks.base import Task;"
        "load = lambda path: build(OmegaConf.create({'data': OmegaConf.load(path)})['data'], Task);"
        "print(json.dumps([load(path).identity() for path in sys.argv[1:]]))"
    )
    paths = [str(variants("data")[name]) for name in PACKAGED]
    done = subprocess.run([sys.executable, "-c", source, *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [build(name).identity() for name in PACKAGED]


@every_task
def test_examples_differ_between_numbers_splits_and_seeds(name: str) -> None:
    task = build(name)
    length = task.train_lengths[1]
    found = [drawn(task, 2, length=length, split=split, seed=seed) for split in SPLITS for seed in (0, 1)]
    assert len({example.tokens.tobytes() for examples in found for example in examples}) == 12


@every_task
def test_splits_share_no_example_unless_some_are_counted_as_shared(name: str) -> None:
    task = build(name)
    for length in (task.shortest, task.train_lengths[1]):
        found, n_shared = [], 0
        for split in SPLITS:
            examples = Examples(task, seed=0, split=split, length=length)
            found.append({examples[i].tokens.tobytes() for i in range(30)})
            n_shared += examples.n_shared
        train, validation, test = found
        assert n_shared or not (train & validation or train & test or validation & test)
        assert not n_shared or length < task.train_lengths[1], "there are enough examples of the longest"


@every_task
def test_each_length_in_training_is_as_likely(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shortest = build(name).shortest
    task = build(name, train_lengths=[shortest, shortest + 4])
    example, lengths = task.example, []
    monkeypatch.setattr(task, "example", lambda rng, length: lengths.append(length) or example(rng, length))
    examples, taken = Examples(task, seed=0, split="train"), []
    for i in range(500):
        examples[i]
        taken.append(lengths[-1] - shortest)
    assert chisquare(np.bincount(taken, minlength=5)).pvalue > 1e-3


# -- what an example is


@every_task
def test_tokens_are_of_the_vocabulary_and_some_are_scored_but_the_first_never(name: str) -> None:
    task = build(name)
    size, unknown = task.vocabulary().size, SPECIAL.index("<unk>")
    assert size == len(SPECIAL) + len(task.symbols)
    for length in (task.shortest, *task.train_lengths):
        examples = drawn(task, 30, length=length)
        for tokens, scored, *_ in examples:
            assert (tokens.dtype, scored.dtype, tokens.shape) == (np.int64, np.bool_, scored.shape)
            assert 0 <= tokens.min() <= tokens.max() < size
            assert unknown not in tokens
            assert scored.any()
            assert not scored[0]


@every_task
def test_context_is_the_most_tokens_of_a_length(name: str) -> None:
    task, rng = build(name), np.random.default_rng(0)
    for length in range(task.shortest, task.shortest + 4):
        sizes = {len(task.example(rng, length).tokens) for _ in range(200)}
        assert max(sizes) == task.context(length)


@every_task
def test_the_vocabulary_reads_what_it_writes(name: str) -> None:
    task = build(name)
    vocabulary = task.vocabulary()
    text = " ".join(task.symbols)
    assert vocabulary.encode(text) == [*range(len(SPECIAL), vocabulary.size)]
    assert all(symbol and len(symbol.split()) == 1 for symbol in task.symbols)


# -- batches


@every_task
def test_padding_changes_nothing_but_the_width(name: str) -> None:
    examples = drawn(build(name), 6)
    narrow, wide = padded(examples), padded(examples, width=max(len(example.tokens) for example in examples) + 9)
    n_tables = 0
    for one, other in zip(narrow, wide, strict=True):
        if one.ndim == 2:
            n_tables += 1
            assert other.shape[1] == one.shape[1] + 9
            assert torch.equal(one, other[:, : one.shape[1]])
    assert n_tables >= 2


# -- wrong values


@every_task
def test_lengths_below_the_smallest_are_refused_and_the_smallest_is_named(name: str) -> None:
    smallest = build(name).shortest
    with pytest.raises(UserError, match=rf"train_lengths is \[{smallest - 1}, 900\]; .*, none below {smallest},"):
        build(name, train_lengths=[smallest - 1, 900])
    with pytest.raises(UserError, match=rf"length={smallest - 1}: the lengths of this task go from {smallest} to"):
        build(name).check_length(smallest - 1, "length")
    build(name, train_lengths=[smallest, smallest]).check_length(smallest, "length")
