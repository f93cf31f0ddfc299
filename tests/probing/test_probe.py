"""A probe's streams equal what whole tensors give, and its numbers for a trained model are those measured elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STORIES, option, variants_alone
from helpers_attention import gaps_by_loop
from helpers_hf import Words, some_tokens, tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

from roundround.config.options import load_option
from roundround.data.tokenizers import Bytes
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.model import scoring
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss
from roundround.probing import ablation, rows
from roundround.probing.layout import Layout
from roundround.probing.probe import Probe, observe
from roundround.probing.probed_model import ProbedDecoder
from roundround.probing.rows import BANDS, FARTHEST, FIRST_ROW, NEAR, PLACES, RowStatistics, entropy_by_length
from roundround.probing.texts import DOMAINS, maximum_prompt, texts_of
from roundround.report import probe_results as report
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

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


def test_batches_of_any_size_give_the_same() -> None:
    model = tiny("gemma3_text")
    one, many = probe_of(model, batch_tokens=1), probe_of(model, batch_tokens=1000)
    for name, value in one.arrays().items():
        torch.testing.assert_close(value, many.arrays()[name], rtol=1e-3, atol=1e-4, equal_nan=True)


def test_rotated_and_unrotated_parts_of_latent_attention_are_told_apart() -> None:
    model = tiny("deepseek_v3").double()
    seen = probe_of(model)
    arrays, found = seen.arrays(), {(r["part"], r["kind"], r["layer"]): r["value"] for r in norms_of(seen)}
    for layer in range(4):
        own, squares, shares = model.model.layers[layer].self_attn, torch.zeros(2, 2), torch.zeros(2, 4)
        for text in TEXTS:
            out = model(torch.tensor([text]), output_hidden_states=True, output_attentions=True, use_cache=False)
            x = model.model.layers[layer].input_layernorm(out.hidden_states[layer])
            q = own.q_b_proj(own.q_a_layernorm(own.q_a_proj(x))).view(1, len(text), 4, 24).transpose(1, 2)
            latent = own.kv_a_proj_with_mqa(x)
            k = own.kv_b_proj(own.kv_a_layernorm(latent[..., :16])).view(1, len(text), 4, 28)[..., :16].transpose(1, 2)
            k_rot = latent[:, None, :, 16:].expand(-1, 4, -1, -1)
            turn = model.model.rotary_emb(x, torch.arange(len(text))[None])
            q_rot, k_rot = apply_rotary_pos_emb_interleave(q[..., 16:], k_rot, *turn)
            parts = ((q_rot, k_rot), (q[..., :16], k))
            squares += torch.tensor([[float(y.square().sum()) for y in part] for part in parts])
            added = (q_rot @ k_rot.mT * own.scaling)[0]
            logits = out.attentions[layer][0].double().log()  # but for a constant in each row
            for head, i in itertools.product(range(4), range(len(text))):
                r, e = added[head, i, : i + 1], logits[head, i, : i + 1]
                r, e = r - r.mean(), e - e.mean()
                shares[:, head] += torch.stack([(r * e).mean(), (e * e).mean()])
        norms = (squares / (4 * sum(map(len, TEXTS)))).sqrt()
        for row, part in enumerate(("rotated", "unrotated")):
            for column, kind in enumerate(("query", "key")):
                assert found[part, kind, layer] == pytest.approx(float(norms[row, column]), rel=1e-5)
        torch.testing.assert_close(
            arrays["rotated_share_of_logits"][layer], shares[0] / shares[1], rtol=1e-3, atol=1e-4
        )
    assert 0.1 < float(arrays["rotated_share_of_logits"].mean()) < 0.9


def norms_of(seen: Probe) -> list[dict[str, Any]]:
    return [record for record in report.records(seen) if record["metric"] == "norm"]


# -- rows


def weights_of(model: PreTrainedModel, text: list[int], layer: int) -> Tensor:
    """The model's own attention weights [H, T, T], from its eager attention."""
    return model(torch.tensor([text]), output_attentions=True, use_cache=False).attentions[layer][0].double()


