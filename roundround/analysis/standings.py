"""The standard set of `roundround bench`, the values that variants reached on the set, and comparisons of two variants.

A set consists of conf/bench/v2.yaml and of one yaml file for each part, in the folder conf/bench/v2. A standing is a
json file with the values that one variant reached, seed by seed. The package's own standings are in
roundround/standings. A history is a file with the tries of a search and what was decided on each.

Tested by tests/analysis/test_standings.py; the tries of a search by tests/analysis/test_search.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from scipy import special

from roundround.analysis.intervals import ROUNDING, e_needed, e_value, error_widths, holm, p_of_mean
from roundround.analysis.past_run import is_number
from roundround.config.options import options_of
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import parse_json, read_text, write_atomically

STANDINGS = Path(__file__).parents[1] / "standings"
GROUPS = (
    "pe",
    "softmax",
    "qk_norm",
    "gate",
    "mix",
    "attention",
    "pattern",
)  # a variant may choose these; the set fixes the rest
USUAL = {
    "pe": "rope",
    "softmax": "softmax",
    "qk_norm": "none",
    "gate": "none",
    "mix": "none",
    "attention": "grouped",
    "pattern": "uniform",
}
SIGNIFICANT = 0.05
BETTER, WORSE, EQUIVALENT, NO_CLEAR = "better", "worse", "equivalent", "no clear difference"
NOT_TESTED, NO_VALUE, NOT_JUDGED = "not tested", "no value", ""
SIZE = "default"  # the size of the stored values
TUNED = "tuned"  # the folder with stored values at the set's second rate
RATE = "optim.lr"  # of a variant at the second rate
LEAST_SPREAD = 0.01  # of a number over seeds: many are at their ceiling in all variants that are alike
OF_ALL_SEEDS = ("set", "size", "hash", "variant", "rate")  # keys of a standing's file that hold for all its seeds
DECIDES = ("train", "looks", "keeps", "measures", "model_of")  # keys of a part on which numbers depend
Variant = dict[str, str]
Array = NDArray[np.float64]


# -- the set


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the comparison of variants, for one number that a part measures.

    number: the metric and the length, such as exact_match@20, or a difference of two, such as loss@1024 - loss@128.
    better: the better direction, `higher` or `lower`; `none` if differences get no verdict. margin: the largest
    difference that does not matter; None for no margin. gate: the column of the same task within its trained lengths;
    if a variant is worse there, this column is not tested. weight: in Holm's correction, for a column that is judged.
    """

    name: str
    part: str
    number: str
    unit: str
    better: str
    margin: float | None = None
    gate: str | None = None
    weight: float = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the set: a model to train, the commands that measure it, and the numbers to keep.

    train: the words after `roundround train`. looks: the commands that measure the trained model, each a verb and the
    words after it. keeps: a dict whose keys are the metrics to keep. For a metric with a value for each head, the dict
    says how to combine the values of the heads, `mean` or `max`; for any other metric it says `each`.

    A part that trains nothing measures the model of another part. model_of: the name of the part that trained the
    model. measures: the function in asking/bench_measures.py that measures the model (costs, places or promises).
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
        """The numbers that the part keeps from a verb's records: a dict with keys of the form metric@length.

        A number for a range of positions is kept only at the largest length, with the key
        metric:position@last_position.
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
            found.setdefault(name, []).append(float(record["value"]))  # also from the text "nan"
        over: dict[str, Callable[[list[float]], float]] = {"each": max, "mean": statistics.fmean, "max": max}
        return {name: over[self.keeps[re.split("[:@]", name)[0]]](some) for name, some in found.items()}


@dataclass(frozen=True, kw_only=True)
class StandardSet:
    """A standard set at one of its sizes.

    parts: the parts in order. train: the command-line words that all trainings share. more: the command-line words that
    this size adds to all trainings. rate: the learning rate. tuned_rate: another, for those that ask; None if there is
    none. hash: the hash of everything in the set that can change a number. like: stored variants close to RoPE, which
    say how much numbers vary over seeds; like_tuned: the same at tuned_rate. newer: the version that replaces this one;
    None for the newest. decides: the column by which a search keeps variants, how a difference in it varies over seeds
    (a standard deviation), and the differences to look for; None if the set does not say. is_standard: True if this is
    the default size, and the package has standings of this version of the set.
    """

    name: str
    size: str
    hash: str
    is_standard: bool
    train: tuple[str, ...]
    more: tuple[str, ...]
    rate: float
    parts: tuple[Part, ...]
    like: tuple[Standing, ...] = ()
    like_tuned: tuple[Standing, ...] = ()
    newer: str | None = None
    tuned_rate: float | None = None
    decides: tuple[Column, float, tuple[float, ...]] | None = None

    @property
    def columns(self) -> list[Column]:
        return [column for part in self.parts for column in part.columns]

    @cached_property
    def usual(self) -> dict[tuple[str, bool], tuple[float, int]]:
        """`usual_variance` of each column: at the first learning rate (False), and the larger one of both (True)."""
        first = {(column.name, False): usual_variance(column, self.like) for column in self.columns}
        second = {column.name: usual_variance(column, self.like_tuned) for column in self.columns}
        return first | {(name, True): max(first[name, False], one) for name, one in second.items()}

    def words(self, part: Part, variant: Variant, seed: int) -> list[str]:
        """The words after `roundround train`, without usual options: some layers refuse any encoding or normaliser."""
        own = {RATE: f"{self.rate:g}"} | variant | {"seed": str(seed)}
        return [*self.train, *part.train, *self.more, *(f"{k}={v}" for k, v in own.items() if USUAL.get(k) != v)]


def read_set(name: str, size: str, config_dir: str | None) -> StandardSet:
    """Read a set from roundround or from the user's folder. Raises UserError if it does not exist or is malformed."""
    found = options_of("bench", config_dir)
    sets = {option: path for option, path in found.items() if "/" not in option}
    if name not in sets:
        raise UserError(f"no set={name}{nearest(name, sets)}")
    try:
        return set_of(name, size, read_yaml(sets[name]), found)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OSError, OmegaConfBaseException) as error:
        raise UserError(f"{sets[name]} or one of its parts does not have the form of conf/bench/v2: {error}") from error


