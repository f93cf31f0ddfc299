"""Prompts and answers become tokens: where the scored ones begin, and what stands before and behind them."""

from __future__ import annotations

from typing import final

import numpy as np
import pytest
from conftest import STORIES

from roundround.data.batches import Shares
from roundround.data.tasks.base import FixedSet
from roundround.data.tasks.batches import TrainingExamples, task_data
from roundround.data.tasks.text_task import Text, TextTask
from roundround.data.tokenizers import BPE, AlreadyOpen, Bytes, Vocabulary


@final
class Digits(TextTask):
    """The number of length digits, and that number again."""

    def __init__(self, *, stored: int | None = None) -> None:
        super().__init__(train_lengths=[2, 3], train_examples=None, validation_examples=4)
        self.n_stored = stored

    def text(self, rng: np.random.Generator, length: int) -> Text:
        number = "".join(map(str, rng.integers(10, size=length)))
        return Text(f"{number}:\n", f"{number}\n")

    def stored_texts(self, *, seed: int, split: str, length: int | None) -> FixedSet[Text] | None:
        return None if self.n_stored is None else FixedSet(self.n_stored, lambda i: Text(f"{split} {i}", "!"))

    def origin(self) -> object:
        return None


@pytest.fixture(scope="module")
def sentencepiece() -> Vocabulary:
    return AlreadyOpen.from_file(STORIES / "tokenizer.json", end_of_document=2).build([])


def test_an_example_of_bytes_is_the_text_between_two_ends_of_document() -> None:
    tokens, scored, *_ = Digits().with_vocabulary(Bytes().build([])).tokenised(Text("12:\n", "12\n"))
    assert bytes(tokens[1:-1].tolist()) == b"12:\n12\n"
    assert tokens[0] == tokens[-1] == 256
    assert bytes(tokens[scored][:-1].tolist()) == b"12\n"
    assert scored[-1]


def test_a_checkpoints_beginning_of_sequence_comes_first_and_its_end_last(sentencepiece: Vocabulary) -> None:
    tokens, scored, *_ = Digits().with_vocabulary(sentencepiece).tokenised(Text("12:\n", "12\n"))
    names = [sentencepiece.tokenizer.id_to_token(int(token)) for token in (tokens[0], tokens[-1])]
    assert names == ["<s>", "</s>"]
    assert scored[-1]


def test_the_model_sees_the_prompt_as_decoding_gives_it_and_no_space_before_the_answer(
    sentencepiece: Vocabulary,
) -> None:
    text = Text("sort: [0.5 0.1]\n", "[0.1 0.5]\n\n")
    tokens, scored, *_ = Digits().with_vocabulary(sentencepiece).tokenised(text)
    prompt, answer = tokens[~scored][1:].tolist(), tokens[scored][:-1].tolist()
    assert prompt == sentencepiece.encode(text.prompt)
    assert sentencepiece.decode([*prompt, *answer]) == text.prompt + text.answer
    assert len(sentencepiece.encode(text.answer)) == len(answer) + 1  # alone, it gets a space in front


def test_where_a_token_would_span_prompt_and_answer_the_prompt_stays_as_it_is_alone() -> None:
    merging = BPE(vocab_size=258, max_train_bytes=100).build(["ab ab ab ab"])  # whose one merge is of a and b
    tokens, scored, *_ = Digits().with_vocabulary(merging).tokenised(Text("xa", "bx"))
    assert len(merging.encode("xabx")) == 3
    assert [merging.decode([token]) for token in tokens.tolist()[1:-1]] == ["x", "a", "b", "x"]
    assert scored.tolist() == [False, False, False, True, True, True]


def test_batches_and_a_learnt_tokenizer_come_from_the_same_texts() -> None:
    task = Digits()
    drawable = task.with_vocabulary(BPE(vocab_size=300, max_train_bytes=4096).build(task.training_texts()))
    data = task_data(drawable)
    batches = TrainingExamples(data.task, Shares(batch_size=4, n_steps=2), seed=0)
    tokens = batches[1].tokens
    assert tokens.shape[0] == 4
    assert int(tokens.max()) < data.n_vocab
    assert data.corpus_hash == task.identity()
