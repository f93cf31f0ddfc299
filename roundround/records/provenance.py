"""Where a result comes from: the code of roundround and of a user's classes, and the versions of packages.

run.json, "git"         the commit; what was not committed is in code.patch
run.json, "variants"    {a user's class: {file: sha256}}
variants/               the module of each such class, and the modules that it imports from the same folder

Tested by tests/records/test_provenance.py and tests/records/test_variants.py.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from roundround.config.recorded import foreign_targets, overridden
from roundround.records.directories import has_words, read_manifest
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import sha256
from roundround.support.imports import file_of, import_statements, package_of, reached

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

VARIANTS = "variants"
REBUILT = (
    "model",
    "pattern",
    "pe",
    "softmax",
    "qk_norm",
    "gate",
    "mix",
    "attention",
    "data",
    "tokenizer",
)  # nodes of a training run from which its model is built again
REBUILT_OF_MAX_RETRIEVAL = ("model", "normalisers")
CODE = ("roundround", "conf")
NEW = [f"{folder}/*{kind}" for folder in CODE for kind in (".py", ".yaml")]  # patterns of files that git may not track
AS_ALWAYS = [  # `git apply` must take the patch whatever the user's git configuration says
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
    """Hash of the whole config, output paths included. It does not depend on the order of the keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def git(*args: str) -> bytes | None:
    """What git prints about the checkout that holds this code; None if the code is not in a checkout."""
    command = ["git", "-C", str(PACKAGE.parent), *args]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode in (0, 1) else None  # --no-index returns 1 if the files differ


def git_state() -> tuple[dict[str, Any] | None, bytes | None]:
    """The state of the checkout, {"commit", "dirty"}, and the patch.

    The state is None if the code is not in a checkout. "dirty" says whether the code has changed since the commit. The
    patch contains these changes, and the new modules and yamls that git does not ignore; it is None if there are none.
    """
    top, commit = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    if top is None or commit is None or PACKAGE.parent != Path(os.fsdecode(top).strip()).resolve():
        return None, None  # installed, perhaps inside another repository
    new = (git("ls-files", "--others", "--exclude-standard", "-z", "--", *NEW) or b"").split(b"\0")[:-1]
    both = [("HEAD", "--", *CODE), *(("--no-index", "--", os.devnull, os.fsdecode(name)) for name in new)]
    patch = b"".join(git("diff", "--binary", *AS_ALWAYS, *paths) or b"" for paths in both)
    return {"commit": commit.decode(errors="replace").strip(), "dirty": bool(patch)}, patch or None


# -- what belongs to a class


def sources_of(target: str) -> dict[str, Path]:
    """The files of a class: its module and the modules that this imports from the same folder, by path in that folder.

    For a class of an installed package, imports are followed only inside that package. The modules are read and not
    imported; only the packages that contain the class are imported, to find its files.
    """
    module = target.rpartition(".")[0]
    top = module.partition(".")[0]
    root = root_of(top)
    if root is None:
        return {}
    only = top if installed(root) else None

    def own_file(name: str) -> Path | None:
        first = name.partition(".")[0]
        elsewhere = first in {"", "roundround", *sys.stdlib_module_names} or only not in (None, first)
        return None if elsewhere else file_of(root, name)

    def following(name: str) -> list[str]:
        path = own_file(name)
        if path is None:
            return []
        # `from a import b` gives a and a.b, which may be a module too
        statements = import_statements(path.read_bytes(), package_of(name, path))
        return [name.rpartition(".")[0], *(n for s in statements for n in (s.origin, *s.names) if n)]

    files = [path for name in reached([module], following) if (path := own_file(name)) is not None]
    return {path.relative_to(root).as_posix(): path for path in files}


def root_of(top: str) -> Path | None:
    """The folder that holds the module or package of this name; None if there is no such module with a source file."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # for example, for __main__
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.origin and spec.origin.endswith(".py") else None


def installed(root: Path) -> bool:
    """Whether packages are installed into this folder; if so, `sources_of` follows imports only within one package."""
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return root in folders or not {"site-packages", "dist-packages"}.isdisjoint(root.parts)


# -- keeping


def keep_sources(config: dict[str, Any], directory: Path) -> dict[str, dict[str, str]]:
    """Copy the sources of the user's classes in a config into a run directory; returns the manifest's "variants"."""
    kept: dict[str, dict[str, str]] = {}
    for target in sorted(set(foreign_targets(config).values())):
        kept[target] = {}
        for name, path in sources_of(target).items():
            copy = directory / VARIANTS / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
            kept[target][name] = sha256(copy)
    return kept


# -- comparing


def changes(directory: Path, manifest: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """A line for each class whose code differs from the run's copy. config: the nodes whose classes are compared."""
    found, folder = [], directory / VARIANTS
    for target in sorted(set(foreign_targets(config).values())):
        now, kept = sources_of(target), manifest.get("variants", {}).get(target, {})
        names = sorted({*now, *kept}) if now else []  # a class that is gone raises its error when it is built
        listed = ", ".join(name for name in names if differs(now.get(name), folder / name, kept.get(name)))
        if listed:
            found.append(
                f"the code of {target} is not the code that {directory} was made with: {listed} changed. The run's own "
                f"copy is in {folder}: give --config-dir {folder} to use it"
            )
    return found


def taken_over(config: dict[str, Any], earlier: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The user's classes that `config` takes over from `earlier`, the config of an evaluated max-retrieval run.

    The result is itself a config for `changes`: for each node that names such a class, {"_target_": class}. Classes
    that `overrides` choose are left out, because the earlier run has no copy of them.
    """
    before, given = foreign_targets(earlier), overridden(overrides)
    return {
        node: {"_target_": target}
        for node, target in foreign_targets(config).items()
        if node.partition(".")[0] in REBUILT_OF_MAX_RETRIEVAL
        and before.get(node) == target
        and not any(node == key or node.startswith(f"{key}.") for key in given)
    }


def tell_changes(directory: Path, manifest: dict[str, Any], config: dict[str, Any]) -> None:
    """Print the lines of `changes`."""
    for line in changes(directory, manifest, config):
        print_status(line)


def differs(now: Path | None, copy: Path, kept_hash: str | None) -> bool:
    """Whether the code of a file differs from the run's copy; differences in comments do not count."""
    if now is None or kept_hash is None:
        return True
    if sha256(now) == kept_hash:
        return False
    if copy.is_file() and sha256(copy) == kept_hash:
        with suppress(SyntaxError, ValueError):
            return ast.dump(ast.parse(copy.read_bytes())) != ast.dump(ast.parse(now.read_bytes()))
    return True


def is_done(directory: Path, verb: str, overrides: Sequence[str]) -> bool:
    """Whether the directory has a finished run of this verb and these overrides.

    Raises UserError if the code of one of the run's classes has changed.
    """
    manifest = read_manifest(directory)
    if manifest["status"] != "done" or not has_words(manifest, verb, overrides):
        return False
    refuse_changed(directory, manifest)
    return True


def refuse_changed(directory: Path, manifest: dict[str, Any]) -> None:
    """Raises UserError if a run that is to be resumed has a class whose code has changed."""
    of_numbers = {name: node for name, node in manifest["config"].items() if name != "logger"}
    for line in changes(directory, manifest, of_numbers):
        raise UserError(f"a resumed run must keep its code, but {line}, or start a new run")
