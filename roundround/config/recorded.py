"""The config that an earlier run recorded: read as data, and checked before any class that it names is built."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.errors import UserError


def as_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain Python."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def own_config(manifest: dict[str, Any], *, trust: bool, **replaced: DictConfig | None) -> DictConfig:
    """The config of the run of a manifest, with the nodes that replace its own; None keeps the run's.

    Raises UserError where it names a class from outside roundround, unless `trust`.
    """
    own = OmegaConf.create(manifest["config"])
    assert isinstance(own, DictConfig)
    refuse_foreign(own, trust=trust)
    for name, node in replaced.items():
        if node is not None:
            own[name] = node
    return own


def refuse_foreign(config: DictConfig, *, trust: bool) -> None:
    """Raises UserError where a config read from a run names a class from elsewhere: building it runs foreign code."""
    if trust:
        return
    for key, target in flat(as_dict(config)).items():
        name, _, last = key.rpartition(".")
        if last == "_target_" and not str(target).startswith("roundround.") and target != "lightning.Trainer":
            raise UserError(f"the run's {name} is {target}, which is not roundround's; trust=true runs it all the same")


def overridden(overrides: list[str]) -> set[str]:
    """The dotted keys that overrides of the command line name, groups included."""
    return {override.split("=", 1)[0].lstrip("+~").split("@")[-1].replace("/", ".") for override in overrides}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
