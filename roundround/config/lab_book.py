"""What the verbs of the lab book read that leave a run directory, with its types and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from roundround.support.errors import UserError, nearest

COMPARISON_FORMATS = ("table", "csv", "latex", "markdown", "json")


@dataclass
class CompareConfig:
    """What `roundround compare` reads. where: key=value, which the runs that are compared have."""

    paths: list[str] = MISSING
    baseline: list[str] = MISSING
    metric: list[str] = MISSING
    where: list[str] = MISSING
    format: str = MISSING
    outputs: str = MISSING
    logger: Any = MISSING

    def check(self) -> None:
        if self.format not in COMPARISON_FORMATS:
            raise UserError(f"no format={self.format}{nearest(self.format, COMPARISON_FORMATS)}")


@dataclass
class RerunConfig:
    """What `roundround rerun` reads."""

    paths: list[str] = MISSING
    verb: str | None = MISSING
    rtol: float = MISSING
    trust: bool = MISSING
    outputs: str = MISSING
    logger: Any = MISSING

    def check(self) -> None:
        if len(self.paths) != 1:
            given = f"; given are {len(self.paths)}" if self.paths else ""
            raise UserError(f"give one run: a run directory, last, or last~3{given}")
        if not 0 <= self.rtol < 1:
            raise UserError(f"rtol={self.rtol} must be from 0 to below 1")
