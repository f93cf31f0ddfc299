"""Fed with the paper's own numbers, every item of a pretrained model agrees; fed with other ones, it differs.

Made of another model, its numbers are shown, and nothing is judged."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from roundround import papers
from roundround.cli import run as cli
from roundround.papers.claim import Finding, Subject, figures_of
from roundround.papers.figures.pretrained import (
    ALIGNMENTS,
    APOSTROPHE,
    DIAGONAL,
    LATE_DIAGONAL,
    PREVIOUS,
    SEMANTIC,
    Array,
    heat_map,
)
from roundround.probing.rows import PLACES, entropy_by_length
from roundround.report import probe_results
from roundround.support.errors import UserError
from roundround.support.panels import HeatMap
from roundround.verbs.probe import run as verb_run

Arrays = dict[str, Array]
WORDS = ["<bos>", *"I ' m not sure . You ' re not sure . He ' s not sure .".split()]  # noqa: SIM905
N_LAYERS, N_HEADS, N_PAIRS, N_TOKENS = 28, 16, 128, len(WORDS)


def gemma_norms(queries: str = "G7B_Fig3a_query_layer") -> Arrays:
    """Norms [28, 16, 128] whose means are those of the figures; the layer that is not shown is the last."""
    layers = {"query": queries, "key": "G7B_Fig3b_key_layer", "value": "G7B_Fig13c_value_layer"}
    heads = {"query": "Fig4a_L1_query_by_head", "key": "Fig4b_L1_key_by_head"}
    arrays = {}
    for kind, name in layers.items():
        by_layer = np.vstack([heat_map(name).T, np.linspace(3, 0.5, N_PAIRS)])
        norms = np.repeat(by_layer[:, None], N_HEADS, axis=1)
        if kind in heads and queries == layers["query"]:
            norms[0] = heat_map(heads[kind]).T
        arrays[f"{kind}_norm"] = norms
        arrays[f"{kind}_norm_without_first"] = norms * np.linspace(0.5, 1.5, N_PAIRS)
    arrays["frequencies"] = np.tile(1e4 ** -(np.arange(N_PAIRS) / N_PAIRS), (N_LAYERS, 1))
    arrays["places"] = np.full((N_LAYERS, N_HEADS, len(PLACES)), 1 / len(PLACES))
    arrays["places"][26, LATE_DIAGONAL.head, 0] = 0.9
    arrays["logit_spread"] = np.tile([3.69, 7.69], (N_LAYERS, N_HEADS // 2))  # mean 5.69, deviation 2.05
    arrays["logit_spread"][0, 0], arrays["logit_spread"][0, 1] = 2.28, 14.78
    return arrays


def gemma_prompt() -> Arrays:
    """The prompt's arrays, with the heads that the paper shows where it names them."""
    arrays = {name: np.ones((N_LAYERS, N_HEADS, N_TOKENS, N_PAIRS)) for name in ("query_norms", "key_norms")}
    for name in ("logits", "weights", "bound"):
        arrays[name] = np.ones((N_LAYERS, N_HEADS, N_TOKENS, N_TOKENS))
    for named in (DIAGONAL, LATE_DIAGONAL, PREVIOUS, APOSTROPHE, SEMANTIC):
        place = named.layers[0], named.head
        arrays["query_norms"][place] = heat_map(named.queries)[:, :N_TOKENS].T
        arrays["key_norms"][place] = heat_map(named.keys)[:, :N_TOKENS].T
    arrays["weights"][0, APOSTROPHE.head] = softmax(heat_map("Fig12_L1H10_logits")[:N_TOKENS, :N_TOKENS])
    arrays["logits"][0, APOSTROPHE.head] = heat_map("Fig12_L1H10_logits")[:N_TOKENS, :N_TOKENS]
    arrays["weights"][0, SEMANTIC.head] = 1 / N_TOKENS
    for named, table in ALIGNMENTS.values():
        place, shift = (named.layers[0], named.head), int(named is PREVIOUS)
        arrays["weights"][place] = np.eye(N_TOKENS, k=-shift)
        n = len(table["bound"])
        at, below = np.arange(n), np.arange(1, n)
        arrays["bound"][place][at] = np.array(table["bound"])[:, None]
        arrays["logits"][place][at, at] = table["diagonal"]
        arrays["logits"][place][below, below - 1] = table["previous"][1:]
    return arrays


