"""Where a result comes from: code, versions, command. What the manifest of a run records about its making."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
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

CODE, KINDS = ("roundround", "conf"), {".py", ".yaml"}  # where, and what new files of it a run takes along
LARGEST_FILE, LARGEST_PATCH = 256 << 10, 2 << 20  # bytes of a file, or of its change, in a patch; and of the patch
MOST_NAMED = 100  # files left out
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
SECRET = re.compile(
    r"""secret|credential|passw(or)?d|passphrase|htpasswd|pgpass
    | ^\.env | \.env$
    | ^id_(rsa|dsa|ecdsa|ed25519)
    | (^|[^a-z])(api|access|private|ssh|auth|secret)[^a-z]?keys?([^a-z]|$)
    | tokens?(\.(?!py$)[^.]*|~)*$
    | ^[._]netrc | ^\.(npmrc|pypirc|ssh|aws|gnupg|kube|docker)$ | kubeconfig | service.?account
    | \.(pem|key|p12|pfx|pkcs12|jks|keystore|kdbx?|ppk|asc|gpg|age|ovpn|der)(\.(bak|old|orig|save|swp|[0-9]+)|~)?$""",
    re.VERBOSE,
)


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
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *args], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    fine = done.returncode == 0 or ("--no-index" in args and done.returncode == 1)  # 1: the files differ
    return done.stdout if fine else None


def git_state() -> tuple[dict[str, Any] | None, str | None]:
    """(commit and whether the tree is dirty, the patch against that commit where it is).

    Where changed files are not in the patch, the first also has `left_out`: a line for each, with the reason.
    """
    top = git("rev-parse", "--show-toplevel")
    commit = git("rev-parse", "HEAD")
    if top is None or commit is None or PACKAGE.parent != Path(os.fsdecode(top).strip()).resolve():
        return None, None  # installed, perhaps inside another repository
    patch, left_out = uncommitted(PACKAGE.parent)
    state = {"commit": commit.decode().strip(), "dirty": bool(patch or left_out)}
    return state | ({"left_out": left_out} if left_out else {}), patch or None


def uncommitted(top: Path) -> tuple[str, list[str]]:
    """The patch from the commit to the code as it is, small new modules and configs included; and what it leaves out.

    A patch lies in every run and goes where runs go: files that look like secrets, and bulk, are named and not copied.
    """
    changed = ["diff", "HEAD", "--name-only", "--no-renames", "--no-relative", "-z", "--", *CODE]
    unknown = ["ls-files", "--others", "--exclude-standard", "-z", "--", *CODE]
    parts, left_out, size = [], [], 0
    for is_new, command in ((False, changed), (True, unknown)):
        for raw in (git("-C", str(top), *command) or b"").split(b"\0")[:-1]:
            part, reason = change_of(top, os.fsdecode(raw), is_new=is_new)
            if not reason and size + len(part) > LARGEST_PATCH:
                reason = f"the patch would have more than {LARGEST_PATCH:,} bytes"
            if reason:
                left_out.append(f"{os.fsdecode(raw)}: {reason}")
            else:
                parts.append(part)
                size += len(part)
    more = [f"and {len(left_out) - MOST_NAMED:,} more"] if len(left_out) > MOST_NAMED else []
    return "".join(parts), left_out[:MOST_NAMED] + more


def change_of(top: Path, name: str, *, is_new: bool) -> tuple[str, str]:
    """(the patch of one file, why it is left out); one of them is empty."""
    path = top / name
    if looks_secret(name):
        return "", "its name looks like that of a secret"
    if is_new and (path.is_symlink() or not path.is_file()):
        return "", "it is new and no regular file"
    if path.is_file() and not path.is_symlink() and path.stat().st_size > LARGEST_FILE:
        return "", f"it has more than {LARGEST_FILE:,} bytes"
    if is_new and path.suffix not in KINDS:  # a key has many names, and the package holds nothing else
        return "", f"it is new and neither {' nor '.join(sorted(KINDS))}"
    against = ["--no-index", "--", os.devnull, name] if is_new else ["HEAD", "--", name]
    change = git("-C", str(top), "--literal-pathspecs", "diff", *AS_ALWAYS, *([] if is_new else ["--binary"]), *against)
    if change is None:
        return "", "git cannot compare it"
    if len(change) > LARGEST_FILE:
        return "", f"its change has more than {LARGEST_FILE:,} bytes"
    try:
        text = change.decode()
    except UnicodeDecodeError:
        return "", "it is not UTF-8"
    if is_new and "\nBinary files " in text:
        return "", "it is new and no text"
    return text, ""


def looks_secret(name: str) -> bool:
    """Whether a file or one of its folders has a name by which keys and passwords are kept.

    `token` is the last word of such a name and never that of python code: tokens.py and tokenizer/ are our own.
    """
    return any(SECRET.search(part.lower()) for part in Path(name).parts)
