"""The standard set of `roundround bench`, the values that variants reached on it, and how two variants compare.

A set is yamls: conf/bench/v1.yaml and a part in each file of conf/bench/v1. A standing is a json file: what one variant
reached, seed by seed. The package has some in roundround/standings.

Tested by tests/analysis/test_standings.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roundround.analysis.intervals import fitted_prior, holm, moderated
from roundround.analysis.past_run import is_number
from roundround.config.options import options_of
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import parse_json, read_text

STANDINGS = Path(__file__).parents[1] / "standings"
GROUPS = ("pe", "softmax", "qk_norm", "gate", "pattern")  # what a variant may choose; all else is the set's
USUAL = {"pe": "rope", "softmax": "softmax", "qk_norm": "none", "gate": "none", "pattern": "uniform"}
SIGNIFICANT = 0.05
BETTER, WORSE, NOT_TOLD_APART, NOT_TESTED, NOT_JUDGED = "better", "worse", "not told apart", "not tested", ""
NO_VALUE = "no value"
MEASURES = ("costs", "places", "promises")  # of asking/bench_measures.py
SIZE = "default"  # the size of the stored values
# the most degrees of freedom of a prior: all differences share the seeds of the baseline, and with more, p is too small
MOST_DEGREES = 8.0
DECIDES = ("train", "looks", "keeps", "measures", "model_of")  # keys of a part on which numbers depend
Variant = dict[str, str]


# -- the set


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number that is compared. number: which, such as exact_match@20. better: higher, lower, or none: not judged."""

    name: str
    part: str
    number: str
    unit: str
    better: str

    def verdict(self, difference: float, p: float) -> str:
        """By the p-value after Holm's correction."""
        if self.better == "none":
            return NOT_JUDGED
        if math.isnan(p):
            return NOT_TESTED
        if p >= SIGNIFICANT:
            return NOT_TOLD_APART
        return BETTER if (difference > 0) == (self.better == "higher") else WORSE


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is trained, how the trained model is measured, and which numbers are kept.

    train: words of `roundround train`. looks: verbs with their words, on that run. measures, model_of: for a part that
    trains nothing, the name of the measurement and the part whose model is measured. keeps: by metric, how the records
    of one length are reduced: each, mean or max over heads.
    """

    name: str
    question: str
    columns: tuple[Column, ...]
    train: tuple[str, ...] = ()
    looks: tuple[tuple[str, ...], ...] = ()
    keeps: Mapping[str, str] = field(default_factory=dict)
    measures: str = ""
    model_of: str = ""

    def numbers_of(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The numbers that the part keeps of a verb's records, by metric@length.

        Numbers by position in the window are kept for the longest windows, by metric:position@last position.
        """
        found: dict[str, list[float]] = {}
        longest = max((record["length"] for record in records if "length" in record), default=None)
        for record in records:
            metric, length = record["metric"], record.get("length")
            per_head, by_position = "head" in record, "first_position" in record
            if metric not in self.keeps or per_head != (self.keeps[metric] != "each") or "depth" in record:
                continue
            if not by_position:
                name = metric if length is None else f"{metric}@{length}"
            elif length == longest:
                name = f"{metric}:position@{record['last_position']}"
            else:
                continue
            found.setdefault(name, []).append(float(record["value"]))  # float("nan") too
        over: dict[str, Callable[[list[float]], float]] = {"each": max, "mean": statistics.fmean, "max": max}
        return {name: over[self.keeps[re.split("[:@]", name)[0]]](some) for name, some in found.items()}


@dataclass(frozen=True, kw_only=True)
class StandardSet:
    """Parts in their order, and the words of every training. hash: it covers all that decides a number.

    rate: the learning rate. size: which of the set's sizes, with its own `more` words. is_standard: whether the values
    that travel with the package were made by it, as it is now, at the usual size.
    """

    name: str
    size: str
    hash: str
    is_standard: bool
    train: tuple[str, ...]
    more: tuple[str, ...]
    rate: float
    tuned: tuple[float, ...]
    parts: tuple[Part, ...]

    @property
    def columns(self) -> list[Column]:
        return [column for part in self.parts for column in part.columns]

    def words(self, part: Part, variant: Variant, seed: int, rate: float) -> list[str]:
        """What follows `roundround train`."""
        own = [f"{key}={value}" for key, value in variant.items()]
        return [*self.train, *part.train, *self.more, *own, f"seed={seed}", f"optim.lr={rate:g}"]


def read_set(name: str, size: str, config_dir: str | None) -> StandardSet:
    """The set of this name, from roundround or from the user's folder. UserError where there is none."""
    found = options_of("bench", config_dir)
    sets = {option: path for option, path in found.items() if "/" not in option}
    if name not in sets:
        raise UserError(f"no set={name}{nearest(name, sets)}")
    try:
        return set_of(name, size, read_yaml(sets[name]), found)
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise UserError(f"{sets[name]} or one of its parts is not written as conf/bench/v1 is: {error}") from error


