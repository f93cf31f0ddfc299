"""What `roundround compare` leaves for other programs: the records of `results.json`, and `comparison.json`.

`results.json` is a flat list, a record for each metric, place and setting that was measured:

    metric        the name of the number, such as perplexity
    verb          what measured it: train, eval, probe, max-retrieval; null where it was read from a csv or jsonl file
    length, ...   the place: context length, n, task, texts, layer, head, ... whichever the measurement has
    settings      {"pe": "rope", "softmax": "softmax"}: the values of the settings that vary, null where there is none
    mean, low, high, n_seeds    mean over the seeds and its 95 % t interval (null for one seed)
    seeds, values               the seeds in order, and the number of each
    baseline                    the settings that this record is compared with; null where with none, or with itself
    n_pairs                     the seeds that both have, whose differences are taken
    difference, difference_low, difference_high    mean of (this - baseline) over these seeds, and its 95 % t interval
    p, p_holm                   of the paired t-test; the same corrected over all settings that are compared with a
                                baseline at this metric and place, those without a p (one seed) included
    p_is_bound                  true where both are upper bounds: the difference is the same in every seed and not 0,
                                and p is 2^(1 - n_pairs), of the signs alone (where it is 0 in every seed, p is 1)
    value                       the mean again: every record of a results.json has a value
    tokens_per_second           of training, the mean over the seeds; null where it is not known
    peak_resident_bytes, peak_device_bytes    the largest over the seeds of the training run; null where not recorded

Every record has all of these fields; a number that does not exist is null. `comparison.json` says the rest once:

    settings   {"pe": ["nope", "rope"], ...}: the settings that vary and their values, in the order of the tables
    baseline   ["pe=rope"]: what was asked for or taken, [] for none
    remarks    sentences that a reader has to know: few seeds, what makes runs incomparable, what is missing
    skipped    [{"run": DIR, "why": "failed: ..."}]: runs that were named and are not in the numbers
    groups     [{"verb", "settings", "seeds", "runs"}]: the directories (or the file) behind each setting
    of_tasks   true where lengths are those of tasks, which count what their papers count; else they are tokens
    curves     [{"settings", "metric", "tokens", "mean", "low", "high", "n_seeds"}]: training curves, thinned
    figures    names of the figures in figures/, without .svg and .pdf

`comparison.csv` holds the records of `results.json`, `comparison.md` and `comparison.tex` the tables for people.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundround.analysis.comparison import Comparison


def summary(found: Comparison, curves: Sequence[dict[str, Any]], figures: Sequence[Path]) -> dict[str, Any]:
    """What comparison.json says."""
    return {
        "settings": found.settings,
        "baseline": [] if found.baseline is None else found.baseline.words,
        "remarks": found.remarks,
        "skipped": [{"run": run, "why": why} for run, why in found.skipped],
        "groups": [
            {
                "verb": group.verb,
                "settings": group.settings,
                "seeds": group.seeds,
                "runs": list(dict.fromkeys(replicate.origin for replicate in group.replicates)),
            }
            for group in found.groups
        ],
        "of_tasks": found.of_tasks,
        "curves": list(curves),
        "figures": list(dict.fromkeys(path.stem for path in figures)),
    }
