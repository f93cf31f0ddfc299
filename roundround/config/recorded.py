"""The config that an earlier run recorded: read as data, and checked before any class that it names is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.config.build import literal
from roundround.support.errors import UserError

ITS_OWN = "its own"  # of a pretrained model: no option of a group
THETA = 10_000.0  # the base of RoPE in a model that brings none, as `AttentionShape` has it


def as_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain Python."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def own_config(manifest: dict[str, Any], directory: Path, *, trust: bool, **replaced: DictConfig | None) -> DictConfig:
    """The config of the run in `directory`, with the nodes that replace its own; None keeps the run's.

    What the run recorded was resolved when it began, so that a "${...}" in it is text: it is not resolved again.
    Raises UserError where it names a class from outside roundround, unless `trust`.
    """
    own = OmegaConf.create(literal(manifest["config"]))
    assert isinstance(own, DictConfig)
    if not trust:
        refuse_foreign(manifest, directory)
    for name, node in replaced.items():
        if node is not None:
            own[name] = node
    return own


def refuse_foreign(manifest: dict[str, Any], directory: Path) -> None:
    """Raises UserError where a run's config names a class from elsewhere: building it runs foreign code."""
    for name, target in foreign_targets(manifest["config"]).items():
        kept = f" ({directory / 'variants'} has the copy that the run kept)" if manifest.get("variants") else ""
        raise UserError(
            f"the run's {name} is {target}, which is not roundround's; to run that code all the same give trust=true "
            f"and --config-dir DIR, the folder of {target.partition('.')[0]}{kept}"
        )


def foreign_targets(config: dict[str, Any]) -> dict[str, str]:
    """The classes from outside roundround that a config names, by their nodes."""
    targets = {name: str(node["_target_"]) for name, node in nodes_in(config) if "_target_" in node}
    return {
        key: name for key, name in targets.items() if not name.startswith("roundround.") and name != "lightning.Trainer"
    }


def nodes_in(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dict of a config below its top, in lists too, by its dotted name."""
    if isinstance(value, dict) and name:
        yield name, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from nodes_in(item, f"{name}.{key}" if name else str(key))


def encodings_in(config: DictConfig) -> dict[str, DictConfig]:
    """The encodings that a config names, by their dotted keys: the run's own, and those of kinds of layers."""
    pattern: Any = config._get_node("pattern", validate_access=False)
    there = isinstance(pattern, DictConfig) and not pattern._is_none()
    kinds = [str(name) for name in pattern if isinstance(pattern._get_node(name), DictConfig)] if there else []
    nodes: dict[str, Any] = {"pe": config._get_node("pe", validate_access=False)}
    nodes |= {f"pattern.{name}.pe": pattern[name]._get_node("pe", validate_access=False) for name in kinds}
    return {key: node for key, node in nodes.items() if isinstance(node, DictConfig) and not node._is_none()}


def give_theta(config: DictConfig, theta: Any = THETA) -> None:
    """Put the base of RoPE, in one number or one for each kind of layer, where `theta` is null for the model's own.

    A run records the number, so that its config says everything about its model.
    """
    for key, node in encodings_in(config).items():
        given: Any = node._get_node("theta", validate_access=False)
        if given is not None and given._is_none():
            of_kind = None if key == "pe" else OmegaConf.select(config, f"{key.rpartition('.')[0]}.theta")
            OmegaConf.update(config, f"{key}.theta", theta if of_kind is None else of_kind)


def overridden(overrides: list[str]) -> set[str]:
    """The dotted keys that overrides of the command line name, groups included."""
    return {override.split("=", 1)[0].lstrip("+~").split("@")[-1].replace("/", ".") for override in overrides}


def own_options(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The options that a run's own config took. Its other choices say what is measured, which another run chose."""
    typed = overridden(manifest["overrides"])
    looks_at_another = bool(manifest.get("run"))
    return {
        group: option
        for group, option in manifest.get("choices", {}).items()
        if option is not None and (group.replace("/", ".") in typed or not (looks_at_another or option == ITS_OWN))
    }


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
