"""Where a result comes from: code, versions, command. What the manifest of a run records about its making."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
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

CODE = ("roundround", "conf")
NEW = [f"{folder}/*{kind}" for folder in CODE for kind in (".py", ".yaml")]  # what git does not know yet
AS_ALWAYS = [  # whatever git's own configuration says, `git apply` must take the patch
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-renames",
    "--no-relative",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
]


def config_hash(config: Any) -> str:
    """Hash of a whole config, where it went included: what was asked for, the same whatever the order of its keys."""
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


def git(*args: str) -> bytes | None:
    """What git prints about the checkout that this code runs from; None where it is no checkout."""
    command = ["git", "-C", str(PACKAGE.parent), *args]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    fine = done.returncode == 0 or ("--no-index" in args and done.returncode == 1)  # 1: the files differ
    return done.stdout if fine else None


def git_state() -> tuple[dict[str, Any] | None, bytes | None]:
    """(commit and whether the code is changed, the patch against that commit where it is)."""
    top, commit = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    if top is None or commit is None or PACKAGE.parent != Path(os.fsdecode(top).strip()).resolve():
        return None, None  # installed, perhaps inside another repository
    patch = uncommitted()
    return {"commit": commit.decode().strip(), "dirty": bool(patch)}, patch or None


def uncommitted() -> bytes:
    """The patch from the commit to the code as it is: changes, and new modules and yamls that git does not ignore."""
    new = (git("ls-files", "--others", "--exclude-standard", "-z", "--", *NEW) or b"").split(b"\0")[:-1]
    both = [("HEAD", "--", *CODE), *(("--no-index", "--", os.devnull, os.fsdecode(name)) for name in new)]
    return b"".join(git("diff", "--binary", *AS_ALWAYS, *paths) or b"" for paths in both)