def softmax(logits_TT: Array) -> Array:
    seen = np.where(np.tril(np.ones_like(logits_TT)) > 0, np.exp(logits_TT), 0)
    found: Array = seen / seen.sum(-1, keepdims=True)
    return found


def llama_norms() -> Arrays:
    """Norms [32, 32 or 8, 64] of Llama 3.1 8B; heads 12 to 15 of the last layer are those of Figure 11."""
    n_layers, n_heads, n_key_heads, n_pairs = 32, 32, 8, 64
    arrays = {}
    for kind, name, n in (
        ("query", "L3.1_Fig10a_query", n_heads),
        ("key", "L3.1_Fig10b_key", n_key_heads),
        ("value", "L3.1_Fig10c_value", n_key_heads),
    ):
        norms = np.repeat(heat_map(name).T[:, None], n, axis=1)
        arrays[f"{kind}_norm"] = arrays[f"{kind}_norm_without_first"] = norms
    group = heat_map("Fig11_llama_L32_group4_query").T
    last = arrays["query_norm"][-1]
    rest = (last.sum(0) - group.sum(0)) / (n_heads - len(group))  # so that the mean stays
    last[:] = rest
    last[12:16] = group
    arrays["frequencies"] = np.tile(5e5 ** -(np.arange(n_pairs) / n_pairs), (n_layers, 1))
    arrays["places"] = np.zeros((n_layers, n_heads, len(PLACES)))
    arrays["places"][-1, 14, 0] = 0.8
    arrays["logit_spread"] = np.ones((n_layers, n_heads))
    return arrays


