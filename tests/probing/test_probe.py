"""A probe's streams equal what whole tensors give, and its numbers for a trained model are those measured elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import SHARED
from helpers_hf import some_tokens, tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from roundround.errors import UserError
from roundround.hf.patching.attention import installed
from roundround.hf.probed_model import ProbedHuggingFaceModel
from roundround.probing import ablation, rows
from roundround.probing.layout import Layout
from roundround.probing.maximum import entropy_by_length
from roundround.probing.norms import PairNorms
from roundround.probing.probe import Probe, batches, observe
from roundround.probing.rows import BANDS, FIRST_ROW, PLACES, RowStatistics
from roundround.probing.texts import DOMAINS, maximum_prompt, texts_of
from roundround.softmax.softmax import Softmax

STORIES = SHARED / "models" / "stories260K"
TEXTS = [some_tokens(n, seed=n).tolist() for n in (30, 12, 2, 25)]


def probe_of(model: PreTrainedModel, texts: list[list[int]] = TEXTS, **options: object) -> Probe:
    with installed(model):
        return observe(ProbedHuggingFaceModel("tiny", model, None), texts, **options)


# -- norms


def projected(model: PreTrainedModel, layer: int, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values before RoPE, [heads, T, C], from the model's own projections and norms."""
    name = model.config.model_type
    states = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states[layer]
    if name == "gpt_neox":
        block = model.gpt_neox.layers[layer]
        fused = block.attention.query_key_value(block.input_layernorm(states))[0]
        return tuple(x.transpose(0, 1) for x in fused.view(len(tokens), 4, -1).chunk(3, -1))
    block = model.model.layers[layer]
    attention = block.self_attn
    x = states if name == "olmo2" else block.input_layernorm(states)
    q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
    if name == "olmo2":
        q, k = attention.q_norm(q), attention.k_norm(k)
    q, k, v = (y.view(len(tokens), -1, attention.head_dim) for y in (q, k, v))
    if name == "qwen3":
        q, k = attention.q_norm(q), attention.k_norm(k)
    return tuple(y.transpose(0, 1) for y in (q, k, v))


def chunk_norms(x: Tensor, name: str) -> Tensor:
    """[heads, T, C] -> [heads, T, P] by the architecture's documented pairing."""
    if name == "cohere":
        return (x[..., 0::2] ** 2 + x[..., 1::2] ** 2).sqrt()
    if name == "gpt_neox":  # half of the channels rotate
        half = x.shape[-1] // 2
        return torch.cat([chunk_norms(part, "llama") for part in (x[..., :half], x[..., half:])], -1)
    first, second = x.chunk(2, -1)
    return (first**2 + second**2).sqrt()


@pytest.mark.parametrize("name", ["llama", "qwen3", "olmo2", "gpt_neox", "cohere"])
def test_norms_equal_those_of_the_models_own_projections(name: str) -> None:
    model = tiny(name)
    seen = probe_of(model, batch_tokens=40)
    for layer in range(4):
        of_texts = [[chunk_norms(x, name) for x in projected(model, layer, text)] for text in TEXTS]
        for number, kind in enumerate(("query", "key", "value")):
            whole = torch.cat([text[number] for text in of_texts], 1).double()
            rest = torch.cat([text[number][:, 1:] for text in of_texts], 1).double()
            for norms_HTP, first_token in ((whole, True), (rest, False)):
                means = seen.norms.mean(kind, "norm", first_token=first_token)[layer]
                torch.testing.assert_close(means, norms_HTP.mean(1), rtol=1e-5, atol=1e-5)
                squares = seen.norms.mean(kind, "square", first_token=first_token)[layer]
                torch.testing.assert_close(squares, norms_HTP.square().mean(1), rtol=1e-5, atol=1e-5)


def test_shares_of_the_slowest_quarter() -> None:
    norms = PairNorms(1)
    layout = Layout(torch.ones(8, dtype=torch.float64), "half-split", 16)
    q = torch.ones(1, 2, 3, 16)
    q[..., [6, 7, 14, 15]] = 3.0
    norms.count(1, 3)
    norms.add(0, layout, q, q[:, :1], torch.ones(1, 1, 3, 16), None)
    assert float(norms.share_of_slowest("query")) == pytest.approx(4 * 9 / (4 * 9 + 12))
    assert float(norms.share_of_slowest("value")) == pytest.approx(0.25)


