"""The tables of docs/results/patterns.md."""

from __future__ import annotations

from results.stored import Array, family, stored
from roundround.analysis.intervals import half_width

LENGTHS = (128, 256, 512, 1024)  # the first is the trained one

COMMON = 0.003

RATES = (0.0015, COMMON, 0.006)

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
    return [f"| {name_of(one)} | {' | '.join(f'{of(one, n).mean():.3f}' for n in LENGTHS)} |" for one in settings()]


def p_of_differences() -> dict[tuple[Setting, int], float]:
    """After Holm's correction over all settings and lengths."""
    others = [one for one in settings() if one != BASELINE]
    return family({(one, n): (of(one, n), of(BASELINE, n)) for one in others for n in LENGTHS})


def table_of_differences() -> list[str]:
    p = p_of_differences()
    return [
        f"| {name_of(one)} | {' | '.join(cell(of(one, n), of(BASELINE, n), p[one, n]) for n in LENGTHS)} |"
        for one in settings()
        if one != BASELINE
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


def rated() -> dict[Setting, float]:
    """The rate of each setting that has all three on the first seed, chosen by its loss at the trained length there."""
    lengths = {
        one: {rate: PATTERNS.get((*one, str(rate), "nats_per_token", LENGTHS[0])) for rate in RATES}
        for one in settings()
    }
    return {
        one: min(RATES, key=lambda rate: by[rate][0])
        for one, by in lengths.items()
        if all(v is not None for v in by.values())
    }


def table_of_rates() -> list[str]:
    rows = []
    for one, chosen in rated().items():
        losses = [f"{of(one, LENGTHS[0], rate)[0]:.3f}" for rate in RATES]
        marked = [f"**{loss}**" if rate == chosen else loss for rate, loss in zip(RATES, losses, strict=True)]
        rows.append(f"| {name_of(one)} | {' | '.join(marked)} |")
    return rows


def table_of_chosen() -> list[str]:
    """Of the settings whose chosen rate is not the common one."""
    rows = []
    for one, rate in rated().items():
        if rate != COMMON:
            rows.append(f"| {name_of(one)}, nats | {' | '.join(f'{of(one, n, rate).mean():.3f}' for n in LENGTHS)} |")
            cells = (cell(of(one, n, rate), of(BASELINE, n, rated()[BASELINE])) for n in LENGTHS)
            rows.append(f"| {name_of(one)} - {name_of(BASELINE)} | {' | '.join(cells)} |")
    return rows


TABLES = {
    "means": table_of_means,
    "differences": table_of_differences,
    "contrasts": table_of_contrasts,
    "rates": table_of_rates,
    "chosen": table_of_chosen,
}
