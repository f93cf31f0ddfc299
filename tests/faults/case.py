"""A wrong invocation, and the rules by which its answer is judged.

The rules: the right exit code; one line about a failure; no traceback, no hang, no control characters; nothing left
behind or changed; nothing executed that lay among the data; the secrets of the environment neither shown nor written.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkserver import COMMAND, ROOT, Ended, in_a_process
from originals import Originals

CANARY = "EXECUTED"  # a file of this name appears where something among the data was executed
SECRET = "open-sesame-8361"  # a value of the environment that nobody may see
# a folder that was made for a run and is empty again; entries of the token cache, and their locks, which stay
ALLOWED = re.compile(r"outputs(/[\w-]+(/\d{4}-\d\d-\d\d)?)?|(cache|disk)(/.*)?")
LONGEST_LINE = 700  # characters of an error that somebody still reads
# what is read before or while modules are imported, so that a forked command would not see it
READ_EARLY = {"HOME", "LC_ALL", "PYTHONUTF8", "COLUMNS", "TMPDIR", "MPLBACKEND"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One invocation in an empty folder of its own.

    name: "kind: what". codes: the right exit codes. given: what lies in the folder, under these names: run, task-run
    and maxkey-run (finished runs), llama (a Hugging Face folder), cache (the token cache, which the command then uses).
    prepare: changes the folder. shell: a line of bash in which "$@" is the command. says: what the answer must hold.
    afterwards: with exit code 0, what is wrong in the folder. leaves: files may stay or change. ordinary_user: without
    root's right to open any file. patience: seconds until it counts as a hang.
    """

    name: str
    args: Sequence[str] = ()
    codes: Sequence[int] = (2,)
    given: Sequence[str] = ()
    prepare: Callable[[Path], object] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    shell: str | None = None
    says: str = ""
    afterwards: Callable[[Path, Originals], Sequence[str]] | None = None
    leaves: bool = False
    ordinary_user: bool = False
    patience: float = 60


def of_words(kind: str, base: Sequence[str], lines: Sequence[str], **more: object) -> list[Case]:
    """One case for each line of words, which spaces separate, behind the same words."""
    return [Case(name=f"{kind}: {line}", args=(*base, *line.split(" ")), **more) for line in lines]  # type: ignore


def faults_of(case: Case, folder: Path, streams: Path, originals: Originals) -> list[str]:
    """What is wrong with the answer to a case, in words; nothing where it is as it should be."""
    for name in case.given:
        originals.copy(name, folder)
    if case.prepare is not None:
        case.prepare(folder)
    before = snapshot(folder)
    cache = {"ROUNDROUND_CACHE": str(folder / "cache")} if "cache" in case.given else {}
    env = {name: value for name, value in {**originals.env, **case.env, **cache}.items() if value is not None}
    if case.shell is None and not case.ordinary_user and not READ_EARLY & case.env.keys():
        ended = originals.server.run(case.args, folder, streams, env=env, timeout=case.patience)
    else:  # as a shell would, and as the user whom it names
        command = [*COMMAND, *case.args]
        if case.shell is not None:
            command = ["bash", "-c", case.shell, "bash", *command]
        if case.ordinary_user and os.geteuid() == 0:
            rights = "-dac_override,-dac_read_search"
            command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, *command]
        ended = in_a_process(command, folder, env=env, timeout=case.patience)
        if "mount" in (case.shell or ""):
            subprocess.run(["umount", "-q", str(folder / "disk")], capture_output=True, check=False)
    for parent, below, _ in os.walk(folder):  # folders that the case has closed can be read again
        for path in (Path(parent, name) for name in below):
            if not path.is_symlink():
                path.chmod(0o755)
    found = [*about_the_text(case, ended), *about_the_files(folder, before, ended.code, leaves=case.leaves)]
    if ended.hung:
        found = [f"no answer in {case.patience:g} s", *found]
    elif ended.code not in case.codes:
        found = [f"exit code {ended.code}, not {' or '.join(map(str, case.codes))}: {ended.err[-300:]!r}", *found]
    if case.afterwards is not None and ended.code == 0:
        found += case.afterwards(folder, originals)
    return found


def about_the_text(case: Case, ended: Ended) -> list[str]:
    """What is wrong with what it printed."""
    text, found = ended.out + ended.err, []
    told = [line for line in ended.err.splitlines() if re.match(r"roundround( [\w-]+)?: ", line)]
    if ended.code in (1, 2) and len(told) != 1:
        found.append(f"{len(told)} lines about the error where one is right: {told[:4]!r}")
    if any(len(line) > LONGEST_LINE for line in told):
        found.append("a line that nobody reads")
    if "Traceback" in text or "Error executing job" in text:
        found.append(f"a traceback: {ended.err[-300:]!r}")
    if not text.replace("\n", "").replace("\t", "").isprintable():  # what a terminal would obey
        found.append("control characters")
    if case.says not in text:
        found.append(f"{case.says!r} is not said: {text[-300:]!r}")
    if SECRET in text:
        found.append("a secret of the environment in the output")
    return found


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, hashed, and where a link leads; of a folder or a pipe nothing."""
    found = {}
    for path in (Path(parent, name) for parent, below, names in os.walk(folder) for name in (*below, *names)):
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK) and path.suffix != ".log":
            content = hashlib.sha256(path.read_bytes()).digest()
        found[path.relative_to(folder).as_posix()] = content
    return found


def about_the_files(folder: Path, before: Mapping[str, bytes], code: int, *, leaves: bool) -> list[str]:
    """What is wrong with what a command left behind, in words. leaves: with exit code 2, too, files may stay."""
    after, found = snapshot(folder), []
    new = sorted(after.keys() - before.keys())
    changed = sorted(path for path, state in before.items() if after.get(path) != state)
    if any(CANARY in path for path in new) or (ROOT / CANARY).exists():
        found.append("something among the data was executed")
    if code == 2 and not leaves:
        left = [path for path in new if not ALLOWED.fullmatch(path)]
        found += [f"left {left[:4]}"] if left else []
        found += [f"changed {changed[:4]}"] if changed else []
    files = [folder / path for path in (*new, *changed) if (folder / path).is_file()]
    telling = [path for path in files if SECRET.encode() in path.read_bytes()]
    return found + ([f"a secret of the environment in {telling[:4]}"] if telling else [])
