"""CLRS-Text as dm-clrs makes it, a new example each time."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from roundround.data.corpora import first_line
from roundround.data.tasks.clrs_text import ClrsText
from roundround.data.tasks.text_task import Text
from roundround.support.errors import UserError

DECIMALS = 3  # of the numbers in the input, the rest cut off: the default of the authors' generator
PROBES = 16  # examples of each algorithm by which the longest is estimated
LONGER = 1.3  # times the longest of 16, below which all of 150 were, for every algorithm at its longest trained length


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
            with on_the_cpu(), nothing_on_stderr(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
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
def on_the_cpu() -> Iterator[None]:
    """Inside, JAX is imported for CPUs alone: it would take three quarters of an accelerator's memory."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        del os.environ["JAX_PLATFORMS"]
        os.environ |= {} if before is None else {"JAX_PLATFORMS": before}


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
