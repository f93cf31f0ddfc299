"""The standard set of `roundround bench`, the values that variants reached on it, and how two variants compare.

A set is yamls: conf/bench/v1.yaml and a part in each file of conf/bench/v1. A standing is a json file: what one variant
reached, seed by seed. Those that travel with the package lie in roundround/standings.

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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roundround.analysis.intervals import fitted_prior, holm, moderated
from roundround.config.options import options_of
from roundround.records.directories import fault_in
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import parse_json, read_text

STANDINGS = Path(__file__).parents[1] / "standings"
GROUPS = ("pe", "softmax", "qk_norm", "gate", "pattern")  # what a variant may choose; all else is the set's
USUAL = {"pe": "rope", "softmax": "softmax", "qk_norm": "none", "gate": "none", "pattern": "uniform"}
SIGNIFICANT = 0.05
BETTER, WORSE, NOT_TOLD_APART, NOT_TESTED, NOT_JUDGED = "better", "worse", "not told apart", "not tested", ""
NO_VALUE = "no value"
MEASURES = ("costs", "places", "promises")  # of asking/bench_measures.py
SIZE = "default"  # that of the stored values
# of a prior, as all differences share the seeds of the baseline: with more, p of equal variants is too small
MOST_DEGREES = 8.0
LARGEST = 1 << 20  # bytes of a file of values
FIELDS = {  # of a file of values
    **dict.fromkeys(("set", "size", "hash"), str),
    **dict.fromkeys(("variant", "numbers", "remarks"), dict),
    "rate": int | float,
    **dict.fromkeys(("seeds", "made"), list),
}
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
    """What is trained, what the trained model is asked, and which numbers are kept of it.

    train: words of `roundround train`. looks: verbs with their words, on that run. measures: of a part that trains
    nothing, the part whose model is looked at, and the name of the measurement. keeps: by metric, what becomes of the
    records of one length: each, mean or max over heads.
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
        """Of what a look left, the numbers that the part keeps, by metric@length.

        Those by position in the window are kept of the longest windows, by metric:position@last position.
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
            found.setdefault(name, []).append(float(record["value"]))  # what is not finite is recorded as its name
        over: dict[str, Callable[[list[float]], float]] = {"each": max, "mean": statistics.fmean, "max": max}
        return {name: over[self.keeps[re.split("[:@]", name)[0]]](some) for name, some in found.items()}


@dataclass(frozen=True, kw_only=True)
class StandardSet:
    """Parts in their order, and the words of every training. hash: of all that decides a number.

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
    """The set of this name, of roundround's own or of the user's folder. UserError where it is none."""
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
    """With rope and softmax where it names neither, and without the options that are the usual ones of other groups."""
    whole = {key: variant.get(key, USUAL[key]) for key in ("pe", "softmax")} | variant
    return {key: value for key, value in whole.items() if key in ("pe", "softmax") or USUAL.get(key) != value}


def format_variant(variant: Mapping[str, str]) -> str:
    """`p_rope`, `rope + ssmax`: the plain softmax goes without saying, and RoPE where the normaliser is another."""
    named = [variant["pe"]] + [variant["softmax"]] * (variant["softmax"] != USUAL["softmax"])
    return " + ".join([*named, *(f"{k}={v}" for k, v in variant.items() if k not in ("pe", "softmax"))])


# -- the values of a variant


