"""Tasks that find something that occurred earlier in the sequence.

Tested by tests/data/tasks/test_recalling.py.
"""

from __future__ import annotations

import itertools
import math
from typing import final

import numpy as np

from roundround.data.tasks.base import (
    BOS,
    FIRST,
    LONGEST,
    Example,
    Ids,
    Lengths,
    Task,
    asked,
    check_range,
    nats_of_order,
    numbered,
)
from roundround.support.errors import UserError

TRIGGER = FIRST  # in Induction
SPACE, COLON, QUERY, LETTER = range(FIRST, FIRST + 4)  # in MQMTAR
GRASS = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again ."
KEY_IS, REMEMBER, IS_KEY = "the pass key is", ". remember it .", "is the pass key ."
QUESTION = "what is the pass key ? the pass key is"
WORDS = list(dict.fromkeys(f"{GRASS} {KEY_IS} {REMEMBER} {IS_KEY} {QUESTION}".split()))
DIGIT = FIRST + len(WORDS)


@final
class MQAR(Task):
    """Recalls the values of several keys from pairs at the beginning (multi-query associative recall).

    k_1 v_1 .. k_p v_p _ _ k_i _ .., v_i is the target at k_i; length is the number of all tokens

    Arora et al. 2023, arXiv:2312.04927, as in the authors' code: half of the symbols are keys, the other half values;
    two pairs of an example differ in key and in value. After the pairs each key occurs once more, as a query. The j-th
    possible position of a query has the weight j^(power_a - 1). The target at a query is the value of the key; the
    token after the query is filler. answers_in_sequence: whether the token after the query is the value, not filler. A
    guesser that ignores the keys can then exclude the values already given: with 4 pairs it is right for 52 % of the
    queries. random_filler: whether filler is drawn from all symbols; otherwise it is always _ (the paper's Figure 2).
    """

    def __init__(
        self,
        *,
        n_symbols: int,
        n_pairs: int,
        power_a: float,
        answers_in_sequence: bool,
        random_filler: bool,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        self.n_keys, self.n_values = n_symbols // 2 - 1, n_symbols - n_symbols // 2
        self.shortest = 4 * n_pairs
        super().__init__(
            symbols=["_", *numbered(self.n_keys, before="k"), *numbered(self.n_values, before="v")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_pairs, self.power_a = n_pairs, power_a
        self.answers_in_sequence, self.random_filler = answers_in_sequence, random_filler

    def example(self, rng: np.random.Generator, length: int) -> Example:
        n = self.n_pairs
        keys = FIRST + 1 + rng.choice(self.n_keys, n, replace=False)
        values = FIRST + 1 + self.n_keys + rng.choice(self.n_values, n, replace=False)
        tokens = np.full(length, FIRST)
        if self.random_filler:
            tokens += rng.integers(len(self.symbols), size=length)
        # positions drawn one by one without replacement, with their weights, by an exponential race
        slowness = np.arange(1, length // 2 - n + 1) ** (1 - self.power_a)
        asked_at = 2 * (n + np.argsort(rng.standard_exponential(length // 2 - n) * slowness)[:n])
        tokens[: 2 * n : 2], tokens[1 : 2 * n : 2] = keys, values
        tokens[asked_at] = keys
        answers = tokens.copy()
        answers[asked_at + 1] = values
        scored = np.zeros(length, dtype=np.bool_)
        scored[asked_at + 1] = True
        return Example(answers, scored) if self.answers_in_sequence else Example(tokens, scored, answers)

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names one of the values.

        With `answers_in_sequence`, the guesser names one of the values that are not yet given.
        """
        p = self.n_pairs
        return math.lgamma(p + 1) if self.answers_in_sequence else p * math.log(p)


@final
class MQMTAR(Task):
    """Recalls the values of several keys, keys and values of several tokens each.

    <bos> _ K_1 : V_1 _ _ K_2 : V_2 _ .. ? K_i ? K_j .. <sep> ? V_i ? V_j .. <eos>; length is all before the first query

    Vasylenko et al. 2025, arXiv:2506.16640. As in the authors' code, pairs take the share `pairs_share` of the length,
    the length is cut into equal parts with one pair each, and two queries can be equal. The authors take keys and
    values from a list of 10,000 words, and each split has a list of its own. Here any sequence of letters is a word,
    and the position of a pair in its part is drawn evenly.
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
        self.n_words: int = n_letters ** min(key_tokens, value_tokens)
        check_range("n_queries", n_queries, 1, self.n_words, because="the words that n_letters makes")
        self.n_letters, self.key_tokens, self.value_tokens = n_letters, key_tokens, value_tokens
        self.pairs_share, self.n_queries = pairs_share, n_queries
        self.pair_tokens = key_tokens + value_tokens + 2
        first_guess = int(n_queries * self.pair_tokens / pairs_share)
        self.shortest = next(n for n in itertools.count(first_guess) if self.n_pairs(n) >= n_queries)
        super().__init__(
            symbols=["_", ":", "?", *numbered(n_letters, before="a")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names one of the values at each query. Only a value's first token has a loss."""
        return self.n_queries * math.log((example.tokens == COLON).sum())

    def n_pairs(self, length: int) -> int:
        return min(int(length * self.pairs_share // self.pair_tokens), self.n_words)

    def words(self, rng: np.random.Generator, n: int, size: int) -> Ids:
        """n different words of `size` tokens: [n, size]."""
        numbers = rng.choice(self.n_letters**size, n, replace=False)
        return LETTER + numbers[:, None] // self.n_letters ** np.arange(size) % self.n_letters

    def asked_for(self, words: Ids, chosen: Ids) -> Ids:
        """The chosen words as a flat array, with the token "?" before each word."""
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
        text[at[:, :middle]], text[at[:, middle]], text[at[:, middle + 1 :]] = keys, COLON, values
        chosen = rng.integers(n, size=self.n_queries)
        return asked(np.concatenate([text, self.asked_for(keys, chosen)]), self.asked_for(values, chosen))


@final
class Recall(Task):
    """Recalls a key's value from an item that is hidden in filler, a chosen distance before the query.

    <bos> _ kv _ _ kv .. k_1 k_2 .. k_q _, v_i is the target at k_i, q is n_queries; length is all tokens

    Associative recall as in Arora et al. 2023, arXiv:2312.04927, reduced to a search by content: an item is a single
    token that stands for a key and a value. So one head can find the item by its key, and needs no second head that
    attends to the previous token; a model without positions can solve the task. No two items have the same key, but two
    can have the same value. Their positions are drawn evenly. No answer is in the sequence. The test divides its
    examples among `distances`, the numbers of tokens from the first query back to its item, and scores only the first
    query.
    """

    def __init__(
        self,
        *,
        n_keys: int,
        n_values: int,
        n_items: int,
        n_queries: int,
        distances: Lengths,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        for distance in distances:
            check_range("distances", distance, 1, LONGEST)
        self.n_keys, self.n_values, self.n_items, self.n_queries = n_keys, n_values, n_items, n_queries
        self.distances = sorted(set(distances))
        self._distance: int | None = None
        self.shortest = n_items + n_queries + 2
        items = [f"k{key}v{value}" for key in range(n_keys) for value in range(n_values)]
        super().__init__(
            symbols=["_", *numbered(n_keys, before="k"), *numbered(n_values, before="v"), *items],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def groups(self) -> dict[str, Task]:
        """One task for each distance of the first query from its item. Only the first query is scored."""
        return {str(distance): self.with_values(_distance=distance) for distance in self.distances}

    def part(self) -> str:
        return "distance"

    def test_lengths(self) -> Lengths | None:
        """The lengths that have room for the distance; None if the task has no fixed distance."""
        if self._distance is None:
            return None
        return range(max(self.shortest, self._distance + self.n_queries + 2), LONGEST + 1)

    def check_length(self, length: int, what: str) -> None:
        super().check_length(length, what)
        if self.distances and not any(length in (part.test_lengths() or ()) for part in self.groups().values()):
            raise UserError(
                f"{what}={length} is too short for any of data.distances={self.distances}; give a larger length or "
                "smaller distances"
            )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        first = length - self.n_queries - 1  # position of the first query; positions 1 to first - 1 are for items
        keys = rng.choice(self.n_keys, self.n_items, replace=False)
        values = rng.integers(self.n_values, size=self.n_items)
        places = 1 + rng.choice(first - 1, self.n_items, replace=False)
        asked_at = first + np.arange(self.n_queries)
        if self._distance is not None:  # the first item swaps positions with an item that may be there
            places[places == first - self._distance] = places[0]
            places[0] = first - self._distance
            asked_at = asked_at[:1]
        tokens = np.full(length, FIRST)
        tokens[0] = BOS
        tokens[places] = FIRST + 1 + self.n_keys + self.n_values + keys * self.n_values + values
        tokens[first : first + self.n_queries] = FIRST + 1 + keys[: self.n_queries]
        answers, scored = tokens.copy(), np.zeros(length, dtype=np.bool_)
        answers[asked_at + 1] = FIRST + 1 + self.n_keys + values[: len(asked_at)]
        scored[asked_at + 1] = True
        return Example(tokens, scored, answers)

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names the value of one of the items at each query."""
        item = FIRST + 1 + self.n_keys + self.n_values
        there = (example.tokens[example.tokens >= item] - item) % self.n_values
        asked = example.targets[example.scored] - (FIRST + 1 + self.n_keys)
        return -sum(math.log((there == value).mean()) for value in asked)


def ids_of(text: str) -> Ids:
    return np.array([FIRST + WORDS.index(word) for word in text.split()])


@final
class Passkey(Task):
    """Finds the number that one sentence gives in a long filler text.

    <bos> filler "the pass key is" D ". remember it ." D "is the pass key ." filler question D; length is all tokens

    The words are from Mohtashami and Jaggi 2023, arXiv:2305.16300; each word is one token. The paper's instruction to a
    pretrained model is left out. The question is "what is the pass key ? the pass key is". The number D has `n_digits`
    digits, drawn evenly; only the D after the question is scored. The filler begins anew after the sentence, as in the
    authors' code.
    """

    def __init__(
        self, *, n_digits: int, train_lengths: Lengths, train_examples: int | None, validation_examples: int
    ) -> None:
        self.filler, self.question = ids_of(GRASS), ids_of(QUESTION)
        self.sentence = ids_of(KEY_IS), ids_of(REMEMBER), ids_of(IS_KEY)
        self.shortest = 1 + sum(map(len, self.sentence)) + len(self.question) + 3 * n_digits
        super().__init__(
            symbols=[*WORDS, *numbered(10)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_digits = n_digits

    def example(self, rng: np.random.Generator, length: int) -> Example:
        key = DIGIT + rng.integers(10, size=self.n_digits)
        n_filler = length - self.shortest
        n_before = rng.integers(n_filler + 1)
        before, after = np.resize(self.filler, n_before), np.resize(self.filler, n_filler - n_before)
        start, middle, end = self.sentence
        tokens = np.concatenate([[BOS], before, start, key, middle, key, end, after, self.question, key])
        return Example(tokens, np.arange(length) >= length - self.n_digits)

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names one of the remaining digits of D at each target."""
        return nats_of_order(example.tokens[example.scored])


@final
class Induction(Task):
    """Completes a pattern: the token that followed the trigger the first time follows it again.

    <bos> x_1 .. x_n => x_j, where x_(j-1) is the trigger =>; j and all other tokens x are drawn evenly; length is n

    Olsson et al. 2022, arXiv:2209.11895 (induction heads); the task with one trigger is from Fu et al. 2022,
    arXiv:2212.14052, and Gu and Dao 2023, arXiv:2312.00752. At least one token lies between x_j and the second =>.
    """

    shortest = 3

    def __init__(
        self, *, n_symbols: int, train_lengths: Lengths, train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=["=>", *numbered(n_symbols)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = FIRST + rng.integers(1, len(self.symbols), size=length)
        place = rng.integers(length - 2)
        x[place] = TRIGGER
        tokens = np.concatenate([[BOS], x, [TRIGGER, x[place + 1]]])
        return Example(tokens, np.arange(len(tokens)) == length + 2)

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names one of the symbols in the sequence."""
        x = example.tokens[1:-2]
        return -math.log((x == example.tokens[-1]).sum() / (x != TRIGGER).sum())


@final
class Max(Task):
    """Names the class of the item with the largest priority.

    <bos> p_1 c_1 .. p_n c_n <sep> c_m, m = argmax p, every c drawn evenly; length is n

    Velickovic et al. 2024, arXiv:2410.01104. In the paper items are vectors with priorities drawn from [0, 1], as in
    the verb max-retrieval. Here priorities are tokens. If all priorities were drawn evenly, two items would often share
    the largest one, and more often in longer sequences. So m and the largest priority, p_m, are drawn evenly, and the
    priorities of all other items are drawn evenly below p_m. The gap between the two largest priorities is at least 1;
    in the paper it shrinks as 1 / n. So this task does not test for the confusion of close priorities, which the paper
    reports.
    """

    def __init__(
        self,
        *,
        n_priorities: int,
        n_classes: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        priorities = numbered(n_priorities, before="p")
        super().__init__(
            symbols=[*priorities, *numbered(n_classes, before="c")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_priorities, self.n_classes = n_priorities, n_classes

    def example(self, rng: np.random.Generator, length: int) -> Example:
        largest, place = rng.integers(1, self.n_priorities), rng.integers(length)
        items = np.empty((length, 2), dtype=np.int64)
        items[:, 0] = rng.integers(largest, size=length)
        items[place, 0] = largest
        items[:, 1] = self.n_priorities + rng.integers(self.n_classes, size=length)
        return asked(FIRST + items.ravel(), FIRST + items[place, 1:], end=False)

    def guessing_nats(self, example: Example) -> float:
        """The loss of a guesser that names one of the classes in the sequence."""
        return -math.log((example.tokens[2:-2:2] == example.tokens[-1]).mean())