def set_of(name: str, size: str, whole: Mapping[str, Any], found: Mapping[str, Path]) -> StandardSet:
    if size not in (sizes := whole["sizes"]):
        raise UserError(f"no size={size}{nearest(size, sizes)}")
    parts = {part: read_yaml(found[f"{name}/{part}"]) for part in whole["parts"]}
    kept = {part: {key: node.get(key) for key in DECIDES} for part, node in parts.items()}
    texts = {
        one: json.dumps(
            {"train": whole["train"], "rates": [whole["rate"]], "parts": kept, "more": more}, sort_keys=True
        )
        for one, more in sizes.items()
    }
    hashes = {one: hashlib.sha256(text.encode()).hexdigest()[:16] for one, text in texts.items()}
    known, known_values = tuple(part_of(part, node) for part, node in parts.items()), stored(name, SIZE)
    columns, alike = {column.name: column for part in known for column in part.columns}, whole.get("like", ())
    for column in columns.values():
        assert column.gate is None or column.gate in {*columns} - {column.name}, f"gate: {column.gate} of {column.name}"
        judged = column.better != "none" and all(column.name != one.gate for one in columns.values())
        assert judged or column.weight == 1, f"weight: {column.name} is not judged"
    unknown = {*alike} - {one.name for one in known_values}
    assert not unknown, f"like: {', '.join(sorted(map(str, unknown)))} have no stored values"
    tuned = None if whole.get("tuned_rate") is None else float(whole["tuned_rate"])
    assert tuned is None or (tuned != whole["rate"] and 0 < tuned < math.inf), f"tuned_rate: {tuned}"
    like = [
        one
        for one in ([*known_values, *stored(name, TUNED)] if size == SIZE else ())
        if format_variant({key: value for key, value in one.variant.items() if key != RATE}) in alike
    ]
    return StandardSet(
        name=name,
        size=size,
        hash=hashes[size],
        is_standard=any(standing.hash == hashes.get(SIZE) for standing in known_values),
        train=tuple(whole["train"]),
        more=tuple(sizes[size]),
        rate=whole["rate"],
        parts=known,
        like=tuple(one for one in like if RATE not in one.variant),
        like_tuned=tuple(one for one in like if RATE in one.variant),
        newer=whole.get("newer"),
        tuned_rate=tuned,
        decides=None
        if size != SIZE or (search := whole.get("decides")) is None  # at other sizes differences vary otherwise
        else (
            columns[search["column"]],
            float(search["spread"]),
            tuple(map(float, search["effects"])),
        ),
    )


