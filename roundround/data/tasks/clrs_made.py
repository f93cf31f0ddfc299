"""CLRS-Text: the thirty algorithms of a textbook; a model writes their steps and results; made by dm-clrs.

Markeeva et al. 2024, arXiv:2406.04229; the lengths are those of its script generate_clrs_text.py.

Tested by tests/data/tasks/test_clrs_text.py.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, final

import numpy as np

from roundround.data.corpora import first_line
from roundround.data.tasks.base import LONGEST, Task
from roundround.data.tasks.text_task import Text, TextTask
from roundround.support.errors import UserError, nearest

TRAINED = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)  # up to the algorithm's longest
TESTED_FROM = 4
DECIMALS = 3  # of the numbers in the input, the rest cut off: the default of the authors' generator
PROBES = 16  # examples of each algorithm by which the longest is estimated
LONGER = 1.3  # times the longest of 16, below which all of 150 were, for every algorithm at its longest trained length


class Sizes(NamedTuple):
    """The longest length in training and in the test; the shortest for which dm-clrs 2.0.3 has an example."""

    trained: int
    tested: int
    shortest: int = 2


SIZES = {
    "activity_selector": Sizes(31, 40),
    "articulation_points": Sizes(19, 19),
    "bellman_ford": Sizes(31, 32),
    "bfs": Sizes(31, 41),
    "binary_search": Sizes(31, 64),
    "bridges": Sizes(5, 7),
    "bubble_sort": Sizes(10, 11),
    "dag_shortest_paths": Sizes(19, 19),
    "dfs": Sizes(23, 20),
    "dijkstra": Sizes(28, 25),
    "find_maximum_subarray_kadane": Sizes(31, 64),
    "floyd_warshall": Sizes(10, 11),
    "graham_scan": Sizes(31, 31),
    "heapsort": Sizes(10, 11),
    "insertion_sort": Sizes(31, 25),
    "jarvis_march": Sizes(12, 13),
    "kmp_matcher": Sizes(31, 64, shortest=3),
    "lcs_length": Sizes(10, 12),
    "matrix_chain_order": Sizes(10, 12),
    "minimum": Sizes(31, 64),
    "mst_kruskal": Sizes(10, 10),
    "mst_prim": Sizes(28, 26),
    "naive_string_matcher": Sizes(31, 64, shortest=3),
    "optimal_bst": Sizes(10, 10, shortest=1),
    "quickselect": Sizes(31, 64),
    "quicksort": Sizes(10, 12),
    "segments_intersect": Sizes(31, 64, shortest=1),
    "strongly_connected_components": Sizes(15, 16, shortest=4),
    "task_scheduling": Sizes(31, 41),
    "topological_sort": Sizes(23, 21),
}


def lengths_in_training(algorithm: str) -> tuple[int, ...]:
    return tuple(length for length in TRAINED if length <= SIZES[algorithm].trained)


def lengths_in_test(algorithm: str) -> tuple[int, ...]:
    return tuple(range(TESTED_FROM, SIZES[algorithm].tested + 1))


class ClrsText(TextTask):
    """Runs an algorithm step by step: the name and the input, then the trace and the output, as text.

    insertion_sort: key: [.2 .1], initial_trace: [.2 .1] trace | pred: -> [.2 .1] | [.1 .2]; length is the input's items

    Markeeva et al. 2024, arXiv:2406.04229; Velickovic et al. 2025, arXiv:2410.01104, section 5.

    algorithms: some of the thirty; None, all. lengths: those in training, of every algorithm; None, the paper's, which
    each algorithm has its own of. In training every algorithm with each of its lengths is as likely. All of the answer
    is scored, the trace too; `output_match` counts what follows the last " | " alone, given the right trace.
    """

    def __init__(
        self,
        *,
        algorithms: Sequence[str] | None,
        lengths: Sequence[int] | None,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        self.algorithms = list(SIZES) if algorithms is None else sorted(set(algorithms))
        self.lengths = None if lengths is None else sorted(set(lengths))
        if not self.algorithms:
            raise ValueError("algorithms is []: at least one name, or null for all thirty, is needed")
        if unknown := [name for name in self.algorithms if name not in SIZES]:
            raise ValueError(f"algorithms has '{unknown[0]}'{nearest(unknown[0], SIZES)}")
        self._set_pairs()
        every = [length for _, length in self.pairs]
        super().__init__(
            train_lengths=[min(every), max(every)],
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def output_at(self, answer: str) -> int:
        return answer.rfind(" | ") + 3 if " | " in answer else 0  # segments_intersect has no trace

    def groups(self) -> dict[str, Task]:
        """One task for each algorithm."""
        return {name: self.only(name) for name in self.algorithms}

    def only(self, algorithm: str) -> Self:
        """This task with one of its algorithms."""
        one = copy.copy(self)
        one.algorithms = [algorithm]
        one._set_pairs()
        one._train_lengths = one.pairs[0][1], one.pairs[-1][1]
        return one

    def train_length(self, rng: np.random.Generator) -> int:
        """A length as often as algorithms are trained on it."""
        return self.pairs[rng.integers(len(self.pairs))][1]

    def check_length(self, length: int, what: str) -> None:
        for name in self.algorithms:
            shortest = SIZES[name].shortest
            if length < shortest:
                raise UserError(f"{what}={length} is shorter than the smallest length of {name}, {shortest}")
        super().check_length(length, what)

    def test_lengths(self) -> Sequence[int]:
        return sorted({length for name in self.algorithms for length in lengths_in_test(name)})

    def _set_pairs(self) -> None:
        """The pairs of an algorithm and a length in training, the algorithms' lengths ascending."""
        self.shortest = min(SIZES[name].shortest for name in self.algorithms)
        self.pairs = [(name, length) for name in self.algorithms for length in self.lengths_of(name)]

    def lengths_of(self, algorithm: str) -> Sequence[int]:
        """The algorithm's lengths in training. ValueError where it has none so short."""
        if self.lengths is None:
            return lengths_in_training(algorithm)
        shortest = SIZES[algorithm].shortest
        if not self.lengths or not shortest <= self.lengths[0] <= self.lengths[-1] <= LONGEST:
            raise ValueError(
                f"lengths is {self.lengths}: some from {shortest} ({algorithm}) to {LONGEST:,}, or null, are allowed"
            )
        return self.lengths

    def algorithm(self, rng: np.random.Generator, length: int) -> str:
        """One of the algorithms that are trained on a length, or of all where none is."""
        trained = [name for name, of_pair in self.pairs if of_pair == length] or self.algorithms
        return trained[rng.integers(len(trained))]