def test_batches_of_any_size_give_the_same() -> None:
    model = tiny("gemma3_text")
    one, many = probe_of(model, batch_tokens=1), probe_of(model, batch_tokens=1000)
    for name, value in one.arrays().items():
        torch.testing.assert_close(value, many.arrays()[name], rtol=1e-3, atol=1e-4, equal_nan=True)


def test_the_state_does_not_grow_with_the_text() -> None:
    def size(seen: Probe) -> int:
        sums = [*seen.norms.sums, *seen.rows.sums]
        return sum(value.numel() for layer in sums for value in layer.values())

    model = tiny("llama")
    assert size(probe_of(model, TEXTS)) == size(probe_of(model, TEXTS * 20))


# -- rows


def weights_of(model: PreTrainedModel, text: list[int], layer: int) -> Tensor:
    """The model's own attention weights [H, T, T], from its eager attention."""
    return model(torch.tensor([text]), output_attentions=True, use_cache=False).attentions[layer][0].double()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text"])
def test_places_and_entropy_equal_a_loop_over_the_models_own_weights(name: str) -> None:
    model = tiny(name)
    seen = probe_of(model)
    for layer in range(4):
        place, entropies, largest, per_offset = [], [], [], {r: [] for r in range(2, rows.FARTHEST + 1)}
        for text in TEXTS:
            for i, row_HK in enumerate(weights_of(model, text, layer).transpose(0, 1)):
                row_HK = row_HK[:, : i + 1]
                entropies.append(torch.special.entr(row_HK).sum(-1))
                largest.append(row_HK.amax(-1))
                if i < FIRST_ROW:
                    continue
                others = row_HK[:, 1 : i - 1]
                place.append(torch.stack([row_HK[:, i], row_HK[:, i - 1], row_HK[:, 0], others.amax(-1)], -1))
                for r in range(2, min(i, rows.FARTHEST + 1)):
                    per_offset[r].append(row_HK[:, i - r])
        offset_H = torch.stack([torch.stack(v).sum(0) / len(place) for v in per_offset.values() if v]).amax(0)
        diagonal, previous, first, other = torch.stack(place).mean(0).unbind(-1)
        semantic = other - offset_H
        named = [diagonal, previous, first, offset_H, semantic]
        expected = torch.stack([*named, 1 - torch.stack(named).sum(0)], -1)
        torch.testing.assert_close(seen.rows.places()[layer], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            seen.rows.per_row("entropy")[layer], torch.stack(entropies).mean(0), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(
            seen.rows.per_row("largest_weight")[layer], torch.stack(largest).mean(0), rtol=1e-4, atol=1e-4
        )
        if seen.entropies is not None:
            torch.testing.assert_close(seen.entropies[layer], torch.stack(entropies).mean(0), rtol=1e-4, atol=1e-4)


def hand_made(q_HTC: Tensor, k_GTC: Tensor, table: Tensor) -> RowStatistics:
    """Statistics of one layer of given queries and keys."""
    from test_softmax import shape_of

    from roundround.attention.keys import Keys

    seen = RowStatistics(1, q_HTC.shape[1])
    softmax = Softmax(shape_of(0))
    pos = torch.arange(q_HTC.shape[1])[None]
    keys = Keys(q_pos_BQ=pos, k_pos_BK=pos)
    layout = Layout(table, "half-split", q_HTC.shape[-1])
    seen.add(layout, softmax, q_HTC, k_GTC, scale=1.0, keys=keys, rows={})
    return seen


def rotated_heads(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Heads that look at themselves, one back and three back by RoPE alone: theorem 5.3's construction."""
    table = 100.0 ** (-torch.arange(8) / 8).double()
    angles = torch.arange(n)[:, None] * table
    keys = 6 * torch.cat([angles.cos(), angles.sin()], -1)
    queries = []
    for back in (0, 1, 3):
        turned_back = angles - back * table
        queries.append(torch.cat([turned_back.cos(), turned_back.sin()], -1))
    return torch.stack(queries), keys[None], table


def test_a_head_is_named_by_what_it_does() -> None:
    q, k, table = rotated_heads(60)
    seen = hand_made(q, k, table)
    labels = [PLACES[int(share)] for share in seen.places()[0].argmax(-1)]
    assert labels == ["diagonal", "previous", "offset"]
    assert int(seen.offsets()[0][2]) == 3


def test_heads_of_meaning_sinks_and_averages_are_named() -> None:
    n = 60
    q, k = torch.zeros(3, n, 16), torch.zeros(3, n, 16)
    k[0, 0, 7] = 8.0  # a sink
    q[0, :, 7] = 1.0
    marks = [n // 7 * i + (i * i) % 5 + 3 for i in range(6)]
    k[1, [m for m in marks if m < n], 7] = 40.0  # words to be found wherever they stand
    k[1, :, 6] = torch.linspace(0, 30, n)  # the newest of them wins
    q[1, :, 6:8] = 1.0
    labels = [PLACES[int(x)] for x in hand_made(q, k, torch.ones(8).double()).places()[0].argmax(-1)]
    assert labels == ["first", "semantic", "diffuse"]


def test_a_place_in_the_text_is_no_offset() -> None:
    n = 30
    q, k = torch.zeros(1, n, 16), torch.zeros(1, n, 16)
    q[0, :, 0], k[0, 1, 0] = 1.0, 30.0  # every row looks at token 1, each at another distance
    seen = hand_made(q, k, torch.ones(8).double())
    assert PLACES[int(seen.places()[0][0].argmax())] == "semantic"
    assert float(seen.places()[0][0, PLACES.index("offset")]) < 0.1


def test_the_shares_of_a_row_are_all_of_it() -> None:
    for band in BANDS:
        for places in probe_of(tiny("qwen3")).rows.places(band):
            torch.testing.assert_close(places.sum(-1), torch.ones(4).double(), rtol=1e-6, atol=1e-6)


def test_without_the_band_that_makes_it_a_pattern_is_gone() -> None:
    q, k, table = rotated_heads(60)
    q[1, :, [0, 1, 8, 9]] *= 8.0  # the previous-token head lives in its fastest quarter
    q[1, :, [2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15]] *= 0.1
    seen = hand_made(q, k, table)
    previous = {band: float(seen.places(band)[0][1, 1]) for band in BANDS}
    assert previous["none"] > 0.9
    assert previous["fastest"] < 0.2
    assert min(previous[band] for band in ("fast", "slow", "slowest")) > 0.9


def test_the_logit_split_adds_up_to_the_logit() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(h, 40, 16, generator=generator) for h in (4, 2))
    seen = hand_made(q, k, torch.ones(8).double())
    logits = q @ k.repeat_interleave(2, 0).mT
    for column, distance in enumerate(seen.distances):
        means = logits.diagonal(-distance, 1, 2).mean(-1)
        torch.testing.assert_close(seen.split()[0][..., column].sum(1), means.double(), rtol=1e-4, atol=1e-4)


def test_long_texts_are_sampled() -> None:
    model = tiny("llama")
    text = some_tokens(700).tolist()
    seen = probe_of(model, [text])
    assert float(seen.rows.sums[0]["n_all_rows"]) == rows.ROWS
    weights = weights_of(model, text, 2)[:, torch.linspace(0, 699, rows.ROWS).round().long()]
    torch.testing.assert_close(seen.rows.per_row("largest_weight")[2], weights.amax(-1).mean(-1), rtol=1e-4, atol=1e-4)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = probe_of(tiny("gemma4_text")).arrays()
    monkeypatch.setattr(rows, "ELEMENTS", 200)
    for name, value in probe_of(tiny("gemma4_text")).arrays().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-4, equal_nan=True)


# -- one prompt


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_a_prompt_is_recorded_whole(name: str) -> None:
    model, text = tiny(name), TEXTS[1]
    with installed(model):
        subject = ProbedHuggingFaceModel("tiny", model, Words())
        record = observe(subject, TEXTS, prompt=text, rows=False, entropy=False).prompt
    weights = weights_of(model, text, 3)
    torch.testing.assert_close(record.layers[3].weights.double(), weights, rtol=1e-4, atol=1e-5)
    q, k, _ = projected(model, 1, text)
    torch.testing.assert_close(record.layers[1].query_norms, chunk_norms(q, name), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(record.layers[1].key_norms, chunk_norms(k, name), rtol=1e-4, atol=1e-5)


class Words:
    """A tokenizer as far as a prompt needs one."""

    bos_token_id = None

    def decode(self, tokens: list[int]) -> str:
        return f"w{tokens[0]}"


def test_no_logit_exceeds_its_bound() -> None:
    model, text = tiny("qwen3"), TEXTS[0]
    with installed(model):
        subject = ProbedHuggingFaceModel("tiny", model, Words())
        record = observe(subject, [text], prompt=text, rows=False, entropy=False).prompt
    for layer in range(4):
        table = record.alignment(layer, 2)
        assert len(table["diagonal"]) == len(record.words) == len(text)
        assert all(abs(x) <= b + 1e-4 for x, b in zip(table["diagonal"], table["bound"], strict=True))
        below = list(zip(table["previous"], table["bound_previous"], strict=True))[1:]
        assert all(abs(x) <= b + 1e-4 for x, b in below)
        assert table["next"][:-1] == table["previous"][1:]


# -- a trained model


@pytest.fixture(scope="module")
def stories() -> Iterator[ProbedHuggingFaceModel]:
    if not STORIES.is_dir():
        pytest.skip(f"{STORIES} is not here")
    model = AutoModelForCausalLM.from_pretrained(STORIES).eval().requires_grad_(False)
    with installed(model):
        yield ProbedHuggingFaceModel("stories260K", model, AutoTokenizer.from_pretrained(STORIES))


@pytest.fixture(scope="module")
def beginnings(stories: ProbedHuggingFaceModel) -> list[list[int]]:
    """The first 230 characters of two hundred stories, as the numbers below were measured."""
    import re

    text = (SHARED / "data" / "tinystories" / "validation.txt").read_text()
    parts = re.split(r"\n\n(?=Once upon a time|One day,)", text)[1:]
    return [stories.tokens(part[:230]) for part in parts if 300 < len(part) < 1500][:200]


def test_norms_of_a_trained_model_equal_those_of_its_own_projections(
    stories: ProbedHuggingFaceModel, beginnings: list[list[int]]
) -> None:
    texts = beginnings[:5]
    seen = observe(stories, texts, rows=False, entropy=False)
    for layer in range(5):
        of_texts = [[chunk_norms(x, "llama") for x in projected(stories.pretrained, layer, text)] for text in texts]
        for number, kind in enumerate(("query", "key", "value")):
            expected = torch.cat([text[number] for text in of_texts], 1).double().mean(1)
            torch.testing.assert_close(seen.norms.mean(kind, "norm")[layer], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("bands", "perplexity"),
    [([], 3.347), (["lowest:0.25"], 3.414), (["lowest:0.5"], 17.9), (["highest:0.25"], 6.49), (["lowest:1"], 87.9)],
)
def test_ablated_perplexities_of_a_trained_model(
    stories: ProbedHuggingFaceModel, beginnings: list[list[int]], bands: list[str], perplexity: float
) -> None:
    parsed = [ablation.parse_band(band) for band in bands]
    loss = ablation.ablated_loss(stories, parsed, beginnings, batch_tokens=2048)
    assert int(loss.count_T.sum()) == 20_122
    assert loss.perplexity() == pytest.approx(perplexity, rel=2e-3)


def test_the_order_of_the_ends_reverses_with_the_context(stories: ProbedHuggingFaceModel) -> None:
    tokens = stories.text_tokens((SHARED / "data" / "tinystories" / "validation.txt").read_text())
    windows = [tokens[i * 512 : (i + 1) * 512] for i in range(20)]
    slow, fast = (
        ablation.ablated_loss(stories, [ablation.parse_band(f"{end}:0.25")], windows, batch_tokens=2048)
        for end in ablation.ENDS
    )
    assert slow.perplexity(0, 64) < 0.7 * fast.perplexity(0, 64)
    assert slow.perplexity(256, 511) > 1.5 * fast.perplexity(256, 511)


def test_the_frequencies_come_back(stories: ProbedHuggingFaceModel, beginnings: list[list[int]]) -> None:
    before = stories.tables()
    with pytest.raises(RuntimeError), stories.with_frequencies([torch.zeros(4)]):
        raise RuntimeError
    assert all(torch.equal(a, b) for a, b in zip(before, stories.tables(), strict=True))


def test_entropy_grows_with_the_list(stories: ProbedHuggingFaceModel) -> None:
    found = entropy_by_length(stories, n_elements=(1, 16, 64, 4096), n_lists=2)
    assert list(found) == [1, 16, 64]  # the longest does not fit the context
    assert float(found[64][0].amax()) > float(found[1][0].amax()) + 0.5


# -- bands, texts and bad input


def test_a_band_is_what_p_rope_takes_away() -> None:
    from roundround.pe.p_rope import kept_pairs

    for n_pairs in (4, 24, 32, 128):
        for fraction in (0.0, 0.1, 0.25, 0.3, 0.75, 1.0):
            left = ablation.without(torch.linspace(1, 0.1, n_pairs), [ablation.Band("lowest", fraction)])
            assert int((left > 0).sum()) == kept_pairs(round(1 - fraction, 9), 2 * n_pairs)


def test_only_rotated_pairs_count() -> None:
    table = torch.tensor([1.0, 0.5, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0])
    assert ablation.without(table, [ablation.Band("lowest", 0.25)]).tolist() == pytest.approx([1, 0.5, 0.2, *[0] * 5])
    both = [ablation.Band("lowest", 0.5), ablation.Band("highest", 0.25)]
    assert ablation.without(table, both).tolist() == pytest.approx([0, 0.5, *[0] * 6])


@pytest.mark.parametrize("text", ["lowest:1.5", "lowest:-0.1", "middle:0.2", "lowest", "lowest:", "lowest:nan", ""])
def test_a_wrong_band_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no band of frequencies"):
        ablation.parse_band(text)


@pytest.mark.parametrize("bands", [["lowest:0.6", "highest:0.5"], ["lowest:0.1", "lowest:0.2"]])
def test_overlapping_bands_are_refused(bands: list[str]) -> None:
    with pytest.raises(UserError, match="overlap"):
        ablation.check_apart([ablation.parse_band(band) for band in bands])


def test_bands_that_overlap_by_rounding_are_refused() -> None:
    bands = [ablation.parse_band(band) for band in ("lowest:0.3", "highest:0.6")]
    with pytest.raises(UserError, match="of 4 rotated pairs they take 2 and 3"):
        ablation.without(torch.tensor([1.0, 0.5, 0.2, 0.1]), bands)
    halves = [ablation.Band("lowest", 0.5), ablation.Band("highest", 0.5)]
    assert not ablation.without(torch.tensor([1.0, 0.5, 0.2]), halves).any()


def test_a_padded_nan_stays_where_it_is() -> None:
    model = tiny("llama")
    with installed(model):
        subject = ProbedHuggingFaceModel("tiny", model, None)
        token_loss = subject.token_loss

        def broken(tokens: Tensor, targets: Tensor) -> Tensor:
            found = token_loss(tokens, targets)
            found[0, 5:] = torch.nan  # behind the end of the first text
            return found

        subject.token_loss = broken
        loss = ablation.text_loss(subject, [TEXTS[0][:6], TEXTS[0]], batch_tokens=100)
    assert math.isfinite(loss.perplexity())


def test_short_texts_are_refused() -> None:
    for texts in ([], [[5]], [[5, 6], []]):
        with pytest.raises(UserError, match=r"no text|at least two"):
            probe_of(tiny("llama"), texts)


def test_texts_keep_their_order_in_batches() -> None:
    assert [len(batch) for batch in batches([[1] * n for n in (5, 5, 20, 3, 3, 3)], 12)] == [2, 1, 3]


def test_context_bins_cover_every_position() -> None:
    assert ablation.context_bins(40) == [(0, 40)]
    assert ablation.context_bins(300) == [(0, 64), (64, 128), (128, 256), (256, 300)]


def test_the_packaged_texts() -> None:
    assert len(texts_of("shakespeare")) == 10
    assert all(len(texts_of(domain)) >= 5 for domain in DOMAINS)
    sums = [line.replace(" ", "").replace("=", "+").split("+") for line in texts_of("sums")]
    assert all(int(a) + int(b) == int(c) for a, b, c in sums)
    with pytest.raises(UserError, match="did you mean 'italian'"):
        texts_of("italain")
    assert maximum_prompt(3, 0).count(",") == 2
    assert maximum_prompt(3, 0) == maximum_prompt(3, 0) != maximum_prompt(3, 1)


def test_a_text_of_one_token_again_and_again_is_refused() -> None:
    with pytest.raises(UserError, match="at least two different"):
        probe_of(tiny("llama"), [[7] * 20])


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = tiny("llama")
    stock = model(torch.tensor([TEXTS[0]]), use_cache=False).logits
    probe_of(model)
    assert torch.equal(model(torch.tensor([TEXTS[0]]), use_cache=False).logits, stock)
    assert model.config._attn_implementation == "eager"
    assert not [m for m in model.modules() if m._forward_pre_hooks]
    assert math.isfinite(float(stock.sum()))
