"""The pages of runs that learn a task: right answers in place of perplexity, and the lengths of training by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers_page import Page, train_config, write_run

from roundround.report.page.view import page_of

DATA = {
    "corpus_hash": "c" * 64, "tokenizer_hash": "t" * 64, "n_vocab": 36, "end_of_document": 2, "training_tokens": 0,
    "train_lengths": [1, 20], "train_examples": None, "validation_examples": 512,
}  # fmt: skip


def trained(directory: Path, **data: Any) -> Path:
    records = [{"metric": "exact_match", "split": "validation", "examples": 512, "step": 8, "value": 0.75}]
    config = train_config(validation_tokens=65536, tokenizer=None)
    run = write_run(directory, "train", records, config=config, data=DATA | data, choices={"data": "copy"})
    lines: list[dict[str, Any]] = [{"step": step, "loss": 5 - step / 10} for step in range(1, 9)]
    for step, right in ((4, 0.25), (8, 0.75)):
        measured = {"exact_match": right, "token_accuracy": 0.9, "nats_per_token": 1 - right}
        lines.append({"step": step, **{f"held_out_{name}": value for name, value in measured.items()}})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def pictures(page: Page) -> list[str]:
    return [str(svg["aria-label"]) for svg in page.all("svg") if "aria-label" in svg]


def test_training_on_a_task_shows_right_answers_beside_the_loss(tmp_path: Path) -> None:
    page = Page(page_of(trained(tmp_path / "run")))
    (right,) = [words for words in pictures(page) if words.startswith("share of validation against step")]
    assert right.endswith(": exact match, token accuracy")
    titles = ["exact match: 0.2500 at 4.000", "exact match: 0.7500 at 8.000"]
    assert set(titles) <= set(page.said)
    assert any(words.startswith("loss (nats per token) against step") for words in pictures(page))
    assert "over 512 validation examples; only their scored tokens count" in page.text
    assert "copy: new examples in every batch, of length 1 to 20, up to 32 tokens" in page.text
    assert "corpus of" not in page.text


def test_an_evaluation_shows_shares_with_intervals_and_names_the_lengths_in_training(tmp_path: Path) -> None:
    run, records = trained(tmp_path / "train"), []
    for length, share in ((20, 0.75), (40, 0.25)):
        where = {"length": length, "context": 2 * length + 3, "examples": 1024, "distinct": 1000 + length}
        for metric, value in (("exact_match", share), ("token_accuracy", 0.95), ("error_rate", 0.05)):
            records.append({"metric": metric, **where, "value": value, "low": value - 0.0625, "high": value + 0.03125})
        records.append({"metric": "nats_per_token", **where, "value": 0.2})
        records.append({"metric": "entropy", **where, "layer": 0, "head": 0, "value": 1.5})
    where = {"length": 20, "examples": 9, "distinct": 9}
    part = {"task": "one of several", "metric": "exact_match", **where, "value": 0.125}
    page = Page(page_of(write_run(tmp_path / "eval", "eval", [*records, part], run=str(run))))
    assert any(words.startswith("share right against length: exact match") for words in pictures(page))
    assert any(words.startswith("entropy of a row (nats) against length:") for words in pictures(page))
    assert len([path for path in page.all("path") if path.get("class") == "band"]) == 3
    assert "Lengths 1 to 20 were in training." in page.text
    assert "Test examples: 1,024 at each length; intervals of 95 %." in page.text
    assert "count once in the intervals: at least 1,020 are distinct." in page.text
    assert page.column("distinct examples") == ["1020", "1040"]
    assert [page.column(name) for name in ("tokens", "exact match")] == [["43", "83"], ["0.75", "0.25"]]
    assert "0.750 [0.688, 0.781]" in page.text
    assert "erplexity" not in page.text
    assert "Windows begin" not in page.text
