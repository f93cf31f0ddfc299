"""The page of a run: what stands on it, that nothing on it runs or fetches, and what it says of damaged runs."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from helpers_page import Page, eval_records, train_config, write_probe, write_run

from roundround.report.page.view import page_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
PERPLEXITIES = [(128, 35.69753574960664), (256, 36.7), (512, 1.25e-7), (1024, math.nan)]


def train_run(directory: Path, metrics: str = "", **fields: object) -> Path:
    data = {"corpus_hash": "c" * 64, "tokenizer_hash": "t" * 64, "n_vocab": 257, "end_of_document": 256}
    data |= {"training_tokens": 900, "held_out_tokens": 100}
    records = [{"metric": "perplexity", "pe": "rope", "length": 32, "value": 12.5}]
    run = write_run(
        directory, "train", records, **{"config": train_config(validation_tokens=500), "data": data, **fields}
    )
    (run / "metrics.jsonl").write_text(metrics)
    return run


def runs_of_every_kind(folder: Path) -> dict[str, Path]:
    sizes = [{"metric": m, "softmax": "softmax", "seed": s, "n": n, "value": 0.5 + s / 10 - n / 200}
             for m in ("accuracy", "entropy") for s in (0, 1) for n in (16, 64)]  # fmt: skip
    compared = [{"metric": "perplexity", "verb": "eval", "length": length, "settings": {"pe": pe}, "mean": 20.0,
                 "low": 10.0, "high": 300.0, "n_seeds": 3, "value": 20.0}
                for pe in ("rope", "nope") for length in (64, 128)]  # fmt: skip
    lines = "".join(json.dumps({"step": s, "loss": 5 - s / 10, "lr": 0.1}) + "\n" for s in range(1, 9))
    config = {"model": {"_target_": "x"}, "normalisers": {}, "test_sets": 64}
    return {
        "train": train_run(folder / "train", lines),
        "eval": write_run(folder / "eval", "eval", eval_records(PERPLEXITIES[:3])),
        "probe": write_probe(folder / "probe"),
        "max-retrieval": write_run(folder / "max", "max-retrieval", sizes, config=config),
        "compare": write_run(folder / "compare", "compare", compared),
        "theory": write_run(folder / "theory", "theory", [{"metric": "margin", "claim": "a", "value": 1.5}]),
    }


def test_every_kind_of_page_is_well_formed_and_fetches_nothing(tmp_path: Path) -> None:
    for verb, run in runs_of_every_kind(tmp_path).items():
        text = page_of(run)
        page = Page(text)
        (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
        assert policy is not None
        assert policy.startswith("default-src 'none';"), verb
        links = [a[name] for _, a in page.elements for name in ("src", "href", "xlink:href", "action") if name in a]
        assert all(link is not None and link.startswith("#") for link in links), (verb, links)
        assert not re.findall(r"https?:|@import|url\(", text), verb
        assert [tag for tag, _ in page.elements if tag in ("link", "iframe", "img", "object")] == []
        for tag, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on")], (verb, tag)
        pictures = [a for tag, a in page.elements if tag == "svg" and a.get("aria-hidden") != "true"]
        assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)


def test_names_from_anywhere_stand_on_the_page_as_text(tmp_path: Path) -> None:
    records = eval_records(PERPLEXITIES[:2])
    for record in records:
        record |= {"model": HOSTILE, "pe": HOSTILE, f"data.{HOSTILE}": HOSTILE, "joining_token": HOSTILE}
    records.append({"metric": HOSTILE, "layer": HOSTILE, "value": HOSTILE})
    run = write_run(
        tmp_path / "run",
        "eval",
        records,
        status=f"failed: {HOSTILE}",
        config={HOSTILE: {HOSTILE: HOSTILE}},
        overrides=[f"data.path={HOSTILE}"],
        choices={"pe": HOSTILE, "model": HOSTILE},
        facts={HOSTILE: HOSTILE},
        headline={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        device=HOSTILE,
    )
    text = page_of(run)
    page = Page(text)
    assert "alert(1)" in page.text
    assert len(page.all("script")) == 1  # the page's own
    assert page.all("img") == []
    assert "<script>alert" not in text


def test_a_probe_of_a_thousand_heads_stays_below_four_megabytes_and_says_what_is_left_out(tmp_path: Path) -> None:
    run = write_probe(tmp_path / "run", n_layers=32, n_heads=32, n_pairs=64, n_tokens=40)
    text = page_of(run)
    assert len(text.encode()) < 4_000_000
    page = Page(text)
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    found = json.loads(data)
    n_kept = len(found["parts"]["logits"])
    assert 0 < n_kept < 1024
    assert f"logits by frequency: shown for the {n_kept:,} heads of 1,024 that stand out most" in page.text
    assert set(found["heads"]) == {f"{layer}.{head}" for layer in range(32) for head in range(32)}
    for place in {head["label"] for head in found["heads"].values()} - {"local"}:
        of_label = {name: head["share"] for name, head in found["heads"].items() if head["label"] == place}
        assert max(of_label, key=lambda name: of_label[name]) in found["parts"]["logits"], place


def test_a_damaged_file_gives_the_general_page_and_a_line(tmp_path: Path) -> None:
    run = write_probe(tmp_path / "run")
    (run / "probe.safetensors").write_bytes((run / "probe.safetensors").read_bytes()[:200])
    page = Page(page_of(run))
    assert "the run's files are not as probe writes them" in page.text
    assert len(page.column("entropy")) == 4


def test_half_a_line_that_a_killed_process_leaves_is_left_out(tmp_path: Path) -> None:
    page = Page(page_of(train_run(tmp_path / "run", '{"step": 1, "loss": 3.0}\n{"step": 2, "lo')))
    assert "training loss: 3.000 at 1.000" in page.said


def test_the_interval_of_an_accuracy_is_students(tmp_path: Path) -> None:
    page = Page(page_of(runs_of_every_kind(tmp_path)["max-retrieval"]))
    rows = page.tables[0]
    assert ["softmax", "47.0", "23.0"] in rows
    # of 42 and 52: standard error 5, and 12.7062 the 97.5 % quantile of Student's t with one degree of freedom
    assert rows[rows.index(["softmax", "47.0", "23.0"]) + 1] == ["", "±63.5", "±63.5"]


def test_a_comparison_shows_its_remarks_differences_and_what_was_left_out(tmp_path: Path) -> None:
    run = runs_of_every_kind(tmp_path)["compare"]
    records = json.loads((run / "results.json").read_text())
    for record in records[2:]:
        record |= {"baseline": {"pe": "rope"}, "difference": -1.25, "p": 0.01, "p_holm": 0.0625, "mean": math.pi}
    (run / "results.json").write_text(json.dumps(records))
    about = {
        "settings": {"pe": ["rope", "nope"]},
        "baseline": ["pe=rope"],
        "remarks": ["too few seeds"],
        "skipped": [{"run": "a/b", "why": "failed: no space"}],
        "groups": [{"verb": "eval", "settings": {"pe": "rope"}, "seeds": [1, 2, 3], "runs": ["x", "y"]}],
        "curves": [{"settings": {"pe": "rope"}, "metric": "held_out", "tokens": [1, 2], "mean": [3, 2], "low": [2, 1],
                    "high": [4, None], "n_seeds": 3}],
    }  # fmt: skip
    (run / "comparison.json").write_text(json.dumps(about))
    page = Page(page_of(run))
    for said in ("too few seeds", "failed: no space", "baseline pe=rope", "[1, 2, 3]", "pe: [rope, nope]"):
        assert said in page.text
    assert "roundround rerun" not in page.text
    assert [cell and float(cell) for cell in page.column("mean")] == [20.0, 20.0, math.pi, math.pi]
    assert page.column("difference") == ["", "", "-1.25", "-1.25"]
    assert page.column("p (Holm)") == ["", "", "0.0625", "0.0625"]
    (run / "results.json").write_text(json.dumps([record | {"p_is_bound": True} for record in records]))
    assert Page(page_of(run)).column("p (Holm)") == ["", "", "<= 0.062", "<= 0.062"]
    assert len([a for a in page.all("path") if a.get("class") == "line" and str(a["d"]).count("L") == 1]) == 5
    (run / "comparison.json").write_text('{"remarks": 1, "groups": [1], "curves": [{"settings": {}}], "skipped": [')
    assert "the run's files are not as compare writes them" in Page(page_of(run)).text


def test_a_table_that_would_fill_the_page_is_cut_and_says_how_many_rows_more_there_are(tmp_path: Path) -> None:
    records = [{"metric": f"m{i % 30}", "layer": i // 30, "value": i / 7} for i in range(30 * 1500)]
    text = page_of(write_run(tmp_path / "run", "anything", records))
    assert len(text.encode()) < 2_000_000
    rows = len(Page(text).column("layer"))
    assert rows + int(re.findall(r"([\d,]+) more rows", Page(text).text)[0].replace(",", "")) == 1500
    assert rows >= 200


def test_the_page_of_a_run_has_the_statistics_of_attention(tmp_path: Path) -> None:
    lines = [{"step": s, "loss": 5 - s / 10} for s in range(1, 9)]
    for line in lines[3::4]:
        line |= {f"{name}_layer_{layer}": line["step"] + layer for layer in range(2)
                 for name in ("largest_logit", "attention_entropy", "first_token_share")}  # fmt: skip
    text = page_of(train_run(tmp_path / "run", "".join(json.dumps(line) + "\n" for line in lines)))
    assert "<h2>Attention</h2>" in text
    for title in ("Entropy of attention", "Largest logit", "Weight on the first token"):
        assert text.count(f"<figcaption>{title}</figcaption>") == 1
    assert "layer 1: 9.000 at 8.000" in text
    assert "Mean distance" not in text
    assert "<h2>Attention</h2>" not in page_of(train_run(tmp_path / "other", '{"step": 1, "loss": 5}\n'))
