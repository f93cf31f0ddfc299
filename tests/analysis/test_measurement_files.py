"""csv files of settings, seed, metric, length, value, made by somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from roundround.analysis.comparison import compare, place_of
from roundround.support.errors import UserError

# accuracy on SCAN, training lengths up to 25 (mdlen_tr25_ts48), by encoding and seed, at lengths 26, 30, 33 and 36:
# https://github.com/McGill-NLP/length-generalization, results/classic.jsonl at 40f8a44, runs of best_run_seed_exp
# (Kazemnejad et al. 2023, arXiv:2305.19466)
KAZEMNEJAD = """\
pe,seed,metric,length,value
none,146317,accuracy,26,1
none,146317,accuracy,30,0.9896
none,146317,accuracy,33,1
none,146317,accuracy,36,0.6719
none,234054,accuracy,26,1
none,234054,accuracy,30,0.9028
none,234054,accuracy,33,0.8203
none,234054,accuracy,36,0.6562
none,256788,accuracy,26,1
none,256788,accuracy,30,0.9653
none,256788,accuracy,33,0.918
none,256788,accuracy,36,0.5
rotary,256788,accuracy,26,0.4668
rotary,256788,accuracy,30,0.2882
rotary,256788,accuracy,33,0.332
rotary,256788,accuracy,36,0.2031
rotary,234054,accuracy,26,0.4668
rotary,234054,accuracy,30,0.0226
rotary,234054,accuracy,33,0
rotary,234054,accuracy,36,0.0312
rotary,146317,accuracy,26,0.4688
rotary,146317,accuracy,30,0.3681
rotary,146317,accuracy,33,0.293
rotary,146317,accuracy,36,0.4688
"""


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_published_accuracies_of_somebody_else_by_seed(tmp_path: Path) -> None:
    found = compare(write(tmp_path, KAZEMNEJAD), baseline="pe=rotary")
    assert found.settings == {"pe": ["none", "rotary"]}
    by_place = {(row["settings"]["pe"], place_of(row)["length"]): row for row in found.table}
    assert len(by_place) == 8
    row = by_place["none", 30]
    none, rotary = [0.9896, 0.9028, 0.9653], [0.3681, 0.0226, 0.2882]  # by seed, not by line
    assert (row["seeds"], row["values"]) == ([146317, 234054, 256788], none)
    paired = stats.ttest_rel(none, rotary)
    interval = paired.confidence_interval(0.95)
    assert row["difference"] == pytest.approx(0.726267, abs=1e-6)
    assert (row["p"], row["p_holm"]) == pytest.approx((paired.pvalue, paired.pvalue))
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((interval.low, interval.high))
    assert by_place["none", 26]["low"] == by_place["none", 26]["high"] == 1, "no spread at all"


def test_filters_choose_among_rows_by_their_settings_and_places(tmp_path: Path) -> None:
    path = write(tmp_path, KAZEMNEJAD)
    found = compare(path, where={"pe": "none", "length": "30,33"})
    assert [(row["settings"], place_of(row)) for row in found.table] == [({}, {"length": 30}), ({}, {"length": 33})]
    for where, message in (
        ({"status": "done"}, "status= chooses among runs, and"),
        ({"length": "512"}, r"nothing was measured at length=512 \(choices: 26, 30, 33, 36\)"),
        ({"softmax": "ssmax"}, "no run has the setting 'softmax'"),
    ):
        with pytest.raises(UserError, match=message):
            compare(path, where=where)


def test_two_files_that_disagree_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [write(tmp_path, "pe,seed,value\nrope,1,2\n"), write(tmp_path / "b", "pe,seed,value\nrope,1,3\n")]
    with pytest.raises(
        UserError, match=r"different numbers for all runs, seed 1, in .*; leave out all but one of these"
    ):
        compare(paths)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "pe,seed\nrope,1\n", "line 2: value=None must be a number"),
        ("a.csv", "pe,value\nrope,good\n", "line 2: value=good must be a number"),
        ("a.csv", "pe,value\nrope,1,2\n", "line 2 has more or fewer cells than there are columns"),
        ("a.csv", "pe,seed,value\nrope,1,2\nrope,1,3\n", "different numbers for all runs, seed 1"),
        (
            "a.csv",
            "pe,seed,value,value\nrope,1,2,3\n",
            "has no name, or two columns have the same name",
        ),  # as a join leaves it
        (
            "a.csv",
            ",pe,value\n0,rope,1\n1,rope,2\n",
            "has no name, or two columns have the same name",
        ),  # the index of pandas
        ("a.csv", "pe,length,value\nrope,long,1\n", "line 2: length=long must be a number"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(write(tmp_path, text, name))
