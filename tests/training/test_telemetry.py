"""`attention_stats_every`: its numbers against a loop, that it changes no weight, and what it reads of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from conftest import Done, metrics_of, saved_weights
from rounding import rounding

from roundround.config.options import load_option
from roundround.model.decoder import Decoder
from roundround.probing import rows as telemetry
from roundround.probing.rows import attention_statistics, spread_blocks
from roundround.trained.models import build_decoder

EVERY = ["attention_stats_every=2", "trainer.max_steps=4"]


def decoder_of(pe: str, softmax: str, length: int) -> Decoder:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": length}
    model = load_option("model", "tiny", **sizes, initializer_range=0.5)
    return build_decoder(model, load_option("pe", pe), load_option("softmax", softmax), 11)


@pytest.mark.parametrize(("pe", "softmax"), [("nope", "softmax"), ("alibi", "softmax"), ("nope", "sink")])
def test_the_numbers_are_those_of_a_loop_over_the_first_layer(pe: str, softmax: str) -> None:
    n, decoder = 12, decoder_of(pe, softmax, 12)
    tokens = torch.randint(11, (1, n), generator=torch.Generator().manual_seed(1))
    found = attention_statistics(decoder, tokens, step=None)
    layer = decoder.layers[0]
    x = layer.input_layernorm(decoder.embed_tokens(tokens)).detach().double()
    q, k = (x @ getattr(layer.self_attn, f"{name}_proj").weight.detach().double().T for name in "qk")
    largest, entropies, shares = -math.inf, [], []
    for head, slope in enumerate((2**-4, 2**-8)):
        for i in range(n):
            logits = [float(q[0, i, 8 * head : 8 * head + 8] @ k[0, j]) / math.sqrt(8) for j in range(i + 1)]
            if pe == "alibi":
                logits = [logit - slope * (i - j) for j, logit in enumerate(logits)]
            largest = max(largest, *logits)
            total = sum(map(math.exp, logits))
            weights = [math.exp(logit) / total for logit in logits]
            entropies.append(-sum(w * math.log(w) for w in weights))
            shares += [weights[0] * (total / (total + 1) if softmax == "sink" else 1)] if i else []
    tolerance = rounding(8 * n, largest)
    assert found["largest_logit_layer_0"] == pytest.approx(largest, abs=tolerance)
    assert found["attention_entropy_layer_0"] == pytest.approx(sum(entropies) / len(entropies), abs=tolerance)
    assert found["first_token_share_layer_0"] == pytest.approx(sum(shares) / len(shares), abs=tolerance)
    assert "first_token_share_layer_1" in found


def test_of_a_long_text_only_some_rows_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spread_blocks(256) == [(0, 256)]
    blocks = spread_blocks(1000)
    assert (len(blocks), blocks[0], blocks[-1]) == (8, (0, 32), (968, 1000))
    seen: list[tuple[int, int]] = []
    sound = telemetry.logits_of_rows
    monkeypatch.setattr(telemetry, "logits_of_rows", lambda *a: (seen.append(a[-2:]), sound(*a))[1])
    attention_statistics(decoder_of("rope", "softmax", 1000), torch.zeros(1, 1000, dtype=torch.long), step=None)
    assert seen == 2 * blocks


@pytest.mark.parametrize("words", [[], ["pe=rope_random", "softmax=as_entmax"]], ids=["plain", "drawing"])
def test_training_is_bit_for_bit_the_same_with_it(train: Callable[..., Done], words: list[str]) -> None:
    plain, watched = train(*words, "trainer.max_steps=4"), train(*words, *EVERY)
    assert watched.code == 0, watched.err
    a, b = saved_weights(plain.directory), saved_weights(watched.directory)
    assert all(torch.equal(a[name], b[name]) for name in a)
    of_attention = [row for row in metrics_of(watched.directory) if "largest_logit_layer_1" in row]
    assert [row["step"] for row in of_attention] == [2, 4]
    assert all(0 <= row["first_token_share_layer_0"] <= 1 for row in of_attention)
    assert not any("largest_logit_layer_1" in row for row in metrics_of(plain.directory))


@pytest.mark.parametrize("words", [["data.separate_documents=true"], ["trainer.strategy=fsdp2"]])
def test_it_reads_documents_apart_and_shards_too(train: Callable[..., Done], words: list[str]) -> None:
    done = train(*EVERY, *words)
    assert done.code == 0, done.err
    assert any("attention_entropy_layer_0" in row for row in metrics_of(done.directory))