def uneven() -> tuple[Arrays, Arrays]:
    """Three layers: 4 heads on 2 key heads of 6 pairs; 2 heads on 1 of 4 pairs; and 4 on 2 of 6 without RoPE."""
    rng, nan = np.random.default_rng(0), np.nan
    n_tokens = len(WORDS)
    norms, prompt = {}, {}
    for kind, n in (("query", 4), ("key", 2), ("value", 2)):
        x = rng.uniform(1, 2, (3, n, 6))
        x[1, n // 2 :], x[1, :, 4:] = nan, nan
        norms[f"{kind}_norm"] = norms[f"{kind}_norm_without_first"] = x
        if kind != "value":
            prompt[f"{kind}_norms"] = np.repeat(x[:, :, None], n_tokens, axis=2)
    norms["frequencies"] = np.array([1e4 ** -(np.arange(6) / 6), [1, 0.1, 0.01, 0.001, nan, nan], np.zeros(6)])
    norms["places"] = rng.dirichlet(np.ones(len(PLACES)), (3, 4))
    norms["places"][1, 2:] = nan
    norms["logit_spread"] = norms["places"].max(-1)
    for name in ("logits", "weights", "bound"):
        prompt[name] = rng.uniform(0, 1, (3, 4, n_tokens, n_tokens))
        prompt[name][1, 2:] = nan
    return norms, prompt


def write(directory: Path, norms: Arrays, prompt: Arrays | None = None, words: list[str] = WORDS) -> Path:
    """The files that a probe leaves."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("probe", norms), ("prompt", prompt or {})):
        tensors = {key: torch.tensor(value.copy(), dtype=torch.float32) for key, value in arrays.items()}
        save_file(tensors, directory / f"{name}.safetensors", metadata={"words": json.dumps(words)})
    return directory


def always(directory: Path) -> Callable[..., Path]:
    """A runner that finds this run, whatever is asked for."""
    return lambda verb, *overrides: directory


FIGURES = figures_of(papers.FIGURES)

GEMMA = Subject("gemma-7b", ("model=gemma-7b",), is_the_papers=True)
LLAMA = Subject("llama-3.1-8b", ("model=llama-3.1-8b",), is_the_papers=True)
DOMAINS = {
    "texts=italian": "Fig19a_Italian_q",
    "texts=chinese": "Fig19b_Chinese_q",
    "texts=code": "Fig19c_Code_q",
    "texts=sums": "Fig19d_Arith_q",
}
OF_HEADS = ["rope.fig5", "rope.fig6", "rope.fig7", *[f"rope.fig{n}" for n in (12, 14, 15, 16, 17, 18)]]
OF_GEMMA = ["rope.fig3", "rope.fig4", "rope.fig13", *OF_HEADS, "rope.table3", "rope.table4", "rope.table5"]


def made(name: str, tmp_path: Path, norms: Arrays, prompt: Arrays | None = None, subject: Subject = GEMMA) -> Finding:
    return FIGURES[name].make(always(write(tmp_path / name, norms, prompt)), subject)


def failures(outcome: Finding) -> list[str]:
    return [f"{c.what}: {c.ours} not in [{c.low}, {c.high}]" for c in outcome.comparisons if c.verdict == "differs"]


def best(name: str) -> str:
    """The best that an item can get: a head's pattern, and which heads stand out, are printed without a number.

    The seven tokens before of table 4 differ so much that their mean has an error as large as the margin.
    """
    if name == "rope.table4":
        return "no clear difference"
    return "sign agrees" if name in {"rope.fig4", "rope.fig11", *OF_HEADS} else "agrees"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gemma"), gemma_norms(), gemma_prompt())


@pytest.mark.parametrize("name", OF_GEMMA)
def test_gemmas_published_numbers_agree(name: str, gemma: Path) -> None:
    outcome = FIGURES[name].make(always(gemma), GEMMA)
    assert failures(outcome) == []
    assert outcome.verdict == best(name)


@pytest.mark.parametrize("name", ["rope.fig10", "rope.fig11"])
def test_llamas_published_numbers_agree(name: str, tmp_path: Path) -> None:
    outcome = made(name, tmp_path, llama_norms(), subject=LLAMA)
    assert failures(outcome) == []
    assert outcome.verdict == best(name)


def test_the_published_maps_of_other_texts_agree(tmp_path: Path) -> None:
    runs = {text: write(tmp_path / text, gemma_norms(name)) for text, name in DOMAINS.items()}
    outcome = FIGURES["rope.fig19"].make(lambda verb, *overrides: runs[overrides[-1]], GEMMA)
    assert failures(outcome) == []
    assert outcome.verdict == "agrees"


def test_the_layer_called_27_is_the_one_whose_head_is_diagonal(gemma: Path) -> None:
    outcome = FIGURES["rope.table4"].make(always(gemma), GEMMA)
    assert "fits best if read as index 26, counted from 0: diagonal 0.90 at 26 and 0.14 at 27" in outcome.remark


def change_norms(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    """The same done to queries, keys and values."""
    return lambda arrays: {name: change(x) if "_norm" in name else x for name, x in arrays.items()}


WRONG_NORMS = {
    "pairs from the slowest": change_norms(lambda x: x[..., ::-1]),
    "interleaved for half-split pairs": change_norms(lambda x: x[..., np.arange(x.shape[-1]).reshape(2, -1).T.ravel()]),
    "layers from the last": change_norms(lambda x: x[::-1]),
    "a scale of 1/16": change_norms(lambda x: x / 16),
    "every pair alike": change_norms(np.ones_like),
    "squares": change_norms(np.square),
}


@pytest.mark.parametrize("name", ["rope.fig3", "rope.fig4", "rope.fig10", "rope.fig11"])
@pytest.mark.parametrize("wrong", WRONG_NORMS)
def test_wrong_norms_fail(name: str, wrong: str, tmp_path: Path) -> None:
    subject, norms = (LLAMA, llama_norms()) if name in ("rope.fig10", "rope.fig11") else (GEMMA, gemma_norms())
    assert made(name, tmp_path, WRONG_NORMS[wrong](norms), subject=subject).verdict == "differs"


def test_texts_on_which_the_queries_differ_fail(tmp_path: Path) -> None:
    runs = {text: write(tmp_path / text, gemma_norms(name)) for text, name in DOMAINS.items()}
    norms = gemma_norms(DOMAINS["texts=sums"])
    runs["texts=sums"] = write(tmp_path / "texts=sums", WRONG_NORMS["pairs from the slowest"](norms))
    assert FIGURES["rope.fig19"].make(lambda verb, *overrides: runs[overrides[-1]], GEMMA).verdict == "differs"


@pytest.mark.parametrize("name", OF_HEADS)
def test_heads_without_their_pattern_fail(name: str, tmp_path: Path) -> None:
    prompt = gemma_prompt()
    even = softmax(np.zeros((19, 19)))
    for named in (DIAGONAL, LATE_DIAGONAL, PREVIOUS, APOSTROPHE):
        prompt["weights"][named.layers[0], named.head] = even
    prompt["weights"][0, SEMANTIC.head] = np.eye(19)
    assert made(name, tmp_path, gemma_norms(), prompt).verdict == "differs"


@pytest.mark.parametrize("name", [name for name in OF_HEADS if name not in ("rope.fig5", "rope.fig7", "rope.fig12")])
@pytest.mark.parametrize("kind", ["query_norms", "key_norms"])
def test_heads_on_other_pairs_fail(name: str, kind: str, tmp_path: Path) -> None:
    prompt = gemma_prompt()
    prompt[kind] = prompt[kind][..., ::-1]
    assert made(name, tmp_path, gemma_norms(), prompt).verdict == "differs"


def test_logits_without_their_scale_fail(tmp_path: Path) -> None:
    prompt = gemma_prompt()
    prompt["logits"] = 16 * prompt["logits"]
    assert made("rope.fig12", tmp_path, gemma_norms(), prompt).verdict == "differs"


@pytest.mark.parametrize("name", ["rope.table3", "rope.table4", "rope.table5"])
def test_alignment_of_random_vectors_fails(name: str, tmp_path: Path) -> None:
    prompt = gemma_prompt()
    prompt["logits"] = prompt["bound"] * np.random.default_rng(0).normal(0, 1 / 16, prompt["bound"].shape)
    assert made(name, tmp_path, gemma_norms(), prompt).verdict == "differs"


@pytest.mark.parametrize(("gain", "verdict"), [(0.01, "sign agrees"), (-0.001, "differs")])
def test_entropy_has_to_grow_with_the_list(gain: float, verdict: str, tmp_path: Path) -> None:
    subject = Subject("gemma-2b", ("model=gemma-2b",), is_the_papers=True)
    records = [
        {"metric": "entropy", "layer": layer, "head": head, "n": n, "value": 1 + gain * n * (1 if layer == 0 else -1)}
        for layer in range(2)
        for head in range(8)
        for n in (1, 2, 256)
    ]
    (tmp_path / "results.json").write_text(json.dumps(records))
    assert FIGURES["softmax.fig3"].make(always(tmp_path), subject).verdict == verdict


STORIES = Subject("stories260k", ("model=stories260k",), is_the_papers=False)
UNEVEN = Subject("an uneven model", ("model=hf", "model.path=DIR"), is_the_papers=False)
FIGURES = figures_of(papers.FIGURES)
OF_MODELS = [name for name, figure in FIGURES.items() if figure.model is not None]
OF_PROBES = [name for name in OF_MODELS if name != "softmax.fig3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Probes inside this process, of a few words and without pictures: one for all texts, and one of lists."""
    outputs, made = tmp_path_factory.mktemp("outputs"), {}

    def probe(verb: str, *overrides: str) -> Path:
        kind = overrides[-1].partition("=")[0]
        if kind not in made:
            words = [*overrides, "logger=none", "device=cpu", "max_tokens=150", f"outputs={outputs}"]
            out = io.StringIO()
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(io.StringIO()):
                for draw in ("draw_all",):
                    patch.setattr(probe_results, draw, lambda *_: [])
                patch.setattr(verb_run, "entropy_by_length", partial(entropy_by_length, n_elements=(1, 8), n_lists=1))
                assert not cli([verb, *words])
            made[kind] = Path(out.getvalue().split()[-1])
        return made[kind]

    return probe


@pytest.mark.parametrize("name", OF_MODELS)
def test_stories260k_takes_the_place_of_the_papers_model(name: str, run: Callable[..., Path]) -> None:
    outcome = FIGURES[name].make(run, STORIES)
    assert outcome.verdict == "not tested"
    assert outcome.untested.startswith("made of stories260k, not of ")
    assert outcome.comparisons
    assert all(math.isfinite(c.ours) and c.low == -math.inf and c.high == math.inf for c in outcome.comparisons)
    assert outcome.panels


@pytest.mark.parametrize("name", OF_PROBES)
def test_layers_of_several_sizes_and_without_rope_are_no_obstacle(name: str, tmp_path: Path) -> None:
    outcome = FIGURES[name].make(always(write(tmp_path, *uneven())), UNEVEN)
    assert all(math.isfinite(c.ours) for c in outcome.comparisons)
    assert "nan" not in outcome.ours + outcome.remark
    for title, panel in outcome.panels.items():
        assert not isinstance(panel, HeatMap) or np.isfinite(panel.values).any(), title


@pytest.mark.parametrize("name", ["rope.fig7", "rope.fig12", "rope.fig17"])
def test_a_tokenizer_without_an_apostrophe_alone_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    words = ["I", "'m", *["not"] * (len(WORDS) - 2)]
    with pytest.raises(UserError, match="joins the apostrophe") as refused:
        FIGURES[name].make(always(write(tmp_path, *uneven(), words=words)), UNEVEN)
    assert "\n" not in str(refused.value)