def set_of(name: str, size: str, whole: Mapping[str, Any], found: Mapping[str, Path]) -> StandardSet:
    if size not in (sizes := whole["sizes"]):
        raise UserError(f"no size={size}{nearest(size, sizes)}")
    parts = {part: read_yaml(found[f"{name}/{part}"]) for part in whole["parts"]}
    decides = {
        "train": whole["train"],
        "rates": [whole["rate"]],
        "parts": {part: {key: node.get(key) for key in DECIDES} for part, node in parts.items()},
    }
    texts = {one: json.dumps({**decides, "more": more}, sort_keys=True) for one, more in sizes.items()}
    hashes = {one: hashlib.sha256(text.encode()).hexdigest()[:16] for one, text in texts.items()}
    return StandardSet(
        name=name,
        size=size,
        hash=hashes[size],
        is_standard=any(standing.hash == hashes.get(SIZE) for standing in stored(name, SIZE)),
        train=tuple(whole["train"]),
        more=tuple(sizes[size]),
        rate=whole["rate"],
        tuned=tuple(whole["tuned"]),
        parts=tuple(part_of(part, node) for part, node in parts.items()),
    )


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def part_of(name: str, node: Mapping[str, Any]) -> Part:
    if (measures := node.get("measures", MEASURES[0])) not in MEASURES:
        raise UserError(f"part {name}: no measures: {measures}{nearest(measures, MEASURES)}")
    columns = tuple(Column(name=key, part=name, **column) for key, column in node["columns"].items())
    for column in columns:
        if column.better not in ("higher", "lower", "none"):
            raise UserError(f"part {name}: better: {column.better} of {column.name} must be higher, lower or none")
    own = {key: value for key, value in node.items() if key != "columns"}
    own["train"], own["looks"] = tuple(node.get("train", ())), tuple(map(tuple, node.get("looks", ())))
    return Part(name=name, columns=columns, **own)


# -- variants


