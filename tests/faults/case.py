"""A wrong invocation, and the rules by which its answer is judged.

The rules: the exit code of wrong input; one readable line on standard error beside what is told while all is well; no
traceback, no hang, no control characters; nothing left behind; nothing executed that lay among the data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkserver import ROOT, Ended, Forkserver

CANARY = "EXECUTED"  # a file of this name appears where something among the data was executed
LONGEST_LINE = 700  # characters of an error that somebody still reads
# what the verbs tell while all is well
STATUS = re.compile(
    "|".join(
        [
            r"tokenising the corpus once; ", r"tokenised: ", r"another process is tokenising", r"\S+ model, pe=",
            r"[\d,]+ training tokens, ", r"step [\d,]+/[\d,]+  ", r"resuming after step ", r"held-out perplexity ",
            r"starting from the weights of ", r"resume with: roundround ", r"Launching \d+ jobs", r"\s*#\d+ :",
            r"the same [\d,]+ targets", r"\S+: a stock LlamaForCausalLM", r"loaded in a clean process",
            r"documents have ", r"the warm-up takes ",
        ]  # fmt: skip
    )
)
# what is read before or while modules are imported, so that a forked command would not see it
READ_EARLY = {
    "HOME", "LANG", "LC_ALL", "PATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONWARNINGS",
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "OMP_NUM_THREADS", "TMPDIR", "TERM", "COLUMNS", "TZ",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One invocation in an empty folder of its own.

    prepare: fills the folder; may return other arguments. shell: a line of bash in which "$@" is the command.
    codes: the right exit codes. leaves: files may stay, because the command may have begun, or wrote into what was
    there. ordinary_user: without root's right to open any file. patience: seconds until it counts as a hang.
    """

    name: str
    args: Sequence[str] = ()
    codes: Sequence[int] = (2,)
    prepare: Callable[[Path], Sequence[str] | None] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    shell: str | None = None
    leaves: bool = False
    ordinary_user: bool = False
    patience: float = 60

    @property
    def forked(self) -> bool:
        """Whether it can go without the imports of a process of its own."""
        return self.shell is None and not self.ordinary_user and not READ_EARLY & self.env.keys()


def faults_of(case: Case, folder: Path, streams: Path, server: Forkserver, env: Mapping[str, str]) -> list[str]:
    """What is wrong with the answer to a case, in words; nothing where it is as it should be."""
    args = list(case.args)
    if case.prepare is not None:
        args = list(case.prepare(folder) or args)
    there = files_in(folder)
    environment = {name: value for name, value in {**env, **case.env}.items() if value is not None}
    if case.forked:
        ended = server.run(args, folder, streams, env=environment, timeout=case.patience)
    else:
        ended = in_a_process(case, args, folder, environment)
    give_back_rights(folder)
    return [*about_the_end(case, ended), *about_the_text(case, ended), *about_the_files(case, ended, folder, there)]


def in_a_process(case: Case, args: Sequence[str], folder: Path, env: Mapping[str, str]) -> Ended:
    """Run a case as a shell would, imports included."""
    command = [sys.executable, "-m", "roundround", *args]
    if case.shell is not None:
        command = ["bash", "-c", case.shell, "bash", *command]
    if case.ordinary_user:
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, *command]
    process = subprocess.Popen(
        [os.fsencode(part) for part in command], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=case.patience)
        hung = False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        hung = True
    finally:
        subprocess.run(["umount", "-q", str(folder / "disk")], capture_output=True, check=False)
    return Ended(process.returncode, *(text.decode(errors="replace") for text in (out, err)), hung)


def about_the_end(case: Case, ended: Ended) -> list[str]:
    if ended.hung:
        return [f"no answer in {case.patience:g} s"]
    if ended.code not in case.codes:
        return [f"exit code {ended.code}, not {' or '.join(map(str, case.codes))}: {ended.err[-300:]!r}"]
    return []


def about_the_text(case: Case, ended: Ended) -> list[str]:
    found = []
    lines = [line for line in ended.err.splitlines() if line.strip()]
    told = [line for line in lines if not STATUS.match(line)]
    if "Traceback" in ended.out + ended.err:
        found.append(f"a traceback: {ended.err[-300:]!r}")
    if ended.code == 2 and len(told) != 1:
        found.append(f"{len(told)} lines where one is right: {told[:4]!r}")
    if ended.code in (1, 2) and any(len(line) > LONGEST_LINE for line in told):
        found.append(f"a line of {max(map(len, told))} characters")
    if any(not (character.isprintable() or character in "\n\t") for character in ended.out + ended.err):
        found.append("control characters")
    return found


def about_the_files(case: Case, ended: Ended, folder: Path, there: set[str]) -> list[str]:
    left = sorted(files_in(folder) - there)
    found = []
    if any(CANARY in path for path in left) or (ROOT / CANARY).exists():
        found.append("something among the data was executed")
    if ended.code == 2 and left and not case.leaves:
        found.append(f"left {left[:4]}")
    if ended.code >= 0:
        temporary = [path for path in left if re.search(r"(^|/)\.(?!lock$)[^/]*$", path)]
        found += [f"temporary files left: {temporary[:4]}"] if temporary else []
    return found


def files_in(folder: Path) -> set[str]:
    """Everything in a folder but the empty folders under outputs and the place of a case's own disk."""
    found = set()
    for parent, below, names in os.walk(folder):
        place = Path(parent).relative_to(folder)
        found |= {(place / name).as_posix() for name in (*below, *names)}
    return {path for path in found if not re.fullmatch(r"disk|cache|outputs(/[\w-]+(/\d{4}-\d\d-\d\d)?)?", path)}


def give_back_rights(folder: Path) -> None:
    """Make folders that a case has closed readable again."""
    for parent, below, _ in os.walk(folder):
        for path in (Path(parent), *(Path(parent) / name for name in below)):
            if not path.is_symlink():
                path.chmod(0o755)


def empty(folder: Path) -> Path:
    """The folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
