"""The tables of docs/results/order.md."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np

from results.stored import DOCS, Array, difference, printed
from roundround.analysis.intervals import holm, paired_p

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


def table_of_losses() -> list[str]:
    """Each setting's difference from NoPE, p after Holm, and the order from beyond one byte."""
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
        cells.append(f"{VALUES[setting, '', 'order', '1'].mean():.3f}")
        rows.append(f"| {NAMES[setting]} | {' | '.join(cells)} |")
    return rows


def cost(setting: str, without: str) -> Array:
    return VALUES[setting, without, "loss", ""] - VALUES[setting, "", "loss", ""]


TABLES = {"losses": table_of_losses}