def variants_of(words: Sequence[str]) -> list[Variant]:
    """The variants that `pe=a,b softmax=c` names: every combination. UserError for what a set fixes."""
    choices: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value or key.split(".")[0] not in GROUPS:
            raise UserError(
                f"{word}: the set fixes everything but {', '.join(GROUPS)}; another set is a yaml of your own, "
                "bench/NAME.yaml below --config-dir, and set=NAME"
            )
        if key in choices:
            raise UserError(f"{key} is given twice; {key}={','.join(choices[key])},{value} names them all")
        choices[key] = value.split(",") if "." not in key else [value]
    return [complete(dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def complete(variant: Variant) -> Variant:
    """The variant with rope and softmax where it names none, and without the usual options of other groups."""
    whole = {key: variant.get(key, USUAL[key]) for key in ("pe", "softmax")} | variant
    return {key: value for key, value in whole.items() if key in ("pe", "softmax") or USUAL.get(key) != value}


def format_variant(variant: Mapping[str, str]) -> str:
    """`p_rope`, `rope + ssmax`: the plain softmax is not named."""
    named = [variant["pe"]] + [variant["softmax"]] * (variant["softmax"] != USUAL["softmax"])
    return " + ".join([*named, *(f"{k}={v}" for k, v in variant.items() if k not in ("pe", "softmax"))])


# -- the values of a variant


@dataclass(frozen=True)
class SeedValues:
    """What one seed of a variant reached: numbers by part and metric@length, None where there is none.

    remarks: by part, what a number does not say. made: the seed, the commit, the machine, the command and the minutes.
    """

    numbers: dict[str, dict[str, float | None]]
    remarks: dict[str, list[str]]
    made: dict[str, Any]


@dataclass
class Standing:
    """What a variant reached on a set, by seed."""

    set: str
    size: str
    hash: str
    variant: Variant
    rate: float
    seeds: dict[int, SeedValues] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return format_variant(self.variant)

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w.=+-]+", "_", "+".join(f"{k}={v}" for k, v in self.variant.items())) + ".json"

    def add(
        self,
        seed: int,
        numbers: Mapping[str, Mapping[str, float]],
        remarks: Mapping[str, Sequence[str]],
        made: dict[str, Any],
    ) -> None:
        """The values of another seed, by part and metric@length, with remarks by part."""
        finite_ones = {part: {name: finite(value) for name, value in some.items()} for part, some in numbers.items()}
        by_part = {part: [f"seed {seed}: {remark}" for remark in some] for part, some in remarks.items() if some}
        self.seeds[seed] = SeedValues(finite_ones, by_part, {"seed": seed, **made})

    def without(self, seeds: Sequence[int]) -> Standing:
        """The same without the values of these seeds."""
        return replace(self, seeds={seed: values for seed, values in self.seeds.items() if seed not in seeds})

    def values(self, column: Column) -> dict[int, float]:
        return self.series(column.part, column.number)

    def mean(self, column: Column) -> float | None:
        numbers = self.values(column).values()
        return statistics.fmean(numbers) if numbers else None

    def series(self, part: str, number: str) -> dict[int, float]:
        """The value of each seed that has one."""
        found = {seed: values.numbers.get(part, {}).get(number) for seed, values in self.seeds.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def curve(self, part: str, metric: str) -> dict[int, list[float]]:
        """A metric by length: the values of all seeds at each."""
        names = {name for values in self.seeds.values() for name in values.numbers.get(part, {})}
        at = sorted(int(name.rpartition("@")[2]) for name in names if re.fullmatch(re.escape(metric) + r"@\d+", name))
        return {length: [*self.series(part, f"{metric}@{length}").values()] for length in at}

    def remarks(self) -> dict[str, list[str]]:
        """Those of all seeds, by part."""
        found: dict[str, list[str]] = {}
        for values in self.seeds.values():
            for part, some in values.remarks.items():
                found.setdefault(part, []).extend(some)
        return found

    def as_json(self) -> str:
        """With a line for each list of numbers, so that two files can be compared line by line."""
        numbers: dict[str, dict[str, list[float | None]]] = {}
        for part, name in [
            (p, n) for values in self.seeds.values() for p, some in values.numbers.items() for n in some
        ]:
            column = [values.numbers.get(part, {}).get(name) for values in self.seeds.values()]
            numbers.setdefault(part, {})[name] = column
        whole = vars(self) | {
            "seeds": [*self.seeds],
            "numbers": numbers,
            "remarks": self.remarks(),
            "made": [values.made for values in self.seeds.values()],
        }
        text = json.dumps(whole, indent=1)
        return re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read_standing(path: Path) -> Standing:
    """A file of values. UserError, which says what is wrong with it, for any other."""
    try:
        values = parse_json(read_text(path))
        columns = [column for some in values["numbers"].values() for column in some.values()]
        if not all(value is None or is_number(value) for column in columns for value in column):
            raise ValueError("numbers must be finite, or null")
        made = {one["seed"]: one for one in values["made"]}
        if [*made] != values["seeds"] or not {len(column) for column in columns} <= {len(made)}:
            raise ValueError("numbers and made must have an item for each of the seeds, in their order")
        if not {"pe", "softmax"} <= values["variant"].keys():
            raise ValueError("variant names no pe or no softmax")
        seeds = {
            seed: SeedValues(
                {part: {name: c[n] for name, c in some.items()} for part, some in values["numbers"].items()},
                {
                    part: own
                    for part, remarks in values["remarks"].items()
                    if (own := [remark for remark in remarks if remark.startswith(f"seed {seed}:")])
                },
                made[seed],
            )
            for n, seed in enumerate(made)
        }
        return Standing(**{key: values[key] for key in ("set", "size", "hash", "variant", "rate")}, seeds=seeds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no file of values as roundround bench leaves it: {one_line(error)}") from error


def stored(name: str, size: str) -> list[Standing]:
    """The values in the package."""
    return [read_standing(path) for path in sorted((STANDINGS / name / size).glob("*.json"))]


def joined(first: Standing, second: Standing) -> Standing:
    """The seeds of both; the first one's values of a seed that both have."""
    return replace(first, seeds=first.seeds | second.without([*first.seeds]).seeds)


# -- how two compare


def priors(baseline: Standing, found: Sequence[Standing], columns: Sequence[Column]) -> list[tuple[float, float]]:
    """For each column the prior of the variance, from the differences of all variants from the baseline."""
    others = [standing for standing in found if standing is not baseline]
    fitted = (fitted_prior([paired(other, baseline, column) for other in others]) for column in columns)
    return [(variance, min(degrees, MOST_DEGREES)) for variance, degrees in fitted]


def compared(
    own: Standing, baseline: Standing, of_columns: Sequence[tuple[float, float]], columns: Sequence[Column]
) -> list[dict[str, Any]]:
    """A record for each column: the variant's mean, and its difference from the baseline, paired by seed.

    of_columns: the prior of each column (`priors`). p_holm is corrected over the columns that are judged. None: no such
    number.
    """
    pairs = [[] if own is baseline else paired(own, baseline, column) for column in columns]
    tests = [moderated(values, prior) for values, prior in zip(pairs, of_columns, strict=True)]
    judged = [n for n, column in enumerate(columns) if column.better != "none" and own is not baseline]
    corrected = dict(zip(judged, holm([tests[n].p for n in judged]), strict=True))
    found = []
    for n, (column, values, test) in enumerate(zip(columns, pairs, tests, strict=True)):
        mean, p = own.mean(column), corrected.get(n, math.nan) if values else math.nan
        found.append(
            {
                "metric": column.name,
                "part": column.part,
                "variant": own.name,
                "value": mean,
                "difference": finite(test.mean),
                "difference_low": finite(test.low),
                "difference_high": finite(test.high),
                "p": finite(test.p),
                "p_holm": finite(p),
                "verdict": column.verdict(test.mean, p) if values else NO_VALUE if mean is None else NOT_JUDGED,
                "n_seeds": len(own.values(column)),
                "n_pairs": len(values),
                "unit": column.unit,
                "better": column.better,
            }
        )
    return found


def paired(own: Standing, baseline: Standing, column: Column) -> list[float]:
    """The difference of each seed that both have."""
    mine, theirs = own.values(column), baseline.values(column)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
