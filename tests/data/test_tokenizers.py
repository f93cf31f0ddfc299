"""Three tokenizers, one thing: lossless where ours, faithful to the library where not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import STORIES
from helpers_corpora import Listed, listed
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from roundround.data import tokenizers
from roundround.data.prepared import prepare
from roundround.data.tokenizers import (
    BPE,
    AlreadyOpen,
    Bytes,
    HuggingFace,
    Vocabulary,
    check_known,
    unknown_token,
    vocabulary_of,
)
from roundround.support.errors import UserError

LETTERS = ["low lower lowest new newer newest wide wider widest"] * 50


def random_texts() -> list[str]:
    """Every plane of Unicode, controls and white space included; half surrogates, which UTF-8 lacks, left out."""
    rng = random.Random(1)
    planes = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    texts = ["".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randrange(80))) for _ in range(200)]
    return [*texts, "", " ", "\r\n\t  x  ", "<|endoftext|>", "a<|endoftext|>b", "don't  STOP 123\u00a0\u3000"]


def bpe(vocab_size: int = 300) -> BPE:
    return BPE(vocab_size=vocab_size, max_train_bytes=10**6)


def ids(vocabulary: Vocabulary, text: str) -> list[int]:
    return list(vocabulary.tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("recipe", [Bytes(), bpe()], ids=["bytes", "bpe"])
def test_any_text_comes_back_and_never_ends_a_document(recipe: Bytes | BPE) -> None:
    vocabulary = recipe.build(LETTERS)
    for text in random_texts():
        tokens = ids(vocabulary, text)
        assert vocabulary.tokenizer.decode(tokens) == text
        assert vocabulary.end_of_document not in tokens
        assert max(tokens, default=0) < vocabulary.size


def test_a_byte_is_its_own_id() -> None:
    vocabulary = Bytes().build([])
    for text in random_texts():
        assert ids(vocabulary, text) == list(text.encode())
    assert (vocabulary.end_of_document, vocabulary.size) == (256, 257)


def test_bpe_learns_the_most_frequent_pair_first() -> None:
    vocabulary = bpe(258).build(["ababab ab"] * 3 + ["c"])
    assert vocabulary.size == 258
    assert vocabulary.tokenizer.id_to_token(257) == "ab"
    assert len(ids(vocabulary, "abcab")) == 3


def test_a_folder_gives_what_transformers_gives() -> None:
    from transformers import AutoTokenizer

    recipe = HuggingFace(name=str(STORIES))
    vocabulary = recipe.build([])
    theirs = AutoTokenizer.from_pretrained(STORIES)
    text = "Once upon a time, there was a little car named Beep. \u00e9"
    assert ids(vocabulary, text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert (vocabulary.end_of_document, vocabulary.size) == (theirs.eos_token_id, 512)
    assert vocabulary.end_of_document not in ids(vocabulary, "no control </s> from a text")
    assert recipe.identity() == HuggingFace(name=str(STORIES)).identity()


def test_a_tokenizer_without_the_token_that_ends_documents_is_named(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    with pytest.raises(UserError, match=r"tokenizer 'mine' has no token that ends a text \(its .* is 7\)"):
        vocabulary_of(PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="a"), "mine", 7)


def test_without_a_network_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "hub_is_reachable", lambda: False)
    with pytest.raises(UserError, match=r"'nobody/none' cannot be loaded .*set tokenizer.name .*tokenizer=bpe"):
        HuggingFace(name="nobody/none").identity()


def test_the_cache_keeps_text_with_special_tokens_read_apart_from_plain_text(tmp_path: Path) -> None:
    text = "a <s> b</s><unk>c <|endoftext|>"
    theirs = PreTrainedTokenizerFast.from_pretrained(STORIES)
    corpus = Listed([text, text], held_out=1.0)
    for reads in (True, False):
        recipe = AlreadyOpen(vocabulary_of(theirs, "mine", 1, reads_special_tokens=reads))
        expected = theirs(text, add_special_tokens=False, split_special_tokens=not reads).input_ids
        assert ({0, 1, 2} <= set(expected)) == reads
        for _ in ("tokenised", "from the cache"):
            data = prepare(corpus, recipe, tmp_path, needs=["held_out"])
            assert listed(data.held_out) == 2 * [*expected, 1]
            assert data.tokenizer.encode_special_tokens == (not reads)
            is_joint = (np.asarray(data.held_out) == 1) & (np.asarray(data.held_out_bytes) == 0)
            assert is_joint.sum() == 2, "a joint that the text spells stands for bytes"
            assert int(np.asarray(data.held_out_bytes).sum()) == 2 * len(text)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_many_unknown_tokens_are_a_line_and_more_than_half_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    check_known([0] + [1] * 99, 0, "the corpus")
    assert capsys.readouterr().err == ""
    check_known([0] * 2 + [1] * 98, 0, "the corpus")
    assert "does not know 2% of the tokens of the corpus" in capsys.readouterr().err
    with pytest.raises(UserError, match="does not know 67% of the tokens of the corpus"):
        check_known([0, 0, 1], 0, "the corpus")


def test_the_unknown_token_is_found_in_every_kind_of_tokenizer() -> None:
    words = {"<unk>": 3, "a": 0, "</s>": 1}
    assert unknown_token(Tokenizer(models.WordLevel(words, unk_token="<unk>"))) == 3
    assert unknown_token(Tokenizer(models.WordLevel(words, unk_token="</s>")), 1) is None  # ends texts as well
    assert unknown_token(Tokenizer(models.Unigram([("a", -1.0), ("?", -2.0)], unk_id=1))) == 1
    assert unknown_token(Tokenizer(models.BPE({"a": 0}, []))) is None
    assert unknown_token(Bytes().build([]).tokenizer) is None
