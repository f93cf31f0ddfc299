"""The config that an earlier run recorded. It is checked before any class that it names is built.

A resumed run keeps the settings in the config that it recorded.

Tested by tests/config/test_recorded.py and tests/config/test_starting.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.config.build import literal, plain
from roundround.config.verb import HOW, WHERE, is_below
from roundround.support.errors import UserError
from roundround.verbs import verb_named

RUN = "run:"  # in init=, the prefix of the directory of the run whose weights are the start
ITS_OWN = "its own"  # recorded for the encoding or normaliser of a pretrained model; it is no option of a group
THETA = 10_000.0  # the base of RoPE if the model gives none, as in `AttentionShape`


def as_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain Python."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def own_config(manifest: dict[str, Any], directory: Path, *, trust: bool, **replaced: DictConfig | None) -> DictConfig:
    """The config of the run in `directory`.

    The config was resolved when the run started, so a "${...}" in it is text. trust: whether the config may name
    classes from outside roundround; otherwise such a class raises UserError. replaced: new nodes, each under the name
    of the node that it replaces; None keeps the node that the run recorded.
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
    """Raises UserError if a run's config names a class from outside roundround; building it would run foreign code."""
    for name, target in foreign_targets(manifest["config"]).items():
        kept = f" ({directory / 'variants'} has the copy that the run kept)" if manifest.get("variants") else ""
        raise UserError(
            f"the run's {name} is {target}, whose code is not part of roundround; to run it nevertheless, give "
            f"trust=true and --config-dir DIR, the folder that contains {target.partition('.')[0]}{kept}"
        )


def foreign_targets(config: dict[str, Any]) -> dict[str, str]:
    """{dotted name of a node: its class} for the classes from outside roundround that a config names."""
    targets = {name: str(node["_target_"]) for name, node in nodes_in(config) if "_target_" in node}
    return {
        key: name for key, name in targets.items() if not name.startswith("roundround.") and name != "lightning.Trainer"
    }


def nodes_in(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted name, dict) of every dict inside a config, including dicts in lists."""
    if isinstance(value, dict) and name:
        yield name, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from nodes_in(item, f"{name}.{key}" if name else str(key))


def give_theta(config: DictConfig, theta: Any = None) -> None:
    """Replace each null `theta` of an encoding by the base of RoPE, so that a run's config describes its model fully.

    The encoding `pattern.KIND.pe` gets the first of these that is not None: `pattern.KIND.theta`, the argument `theta`,
    THETA. The encoding `pe` gets the argument, or THETA if the argument is None. Kinds of layers without an encoding
    use `pe`: if one of these kinds has a `theta`, and the argument is None, `pe.theta` stays null.

    theta: the base of the model, or the list of its bases; None if it has none.
    """
    pattern = config.get("pattern")
    found = {str(name): node for name, node in pattern.items()} if isinstance(pattern, DictConfig) else {}
    kinds = {name: node for name, node in found.items() if isinstance(node, DictConfig)}
    alone = [kind for kind in kinds.values() if kind.get("pe") is None and kind.get("theta") is not None]
    by_kinds = theta is None and alone != []
    for key in ["pe", *(f"pattern.{name}.pe" for name in kinds)]:
        node = OmegaConf.select(config, key)
        is_open = isinstance(node, DictConfig) and OmegaConf.select(node, "theta", default=THETA) is None
        if is_open and not (by_kinds and key == "pe"):
            of_kind = None if key == "pe" else OmegaConf.select(config, f"{key.rpartition('.')[0]}.theta")
            bases = (of_kind, theta, THETA)
            OmegaConf.update(config, f"{key}.theta", next(base for base in bases if base is not None))


def overridden(overrides: list[str]) -> set[str]:
    """The dotted keys and the groups that the overrides name."""
    return {override.split("=", 1)[0].lstrip("+~").split("@")[-1].replace("/", ".") for override in overrides}


def own_options(manifest: Mapping[str, Any]) -> dict[str, str]:
    """{group: option} for the options in a run's config that describe this run.

    If the run measures another run, options that were not typed describe that other run, and are left out.
    """
    typed = overridden(manifest["overrides"])
    looks_at_another = bool(manifest.get("run"))
    return {
        group: option
        for group, option in manifest.get("choices", {}).items()
        if option is not None and (group.replace("/", ".") in typed or not (looks_at_another or option == ITS_OWN))
    }


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one flat dict with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


# -- a run that resumes

ABSENT = object()  # the value of a key that is in no yaml
OF_THE_COMMAND = {"run", "resume", "outputs", "trust"}  # never taken from another run's config


def config_of_run(
    cfg: DictConfig,
    manifest: dict[str, Any],
    directory: Path,
    overrides: list[str],
    *,
    verb: str,
    also_free: Collection[str] = (),
) -> DictConfig:
    """The config of the run in `directory`, with the command line's values for the keys that change no result.

    also_free: further keys that the command line may change. Raises UserError if the run is of another verb, or if the
    command line changes any other key, which the message names.
    """
    if manifest["verb"] != verb:
        raise UserError(f"{directory} is a run of {manifest['verb']}; give the directory of a run of {verb}")
    free = {*verb_named(verb).keys_of(HOW, WHERE), *also_free}
    own = own_config(manifest, directory, trust=cfg.trust)
    keys = overridden(overrides)
    everything = "experiment" in keys
    typed, recorded = (  # the overrides that can change a result
        {word for word in words if not any(is_below(key, free) for key in overridden([word]))}
        for words in (overrides, manifest["overrides"])
    )
    if cfg.resume is not None and "resume" not in keys and typed != recorded:  # a job that resumes its own run
        raise UserError(
            f"{directory} holds a run that was started with these settings: {' '.join(sorted(recorded))}; "
            "give the same settings, or another folder"
        )
    of_task = {"model.train_length", "tokenizer"} if own.get("tokenizer") is None else set()  # a task sets these
    give_theta(cfg, OmegaConf.select(own, "pe.theta"))
    before, after = flat(as_dict(own)), flat(as_dict(cfg))
    changed = [
        f"{key} ({before.get(key)} -> {after.get(key)})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and (everything or any(key == k or key.startswith(k + ".") for k in keys))
        and not is_below(key, free)
        and not (is_below(key, of_task) and key not in keys)
    ]
    if changed and typed != recorded:  # else a difference comes from a value fixed when the run began, as of init=last
        raise UserError(
            f"a resumed run keeps its settings, and these would change: {', '.join(changed)}; leave them out"
        )
    for name in free:
        whole = everything or name in OF_THE_COMMAND
        for key in [name] if whole else [k for k in keys if k == name or k.startswith(name + ".")]:
            value = OmegaConf.select(cfg, key, default=ABSENT)
            if value is not ABSENT:  # trainer.num_nodes, for example, is in no yaml
                OmegaConf.update(own, key, literal(plain(value)), merge=False)
    return own
