"""What has changed since runs were recorded: classes by an earlier name, and parameters that a class has gained."""

from __future__ import annotations

from typing import Any

# the name that a class has now
MOVED = {
    "roundround.run.NoLogger": "roundround.runs.loggers.none.NoLogger",
    "roundround.run.WandB": "roundround.runs.loggers.wandb.WandB",
}

# the values at which a class is what it was without these parameters, for a node that does not give them
GAINED: dict[str, dict[str, Any]] = {
    "roundround.data.tasks.mqar.MQAR": {"answers_in_sequence": True},
    "roundround.pe.rope_random.RoPERandom": {"positions": "consecutive"},
    "roundround.softmax.adaptive_temperature.AdaptiveTemperature": {"entropy_range": None},
    "roundround.softmax.as_entmax.ASEntmax": {"start": None, "scaled_heads": None},
    "roundround.softmax.ssmax.SSMax": {"scaled_heads": None},
}
