"""What README.md has found, from the values that are stored beside the pages of results."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import pytest
from conftest import ROOT
from results.distance import VALUES, control, effect, mean
from results.encodings_by_normalisers import CROSSED, LENGTHS, NAMES
from results.stored import DOCS, difference
from results.table2 import forty

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


def test_the_search_by_distance() -> None:
    rope, half = (mean(VALUES[10_000, p, 2048, 2_032]) for p in (1, 0.5))
    assert f"2,032 tokens away {rope} and {half} are right" in README
    assert f"Without the length's own effect: {difference(effect(10_000, 2_032), control(10_000))}." in README


def test_resting_over_forty_seeds() -> None:
    whole, _ = forty(256)
    size, half = whole.mean(), float(half_width(whole))
    assert len(whole) == 40
    assert f"costs {size:.4f} ({size - half:.4f} to {size + half:.4f}) nats over forty seeds" in README


def test_adaptive_temperature_makes_each_of_twelve_models_worse() -> None:
    worse = [CROSSED[pe, "adaptive_temperature", n] - CROSSED[pe, "softmax", n] for pe in NAMES for n in LENGTHS]
    assert all((one > 0).all() for one in worse)
    assert f"each of {sum(map(len, worse)) // len(LENGTHS)} models worse" in README


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_bench_says_of_nape(page: str) -> None:
    found = {one.name: one for one in stored("v2", "default")}
    said = sentence("nape", "rope", compared(found["nape"], found["rope"], read_set("v2", "default", None)))
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("nape against rope")]
    first, last = line.split(", ... ")
    assert said.startswith(first)
    assert said.endswith(last)


def test_the_table_of_engines_says_what_each_answered_and_how_it_refused() -> None:
    table = (ROOT / "README.md").read_text().partition("| [found in engines]")[2].partition("\n\n")[0].splitlines()[2:]
    engines = ("llama_cpp", "mlx_lm", "ctranslate2", "onnxruntime_genai", "vllm")
    cases = ("llama-linear", "llama-llama3", "llama-yarn", "mistral", "gemma2", "gpt_oss")
    with (DOCS / "engines" / "verdicts.csv").open(newline="") as file:
        found = {(row["case"], row["engine"], row["form"]): row for row in csv.DictReader(file)}

    def cell(case: str, engine: str) -> str:
        new = found[case, engine, "transformers5"]
        old = found.get((case, engine, "transformers4"), new)  # vLLM was asked with the new form alone
        if (new["verdict"], old["verdict"]) == ("mistake", "agrees"):
            return "older config"
        assert new["verdict"] == old["verdict"]
        if new["verdict"] == "refused":
            return "refused" if re.search("not yet implemented|No conversion", new["words"]) else "no answer"
        return "agrees" if new["verdict"] == "agrees" else "rounded" if "rounded" in new["words"] else "ignored"

    assert len(table) == len(cases)
    for case, row in zip(cases, table, strict=True):
        printed = [one.strip().partition(",")[0] for one in row.strip("|").split("|")[1:]]
        assert printed == [cell(case, engine) for engine in engines], case


def test_the_table_of_max_retrieval_differs() -> None:
    outcomes = json.loads((DOCS / "reproduction" / "outcomes.json").read_text())
    (table,) = [one for one in outcomes if one["name"] == "softmax.table1"]
    verdict, ours = table["verdict"], table["ours"]
    n = Counter(one["what"].startswith("softmax, ") for one in table["comparisons"])[True]
    assert (verdict, n) == ("differs", 11)
    assert "accuracies: agrees 1, no clear difference 10;" in ours
    assert "of 11 accuracies 1 agrees, 10 show no clear difference; the table *differs*" in README
