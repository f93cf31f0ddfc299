"""A run and the program as it is now: what differs from today's defaults, and what is not as it was then.

That is the code, the versions, the device, the config; a line for each.

Tested by tests/analysis/test_rerun.py and tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundround import __version__
from roundround.analysis.past_run import PastRun
from roundround.config.composition import usual_config
from roundround.config.recorded import flat, own_options
from roundround.config.verbs import WHERE, keys_of
from roundround.runs.provenance import git_state, versions
from roundround.support.errors import printable

NOT_SHOWN = ("outputs", "resume")  # keys that say where the run itself lies; the others show what was asked for


@dataclass(frozen=True)
class Change:
    """A setting of a run: its key, its value, and the default that it replaces."""

    key: str
    value: Any
    default: Any


def changed_settings(run: PastRun) -> list[Change] | None:
    """What a run's config says that the defaults of its verb do not.

    Options of groups first, then the values that are not those of these options. None where today's program lacks the
    verb or an option, so that nothing can be compared.
    """
    usual = usual_config(run.verb, {})
    if usual is None:
        return None
    options = [Change(group, option, usual[1].get(group)) for group, option in own_options(run.manifest).items()]
    options = [change for change in options if change.value != change.default and not change.key.startswith("hydra/")]
    chosen = usual_config(run.verb, {change.key: change.value for change in options})
    if chosen is None:
        return None
    own, default = flat(run.manifest["config"]), flat(chosen[0])
    values = [Change(key, value, default.get(key)) for key, value in own.items() if key not in NOT_SHOWN]
    return options + [change for change in values if change.value != change.default]


def code_changes(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line where the code is not that of the run: its commit, or what was not committed then or is not now."""
    kept, (state, patch) = directory / "code.patch", git_state()
    patch_then = kept.read_text(encoding="utf-8", errors="replace") if kept.is_file() else None
    then, now = (manifest["roundround"], manifest.get("git"), patch_then), (__version__, state, patch)
    same = [(v if g is None else g.get("commit"), p, g and g.get("left_out")) for v, g, p in (then, now)]
    if same[0] != same[1]:
        yield f"the code is another: {describe(*then)} then, {describe(*now)} now"


def describe(version: str, git: Mapping[str, Any] | None, patch: str | None) -> str:
    """Code in words: its commit, or the version where there is no repository, and the size of what is not committed."""
    own = [] if patch is None else patch.splitlines()
    n_lines = sum(line[:1] in ("+", "-") and line[:4] not in ("+++ ", "--- ") for line in own)
    known = f"roundround {version}" if git is None else f"commit {str(git.get('commit'))[:12]}"
    return f"{known} and {n_lines} lines that are not committed" if n_lines else known


def surroundings_changes(manifest: Mapping[str, Any], device: str | None) -> Iterator[str]:
    """Packages of another version, and another device."""
    before, now = manifest.get("versions", {}), versions()
    changed = [
        f"{name} {before.get(name)} then, {now.get(name)} now" for name in before if before[name] != now.get(name)
    ]
    if changed:
        yield f"other versions: {'; '.join(changed)}"
    if device is not None and manifest.get("device") not in (None, device):
        yield f"another device: {manifest['device']} then, {device} now"


def config_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each value of a config, by its dotted key, that is not what it was, but for places."""
    before, after = (flat({k: v for k, v in config.items() if k not in keys_of(WHERE)}) for config in (then, now))
    return [
        f"the config is another: {key} was {shown(before, key)} and is {shown(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, before) != after.get(key, after)
    ]


def shown(config: Mapping[str, Any], key: str) -> str:
    return printable(str(config[key]), 80) if key in config else "not there"
