"""Several corpora at once, each with its share.

Tested by tests/data/test_shards.py and tests/data/test_data_yaml.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import numpy as np

from roundround.data.corpora import Corpus, fingerprint
from roundround.data.shards import TokenStream, joined

CYCLE = 1 << 16  # held-out tokens in which every source has its share
MOST_HELD_OUT = 1 << 24  # tokens


@final
class Mixture(Corpus):
    """Windows of several corpora: in every aligned 1,000 each has the share of its weight, to within one window.

    A window comes from one source. There is one tokenizer; where it is learnt, it learns from all sources in their
    shares. Held-out text is in the same shares: `CYCLE` tokens at a time, as long as every source has some, and up to
    `MOST_HELD_OUT` tokens.
    """

    def __init__(
        self, *, weights: dict[str, float], sources: Mapping[str, Corpus], separate_documents: bool = False
    ) -> None:
        super().__init__(held_out=None, separate_documents=separate_documents)
        if not sources or weights.keys() != sources.keys():
            raise ValueError(
                f"weights are for {sorted(weights)} and sources are {sorted(sources)}: give each source a weight"
            )
        wrong = {name: weight for name, weight in weights.items() if not 0 <= weight < math.inf}
        if wrong:
            raise ValueError(f"weights.{next(iter(wrong))} is {next(iter(wrong.values()))}: numbers from 0 are allowed")
        if not any(weights.values()):
            raise ValueError("weights are all 0: at least one above 0 is needed")
        if any(isinstance(source, Mixture) for source in sources.values()):
            raise ValueError("sources hold a mixture: name its sources here, each with its weight")
        if any(source.separate_documents for source in sources.values()):
            raise ValueError("sources cannot keep documents apart by themselves: give data.separate_documents=true")
        total = sum(weights.values())
        self.sources = {name: source for name, source in sources.items() if weights[name] > 0}
        self.shares = [weights[name] / total for name in self.sources]

    def identity(self) -> str:
        sources = [[share, source.identity()] for share, source in zip(self.shares, self.sources.values(), strict=True)]
        return fingerprint(corpus="mixture", sources=sources)

    def texts(self) -> Iterator[str]:
        return (text for _, text in self.documents())

    def documents(self) -> Iterator[tuple[bool, str]]:
        """The next document comes from the source with the fewest bytes for its share, until a source has no more."""
        iterators = [source.documents() for source in self.sources.values()]
        given = [0.0] * len(iterators)
        while True:
            number = min(range(len(given)), key=given.__getitem__)
            document = next(iterators[number], None)
            if document is None:
                return
            yield document
            given[number] += len(document[1].encode()) / self.shares[number]

    def held_out_streams(
        self, parts: Sequence[tuple[TokenStream, TokenStream]], end: int
    ) -> tuple[TokenStream, TokenStream]:
        """The held-out tokens and bytes of all sources in their shares. parts: (tokens, bytes) of each source.

        end: the token that ends a document; where documents are separate, each piece ends with it.
        """
        ends = [round(sum(self.shares[: n + 1]) * CYCLE) for n in range(len(parts))]
        sizes = [last - first for first, last in zip([0, *ends], ends, strict=False)]
        cycles = min(
            MOST_HELD_OUT // CYCLE, *(len(ids) // size for (ids, _), size in zip(parts, sizes, strict=True) if size)
        )
        if cycles == 0:  # one cycle, smaller
            scale = min(len(ids) / size for (ids, _), size in zip(parts, sizes, strict=True) if size)
            sizes, cycles = [int(size * scale) for size in sizes], 1
        pieces = [
            (number, slice(cycle * size, (cycle + 1) * size))
            for cycle in range(cycles)
            for number, size in enumerate(sizes)
        ]
        if self.separate_documents:
            pieces = [(number, up_to_last(end, parts[number][0], piece)) for number, piece in pieces]
        ids, n_bytes = ([parts[number][which][piece] for number, piece in pieces] for which in (0, 1))
        return joined(ids), joined(n_bytes)


def up_to_last(end: int, ids: TokenStream, piece: slice) -> slice:
    """The piece up to its last end of a document; the whole piece where it has none."""
    (places,) = np.nonzero(np.asarray(ids[piece]) == end)
    return slice(piece.start, piece.start + int(places[-1]) + 1) if len(places) else piece
