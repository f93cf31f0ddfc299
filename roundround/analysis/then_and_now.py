"""What is not as it was when a run was made: the code, the versions, the device, the config. A line for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roundround import __version__
from roundround.config.recorded import flat
from roundround.runs.provenance import PACKAGE, git_state, versions
from roundround.support.errors import printable

NO_RESULT = {"outputs", "logger", "resume", "trust", "run"}  # keys of which a repetition has its own


def code_changes(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Where the code is not that of the run: its commit, and what was not committed then or is not now."""
    (state, patch), before = git_state(), manifest.get("git")
    if state is None or before is None:
        then, now = manifest["roundround"], __version__
        if (then, before) != (now, state):
            here, there = (describe(version, git) for version, git in ((now, state), (then, before)))
            yield f"the code is another: {there} then, {here} now"
        return
    then, now = str(before.get("commit")), state["commit"]
    if then != now:
        yield f"the code is another: commit {then[:12]} then, {now[:12]} now (git -C {PACKAGE.parent} diff {then[:12]})"
    kept = directory / "code.patch"
    patch_then = kept.read_text(encoding="utf-8", errors="replace") if kept.is_file() else None
    if (patch_then, before.get("left_out")) != (patch, state.get("left_out")):
        was, is_now = (f"{lines(text)} lines of changes that are not committed" for text in (patch_then, patch))
        yield f"the code is another: {was} then ({kept if patch_then else 'none'}), {is_now} now"


def describe(version: str, git: Mapping[str, Any] | None) -> str:
    return f"roundround {version}" + ("" if git is None else f", commit {str(git.get('commit'))[:12]}")


def lines(patch: str | None) -> int:
    """How many lines a patch adds and removes."""
    own = [] if patch is None else patch.splitlines()
    return sum(line[:1] in ("+", "-") and line[:4] not in ("+++ ", "--- ") for line in own)


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
    """A line for each value of a config, by its dotted key, that is not what it was."""
    before, after = (flat({k: v for k, v in config.items() if k not in NO_RESULT}) for config in (then, now))
    return [
        f"the config is another: {key} was {shown(before, key)} and is {shown(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, before) != after.get(key, after)
    ]


def shown(config: Mapping[str, Any], key: str) -> str:
    return printable(str(config[key]), 80) if key in config else "not there"