def places_of_rows(rows_by_text: list[list[Tensor]], windows: int | None) -> Tensor:
    """Shares by place of one head, from its rows of weights, key by key."""
    total, per_offset, n_rows = dict.fromkeys(("diagonal", "previous", "sink", "other", "close", "near"), 0.0), {}, 0
    for text in rows_by_text:
        late = list(enumerate(text))[FIRST_ROW:]
        preferred = []
        for i, row in late:
            free = row[1 : i - 1]
            preferred.append(int(free.argmax()) + 1 if len(free) and float(free.max()) > 0 else None)
        sinks = {0}
        for j in range(1, len(text)):
            sees = sum(i - j >= 2 and (windows is None or i - j < windows) for i, _ in late)
            if sees >= max(8, len(text) / 4) and preferred.count(j) > sees / 2:
                sinks.add(j)
        for i, row in late:
            n_rows += 1
            near, far, others = [], [], []
            for j, weight in enumerate(row.tolist()):
                back = i - j
                if j in sinks and (back >= 2 or j == 0):
                    total["sink"] += weight
                elif back < 2:
                    total["previous" if back else "diagonal"] += weight
                elif windows is None or back < windows:
                    (near if back < NEAR else far).append(weight)
                    others.append((weight, back))
                    if back <= FARTHEST:
                        per_offset[back] = per_offset.get(back, 0.0) + weight
            weight, back = max(others, default=(0.0, 99))
            total["other"] += weight
            total["close"] += weight if back < NEAR else 0.0
            total["near"] += sum(near) - len(near) * sum(far) / len(far) if far else 0.0
    mean = {name: value / n_rows for name, value in total.items()}
    best = max(per_offset, key=per_offset.get)
    offset = per_offset[best] / n_rows
    semantic = max(0.0, mean["other"] - offset)
    local = max(0.0, mean["near"] - max(mean["close"], offset if best < NEAR else 0.0))
    named = [mean["diagonal"], mean["previous"], mean["sink"], offset, semantic, local]
    return torch.tensor([*named, 1 - sum(named)]).double()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "deepseek_v3", "inkling_text"])
