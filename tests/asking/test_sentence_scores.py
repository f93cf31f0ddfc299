"""Sums of log-probabilities: against transformers one sentence at a time, and behind a prefix against whole passes.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STORIES, option
from hydra import compose, initialize_config_dir
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from roundround.asking.sentence_scores import KeptByDecoder, ReadAgain, log_probabilities, read_once
from roundround.config.options import conf_dir, load_option
from roundround.data.minimal_pairs import MinimalPairs
from roundround.model.decoder import Decoder
from roundround.trained.models import build_decoder, opened_pretrained
from roundround.trained.patterns import parts_of

CPU = torch.device("cpu")
N_VOCAB = 61
SMALL = {"d_model": 32, "n_layers": 4, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 16}
SIZES = {**SMALL, "initializer_range": 0.3}
LENGTHS = (3, 9, 5, 3, 9, 1, 3)
# float32 rounds each of some 30 losses of up to 20 nats to 1e-6, and a layer's sums a little more
ROUNDING = 1e-3
TOM = "Tom had a red ball . He liked to play with it all day . " * 6


def sentences() -> list[str]:
    pairs = MinimalPairs(path=None, sample="zorro", phenomena=None, pairs=1, before="").by_phenomenon()
    return [text for some in pairs.values() for pair in some for text in (pair.good, pair.bad)]


@functools.cache
def by_transformers(prefix: str, folder: Path = STORIES) -> list[float]:
    """Each sentence by itself in float64, after the first token or behind a text that another one follows."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).double(), AutoTokenizer.from_pretrained(folder)
    before = [*tokenizer(prefix, add_special_tokens=False).input_ids, tokenizer.bos_token_id]
    sums = []
    for text in sentences():
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            model(torch.tensor([[0]]))  # transformers keeps the frequencies of the longest text until one is short
            logits_TV = model(torch.tensor([(before + ids)[:-1]])).logits[0]
        places = range(len(before), len(before) + len(ids))
        sums.append(sum(float(logits_TV[t - 1].log_softmax(-1)[(before + ids)[t]]) for t in places))
    return sums


def by_us(prefix: str, batch_tokens: int, *words: str) -> Tensor:
    with opened_pretrained(compose_model(*words), None, None, CPU) as probed:
        texts = [probed.text_tokens(text) for text in sentences()]
        given: dict[str, Any] = {"first": probed.first_token, "prefix": probed.text_tokens(prefix) if prefix else []}
        return log_probabilities(probed, texts, **given, batch_tokens=batch_tokens, device=CPU)


@pytest.mark.parametrize("batch_tokens", [1, 64, 8192])
@pytest.mark.parametrize("prefix", ["", TOM])
def test_a_sum_is_that_of_transformers_one_sentence_at_a_time(prefix: str, batch_tokens: int) -> None:
    found = by_us(prefix, batch_tokens)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(by_transformers(prefix), abs=ROUNDING)


def test_a_pretrained_model_whose_frequencies_follow_the_length_reads_prefix_and_sentence_together(
    tmp_path: Path,
) -> None:
    """Its cache would hold the keys of the prefix at other frequencies than those of the whole text."""
    folder = Path(shutil.copytree(STORIES, tmp_path / "dynamic"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    found = by_us(TOM, 64, "model=hf", f"model.path={folder}")
    assert found.tolist() == pytest.approx(by_transformers(TOM, folder), abs=ROUNDING)


def compose_model(*words: str) -> Any:
    with initialize_config_dir(str(conf_dir()), version_base=None):
        return compose("eval", [*(words or ["model=stories260k"])]).model


def decoder(pe: str, pattern: str | None = None) -> Decoder:
    torch.manual_seed(0)
    parts: dict[str, Any] = {}
    if pattern is not None:
        with initialize_config_dir(str(conf_dir()), version_base=None):
            parts = parts_of(compose("train", [f"pattern={pattern}", f"pe={pe}"]))
    parts = {"pe": option("pe", pe), "softmax": option("softmax", "softmax"), **parts}
    return build_decoder(load_option("model", "tiny", **SIZES), n_vocab=N_VOCAB, **parts).eval().double()


def texts(seed: int = 0) -> tuple[list[int], list[list[int]]]:
    """A prefix of 20 tokens, beyond those of training, and sentences."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(n: int) -> list[int]:
        return torch.randint(1, N_VOCAB, (n,), generator=generator).tolist()

    return drawn(20), [drawn(n) for n in LENGTHS]


@torch.no_grad()
def in_whole_passes(model: Decoder, prefix: list[int], first: int, some: list[list[int]]) -> list[float]:
    sums = []
    for sentence in some:
        whole_1T = torch.tensor([[*prefix, first, *sentence]])
        loss_1T: Tensor = model(whole_1T[:, :-1], targets_BT=whole_1T[:, 1:])
        sums.append(-float(loss_1T[0, -len(sentence) :].sum()))
    return sums


@pytest.mark.parametrize(
    ("pe", "pattern", "kept"),
    [
        *((pe, None, True) for pe in ("rope", "p_rope", "nope", "alibi", "t5_bias", "fox", "xpos", "ntk_dynamic")),
        ("p_rope_25", "local_global", True),
        ("rope_random", None, False),
    ],
)
def test_a_kept_prefix_is_a_whole_pass(pe: str, pattern: str | None, kept: bool) -> None:
    model, (prefix, some) = decoder(pe, pattern), texts()
    shared = read_once(model, torch.tensor([prefix]), 3)
    assert isinstance(shared, KeptByDecoder if kept else ReadAgain)
    found = log_probabilities(model, some, first=0, prefix=prefix, batch_tokens=16, device=CPU)
    assert found.tolist() == pytest.approx(in_whole_passes(model, prefix, 0, some), abs=1e-9)
    other, _ = texts(seed=1)
    assert not found.allclose(log_probabilities(model, some, first=0, prefix=other, batch_tokens=16, device=CPU))


def test_a_sentence_that_stands_twice_is_the_same_to_the_last_bit() -> None:
    """Pairs of one sentence would else be right or wrong by rounding: in batches of another size sums differ."""
    model, (_, some) = decoder("rope").float(), texts()
    repeated = [*some, *[some[1]] * 4]
    found = log_probabilities(model, repeated, first=0, batch_tokens=18, device=CPU)
    assert found[len(some) :].tolist() == [found[1]] * 4


def test_without_a_token_before_it_a_sentence_begins_uncounted() -> None:
    model, (_, some) = decoder("rope"), texts()
    found = log_probabilities(model, some, first=None, batch_tokens=64, device=CPU)
    expected = [in_whole_passes(model, [], s[0], [s[1:]])[0] if len(s) > 1 else 0.0 for s in some]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
