"""`roundround eval data=blimp` and `data=zorro`: shares, their intervals, prefixes, and what is refused."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FAST, Done, typed
from scipy import stats

from roundround.report.eval_panels import PAIRS
from roundround.report.evaluation import PairScores
from roundround.report.evaluation import records_of_pairs as records
from roundround.report.page.view import view_of
from roundround.trained.models import TrainedRun

SOME = ["data=zorro", "data.pairs=4", "data.phenomena=[case-subjective_pronoun,irregular-verb,binding-principle_a]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        done = typed("train", *FAST, "data=text", f"data.path={corpus}", "data.held_out=0.4", "pe=rope", "seed=3")
        assert done.code == 0, done.err
        return done.directory.absolute()


@pytest.fixture
def evaluated(roundround: Callable[..., Done], run: Path) -> Callable[..., Done]:
    return lambda *args: roundround("eval", f"run={run}", "logger=none", *args)


def scores(*right: tuple[int, int]) -> PairScores:
    """Phenomena of so many pairs, of which so many are right."""
    signs = [np.where(np.arange(n) < n_right, 1.0, -1.0) for n_right, n in right]
    return {f"p{i}": np.stack([own, 0 * own], 1) for i, own in enumerate(signs)}


def test_intervals_are_wilsons_over_pairs_and_students_over_phenomena() -> None:
    found = records({0: scores((7, 10), (3, 10), (10, 10))}, {})
    whole, first, *_ = found
    assert (whole["pairs"], whole["phenomena"]) == (30, 3)
    between = stats.t.interval(0.95, 2, loc=2 / 3, scale=stats.sem([0.7, 0.3, 1.0]))
    assert whole["value"] == pytest.approx(2 / 3)
    assert (whole["low"], whole["high"]) == pytest.approx((max(0, between[0]), min(1, between[1])))
    wilson = stats.binomtest(7, 10).proportion_ci(method="wilson")
    assert (first["phenomenon"], first["value"], first["low"], first["high"]) == pytest.approx(
        ("p0", 0.7, wilson.low, wilson.high)
    )


def test_a_change_is_taken_within_each_phenomenon() -> None:
    near, far = scores((7, 10), (3, 10), (10, 10)), scores((6, 10), (2, 10), (8, 10))
    [change] = [record for record in records({0: near, 512: far}, {}) if record["metric"] == "accuracy_change"]
    between = stats.t.interval(0.95, 2, loc=-0.4 / 3, scale=stats.sem([-0.1, -0.1, -0.2]))
    assert (change["value"], change["low"], change["high"]) == pytest.approx((-0.4 / 3, *between))
    assert change["prefix"] == 512


def test_of_equal_sentences_the_right_one_counts_as_in_lm_eval_and_numbers_that_are_none_do_not() -> None:
    """Seven of BLiMP's 67,000 pairs are one sentence twice."""
    whole, _ = records({0: {"p": np.array([[-3.0, -3.0], [np.nan, np.nan]])}}, {})
    assert whole["value"] == 0.5
    assert "low" not in whole  # of one phenomenon


def test_a_run_is_asked_which_sentence_is_likelier(evaluated: Callable[..., Done], run: Path) -> None:
    """Against a loop over the sentences, one whole pass each: after the token that ends a document."""
    done = evaluated(*SOME, "prefix=0,40")
    assert done.code == 0, done.err
    trained = TrainedRun(run, trust=False)
    decoder, vocabulary = trained.decoder("best"), trained.vocabulary()
    pairs_of = {}
    for line in (Path(__file__).parents[2] / "roundround/data/pairs/zorro/pairs.jsonl").read_text().splitlines():
        row = json.loads(line)
        pairs_of.setdefault(row["UID"], []).append((row["sentence_good"], row["sentence_bad"]))
    rows = list(csv.DictReader((done.directory / "pairs.csv").read_text().splitlines()))
    assert len(rows) == 2 * 3 * 4
    right: dict[tuple[str, str], list[bool]] = {}
    for row in rows:
        text = pairs_of[row["phenomenon"]][5 * int(row["pair"])]  # 4 of 20, evenly spaced
        for which, sentence in zip(("good", "bad"), text, strict=True):
            if row["prefix"] == "0":
                ids = torch.tensor([[vocabulary.end_of_document, *vocabulary.encode(sentence)]])
                with torch.no_grad():
                    logits = decoder(ids[:, :-1])[0].double().log_softmax(-1)
                total = float(logits.gather(1, ids[0, 1:, None]).sum())
                assert float(row[which]) == pytest.approx(total, abs=1e-3)
        right.setdefault((row["prefix"], row["phenomenon"]), []).append(float(row["good"]) > float(row["bad"]))
    for (prefix, name), some in right.items():
        assert done.value("accuracy", prefix=int(prefix), phenomenon=name) == np.mean(some)
    for prefix in (0, 40):
        whole = np.mean([np.mean(some) for (own, _), some in right.items() if own == str(prefix)])
        assert done.value("accuracy", prefix=prefix, phenomena=3) == pytest.approx(whole)
        assert done.manifest["headline"][f"accuracy_{prefix}"] == pytest.approx(whole)


def test_the_packaged_model_is_asked_with_nothing_else(roundround: Callable[..., Done]) -> None:
    done = roundround("eval", "model=stories260k", *SOME, "prefix=0,64", "logger=none", "device=cpu")
    assert done.code == 0, done.err
    assert {r["prefix"] for r in done.results} == {0, 64}
    assert {r["model"] for r in done.results} == {"stories260k"}


def test_the_page_and_the_figure_show_phenomena(evaluated: Callable[..., Done]) -> None:
    done = evaluated(*SOME, "prefix=0,8,40")
    line, by_rank = PAIRS.panels(done.results, None)
    assert list(line.curves[0].x) == [0, 8, 40]
    assert [curve.name for curve in by_rank.curves] == [
        "behind 0 tokens", "behind 8 tokens", "behind 40 tokens", "chance"
    ]  # fmt: skip
    assert list(by_rank.curves[0].y) == sorted(by_rank.curves[0].y)
    _, _, page = view_of(done.directory)
    assert page.sections[0].title == "Right sentences"
    assert re.search(r"12 pairs of 3 phenomena, a sample", " ".join(page.scope))


def test_a_comparison_takes_prefix_and_phenomenon_for_places(
    evaluated: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    assert evaluated(*SOME, "prefix=0,8").code == 0
    assert evaluated(*SOME, "prefix=0,8", "pe=nope").code == 0
    done = roundround("compare", "outputs/eval", "baseline=pe=rope", "prefix=8", "logger=none", "metric=accuracy")
    assert done.code == 0, done.err
    places = {(r.get("prefix"), r.get("phenomenon")) for r in done.results if r["settings"]["pe"] == "nope"}
    assert places == {(8, None), *((8, name) for name in SOME[2].partition("[")[2].strip("]").split(","))}


def test_documents_that_do_not_see_each_other_have_no_prefix(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    apart = train("data.separate_documents=true")
    done = roundround("eval", f"run={apart.directory}", *SOME, "logger=none")
    assert done.code == 0, done.err
    told = roundround("eval", f"run={apart.directory}", *SOME, "prefix=8", "logger=none")
    assert told.code == 2
    assert "separate documents, so it reads no prefix; leave out prefix=" in told.err
