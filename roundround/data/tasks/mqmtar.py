"""Multi-query multi-token associative recall."""

from __future__ import annotations

import itertools
import math
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Ids, Lengths, Task, asked, check_range, numbered
from roundround.data.tokenizers import LARGEST_VOCABULARY

SPACE, BETWEEN, QUERY, LETTER = range(FIRST, FIRST + 4)
MOST_WORDS = 2.0**62  # words have numbers of 64 bits


@final
class MQMTAR(Task):
    """Recalls the values of several keys, keys and values of several tokens each.

    <bos> _ K_1 : V_1 _ _ K_2 : V_2 _ .. ? K_i ? K_j .. <sep> ? V_i ? V_j .. <eos>; length is all before the first query

    Vasylenko et al. 2025, arXiv:2506.16640. As in the authors' code, a share of the length goes to pairs, which have
    equal parts of it; queries may repeat. The authors take the words, K and V, from a list of 10,000 drawn for each
    split; here they are any words of the letters. The position of a pair in its part is drawn evenly here.
    """

    def __init__(
        self,
        *,
        n_letters: int,
        key_tokens: int,
        value_tokens: int,
        pairs_share: float,
        n_queries: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        letters = numbered(n_letters, name="n_letters", before="a")
        most_tokens = int(math.log(MOST_WORDS, n_letters))
        check_range("key_tokens", key_tokens, 1, most_tokens)
        check_range("value_tokens", value_tokens, 1, most_tokens)
        most = min(LARGEST_VOCABULARY, self.n_words(n_letters, key_tokens, value_tokens))
        check_range("n_queries", n_queries, 1, most, because=f"n_letters={n_letters} makes {most:,} words")
        check_range("pairs_share", pairs_share, 0.001, 1)
        self.n_letters, self.key_tokens, self.value_tokens = n_letters, key_tokens, value_tokens
        self.pairs_share, self.n_queries = pairs_share, n_queries
        self.pair_tokens = key_tokens + value_tokens + 2
        first_guess = int(n_queries * self.pair_tokens / pairs_share)
        self.shortest = next(n for n in itertools.count(first_guess) if self.n_pairs(n) >= n_queries)
        super().__init__(
            symbols=["_", ":", "?", *letters],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def guessing_nats(self, example: Example) -> float:
        """One of the values at each query; then its other tokens, the marks and the end follow."""
        return self.n_queries * math.log((example.tokens == BETWEEN).sum())

    @staticmethod
    def n_words(n_letters: int, *sizes: int) -> int:
        """The number of words of the smallest of these sizes."""
        return int(n_letters ** min(sizes))

    def n_pairs(self, length: int) -> int:
        wanted = int(length * self.pairs_share // self.pair_tokens)
        return min(wanted, self.n_words(self.n_letters, self.key_tokens, self.value_tokens))

    def words(self, rng: np.random.Generator, n: int, size: int) -> Ids:
        """Different words, [n, size]."""
        numbers = rng.choice(self.n_letters**size, n, replace=False)
        return LETTER + numbers[:, None] // self.n_letters ** np.arange(size) % self.n_letters

    def asked_for(self, words: Ids, chosen: Ids) -> Ids:
        """Each of the chosen words after a mark, flat."""
        marked = np.full((len(chosen), 1 + words.shape[1]), QUERY)
        marked[:, 1:] = words[chosen]
        return marked.ravel()

    def example(self, rng: np.random.Generator, length: int) -> Example:
        n = self.n_pairs(length)
        keys, values = self.words(rng, n, self.key_tokens), self.words(rng, n, self.value_tokens)
        part, middle = length // n, self.key_tokens
        begins = part * np.arange(n) + rng.integers(part - self.pair_tokens + 1, size=n)
        at = begins[:, None] + np.arange(self.pair_tokens - 1)
        text = np.full(length, SPACE)
        text[at[:, :middle]], text[at[:, middle]], text[at[:, middle + 1 :]] = keys, BETWEEN, values
        chosen = rng.integers(n, size=self.n_queries)
        return asked(np.concatenate([text, self.asked_for(keys, chosen)]), self.asked_for(values, chosen))
