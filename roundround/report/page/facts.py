"""The head of a page: what the run is, how it ended, how to run it again, and its configuration."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from roundround.analysis.past_run import PastRun
from roundround.analysis.repetition import Change
from roundround.config.recorded import flat
from roundround.config.verbs import verb_named
from roundround.report.numbers import shown, text_of

SHORT_HASH = 12  # characters


@dataclass(frozen=True)
class Fact:
    """A name and what stands beside it; `whole` where the shown value is cut."""

    name: str
    value: str
    whole: str = ""


def title_of(run: PastRun) -> str:
    return verb_named(run.verb).title


def subject_of(run: PastRun, common: dict[str, Any]) -> str:
    """What the run is of in a few words: the model and its attention, as the results name them."""
    names = {**run.choices, **{k: v for k, v in common.items() if v is not None}}
    parts = [str(names["model"])] if "model" in names else []
    parts += [f"{name}={names[name]}" for name in ("pe", "softmax") if name in names and names[name] != "its own"]
    return ", ".join(parts)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def facts_of(run: PastRun) -> list[Fact]:
    """Where the run comes from: time, device, data, code and versions."""
    manifest = run.manifest
    found = [
        Fact("status", run.status),
        Fact("started", run.started.isoformat(sep=" ", timespec="seconds")),
        Fact("duration", duration(run.seconds)),
        Fact("directory", str(run.directory)),
    ]
    if manifest.get("run") and manifest["run"] != str(run.directory):
        found.append(Fact("looks at the model of", str(manifest["run"])))
    if manifest["sweep"]:
        found.append(Fact("job of the sweep", str(manifest["sweep"])))
    if manifest["seed"] is not None:
        found.append(Fact("seed", str(manifest["seed"])))
    if manifest.get("device"):
        found.append(Fact("device", text_of(manifest["device"])))
    found += [Fact(in_words(name), value_of(name, value)) for name, value in manifest["facts"].items()]
    found += [hashed(name, value) for name, value in (manifest["data"] or {}).items()]
    return found + code_of(manifest)


def hashed(name: str, value: Any) -> Fact:
    if name.endswith("_hash") and isinstance(value, str):
        return Fact(in_words(name), value[:SHORT_HASH], value)
    return Fact(in_words(name), value_of(name, value))


def value_of(name: str, value: Any) -> str:
    return shown(value) if not name.endswith("of_document") else str(value)


def code_of(manifest: dict[str, Any]) -> list[Fact]:
    """The program's version and commit, and the versions of what the numbers depend on."""
    found = [Fact("roundround", manifest["roundround"])]
    git = manifest.get("git")
    if isinstance(git, dict) and isinstance(git.get("commit"), str):
        patched = ", with uncommitted changes (code.patch)" if git.get("dirty") else ""
        found.append(Fact("commit", git["commit"][:SHORT_HASH] + patched, git["commit"]))
    versions = manifest.get("versions")
    if isinstance(versions, dict):
        found.append(Fact("versions", ", ".join(f"{name} {text_of(value)}" for name, value in versions.items())))
    return found


def commands_of(run: PastRun) -> list[tuple[str, str]]:
    """How to run it again: from its manifest, and as it was typed in its folder."""
    again = shlex.join(["roundround", "rerun", str(run.directory)])
    repeated = [("again, and compare the numbers", again)] if verb_named(run.verb).repeats else []
    folder = run.manifest.get("cwd")
    return [*repeated, ("as it was given" + (f" in {folder}" if folder else ""), run.manifest["command"])]


def settings_of(run: PastRun, changes: list[Change] | None) -> dict[str, Any]:
    """What differs from the defaults, with them; where these are not known, what the command line gave."""
    if changes is not None:
        rows = [(change.key, text_of(change.value), text_of(change.default)) for change in changes]
        return {"title": "What differs from the defaults", "columns": ["setting", "value", "default"], "rows": rows}
    given = [tuple(word.partition("=")[::2]) for word in run.manifest["overrides"]]
    return {"title": "Given on the command line", "columns": ["setting", "value"], "rows": given}


def config_of(run: PastRun) -> list[tuple[str, str]]:
    """Every value of the configuration by its dotted name."""
    return [(key, text_of(value)) for key, value in sorted(flat(run.manifest["config"]).items())]


def headline_of(run: PastRun) -> list[tuple[str, str]]:
    found = {in_words(name): shown(value) for name, value in run.manifest["headline"].items()}
    return list((found | ({"plateau": "never left"} if found.get("plateau") == "inf" else {})).items())


def in_words(name: str) -> str:
    return name.replace("_", " ")


def common_of(common: dict[str, Any]) -> list[tuple[str, str]]:
    """What all results share, by name."""
    return [(name, text_of(value)) for name, value in common.items() if value is not None]