@dataclass
class Standing:
    """What a variant reached on a set.

    numbers: by part and by metric@length, the value of each seed, None where there is none. remarks: by part, what
    happened there that a number does not say. made: of each seed the commit, the machine, the command and the minutes.
    """

    set: str
    size: str
    hash: str
    variant: Variant
    rate: float
    seeds: list[int] = field(default_factory=list)
    numbers: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)

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
        remarks: Sequence[tuple[str, str]],
        made: dict[str, Any],
    ) -> None:
        """The values of another seed, by part and metric@length."""
        for part, found in numbers.items():
            for name, value in found.items():
                column = self.numbers.setdefault(part, {}).setdefault(name, [None] * len(self.seeds))
                column.append(value if math.isfinite(value) else None)
        self.seeds.append(seed)
        for column in (column for some in self.numbers.values() for column in some.values()):
            column += [None] * (len(self.seeds) - len(column))
        for part, remark in remarks:
            self.remarks.setdefault(part, []).append(f"seed {seed}: {remark}")
        self.made.append({"seed": seed, **made})

    def without(self, seeds: Sequence[int]) -> Standing:
        """The same without the values of these seeds."""
        return joined(replace(self, seeds=[]), self, but=seeds)

    def values(self, column: Column) -> dict[int, float]:
        return self.series(column.part, column.number)

    def mean(self, column: Column) -> float | None:
        numbers = self.values(column).values()
        return statistics.fmean(numbers) if numbers else None

    def series(self, part: str, number: str) -> dict[int, float]:
        """The value of each seed that has one."""
        some = self.numbers.get(part, {}).get(number, [])
        return {seed: value for seed, value in zip(self.seeds, some, strict=False) if value is not None}

    def curve(self, part: str, metric: str) -> dict[int, list[float]]:
        """A metric by length: the values of all seeds at each."""
        found = {}
        for name in self.numbers.get(part, {}):
            own, at, length = name.partition("@")
            if own == metric and at and length.isdigit():
                found[int(length)] = list(self.series(part, name).values())
        return dict(sorted(found.items()))

    def as_json(self) -> str:
        """With a line for each list of numbers, so that two files can be compared line by line."""
        text = json.dumps(asdict(self), indent=1)
        return re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read_standing(path: Path) -> Standing:
    """A file of values. UserError, which says what is wrong with it, for any other."""
    try:
        values = parse_json(read_text(path, LARGEST))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no file of values as roundround bench leaves it: {one_line(error)}") from error
    fault = fault_in(values, FIELDS) if isinstance(values, dict) else "it holds no values by name"
    if fault is None:
        lengths = {len(column) for part in values["numbers"].values() for column in part.values()}
        if not lengths <= {len(values["seeds"])} or [one.get("seed") for one in values["made"]] != values["seeds"]:
            fault = "numbers and made must have an item for each of the seeds, in their order"
    if fault is not None:
        raise UserError(f"{path} is no file of values as roundround bench leaves it: {fault}")
    return Standing(**{key: values[key] for key in FIELDS})


def stored(name: str, size: str) -> list[Standing]:
    """The values that travel with the package."""
    return [read_standing(path) for path in sorted((STANDINGS / name / size).glob("*.json"))]


def joined(first: Standing, second: Standing, *, but: Sequence[int] = ()) -> Standing:
    """The seeds of both, but for some; of one that both have, the first one's values."""
    whole = replace(first, seeds=[], numbers={}, remarks={}, made=[])
    for source in (first, second):
        for place, seed in enumerate(source.seeds):
            if seed in whole.seeds or seed in but:
                continue
            numbers = {
                part: {name: math.nan if c[place] is None else c[place] for name, c in some.items()}
                for part, some in source.numbers.items()
            }
            whole.add(seed, numbers, [], {k: v for k, v in source.made[place].items() if k != "seed"})  # type: ignore[arg-type]
            for part, told in source.remarks.items():
                if own := [remark for remark in told if remark.startswith(f"seed {seed}:")]:
                    whole.remarks.setdefault(part, []).extend(own)
    return whole


# -- how two compare


@dataclass(frozen=True)
class Comparison:
    """A variant's number beside the baseline's, paired by seed; None where there is none.

    mean: of all the variant's seeds. low, high: the 95 % interval of the difference. p_holm: corrected for the columns.
    """

    column: Column
    mean: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    n_pairs: int = 0
    verdict: str = NOT_JUDGED


def priors(baseline: Standing, found: Sequence[Standing], columns: Sequence[Column]) -> list[tuple[float, float]]:
    """For each column what the differences of all variants from the baseline say of how such differences vary."""
    others = [standing for standing in found if standing is not baseline]
    fitted = (fitted_prior([paired(other, baseline, column) for other in others]) for column in columns)
    return [(variance, min(degrees, MOST_DEGREES)) for variance, degrees in fitted]


def compared(
    own: Standing, baseline: Standing, of_columns: Sequence[tuple[float, float]], columns: Sequence[Column]
) -> list[Comparison]:
    """Every column, with Holm's correction over those that are judged; of_columns: the prior of each (`priors`)."""
    pairs = [paired(own, baseline, column) for column in columns]
    tests = [moderated(values, prior) for values, prior in zip(pairs, of_columns, strict=True)]
    judged = [n for n, column in enumerate(columns) if column.better != "none" and own is not baseline]
    corrected = dict(zip(judged, holm([tests[n].p for n in judged]), strict=True))
    found = []
    for n, (column, values, test) in enumerate(zip(columns, pairs, tests, strict=True)):
        mean = own.mean(column)
        if own is baseline or not values:
            found.append(Comparison(column, mean, verdict=NO_VALUE if mean is None else NOT_JUDGED))
            continue
        p = corrected.get(n, math.nan)
        told = (test.mean, finite(test.low), finite(test.high), finite(test.p), finite(p), len(values))
        found.append(Comparison(column, mean, *told, column.verdict(test.mean, p)))
    return found


def paired(own: Standing, baseline: Standing, column: Column) -> list[float]:
    """The difference of each seed that both have."""
    mine, theirs = own.values(column), baseline.values(column)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
