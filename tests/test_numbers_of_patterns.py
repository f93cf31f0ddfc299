"""The tables and claims of docs/patterns.md and docs/rope_plane.md, from the values of each seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers_stored import Array, stored, text_of

from roundround.analysis.intervals import half_width, holm, paired_p

LENGTHS = (128, 256, 512, 1024)  # the first is the trained one
COMMON = 0.003
RATES = (0.0015, COMMON, 0.006)
MARGIN = 0.02  # nats per byte, written in conf/experiment/rope before the runs
PATTERN_NAMES = {"uniform": "uniform", "local_global": "windows"}
PE_NAMES = {"rope": "RoPE", "nope": "NoPE", "p_rope_25": "p-RoPE"}
NORM_NAMES = {"none": "", "rms": ", normalised"}
PATTERNS = stored("patterns/patterns", "pattern", "pe", "qk_norm", "optim.lr")
Setting = tuple[str, str, str]
BASELINE: Setting = ("uniform", "rope", "none")


def of(setting: Setting, length: int, rate: float = COMMON) -> Array:
    return PATTERNS[*setting, str(rate), "nats_per_token", length]


def settings() -> list[Setting]:
    """Those with three seeds at the common rate, in the order of the experiment."""
    every = [(pattern, pe, norm) for norm in NORM_NAMES for pattern in PATTERN_NAMES for pe in PE_NAMES]
    found = [(*one, str(COMMON), "nats_per_token", LENGTHS[0]) for one in every]
    return [one for one, place in zip(every, found, strict=True) if len(PATTERNS.get(place, ())) == 3]


def name_of(setting: Setting) -> str:
    pattern, pe, norm = setting
    return f"{PATTERN_NAMES[pattern]}, {PE_NAMES[pe]}{NORM_NAMES[norm]}"


def interval(mine: Array, theirs: Array) -> tuple[float, float, float]:
    """The mean difference, paired by seed, and the ends of its interval."""
    mean, half = float((mine - theirs).mean()), float(half_width(mine - theirs))
    return mean, mean - half, mean + half


def cell(mine: Array, theirs: Array, p: float = 1.0) -> str:
    mean, low, high = interval(mine, theirs)
    text = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
    return (f"**{text}**" if low > 0 or high < 0 else text) + " *" * (p < 0.05)


def table_of_means() -> list[str]:
    return [
        f"| {name_of(one)} | {' | '.join(f'{of(one, length).mean():.3f}' for length in LENGTHS)} |"
        for one in settings()
    ]


def table_of_differences() -> list[str]:
    others = [one for one in settings() if one != BASELINE]
    p = {  # after Holm's correction over the settings at one length
        length: holm([float(paired_p(of(one, length), of(BASELINE, length))[0]) for one in others])
        for length in LENGTHS
    }
    return [
        f"| {name_of(one)} | "
        + " | ".join(cell(of(one, length), of(BASELINE, length), p[length][k]) for length in LENGTHS)
        + " |"
        for k, one in enumerate(others)
    ]


CONTRASTS: list[tuple[str, Setting, Setting]] = [
    *(
        (f"windows - uniform, {PE_NAMES[pe]}{NORM_NAMES[norm]}", ("local_global", pe, norm), ("uniform", pe, norm))
        for norm in NORM_NAMES
        for pe in PE_NAMES
    ),
    *(
        (
            f"{PE_NAMES[pe]} - {PE_NAMES[other]} in the global layer{NORM_NAMES[norm]}",
            ("local_global", pe, norm),
            ("local_global", other, norm),
        )
        for norm in NORM_NAMES
        for pe, other in (("nope", "rope"), ("p_rope_25", "rope"), ("nope", "p_rope_25"))
    ),
    *(
        (f"normalised - not, {PATTERN_NAMES[pattern]}, {PE_NAMES[pe]}", (pattern, pe, "rms"), (pattern, pe, "none"))
        for pattern in PATTERN_NAMES
        for pe in PE_NAMES
    ),
]


def contrasts() -> dict[str, tuple[Setting, Setting]]:
    """Those whose two settings have three seeds."""
    return {name: (one, other) for name, one, other in CONTRASTS if {one, other} <= set(settings())}


def table_of_contrasts() -> list[str]:
    return [
        f"| {name} | {' | '.join(cell(of(one, length), of(other, length)) for length in LENGTHS)} |"
        for name, (one, other) in contrasts().items()
    ]


def rises() -> dict[Setting, Array]:
    """What each seed loses from the trained length to eight times it."""
    return {one: of(one, LENGTHS[-1]) - of(one, LENGTHS[0]) for one in settings()}


def apart(name: str, *lengths: int) -> list[tuple[float, float, float]]:
    one, other = contrasts()[name]
    return [interval(of(one, length), of(other, length)) for length in lengths or LENGTHS]


@pytest.mark.parametrize("table", [table_of_means, table_of_differences, table_of_contrasts])
def test_tables_of_patterns(table: Callable[[], list[str]]) -> None:
    rows = table()
    assert rows
    for row in rows:
        assert f"{row}\n" in text_of("patterns")
