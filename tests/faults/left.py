"""What lies in a case's folder, before and after: nothing new, changed, executed or secret where the answer is 2."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from forkserver import ROOT

CANARY = "EXECUTED"  # a file of this name appears where something among the data was executed
SECRET = "open-sesame-8361"  # a value of the environment that nobody may see
READ_WHOLE = 1 << 26  # bytes; of a larger file, such as one of 2^42 that holds nothing, the size is compared
# a folder that was made for a run and is empty again; whole entries of the token cache, and their locks, which stay
ALLOWED = re.compile(
    r"outputs(/[\w-]+(/\d{4}-\d\d-\d\d)?)?"
    r"|(cache|disk)(/roundround)?(/[0-9a-f]{32}(\.lock|(/(meta|begun|tokenizer|stamps|shard-\d{5})\.json"
    r"|/(train|held_out|held_out_bytes)-\d{5}\.bin)?))?"
)
TEMPORARY = re.compile(r"(^|/)(\.(?!lock$)[^/]*|[^/]*\.tmp)$")

Snapshot = Mapping[str, tuple[str, int, str]]


def snapshot(folder: Path) -> Snapshot:
    """(kind, permissions, content) of everything below a folder, by its path there.

    The permissions of folders are left out: the judge gives them back before it looks.
    """
    found = {}
    for parent, below, names in os.walk(folder):
        for path in (Path(parent) / name for name in (*below, *names)):
            about = path.lstat()
            mode = stat.S_IMODE(about.st_mode)
            if stat.S_ISDIR(about.st_mode):
                state = ("folder", 0, "")
            elif stat.S_ISLNK(about.st_mode):
                state = ("link", 0, os.readlink(path))
            elif stat.S_ISREG(about.st_mode):
                state = ("file", mode, content_of(path, about.st_size))
            else:
                state = ("device", mode, str(stat.S_IFMT(about.st_mode)))
            found[path.relative_to(folder).as_posix()] = state
    return found


def content_of(path: Path, size: int) -> str:
    """The size of a file and the hash of its first `size` bytes."""
    if size > READ_WHOLE or not os.access(path, os.R_OK):
        return f"{size} bytes"
    with path.open("rb") as file:
        return f"{size} bytes {hashlib.sha256(file.read(size)).hexdigest()}"


def has_grown(path: Path, before: tuple[str, int, str]) -> bool:
    """Whether a log has only got more lines: of a run that was refused, its log keeps why, with the traceback."""
    kind, _, content = before
    is_log = path.suffix == ".log" and kind == "file" and path.is_file()
    return is_log and content_of(path, int(content.split()[0])) == content


def about_the_files(folder: Path, before: Snapshot, code: int, *, leaves: bool, secret: bool) -> list[str]:
    """What is wrong with what a command left behind, in words.

    leaves: with exit code 2, too, files may stay or change. secret: its environment held the secret.
    """
    after = snapshot(folder)
    new = sorted(after.keys() - before.keys())
    changed = sorted(path for path, state in before.items() if after.get(path) != state)
    spoilt = [path for path in changed if path not in after or not has_grown(folder / path, before[path])]
    found = []
    if any(CANARY in path for path in new) or (ROOT / CANARY).exists():
        found.append("something among the data was executed")
    if code == 2 and not leaves:
        left = [path for path in new if not ALLOWED.fullmatch(path)]
        found += [f"left {left[:4]}"] if left else []
        found += [f"changed {spoilt[:4]}"] if spoilt else []
    if code >= 0:
        temporary = [path for path in new if TEMPORARY.search(path)]
        found += [f"temporary files left: {temporary[:4]}"] if temporary else []
    if secret:
        files = [path for path in (*new, *changed) if (folder / path).is_file()]
        telling = [path for path in files if SECRET.encode() in (folder / path).read_bytes()]
        found += [f"a secret of the environment in {telling[:4]}"] if telling else []
    return found


def give_back_rights(folder: Path) -> None:
    """Make folders that a case has closed readable again."""
    for parent, below, _ in os.walk(folder):
        for path in (Path(parent), *(Path(parent) / name for name in below)):
            if not path.is_symlink():
                path.chmod(0o755)
