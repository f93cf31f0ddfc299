"""Run directories written by hand: thousands are there in a second, and every field can be chosen."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGINNING = datetime(2026, 1, 1, 12, tzinfo=UTC)


def write_run(directory: Path, minute: int = 0, verb: str = "eval", **fields: Any) -> Path:
    """A run directory whose run started this many minutes after noon; `fields` replace those of its manifest."""
    started = BEGINNING + timedelta(minutes=minute)
    manifest = {
        "roundround": "0.2.0",
        "verb": verb,
        "status": "done",
        "started": started.isoformat(),
        "ended": (started + timedelta(seconds=30)).isoformat(),
        "command": f"roundround {verb}",
        "overrides": [],
        "config": {"optim": {"lr": 0.001}, "compile": False},
        "choices": {"pe": "rope"},
        "seed": 0,
        "data": None,
        "facts": {},
        "headline": {"perplexity": 12.345678},
        "wandb": None,
        "sweep": None,
    }
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(manifest | fields, indent=2))
    return directory