def read_yaml(path: Path) -> dict[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def part_of(name: str, node: Mapping[str, Any]) -> Part:
    columns = tuple(Column(name=key, part=name, **column) for key, column in node["columns"].items())
    for column in columns:
        assert column.better in ("higher", "lower", "none"), f"better: {column.better} of {column.name}"
        assert column.margin is None or (is_number(column.margin) and column.margin >= 0), f"margin of {column.name}"
        assert (is_number(column.weight) and column.weight) > 0, f"weight of {column.name}"
        named = re.fullmatch(r"([^@:\s]+)(@\d+)?( - ([^@:\s]+)(@\d+)?)?", str(column.number))
        known = named and ("measures" in node or {named[1], named[4]} - {None} <= {*node.get("keeps", ())})
        assert known, f"number: {column.number} of {column.name} is not among what the part keeps"
    own = {"train": tuple(node.get("train", ())), "looks": tuple(map(tuple, node.get("looks", ())))}
    return Part(name=name, columns=columns, **{key: node[key] for key in node if key != "columns"} | own)


# -- variants


def variants_of(words: Sequence[str], options: Iterable[str] = ()) -> list[Variant]:
    """Every combination of the options in words such as `pe=a,b softmax=c`.

    options: the other options of the command, which a wrong word may have meant. Raises UserError for a setting that
    the set fixes.
    """
    choices: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not value:
            name = "NAME" if equals else word
            raise UserError(f"{word} is no setting; write pe={name}, softmax={name}, or another of {', '.join(GROUPS)}")
        if key.split(".")[0] not in GROUPS:
            more = "; to change more, write a set of your own as bench/NAME.yaml below --config-dir, and give set=NAME"
            guess = nearest(key, [*GROUPS, *options]).partition(" (")[0]
            raise UserError(f"{word}: the set fixes everything except {', '.join(GROUPS)}{guess or more}")
        choices.setdefault(key, []).extend(value.split(",") if "." not in key else [value])
    return [complete(dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def complete(variant: Variant) -> Variant:
    """The variant in standard form: pe, softmax, and by name the other groups whose option differs from USUAL."""
    whole = {key: variant.get(key, USUAL[key]) for key in ("pe", "softmax")} | dict(sorted(variant.items()))
    return {key: value for key, value in whole.items() if key in ("pe", "softmax") or USUAL.get(key) != value}


def format_variant(variant: Mapping[str, str]) -> str:
    """The variant as text, such as `p_rope` or `rope + ssmax`; the plain softmax is not named."""
    named = [variant["pe"]] + [variant["softmax"]] * (variant["softmax"] != USUAL["softmax"])
    return " + ".join([*named, *(f"{k}={v}" for k, v in variant.items() if k not in ("pe", "softmax"))])


# -- the values of a variant


@dataclass
class Standing:
    """The values that a variant reached on a set.

    numbers: a dict from (part, metric@length) to the value of each seed that has one. remarks: a dict from each part to
    lines, each of which begins with a seed. made: a dict from each seed to the commit, the machine, the command and the
    minutes that the seed took. tuned: the parts whose values are those of the set's second learning rate.
    """

    set: str
    size: str
    hash: str
    variant: Variant
    rate: float
    numbers: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    tuned: tuple[str, ...] = ()

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
        """Add the values of another seed, numbers[part][metric@length], and the seed's remarks, remarks[part]."""
        self.made[seed] = {"seed": seed, **made}
        for part, own in numbers.items():
            for name, value in own.items():
                self.numbers.setdefault((part, name), {}).update({seed: value} if math.isfinite(value) else {})
        for part, lines in remarks.items():
            if lines:
                self.remarks.setdefault(part, []).extend(f"seed {seed}: {line}" for line in lines)

    def failed(self, parts: Sequence[Part]) -> frozenset[int]:
        """The seeds for which one of the parts has no number."""
        has = {(part, seed) for (part, _), values in self.numbers.items() for seed in values}
        return frozenset(seed for seed in self.made if any((part.name, seed) not in has for part in parts))

    def without(self, seeds: Collection[int]) -> Standing:
        """A copy without the values of these seeds."""
        gone = tuple(f"seed {seed}:" for seed in seeds)
        remarks = {part: [line for line in some if not line.startswith(gone)] for part, some in self.remarks.items()}
        return replace(
            self,
            numbers={name: {n: v for n, v in some.items() if n not in seeds} for name, some in self.numbers.items()},
            remarks={part: some for part, some in remarks.items() if some},
            made={seed: made for seed, made in self.made.items() if seed not in seeds},
        )

    def values(self, column: Column) -> dict[int, float]:
        first, _, second = column.number.partition(" - ")
        own, less = (self.numbers.get((column.part, name), {}) for name in (first, second))
        return {seed: value - less[seed] for seed, value in own.items() if seed in less} if second else own

    def mean(self, column: Column) -> float | None:
        numbers = self.values(column).values()
        return statistics.fmean(numbers) if numbers else None

    def curve(self, part: str, metric: str) -> dict[int, list[float]]:
        """The values of all seeds at each length, for a metric of a part."""
        found = {
            int(name.rpartition("@")[2]): [*values.values()]
            for (own, name), values in self.numbers.items()
            if own == part and re.fullmatch(re.escape(metric) + r"@\d+", name)
        }
        return dict(sorted(found.items()))

    def as_json(self) -> str:
        """As json with one line for each list of numbers, so that two files can be compared line by line."""
        numbers: dict[str, dict[str, list[float | None]]] = {}
        for (part, name), values in self.numbers.items():
            numbers.setdefault(part, {})[name] = [values.get(seed) for seed in self.made]
        more = {"seeds": [*self.made], "numbers": numbers, "remarks": self.remarks, "made": [*self.made.values()]}
        text = json.dumps({key: getattr(self, key) for key in OF_ALL_SEEDS} | more, indent=1)
        return re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read_standing(path: Path) -> Standing:
    """Read a standing from a file. Raises UserError, which says what is wrong, if the file contains no standing."""
    try:
        values = parse_json(read_text(path))
        numbers = {
            (part, name): {seed: v for seed, v in zip(values["seeds"], column, strict=True) if v is not None}
            for part, some in values["numbers"].items()
            for name, column in some.items()
        }
        if not all(is_number(value) and abs(value) < 1e100 for some in numbers.values() for value in some.values()):
            raise ValueError("numbers must be finite, or null")
        if len({*values["seeds"]}) < len(values["seeds"]) or not all(type(seed) is int for seed in values["seeds"]):
            raise ValueError("seeds must be different integers")
        if not all(isinstance(word, str) for word in [*values["variant"].values(), values["variant"]["pe"]]):
            raise ValueError("a variant consists of words")
        remarks = {part: [line.strip() for line in lines] for part, lines in values["remarks"].items()}
        return Standing(
            **{key: values[key] for key in OF_ALL_SEEDS},
            numbers=numbers,
            remarks=remarks,
            made={seed: {**made} for seed, made in zip(values["seeds"], values["made"], strict=True)},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        why = f"no key {error}" if isinstance(error, KeyError) else one_line(error)
        raise UserError(f"{path} is not a file of values that roundround bench wrote: {why}") from error


def stored(name: str, size: str) -> list[Standing]:
    """The standings of a set and size that the package contains."""
    return [read_standing(path) for path in sorted((STANDINGS / name / size).glob("*.json"))]


def at_better_rate(
    found: Mapping[str, Standing], shown: Collection[str], the_set: StandardSet, seeds: Collection[int]
) -> dict[str, Standing]:
    """The shown variants that have these seeds at both rates, by name, with the values of each part at its better rate.

    All get the seeds that all of them have, for one that chose by more seeds than another would not be treated alike.
    A part that measures another's model has its rate, costs the first.
    """
    both = dict[str, tuple[Standing, Standing]]()
    for name in shown:
        first, other = found[name], found.get(format_variant(found[name].variant | {RATE: f"{the_set.tuned_rate:g}"}))
        if other is not None and {*seeds} <= first.made.keys() & other.made.keys():
            both[name] = first, other
    common = set[int].intersection(*({*one.made} for pair in both.values() for one in pair)) if both else set[int]()
    better = dict[str, Standing]()
    for name, pair in both.items():
        first, other = (one.without(one.made.keys() - common) for one in pair)
        tuned = list[str]()
        for part in the_set.parts:
            source = next(p for p in the_set.parts if p.name == (part.model_of or part.name))
            if part.measures != "costs" and (gains(other, first, source) if part is source else source.name in tuned):
                tuned.append(part.name)
        numbers = {key: some for key, some in first.numbers.items() if key[0] not in tuned}
        numbers |= {key: some for key, some in other.numbers.items() if key[0] in tuned}
        remarks = {part: some for part, some in first.remarks.items() if part not in tuned}
        remarks |= {part: some for part, some in other.remarks.items() if part in tuned}
        commits = {n: dict.fromkeys(str(one.made[n].get("commit")) for one in (first, other)) for n in common}
        made = {n: old | {"commit": " and ".join(commits[n])} for n, old in first.made.items()}
        better[name] = replace(first, numbers=numbers, remarks=remarks, made=made, tuned=tuple(tuned))
    return better


def gains(second: Standing, first: Standing, part: Part) -> bool:
    """Whether a part is better at the second rate by its number within the trained lengths (a gate, else the first).

    It is if more seeds have a value, or as many and their mean is better by more than the margin: without the margin a
    variant and the baseline would often be at different rates by chance, and the numbers beyond the trained lengths
    differ by the rate.
    """
    gates, columns = {column.gate for column in part.columns}, [c for c in part.columns if c.better != "none"]
    column = next((c for c in columns if c.name in gates), columns[0] if columns else None)
    if column is None:
        return False
    if more := len(second.values(column)) - len(first.values(column)):
        return more > 0
    sign = 1 if column.better == "higher" else -1
    return sign * statistics.fmean(paired(second, first, column) or [0.0]) > (column.margin or 0.0)


def add(found: dict[str, Standing], standing: Standing) -> None:
    """Add a standing to `found`, under its name. The values of seeds that are already in `found` do not change."""
    first = found.setdefault(standing.name, standing)
    if first is not standing:
        more = standing.without(first.made)
        names, parts = first.numbers | more.numbers, first.remarks | more.remarks
        found[standing.name] = replace(
            first,
            numbers={name: first.numbers.get(name, {}) | more.numbers.get(name, {}) for name in names},
            remarks={part: [*first.remarks.get(part, ()), *more.remarks.get(part, ())] for part in parts},
            made=first.made | more.made,
        )


# -- how two compare


def compared(own: Standing, baseline: Standing, the_set: StandardSet) -> list[dict[str, Any]]:
    """A record for each column: the variant's mean, its difference from the baseline, and the verdict.

    p_holm is p after Holm's correction, by weight, over the judged columns: those with a direction that are no gate. A
    column is not tested if its gate is worse by more than the margin. The gate's own verdict is worse if its whole 95 %
    interval is, and else empty. A number that does not exist is None; the verdict is no value if it lacks in a seed
    that the baseline has. Where either has a part at the second learning rate, the usual variance is the larger one of
    both rates: the loss varies more at the second.
    """
    columns = the_set.columns
    of_gates = {column.gate for column in columns}
    tuned = {*own.tuned, *baseline.tuned}
    tests = {c.name: tested(own, baseline, c, the_set.usual[c.name, c.part in tuned]) for c in columns}
    judged = [column for column in columns if column.better != "none" and column.name not in of_gates]
    p_values = holm([tests[column.name][-1] for column in judged], [column.weight for column in judged])
    corrected = dict(zip([column.name for column in judged], p_values, strict=True))
    missed, clearly = set[str](), set[str]()
    for column in (column for column in columns if column.name in of_gates):
        difference, half, *_ = tests[column.name]
        beyond = (difference if column.better == "lower" else -difference) - (column.margin or 0.0)
        alike = math.isnan(half) and len(paired(own, baseline, column)) > 1  # the same difference in every seed
        missed |= {column.name} if beyond > 0 else set()
        clearly |= {column.name} if beyond > (0.0 if alike else half) else set()
    found = []
    for column in columns:
        (difference, half, within, p), mean = tests[column.name], own.mean(column)
        lost = (own.made.keys() & baseline.values(column).keys()) - own.values(column).keys()
        p_holm = corrected.get(column.name, math.nan)
        if own is baseline or column.name not in corrected:
            verdict = WORSE if column.name in clearly else NOT_JUDGED
        elif mean is None or lost:
            verdict = NO_VALUE
        elif math.isnan(p) or column.gate in missed:
            verdict = NOT_TESTED
        elif p_holm < SIGNIFICANT:
            verdict = WORSE if (difference < 0) == (column.better == "higher") else BETTER
        else:
            verdict = EQUIVALENT if column.margin is not None and within < column.margin else NO_CLEAR
        found.append(
            {
                "metric": column.name,
                "part": column.part,
                "variant": own.name,
                "value": mean,
                "difference": finite(difference),
                "difference_low": finite(difference - half),
                "difference_high": finite(difference + half),
                "p": finite(p),
                "p_holm": finite(p_holm),
                "verdict": verdict,
                "margin": column.margin,
                "weight": column.weight,
                "gate": column.gate,
                "rate": the_set.tuned_rate if column.part in own.tuned else own.rate,
                "n_seeds": len(own.values(column)),
                "n_pairs": len(own.values(column).keys() & baseline.values(column).keys()),
                "unit": column.unit,
                "better": column.better,
            }
        )
    return found


def usual_variance(column: Column, like: Sequence[Standing]) -> tuple[float, int]:
    """How a difference within a seed varies: its variance, pooled over variants that behave alike, and its freedom.

    It is twice the variance of what `left_over` returns. Both are 0 if nothing is left.
    """
    left, freedom = left_over(column, like)
    return (max(2 * float(left @ left) / freedom, LEAST_SPREAD**2), freedom) if freedom else (0.0, 0)


def left_over(column: Column, like: Sequence[Standing]) -> tuple[Array, int]:
    """What is left of all values without a mean of each variant and of each seed, and its degrees of freedom.

    Seeds have means because they differ in all variants alike.
    """
    cells = [(n, seed, value) for n, one in enumerate(like) for seed, value in one.values(column).items()]
    variants, seeds, values = (np.array(some) for some in zip(*cells, strict=True)) if cells else (np.empty(0),) * 3
    means = np.concatenate([variants[:, None] == np.unique(variants), seeds[:, None] == np.unique(seeds)], axis=1)
    fitted, _, rank, _ = np.linalg.lstsq(means.astype(float), values, rcond=None)
    return values - means @ fitted, len(cells) - int(rank)


def tested(
    own: Standing, baseline: Standing, column: Column, usual_variance: tuple[float, int]
) -> tuple[float, float, float, float]:
    """(difference, half of its 95 % interval, the margin that its 90 % interval just fits into, p); NaN if unknown.

    The differences with the same seeds are tested, with the usual variance; if they vary more than this allows (an F
    test at 5 %), or if it is unknown, with their own, which is at least LEAST_SPREAD squared.
    """
    (usual, degrees), pairs = usual_variance, np.array(paired(own, baseline, column))
    if own is baseline or not len(pairs):
        return (math.nan,) * 4
    mean, freedom = float(pairs.mean()), len(pairs) - 1
    varies = float(pairs.var(ddof=1)) if freedom else math.nan
    if degrees and not varies > usual * special.fdtri(max(freedom, 1), degrees, 0.95):
        varies, freedom = usual, degrees
    error = math.sqrt(varies / len(pairs))
    rounding = ROUNDING * np.spacing(max(map(abs, [*own.values(column).values(), *baseline.values(column).values()])))
    if error <= rounding:  # the same in every seed: the sign test
        return mean, math.nan, abs(mean), 1.0 if abs(mean) <= rounding else 2.0 ** (1 - len(pairs))
    error = max(error, LEAST_SPREAD / math.sqrt(len(pairs)))
    half, narrower = (error * error_widths(freedom + 1, level) if freedom else math.nan for level in (0.95, 0.90))
    return mean, half, abs(mean) + narrower, p_of_mean(mean, error, freedom + 1)


def paired(own: Standing, baseline: Standing, column: Column) -> list[float]:
    """The difference from the baseline for each seed that both standings have."""
    mine, theirs = own.values(column), baseline.values(column)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- the tries of a search


def read_tries(path: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tries in the file of a history; none if there is no file.

    about: the fields that all tries share. Raises UserError if the file is damaged or has tries of another search.
    """
    found: list[dict[str, Any]] = []
    try:
        for line in read_text(path).splitlines() if path.exists() or not path.parent.is_dir() else ():
            one = parse_json(line)
            if not (
                about.items() <= one.items()
                and all(
                    is_number(value) for value in [*one["differences"].values(), one["e_value"]] if value is not None
                )
                and isinstance(one["variant"], str)
                and isinstance(one["source"], str)
                and one["try"] == len(found) + 1
                and math.isclose(one["needed"], e_needed(one["try"], sum(earlier["kept"] for earlier in found)))
                and one["kept"] is (one["e_value"] >= one["needed"])
            ):
                raise ValueError(f"it contradicts the lines before it, or is not of {json.dumps(about)}")
            found.append(one)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is not the history of this search (line {len(found) + 1}: {one_line(error)}); give another file"
        ) from error
    return found


def decide(
    path: Path,
    about: Mapping[str, Any],
    decides: tuple[Column, float, Sequence[float]],
    own: Standing,
    baseline: Standing,
    seeds: Sequence[int],
    source: str,
) -> dict[str, Any]:
    """Add a try of a variant to a history, with the decision to keep it, and return the try.

    The evidence is of all seeds with which the variant was tried. If it was kept, or the seeds are not new, or another
    variant has the same differences, then nothing is added: the earlier try is returned, with its number as `same_as`.
    source: a hash of the variant's code and values.
    """
    column, spread, effects = decides
    mine, theirs, sign = own.values(column), baseline.values(column), 1 if column.better == "higher" else -1
    now = {str(seed): mine[seed] - theirs[seed] if seed in mine and seed in theirs else None for seed in seeds}
    with FileLock(f"{path}.lock"):
        tries = read_tries(path, about)
        whole = {s: v for one in tries if one["source"] == source for s, v in one["differences"].items()}
        for one in reversed(tries):
            if (None not in now.values() and now.items() <= one["differences"].items()) or (
                one["source"] == source and (one["kept"] or now.keys() <= whole.keys())
            ):
                return dict(one) | {"same_as": one["try"]}
        whole = now | whole
        gains = [sign * value for value in whole.values() if value is not None]
        # a seed without a value may have diverged: such a variant is not kept
        e = float(e_value(np.array(gains), spread, effects)) if len(gains) == len(whole) else 0.0
        found = {
            **about,
            "try": len(tries) + 1,
            "variant": own.name,
            "source": source,
            "differences": whole,
            "seeds_are_new": all(
                one["source"] == source or whole.keys().isdisjoint(one["differences"]) for one in tries
            ),
            "e_value": e,
            "needed": (needed := e_needed(len(tries) + 1, sum(one["kept"] for one in tries))),
            "kept": e >= needed,
        }
        write_atomically(path, "".join(f"{json.dumps(one)}\n" for one in [*tries, found]))
    return found | {"same_as": None}