@final
class ClrsTextMade(ClrsText):
    """The first example that dm-clrs makes of an algorithm and a length from a seed that is drawn.

    use_hints: whether the steps are part of the prompt and the answer, as in the paper, or the output alone.

    Markeeva et al. 2024, arXiv:2406.04229.
    """

    def __init__(
        self,
        *,
        algorithms: list[str] | None,
        lengths: list[int] | None,
        use_hints: bool,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            algorithms=algorithms,
            lengths=lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.use_hints = use_hints

    def text(self, rng: np.random.Generator, length: int) -> Text:
        return made(self.algorithm(rng, length), length, seed=int(rng.integers(2**32)), use_hints=self.use_hints)

    def longest_texts(self, length: int) -> tuple[Iterator[Text], float]:
        wanted = dict.fromkeys(self.algorithms, length)
        if any(length == trained for _, trained in self.pairs):  # else a length of the test
            wanted = {name: trained for name, trained in self.pairs if trained <= length}
        pairs = [(name, n, seed) for name, n in wanted.items() for seed in range(PROBES)]
        return (made(name, n, seed=seed, use_hints=self.use_hints) for name, n, seed in pairs), LONGER

    def origin(self) -> dict[str, object]:
        return {"dm-clrs": dm_clrs().__version__, "use_hints": self.use_hints, "pairs": self.pairs}


def made(algorithm: str, length: int, *, seed: int, use_hints: bool) -> Text:
    """The first example of the authors' generator with a seed (`clrs_generator`, `num_samples=1`)."""
    clrs = dm_clrs()
    sampler, _ = clrs.build_sampler(
        algorithm, num_samples=-1, length=length, seed=seed, track_max_steps=False, truncate_decimals=DECIMALS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graham_scan calls what numpy is going to leave out
        return Text(*clrs.clrs_text.clrs_utils.format_clrs_example(algorithm, sampler.next(1), use_hints=use_hints))


def dm_clrs() -> Any:
    """The package. UserError where it is not installed."""
    if sys.modules.get("clrs") is None:
        try:
            with nothing_on_stderr(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                os.environ["JAX_PLATFORMS"] = "cpu"  # else it takes three quarters of an accelerator's memory
                import clrs  # noqa: F401
                from absl import logging
        except ImportError as error:
            raise UserError(
                f"data: examples of CLRS-Text are made by dm-clrs, which cannot be imported ({first_line(error)}): pip "
                "install roundround[clrs], or use data=clrs_text or data=clrs_text_files, which have them ready"
            ) from None
        logging.set_verbosity("error")  # else the first sampler says that it samples
    return sys.modules["clrs"]


@contextmanager
def nothing_on_stderr() -> Iterator[None]:
    """Inside, what is written to the standard error stream is lost: TensorFlow's own switches leave five lines."""
    sys.stderr.flush()
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
