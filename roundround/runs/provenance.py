"""Where a result comes from: code, versions, command. What the manifest of a run records about its making."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]  # roundround itself
PACKAGES = [
    "torch",
    "lightning",
    "hydra-core",
    "transformers",
    "tokenizers",
    "datasets",
    "safetensors",
    "numpy",
    "wandb",
]


def command_line() -> str:
    """The command as it would be typed again."""
    return shlex.join([Path(sys.argv[0]).name, *(arg for arg in sys.argv[1:] if arg != "hydra.mode=RUN")])


def config_hash(config: Any) -> str:
    """Hash of a config that is the same for equal configs whatever the order of their keys."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git(*args: str) -> str | None:
    """What git prints about the checkout that this code runs from; None where it is no checkout."""
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *args], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    fine = done.returncode == 0 or ("--no-index" in args and done.returncode == 1)  # 1: the files differ
    return done.stdout.decode(errors="replace") if fine else None


def git_state() -> tuple[dict[str, Any] | None, str | None]:
    """(commit and whether the tree is dirty, the patch against that commit where it is)."""
    top = git("rev-parse", "--show-toplevel")
    commit = git("rev-parse", "HEAD")
    if top is None or commit is None or PACKAGE.parent != Path(top.strip()).resolve():
        return None, None  # installed, perhaps inside another repository
    patch = uncommitted(PACKAGE.parent)
    return {"commit": commit.strip(), "dirty": bool(patch)}, patch or None


def uncommitted(top: Path) -> str:
    """The patch from the commit to the code as it is, files that git does not know yet included."""
    code = (":/roundround", ":/conf")  # from the top, because git runs in a folder below it
    unknown = git("ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", *code) or ""
    parts = [git("diff", "HEAD", "--binary", "--", *code)]
    for name in unknown.split("\0")[:-1]:
        parts.append(git("-C", str(top), "diff", "--no-index", "--binary", "--", "/dev/null", name))
    return "".join(part for part in parts if part)
