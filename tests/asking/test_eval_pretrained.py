"""`roundround eval model=`: what a pretrained model is given to read, and which of its targets count."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import STORIES, Done, assert_refused, held_out_stream
from helpers_hf import saved_llama
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import roundround as rr
from roundround.data.tokenizers import byte_characters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_llama(tmp_path_factory.mktemp("models") / "little")


@pytest.fixture
def evaluated(roundround: Callable[..., Done], folder: Path, corpus: Path) -> Callable[..., Done]:
    given = ["eval", "logger=none", "model=hf", f"model.path={folder}", "data=text", f"data.path={corpus}", "length=32"]
    return lambda *args: roundround(*given, *args)


def test_a_pretrained_model_is_evaluated(evaluated: Callable[..., Done]) -> None:
    plain = evaluated("length=16,32")
    assert plain.code == 0, plain.err
    done = evaluated("length=16,32", "softmax=adaptive_temperature", "dispersion=true")
    assert done.code == 0, done.err
    assert done.value("perplexity", length=32) != plain.value("perplexity", length=32)
    assert {"entropy", "logit_spread"} <= {r["metric"] for r in done.results}
    cut = evaluated("length=16,32", "pe=p_rope")
    assert cut.value("perplexity", length=32) != plain.value("perplexity", length=32)


def test_the_base_that_was_the_models_own_is_recorded(
    roundround: Callable[..., Done], corpus: Path, tmp_path: Path
) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e5}
    folder = saved_llama(tmp_path / "far", rope_parameters=rope)
    given = ["eval", "logger=none", "model=hf", f"model.path={folder}", "data=text", f"data.path={corpus}"]
    plain, own, typed = (roundround(*given, "length=32", *pe) for pe in ([], ["pe=rope"], ["pe=rope", "pe.theta=1e4"]))
    assert own.value("perplexity", length=32) == pytest.approx(plain.value("perplexity", length=32), rel=1e-5)
    assert typed.value("perplexity", length=32) != own.value("perplexity", length=32)
    assert own.manifest["config"]["pe"]["theta"] == 1e5
    assert typed.manifest["config"]["pe"]["theta"] == 1e4


@pytest.mark.parametrize(("length", "stride"), [(32, 8), (48, 48), (20, 1)])
def test_sliding_windows_are_those_of_hugging_faces_page_on_perplexity(
    evaluated: Callable[..., Done], folder: Path, corpus: Path, length: int, stride: int
) -> None:
    n_targets = length + 10 * stride
    done = evaluated(
        f"length={length}", f"stride={stride}", f"max_tokens={n_targets}", "bos=false", "data.held_out=1",
        "data.split_regex=null",
    )  # fmt: skip
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder)(corpus.read_text(), add_special_tokens=False, return_tensors="pt")
    ids_1N = ids.input_ids[:, : n_targets + 1]
    # as https://huggingface.co/docs/transformers/perplexity describes: labels that have been counted are -100
    total, n_counted, before = 0.0, 0, 0
    for begin in range(0, ids_1N.shape[1], stride):
        end = min(begin + length + 1, ids_1N.shape[1])
        window, labels = ids_1N[:, begin:end], ids_1N[:, begin:end].clone()
        labels[:, : before - begin] = -100
        with torch.no_grad():
            mean = model(window, labels=labels).loss
        n = int((labels[:, 1:] != -100).sum())
        total, n_counted, before = total + float(mean) * n, n_counted + n, end
        if end == ids_1N.shape[1]:
            break
    assert done.value("perplexity") == pytest.approx(math.exp(total / n_counted), rel=1e-5)


def test_documents_are_joined_by_the_token_that_begins_a_text_and_it_is_no_target(
    evaluated: Callable[..., Done], folder: Path, corpus: Path
) -> None:
    done = evaluated("bos=false", "data.held_out=0.3")
    model = AutoModelForCausalLM.from_pretrained(folder)
    letters, alphabet = byte_characters(), sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = torch.tensor([1 if b == 0 else alphabet.index(letters[b]) + 3 for b in held_out_stream(corpus)])
    n = (len(ids) - 1) // 32
    with torch.no_grad():
        logits = model(ids[: 32 * n].view(n, 32)).logits
    loss, target = F.cross_entropy(logits.flatten(0, 1), ids[1 : 32 * n + 1], reduction="none"), ids[1 : 32 * n + 1]
    cut = evaluated("bos=false", "data.held_out=0.3", f"max_tokens={32 * n}")
    assert cut.value("perplexity") == pytest.approx(float(loss[target != 1].mean().exp()), rel=1e-5)
    assert cut.value("perplexity_with_joints") == pytest.approx(float(loss.mean().exp()), rel=1e-5)
    share = float(loss[target == 1].sum() / loss.sum())
    assert cut.value("share_of_loss_at_joints") == pytest.approx(share, rel=1e-5)
    assert "Documents are joined by <s>, which is not scored." in done.err


def test_a_tokenizer_without_such_a_token_joins_documents_by_its_end_of_sequence(
    roundround: Callable[..., Done], tmp_path: Path, corpus: Path
) -> None:
    folder = saved_llama(tmp_path / "bare", begins_texts=False)
    options = ["eval", "logger=none", "model=hf", f"model.path={folder}", "length=32", "data=text"]
    assert_refused(roundround(*options, f"data.path={corpus}", "bos=true"), "puts no token at the beginning of a text")
    done = roundround(*options, f"data.path={corpus}")
    assert done.code == 0, done.err
    assert "Documents are joined by </s>" in done.err


def test_the_token_before_windows_is_there_where_it_lowers_the_loss(evaluated: Callable[..., Done]) -> None:
    options = ["length=16,2560", "data.held_out=1", "max_tokens=2560"]
    auto, with_it, without = (evaluated(f"bos={choice}", *options) for choice in ("auto", "true", "false"))
    losses = {name: done.value("perplexity", length=2560) for name, done in [("with", with_it), ("without", without)]}
    better = min(losses, key=losses.__getitem__)
    assert auto.value("perplexity", length=2560) == losses[better] < max(losses.values())
    assert f"windows of 2,560 begin {better} <s>:" in " ".join(auto.err.split())
    (record,) = (r for r in auto.results if r["metric"] == "perplexity" and r["length"] == 2560)
    assert record["first_token"] == {"with": "<s>", "without": None}[better]


def test_a_lengths_number_does_not_depend_on_the_others(evaluated: Callable[..., Done]) -> None:
    options = ["data.held_out=1", "batch_tokens=512"]
    together = evaluated("length=128,512", *options)
    choices = {r["length"]: r["first_token"] for r in together.results}
    assert choices == {128: None, 512: "<s>"}, "lengths that choose alike prove nothing"
    assert together.manifest["first_token"] == {"128": None, "512": "<s>"}
    said = " ".join(together.err.split())
    assert "Windows begin anywhere in the text at 128. Windows begin with <s> at 512." in said
    for length, token in choices.items():
        alone = evaluated(f"length={length}", *options)
        assert alone.value("perplexity", length=length) == together.value("perplexity", length=length)
        assert alone.manifest["first_token"] == token


@pytest.mark.parametrize(("length", "stride"), [(500, None), (20, None), (20, 7)])
@pytest.mark.parametrize("begins_texts", [True, False])
def test_single_documents_are_scored_as_the_model_reads_them_alone(
    roundround: Callable[..., Done], tmp_path: Path, begins_texts: bool, length: int, stride: int | None
) -> None:
    folder = saved_llama(tmp_path / "model", begins_texts=begins_texts)
    texts = ["The fox ran home.", "No.", "The crow sang, and met the stork that lost the cheese.", "A"]
    (tmp_path / "four.txt").write_text("\n\n".join(texts))
    given = ["data=text", f"data.path={tmp_path / 'four.txt'}", "data.held_out=1", "data.separate_documents=true"]
    windows = [f"length={length}", *([] if stride is None else [f"stride={stride}"])]
    done = roundround("eval", "logger=none", "model=hf", f"model.path={folder}", *given, *windows)
    assert done.code == 0, done.err
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).double(), AutoTokenizer.from_pretrained(folder)
    nats: list[float] = []
    for text in texts:
        nats += losses_of_document(model, tokenizer(text).input_ids, length, stride or length, begins_texts)
    assert len(nats) == sum(map(len, texts)) - (0 if begins_texts else 4)
    assert done.value("scored_targets") == len(nats)
    assert done.value("perplexity") == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)
    n_bytes = sum(map(len, texts)) - (0 if begins_texts else 4)
    assert done.value("nats_per_byte") == pytest.approx(sum(nats) / n_bytes, rel=1e-5)
    assert done.manifest["separate_documents"] is True
    assert "Documents in a window do not see each other." in done.err


def losses_of_document(
    model: PreTrainedModel, ids: list[int], length: int, stride: int, begins_texts: bool
) -> list[float]:
    """Of each target once, from the first window that has it; a later window has the first token in front as well."""
    last, found = max(0, len(ids) - 1 - length), {}
    for start in [*range(0, last, stride), last]:
        window = torch.tensor([ids[start : start + length + 1]])
        if begins_texts:
            window[0, 0] = ids[0]
        if window.shape[1] > 1:
            with torch.no_grad():
                logits = model(window[:, :-1]).logits[0]
            for i, loss in enumerate(F.cross_entropy(logits, window[0, 1:], reduction="none").tolist()):
                found.setdefault(start + i, loss)
    return list(found.values())


def test_documents_are_read_at_the_frequencies_of_their_own_length(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    folder = saved_llama(tmp_path / "model", rope_parameters=rope, max_position_embeddings=32)
    texts = [
        "The fox ran home.",
        "The crow sang, and met the stork that lost the cheese.",
        "The fox sang, and went home.",
    ]
    tokenizer, nats = AutoTokenizer.from_pretrained(folder), list[float]()
    for text in texts:
        model = AutoModelForCausalLM.from_pretrained(folder)  # it has read nothing before
        nats += losses_of_document(model, tokenizer(text).input_ids, 64, 64, begins_texts=True)
    found = rr.evaluate(model, tokenizer, texts, length=64, bos=True, separate_documents=True)
    value = found[found.metric == "nats_per_token"].value.iloc[0]
    assert value == pytest.approx(sum(nats) / len(nats), rel=1e-5)


def test_documents_one_by_one_may_be_read_without_their_first_token(evaluated: Callable[..., Done]) -> None:
    with_it, without = (
        evaluated("data.separate_documents=true", f"bos={bos}", "length=64") for bos in ("auto", "false")
    )
    assert with_it.value("scored_targets") > without.value("scored_targets")
    assert with_it.manifest["first_token"] == "<s>"
    assert without.manifest["first_token"] is None


SPELLED = "The fox</s> saw <s>no</s> <unk> and <|endoftext|>.<s>"


@pytest.mark.parametrize("special_tokens", ["read", "plain"])
def test_text_that_spells_a_special_token_is_read_as_transformers_reads_it(
    evaluated: Callable[..., Done], folder: Path, tmp_path: Path, special_tokens: str
) -> None:
    (tmp_path / "spelled.txt").write_text(SPELLED)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).double(), AutoTokenizer.from_pretrained(folder)
    options = {"add_special_tokens": False, "return_tensors": "pt", "split_special_tokens": special_tokens == "plain"}
    ids = tokenizer(SPELLED, **options).input_ids
    assert ids.tolist()[0].count(1) == {"read": 2, "plain": 0}[special_tokens]
    done = evaluated(
        f"data.path={tmp_path / 'spelled.txt'}", "data.held_out=1", "bos=false", f"length={ids.shape[1] - 1}",
        f"max_tokens={ids.shape[1] - 1}", f"model.special_tokens={special_tokens}",
    )  # fmt: skip
    with torch.no_grad():
        expected = float(model(ids, labels=ids).loss)
    assert done.code == 0, done.err
    assert done.value("scored_targets") == ids.shape[1] - 1, "a joint that the text spells is a target as well"
    assert done.value("perplexity") == pytest.approx(math.exp(expected), rel=1e-5)
    assert done.value("nats_per_byte") == pytest.approx(expected * (ids.shape[1] - 1) / (len(SPELLED) - 1), rel=1e-5)
    assert {r["special_tokens"] for r in done.results} == {special_tokens} == {done.manifest["special_tokens"]}
    said = {"read": "is read as that token", "plain": "is read as plain characters"}[special_tokens]
    assert f"Text that spells a special token {said}" in done.err


def test_the_packaged_model_reads_its_own_stories_with_nearly_its_published_loss(
    roundround: Callable[..., Done],
) -> None:
    """llama2.c's table gives the model a validation loss of 1.297 (perplexity 3.66), on windows of whole stories."""
    done = roundround("eval", "logger=none", "model=stories260k", "length=512", "stride=256")
    assert done.code == 0, done.err
    assert 3.4 < done.value("perplexity") < 3.9
    assert done.value("share_of_loss_at_joints") < 0.02
    assert {(r["model"], r["data"]) for r in done.results} == {("stories260k", "stories")}


def test_paragraphs_of_stories_give_a_perplexity_that_says_what_it_was_taken_over(
    roundround: Callable[..., Done],
) -> None:
    """The model was trained on whole stories: where each paragraph is a document, </s> as a joint would cost most."""
    text = STORIES / "stories.txt"
    done = roundround(
        "eval", "logger=none", "model=hf", f"model.path={STORIES}", "data=text", f"data.path={text}",
        r"data.split_regex='\n+'", "data.held_out=1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert all(4.1 < done.value("perplexity", length=length) < 4.6 for length in (128, 256, 512))
    said = " ".join(done.err.split())
    assert "Scored targets: 8,538 at each context length." in said
    assert "Documents are joined by <s>, which is not scored." in said
    assert "documents have 103 tokens on average and the context has 512" in said
    assert "windows of 512 begin without <s>" in said
    assert "Windows begin anywhere in the text at 128, 256, 512." in said
