"""Every seed of docs/results/language_tasks has every phenomenon."""

from __future__ import annotations

from results.language_tasks import BLIMP, NAMES, PREFIXES, ZORRO


def test_every_seed_has_every_phenomenon() -> None:
    assert {values.shape[1] for values in ZORRO.values()} == {23}
    assert {values.shape[1] for values in BLIMP.values()} == {67}
    assert ZORRO.keys() == {(pe, n) for pe in NAMES for n in PREFIXES}