def test_places_and_entropy_equal_a_loop_over_the_models_own_weights(name: str) -> None:
    model = tiny(name)
    seen = probe_of(model)
    for layer in range(4):
        window = 5 if name not in ("llama", "deepseek_v3") and layer % 2 == 0 else None  # helpers_hf.WINDOW
        weights = [weights_of(model, text, layer) for text in TEXTS]
        for head in range(4):
            rows_by_text = [[w_HTT[head, i, : i + 1] for i in range(w_HTT.shape[1])] for w_HTT in weights]
            expected = places_of_rows(rows_by_text, window)
            torch.testing.assert_close(seen.rows.places()[layer][head], expected, rtol=1e-4, atol=1e-4)
        rows_HK = [w_HTT[:, i, : i + 1] for w_HTT in weights for i in range(w_HTT.shape[1])]
        entropy_H = torch.stack([torch.special.entr(row_HK).sum(-1) for row_HK in rows_HK]).mean(0)
        largest_H = torch.stack([row_HK.amax(-1) for row_HK in rows_HK]).mean(0)
        torch.testing.assert_close(seen.rows.per_row("entropy")[layer], entropy_H, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(seen.rows.per_row("largest_weight")[layer], largest_H, rtol=1e-4, atol=1e-4)
        inverse_NH = [[gaps_by_loop([w for w in row.log().tolist() if w > -math.inf])[0] for row in row_HK]
                      for row_HK in rows_HK if row_HK.shape[1] > 1]  # fmt: skip
        of_gaps = {"collapsed": (torch.tensor(inverse_NH) > 1).double().mean(0)}
        if name != "gemma2":  # its weights are of capped logits
            of_gaps["gap_counting"] = 1 / torch.tensor(inverse_NH, dtype=torch.float64).mean(0)
        for measure, expected_H in of_gaps.items():
            torch.testing.assert_close(seen.rows.per_row(measure)[layer], expected_H, rtol=1e-3, atol=1e-4)
        if seen.entropies is not None:
            torch.testing.assert_close(seen.entropies[layer], entropy_H, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def weights_behind_outputs(decoder: Decoder, text: list[int]) -> list[Tensor]:
    """The weights of every layer of a decoder, [H, T, T], which give the outputs that its attention computed."""
    found = []

    def check(softmax: Softmax, qkv: tuple[Tensor, ...], options: dict[str, Any], out_BHTC: Tensor) -> None:
        alpha_BHTT = softmax.all_weights(*qkv[:2], **options)
        each_head = qkv[2].repeat_interleave(len(alpha_BHTT[0]) // qkv[2].shape[1], 1)
        torch.testing.assert_close(alpha_BHTT @ each_head, out_BHTC, rtol=1e-9, atol=1e-9)
        found.append(alpha_BHTT[0])

    hooks = [softmax.register_forward_hook(check, with_kwargs=True) for softmax in decoder.normalisers]
    decoder.hidden(torch.tensor([text]))
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("pe", variants_alone("pe"))
def test_a_run_is_probed_with_any_encoding(pe: str) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 64}
    model = load_option("model", "tiny", **sizes, initializer_range=0.5)
    decoder = build_decoder(model, option("pe", pe), option("softmax", "softmax"), 97).double().eval()
    for parameter in decoder.encodings.parameters():
        torch.nn.init.normal_(parameter)
    probed = ProbedDecoder("run", decoder, Bytes().build([]).tokenizer, None)
    with torch.random.fork_rng():
        seen = observe(probed, TEXTS, prompt=TEXTS[0])
    draws = decoder.draws_positions  # then the texts stand at positions of their own
    if not draws:
        weights = [weights_behind_outputs(decoder, text) for text in TEXTS]
        for layer, head in itertools.product(range(2), range(4)):
            rows_by_text = [[w[layer][head, i, : i + 1] for i in range(len(w[layer][head]))] for w in weights]
            places = seen.rows.places()[layer][head]
            torch.testing.assert_close(places, places_of_rows(rows_by_text, None), rtol=1e-6, atol=1e-6)
            entropies = [float(torch.special.entr(row).sum()) for text in rows_by_text for row in text]
            for found in (seen.entropies, seen.rows.per_row("entropy")):
                if found is not None:  # some biases have no fused form
                    assert float(found[layer][head]) == pytest.approx(sum(entropies) / len(entropies), rel=1e-6)
            torch.testing.assert_close(seen.prompt.layers[layer].weights[head].double(), weights[0][layer][head])
    arrays, metrics = seen.arrays(), {record["metric"] for record in report.records(seen)}
    rotates = draws or any(map(torch.any, probed.tables()))
    assert seen.rotates == rotates == ("frequencies" in arrays) == ("share_of_slowest_quarter" in metrics)
    assert metrics >= {"label", "norm", "logit_spread", "gap_counting", "collapsed"}
    assert rotates or not {"logit_by_pair", "places_without_slowest"} & {*arrays}
    if rotates and not draws:  # frequencies put to rest leave all else of an encoding as it is
        tokens = torch.tensor([TEXTS[0]])
        own = decoder(tokens)
        with probed.with_frequencies(probed.tables()):
            torch.testing.assert_close(decoder(tokens), own)


def hand_made(q_HTC: Tensor, k_GTC: Tensor, table: Tensor) -> RowStatistics:
    """Statistics of one layer of given queries and keys."""
    from helpers_attention import shape_of

    from roundround.kernels.keys import Keys

    seen = RowStatistics(1, q_HTC.shape[1])
    softmax = Softmax(shape_of(0))
    pos = torch.arange(q_HTC.shape[1])[None]
    keys = Keys(q_pos_BQ=pos, k_pos_BK=pos)
    layout = Layout(table, "half-split", q_HTC.shape[-1])
    seen.add(0, layout, softmax, q_HTC, k_GTC, scale=1.0, keys=keys, rows={})
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
    assert names_of(seen) == ["diagonal", "previous", "offset"]
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
    assert names_of(hand_made(q, k, torch.ones(8).double())) == ["sink", "semantic", "diffuse"]


def names_of(seen: RowStatistics) -> list[str]:
    """The labels of the heads of the one layer."""
    return [label for label, _ in seen.labels()[0]]


def given_weights(weights_HTT: Tensor) -> RowStatistics:
    """Statistics of heads with these weights, by keys that are one channel for every token."""
    n = weights_HTT.shape[-1]
    q = weights_HTT.clamp(min=1e-9).log()
    return hand_made(q, torch.eye(n)[None].expand(len(q), n, n), torch.ones(n // 2).double())


def test_a_key_that_most_rows_prefer_is_a_sink_wherever_it_stands() -> None:
    n, second = 60, 20
    even = torch.ones(n, n).tril()
    even = even / even.sum(-1, keepdim=True)
    with_second = 0.6 * even
    with_second[:, 0] += 0.1
    with_second[second + 2 :, second] += 0.3  # a third of every later row's weight
    with_second[: second + 2].div_(with_second[: second + 2].sum(-1, keepdim=True))
    early = torch.zeros(n, n)
    early[:, 1] = 1.0  # every row looks at token 1, each at another distance
    seen = given_weights(torch.stack([with_second, early]))
    sink, offset = PLACES.index("sink"), PLACES.index("offset")
    assert float(seen.places()[0][0, sink]) > 0.3
    assert float(seen.places()[0][0, PLACES.index("semantic")]) < 0.05
    assert names_of(seen)[1] == "sink"
    assert float(seen.places()[0][1, offset]) < 0.1


def test_heads_that_look_at_the_last_few_tokens_are_local_and_not_diffuse() -> None:
    n = 80
    back = torch.arange(n)[:, None] - torch.arange(n)
    few = {0: 0.26, 1: 0.26, 2: 0.16, 3: 0.12, 4: 0.1, 5: 0.1}  # shares that no single place has most of
    local = sum(share * (back == distance) for distance, share in few.items())
    mostly_self = 0.4 * local + 0.6 * (back == 0)
    even = (back >= 0).float()
    wide = (back >= 0) * 0.97 ** back.clamp(min=0)
    weights = torch.stack([local, mostly_self, even, wide])
    seen = given_weights(weights / weights.sum(-1, keepdim=True))
    assert names_of(seen) == ["local", "diagonal", "diffuse", "diffuse"]
    assert seen.labels()[0][0][1] > 0.95  # but for the first token in the first rows


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


# -- a trained model


@pytest.fixture(scope="module")
def stories() -> Iterator[ProbedHuggingFaceModel]:
    model = AutoModelForCausalLM.from_pretrained(STORIES).eval().requires_grad_(False)
    with installed(model):
        yield ProbedHuggingFaceModel("stories260k", model, AutoTokenizer.from_pretrained(STORIES))


@pytest.fixture(scope="module")
def beginnings(stories: ProbedHuggingFaceModel) -> list[list[int]]:
    """The first 230 characters of the stories of the package, as the numbers below were measured."""
    return [stories.tokens(part[:230]) for part in (STORIES / "stories.txt").read_text().split("\n\n")]


@pytest.mark.parametrize(
    ("bands", "perplexity"),
    [
        ([], 3.1016),
        (["lowest:0.25"], 3.1493),
        (["lowest:0.5"], 14.189),
        (["highest:0.25"], 5.6931),
        (["lowest:1"], 63.834),
    ],
)
def test_ablated_perplexities_of_a_trained_model(
    stories: ProbedHuggingFaceModel, beginnings: list[list[int]], bands: list[str], perplexity: float
) -> None:
    """As transformers' own Llama computes them (5.23.0), with those numbers of its `inv_freq` set to zero."""
    parsed = [ablation.parse_band(band) for band in bands]
    loss = ablation.ablated_loss(stories, parsed, partial(ablation.text_loss, stories, beginnings, batch_tokens=2048))
    assert int(loss.count_T.sum()) == 2332
    assert loss.perplexity() == pytest.approx(perplexity, rel=1e-4)


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


@pytest.mark.parametrize("text", ["lowest:1.5", "middle:0.2", "lowest", "lowest:nan"])
def test_a_wrong_band_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no band of frequencies"):
        ablation.parse_band(text)


def losses(*counts: int) -> PositionLoss:
    """This many targets at each position, each with a loss of one nat."""
    found = PositionLoss(len(counts))
    found.count_T += torch.tensor(counts)
    found.sum_T += torch.tensor(counts)
    return found


def test_a_bucket_of_few_targets_joins_its_neighbour() -> None:
    stories = losses(*[200] * 128, *[1] * 5)  # as many texts that end at about the same place
    assert scoring.bins(stories) == [(0, 64), (64, 133)]
    assert scoring.bins(losses(*[1] * 80)) == [(0, 80)]
    assert scoring.bins(losses(*[8] * 64), 1) == [(0, 16), (16, 32), (32, 64)]
    assert scoring.bins(losses(*[100] * 3), 1) == [(0, 1), (1, 2), (2, 3)]


def test_tables_say_how_many_targets_a_number_has_and_mark_few(capsys: pytest.CaptureFixture[str]) -> None:
    few, many = losses(*[1] * 80), losses(*[70] * 80)
    report.show_losses({"none": many, "lowest:0.5": many})
    shown = capsys.readouterr().err
    assert "4,480" in shown
    assert "*" not in shown
    report.show_losses({"none": few})
    shown = capsys.readouterr().err
    assert "2.718 *" in shown
    assert "* fewer than 100 targets" in shown
    assert {(r.get("first_position"), r["targets"]) for r in report.records_of_loss(many)} == {
        (None, 5600), (0, 4480), (64, 1120),
    }  # fmt: skip


def test_the_strongest_pair_and_its_wavelength_are_recorded() -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.view(4, 16, 48)[:, [5, 13]] *= 9  # the sixth of eight pairs
    seen = probe_of(model, rows=False, entropy=False)
    assert [pair for pair, _ in seen.strongest_pairs("query")] == [5] * 4
    told = {
        r["value"] for r in report.records(seen) if r["metric"] == "wavelength_of_strongest_pair" and r["pair"] == 5
    }
    assert max(told) == pytest.approx(2 * math.pi * 10_000 ** (5 / 8), rel=1e-4)


def test_the_packaged_texts() -> None:
    assert len(texts_of("shakespeare")) == 10
    assert all(len(texts_of(domain)) >= 5 for domain in DOMAINS)
    sums = [line.replace(" ", "").replace("=", "+").split("+") for line in texts_of("sums")]
    assert all(int(a) + int(b) == int(c) for a, b, c in sums)
    with pytest.raises(UserError, match="did you mean 'italian'"):
        texts_of("italain")
    assert maximum_prompt(3, 0).count(",") == 2
    assert maximum_prompt(3, 0) == maximum_prompt(3, 0) != maximum_prompt(3, 1)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = tiny("llama")
    stock = model(torch.tensor([TEXTS[0]]), use_cache=False).logits
    probe_of(model)
    assert torch.equal(model(torch.tensor([TEXTS[0]]), use_cache=False).logits, stock)
    assert model.config._attn_implementation == "eager"
    assert not [m for m in model.modules() if m._forward_pre_hooks]
    assert math.isfinite(float(stock.sum()))
