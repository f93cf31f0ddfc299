"""The tables of docs/results/order.md."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np

from results.stored import DOCS, Array, difference, printed
from roundround.analysis.intervals import half_width, holm, paired_p

NAMES = {
    "nope": "NoPE",
    "nope key_offset": "NoPE, offset keys",
    "nope smear": "NoPE, smear",
    "nope conv": "NoPE, convolution",
    "nope canon": "NoPE, Canon",
    "rope": "RoPE",
    "p_rope_50": "p-RoPE, p = 1/2",
    "nope, local_global, nope in windows": "NoPE, windows",
    "nope, local_global": "RoPE in windows, NoPE global",
    "nope, hybrid": "linear layers, NoPE",
    "rope, hybrid": "linear layers, RoPE",
}
TASKS = ("induction", "copy", "n_back", "local_count")
DISTANCES = ("1", "2-3", "4-7", "8-15", "16-31", "32-63")


def stored() -> dict[tuple[str, str, str, str], Array]:
    """{(setting, what is taken away, metric, distance or length): the values by seed}."""
    found: dict[tuple[str, str, str, str], dict[int, float]] = defaultdict(dict)
    for path in sorted((DOCS / "order").glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                place = row["setting"], row["without"], row["metric"], row["distance"]
                found[place][int(row["seed"])] = float(row["value"])
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


VALUES = stored()


def settings() -> list[str]:
    return [setting for setting in NAMES if (setting, "", "loss", "") in VALUES]


def mean(values: Array) -> str:
    return f"{values.mean():.3f} ±{float(half_width(values)):.3f}"


def table_of_losses() -> list[str]:
    """Each setting's held-out loss, its difference from NoPE, and p after Holm."""
    losses = {setting: VALUES[setting, "", "nats_per_token", "128"] for setting in settings()}
    others = [setting for setting in losses if setting != "nope"]
    pairs = [np.array([losses[one], losses["nope"]]) for one in others]
    p = holm([float(paired_p(mine[None].T, theirs[None].T)[0][0]) for mine, theirs in pairs])
    by_setting = dict(zip(others, p, strict=True))
    rows = []
    for setting, own in losses.items():
        cells = ["", ""]
        if setting != "nope":
            cells = [difference(own, losses["nope"], 3, np.inf), printed(by_setting[setting])]
        rows.append(f"| {NAMES[setting]} | {mean(own)} | {' | '.join(cells)} |")
    return rows


def table_of_order() -> list[str]:
    """The order that a model takes from beyond a distance, by distance."""
    by_setting = {one: [VALUES[one, "", "order", distance].mean() for distance in DISTANCES] for one in settings()}
    return [f"| {NAMES[one]} | {' | '.join(f'{x:.3f}' for x in own)} |" for one, own in by_setting.items()]


def sources() -> list[tuple[str, str]]:
    return [
        (one, without)
        for one in settings()
        for own, without, metric, _ in VALUES
        if (own, metric) == (one, "loss") and without
    ]


def cost(setting: str, without: str) -> Array:
    return VALUES[setting, without, "loss", ""] - VALUES[setting, "", "loss", ""]


def table_of_sources() -> list[str]:
    """What a source costs when it is taken away, and the order that is left, beyond one byte and beyond eight."""
    return [
        f"| {NAMES[one]} | {without} | {mean(cost(one, without))} | "
        f"{VALUES[one, '', 'order', '1'].mean():.3f} to {VALUES[one, without, 'order', '1'].mean():.3f} | "
        f"{VALUES[one, '', 'order', '8-15'].mean():.3f} to {VALUES[one, without, 'order', '8-15'].mean():.3f} |"
        for one, without in sources()
    ]


def table_of_sums() -> list[str]:
    """Whether the costs of two sources add up to the cost of both."""
    rows = []
    for one in settings():
        own = [without for setting, without in sources() if setting == one]
        groups = [(["RoPE, faster half", "RoPE, slower half"], "RoPE")]
        groups += [(both.split(" and "), both) for both in own if " and " in both]
        for parts, both in groups:
            if both not in own or not set(parts) <= set(own):
                continue
            total = np.sum([cost(one, part) for part in parts], axis=0)
            share = (total - cost(one, both)) / cost(one, both)
            low, high = share.mean() - half_width(share), share.mean() + half_width(share)
            verdict = (
                "they add up"
                if low > -0.2 and high < 0.2
                else "they do not"
                if high < -0.2 or low > 0.2
                else "not decided"
            )
            rows.append(
                f"| {NAMES[one]} | {' + '.join(parts)} | {total.mean():.3f} | {cost(one, both).mean():.3f} | "
                f"{share.mean():+.2f} ({low:+.2f} to {high:+.2f}) | {verdict} |"
            )
    return rows


def spread(values: Array) -> str:
    """The mean, and the least and the largest value if they differ."""
    same = values.max() - values.min() < 0.005
    return f"{values.mean():.2f}" + ("" if same else f" ({values.min():.2f} to {values.max():.2f})")


def table_of_tasks() -> list[str]:
    """Exact match at the longest trained length and at twice that: the mean over seeds, and the least and largest."""
    rows = []
    for one in NAMES:
        cells = []
        for task in TASKS:
            for length in ("16", "32"):
                values = VALUES.get((one, "", task, length))
                cells.append("" if values is None else spread(values))
        if any(cells):
            rows.append(f"| {NAMES[one]} | {' | '.join(cells)} |")
    return rows


TABLES = {
    "losses": table_of_losses,
    "order": table_of_order,
    "sources": table_of_sources,
    "sums": table_of_sums,
    "tasks": table_of_tasks,
}
