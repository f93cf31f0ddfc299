"""What README.md has found, from the values that are stored beside the pages of results."""

from __future__ import annotations

import csv
import re

import pytest
from conftest import ROOT
from helpers_stored import check_all_numbers
from results.distance import VALUES, control, effect, mean
from results.encodings_by_normalisers import CROSSED, LENGTHS, NAMES, crossed
from results.max_retrieval import TABLE_1
from results.stored import DOCS, difference
from results.table2 import CORPORA, forty, p_of_differences, sweep

from roundround.analysis.intervals import half_width
from roundround.analysis.standings import compared, read_set, stored
from roundround.report.bench import sentence

README = " ".join((ROOT / "README.md").read_text().split())


def test_ideas_and_options_are_counted_apart() -> None:
    def counts(group: str) -> tuple[int, int]:
        yamls = [path.read_text() for path in (ROOT / "conf" / group).rglob("*.yaml")]
        return len({re.findall(r"^_target_: (\S+)", text, re.MULTILINE)[0] for text in yamls}), len(yamls)

    (encodings, n_pe), (normalisers, n_softmax) = counts("pe"), counts("softmax")
    assert f"one of {encodings} encodings ({n_pe} with presets) and {normalisers} normalisers ({n_softmax})" in README
    patterns = len(list((ROOT / "conf" / "pattern").glob("*.yaml"))) - 1  # `uniform` is none
    links = [(encodings, "reference/encodings"), (normalisers, "reference/normalisers"), (patterns, "howto/patterns")]
    assert all(f"[{n}](docs/{page}.md)" in README for n, page in links), links


def check_bullet(start: str, *said: str) -> None:
    """The bullet of "What it has found" that starts so has these numbers and no others."""
    section = (ROOT / "README.md").read_text().partition("## What it has found\n")[2].partition("\n## ")[0]
    (bullet,) = [one for one in section.split("\n- ") if one.startswith(f"[{start}](")]
    check_all_numbers(" ".join(bullet.split()), *said)


def test_the_search_by_distance() -> None:
    rope, half = (mean(VALUES[10_000, p, 2048, 2_032]) for p in (1, 0.5))
    check_bullet(
        "RoPE breaks a search by meaning",
        "p-RoPE with half of its pairs at rest does not",
        f"2,032 tokens away {rope} and {half} are right (base 10,000)",
        f"Without the length's own effect: {difference(effect(10_000, 2_032), control(10_000))}.",
    )


def test_resting_over_forty_seeds() -> None:
    whole, _ = forty(256)
    size, half = whole.mean(), float(half_width(whole))
    assert len(whole) == 40
    corpora = [p_of_differences(sweep(corpus)) for corpus in CORPORA]
    assert min(p for of in corpora for (encoding, _), p in of.items() if encoding == "p_rope") > 0.05
    check_bullet(
        "Resting slow pairs where they would turn",
        f"costs {size:.4f} ({size - half:.4f} to {size + half:.4f}) nats over forty seeds (base 98)",
        "At base 10,000",
        "0.75-RoPE shows no clear difference",
        "from RoPE on two corpora",
    )


def test_adaptive_temperature() -> None:
    higher = [CROSSED[pe, "adaptive_temperature", n] - CROSSED[pe, "softmax", n] for pe in NAMES for n in LENGTHS]
    assert all((one > 0).all() for one in higher)
    n_clear = sum(p < 0.05 for n in LENGTHS for *_, p in crossed("adaptive_temperature", n))
    gain = TABLE_1["gain, 1,024 items"]
    check_bullet(
        "Adaptive temperature put into a trained language model",
        f"raises the loss of each of {sum(map(len, higher)) // len(LENGTHS)} models at four lengths",
        f"({n_clear} of {len(higher)} cases clear after Holm)",
        f"it gains {gain['ours']:.2f} points at 1,024 items (published: {gain['published']:.1f})",
    )


def test_the_tasks_are_counted() -> None:
    targets = [path.read_text() for path in (ROOT / "conf" / "data").glob("*.yaml")]
    tasks = {name for text in targets for name in re.findall(r"^_target_: roundround\.data\.tasks\.(\S+)", text, re.M)}
    n = len({re.sub("(Hub|Files)$", "", name) for name in tasks})  # CLRS-Text may be read from two places
    assert f"[{n} tasks with known answers](docs/howto/tasks.md)" in README


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_bench_says_of_nape(page: str) -> None:
    found = {one.name: one for one in stored("v2", "default")}
    said = sentence("nape", "rope", compared(found["nape"], found["rope"], read_set("v2", "default", None)))
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("nape against rope")]
    first, last = line.split(", ... ")
    assert said.startswith(first)
    assert said.endswith(last)


def test_the_table_of_engines_says_what_each_answered_and_how_it_refused() -> None:
    head, _, *table = (ROOT / "README.md").read_text().partition("| [found in")[2].partition("\n\n")[0].splitlines()
    engines = {
        "llama.cpp": "llama_cpp",
        "mlx-lm": "mlx_lm",
        "CTranslate2": "ctranslate2",
        "ONNX Runtime GenAI": "onnxruntime_genai",
        "vLLM": "vllm",
    }
    cases = {
        "Llama, linear scaling": "llama-linear",
        "Llama, llama3 scaling": "llama-llama3",
        "Llama, YaRN": "llama-yarn",
        "Mistral, window": "mistral",
        "Gemma 2, windows": "gemma2",
        "gpt-oss, exact bounds of YaRN": "gpt_oss",
    }
    with (DOCS / "engines" / "verdicts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["case"], row["engine"], row["form"]): row for row in rows}
    versions = {row["engine"]: row["version"].rpartition(".")[0] for row in rows}

    def titled(name: str) -> str:  # llama.cpp was asked as llama-cpp-python, whose version is another
        return name if name == "llama.cpp" else f"{name} {versions[engines[name]]}"

    def cell(case: str, engine: str) -> str:
        new = found[case, engine, "transformers5"]
        old = found.get((case, engine, "transformers4"), new)  # vLLM was asked with the new form alone
        if (new["verdict"], old["verdict"]) == ("mistake", "agrees"):
            return "older config"
        assert new["verdict"] == old["verdict"]
        if new["verdict"] == "refused":
            return "refused" if re.search("not yet implemented|No conversion", new["words"]) else "no answer"
        if new["verdict"] == "agrees":
            return "agrees"
        return "rounded" if "rounded" in new["words"] else "ignored" + ", caps too" * ("soft cap" in new["words"])

    assert [one.strip() for one in head.strip("|").split("|")[1:]] == [*map(titled, engines)]
    assert [row.strip("|").split("|")[0].strip() for row in table] == [*cases]
    for case, row in zip(cases.values(), table, strict=True):
        printed = [one.strip() for one in row.strip("|").split("|")[1:]]
        assert printed == [cell(case, engine) for engine in engines.values()], case
