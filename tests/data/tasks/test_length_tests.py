"""Needles, chains of names and common words: every answer follows from the text, whatever the tokenizer.

The solvers read the text alone and are written from the layouts.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from conftest import STORIES
from helpers_tasks import build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from roundround.data.tasks.base import SPLITS, Example, Examples
from roundround.data.tasks.length_tests import FILLER, LengthTest, n_tokens_behind
from roundround.data.tokenizers import BPE, AlreadyOpen, Bytes, Vocabulary, open_vocabulary
from roundround.support.errors import UserError

NAMES = ("needle", "variable_tracking", "common_words")
VOCABULARIES = ("stories", "bytes", "learnt", "words")
SEVERAL = [
    ("needle", {"n_keys": 4}),
    ("needle", {"n_keys": 3, "n_values": 2, "n_queries": 2, "haystack": "needles"}),
    ("needle", {"haystack": "words", "n_digits": 7}),
    ("variable_tracking", {"n_chains": 3, "n_hops": 2, "haystack": "words"}),
    ("variable_tracking", {"haystack": "needles"}),
    ("common_words", {"n_common": 3, "short_times": [4, 2]}),
]


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Vocabulary]:
    """SentencePiece, bytes, byte pairs that were learnt from the task, and one with a hundred words of its own."""
    needle = build("needle")
    assert isinstance(needle, LengthTest)
    rng = np.random.default_rng(0)
    learnt = BPE(vocab_size=700, max_train_bytes=2**20).build("".join(needle.text(rng, 256)) for _ in range(200))
    letters = pre_tokenizers.ByteLevel.alphabet()
    own = {f"\u0120word{chr(97 + i // 26)}{chr(97 + i % 26)}": len(letters) + i for i in range(100)}
    vocabulary = {letter: i for i, letter in enumerate(sorted(letters))} | own | {"<end>": len(letters) + 100}
    unigram = models.Unigram([(token, -1.0 if token in own else -9.0) for token in vocabulary], unk_id=None)
    words: Any = Tokenizer(unigram)
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return {
        "stories": AlreadyOpen.from_file(STORIES / "tokenizer.json", end_of_document=2).build([]),
        "bytes": Bytes().build([]),
        "learnt": learnt,
        "words": open_vocabulary(words, vocabulary["<end>"]),
    }


def task_of(name: str, vocabulary: Vocabulary, **changes: Any) -> LengthTest:
    task = build(name, **changes)
    assert isinstance(task, LengthTest)
    return task.with_vocabulary(vocabulary)


def said(task: LengthTest, example: Example) -> tuple[str, list[str]]:
    """The text up to the answer, and the references, out of the tokens."""
    first, decode = int(example.scored.argmax()), task.vocabulary().decode
    return decode(example.tokens[:first].tolist()), task.references(decode(example.tokens[first:-1].tolist()))


def numbers_asked_for(text: str) -> list[str]:
    sentences = re.findall(r"The secret number of (\w+) is (\d+)\.", text)
    asked = re.search(r"(?:What is the secret number of|What are all secret numbers of) ([\w ]+)\?", text)
    assert asked is not None
    return [value for key in asked[1].split(" and ") for own, value in sentences if own == key]


def names_asked_for(text: str) -> list[str]:
    stands_for: dict[str, str] = {}
    for name, of in re.findall(r"Let (\w+) be (\w+)\.", text):
        stands_for[name] = stands_for.get(of, of)
    asked = re.search(r"Which names stand for (\d+)\?", text)
    assert asked is not None
    return [name for name, value in stands_for.items() if value == asked[1]]


def common(text: str) -> list[str]:
    listed = re.search(r"others\.\n(.*)\.\nThe (\d+) most", text, re.DOTALL)
    assert listed is not None
    words = listed[1].split(", ")
    ranked = Counter(words).most_common()
    chosen = {word for word, _ in ranked[: int(listed[2])]}
    assert ranked[int(listed[2]) - 1][1] > ranked[int(listed[2])][1], "the common ones are told apart"
    return [word for word in dict.fromkeys(words) if word in chosen]


SOLVERS = {"needle": numbers_asked_for, "variable_tracking": names_asked_for, "common_words": common}


@pytest.mark.parametrize("own", VOCABULARIES)
@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in NAMES), *SEVERAL])
def test_the_answer_follows_from_the_text(
    name: str, changes: dict[str, Any], own: str, vocabularies: dict[str, Vocabulary]
) -> None:
    task = task_of(name, vocabularies[own], **changes)
    examples = Examples(task, seed=0, split="test", length=1000)
    for i in range(2):
        text, references = said(task, examples[i])
        assert SOLVERS[name](text) == references
        assert len(set(references)) == len(references)


@pytest.mark.parametrize("own", VOCABULARIES)
@pytest.mark.parametrize("name", NAMES)
def test_length_is_all_tokens(name: str, own: str, vocabularies: dict[str, Vocabulary]) -> None:
    """Never more, and short of it by less than the longest unit of filler."""
    vocabulary = vocabularies[own]
    task = task_of(name, vocabulary)
    unit = max(n_tokens_behind(vocabulary, sentence) for sentence in FILLER)
    unit = 3 * n_tokens_behind(vocabulary, "bababa,") if name == "common_words" else unit
    for length in (1500, 3000):
        example = Examples(task, seed=0, split="validation", length=length)[0]
        assert length - unit - 2 <= len(example.tokens) <= length == task.context(length)


def test_an_example_is_a_function_of_its_number_and_of_one_split(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["stories"]
    for name in NAMES:
        found = []
        for split in SPLITS:
            one, again = (Examples(task_of(name, vocabulary), seed=0, split=split, length=600) for _ in range(2))
            forward = [one[i].tokens.tobytes() for i in range(4)]
            assert [again[i].tokens.tobytes() for i in (3, 1)] == [forward[3], forward[1]]
            found += forward
        assert len(set(found)) == 4 * len(SPLITS)
        assert task_of(name, vocabulary).identity() == task_of(name, vocabulary).identity()


def test_words_are_those_of_the_vocabulary(vocabularies: dict[str, Vocabulary]) -> None:
    """One token each where it has enough; else, or beyond them, of syllables."""
    task, rng = task_of("needle", vocabularies["words"]), np.random.default_rng(0)
    drawn = task.words(rng, 120)
    assert len(set(drawn)) == 120
    assert sum(word.startswith("word") for word in drawn) == 100
    assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){3}", word) for word in drawn[100:])
    made_up = task_of("needle", vocabularies["bytes"]).words(rng, 50)
    assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){3}", word) for word in made_up)
    stories = task_of("needle", vocabularies["stories"])
    for word in stories.words(rng, 40):
        assert not re.search(rf"\b{word}\b", " ".join([*stories.sentences, *FILLER]).lower())


@pytest.mark.parametrize("depth", [0, 0.25, 1])
def test_a_needle_lies_at_its_depth(depth: float, vocabularies: dict[str, Vocabulary]) -> None:
    """The share of the sentences of filler in front of it, to half a sentence."""
    task = task_of("needle", vocabularies["stories"], depths=[depth, 0.5], n_keys=3)
    part = task.groups()[f"{depth:g}"]
    assert isinstance(part, LengthTest)
    text, (value,) = said(part, Examples(part, seed=0, split="test", length=1000)[0])
    sentences = re.split(r"(?<=\.)\s", text.split("\n")[1])
    filler = [sentence in FILLER for sentence in sentences]
    assert sum(filler) == len(filler) - 3
    before = sum(filler[: next(i for i, sentence in enumerate(sentences) if f" {value}." in sentence)])
    assert abs(before - depth * sum(filler)) <= 0.5
    assert task_of("needle", vocabularies["stories"], n_keys=2, n_queries=2).groups() == {}


def test_common_words_repeat_as_in_the_paper(vocabularies: dict[str, Vocabulary]) -> None:
    for length, times in ((2000, (6, 1)), (4096, (30, 3))):
        task = task_of("common_words", vocabularies["stories"])
        text, references = said(task, Examples(task, seed=0, split="test", length=length)[0])
        counts = Counter(text.split("\n")[1].rstrip(".").split(", "))
        assert {counts[word] for word in references} == {times[0]}
        assert {n for word, n in counts.items() if word not in references} == {times[1]}
        assert len(references) == 10


def test_a_length_without_room_is_one_line(vocabularies: dict[str, Vocabulary]) -> None:
    task = task_of("needle", vocabularies["stories"])
    with pytest.raises(UserError, match=r"20 tokens are too few for an example of this test; .* needs \d\d+"):
        Examples(task, seed=0, split="test", length=20)[0]
