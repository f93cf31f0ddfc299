"""A wrong invocation, and the rules by which its answer is judged.

The rules: the exit code of wrong input; one readable line on standard error beside what is told while all is well; no
traceback, no hang, no control characters; nothing left behind; nothing executed that lay among the data; the secrets of
the environment neither shown nor written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from forkserver import ROOT, Ended, limit_memory
from originals import Originals

CANARY = "EXECUTED"  # a file of this name appears where something among the data was executed
SECRET = "open-sesame-8361"  # a value of the environment that nobody may see
LONGEST_LINE = 700  # characters of an error that somebody still reads
# what the verbs tell while all is well
STATUS = re.compile(
    "|".join(
        [
            r"tokenising the corpus once; ",
            r"tokenised: ",
            r"another process is tokenising",
            r"\S+ model, pe=",
            r"[\d,]+ training tokens, ",
            r"step [\d,]+/[\d,]+  ",
            r"resuming after step ",
            r"held-out perplexity ",
            r"starting from the weights of ",
            r"resume with: roundround ",
            r"Launching \d+ jobs",
            r"\s*#\d+ :",
            r"the same [\d,]+ targets",
            r"pe=.*: a stock LlamaForCausalLM",
            r"loaded in a clean process",
            r"documents have ",
            r"\w+ has no exact fused form: ",
            r"the learning rate warms up during ",
            r"the tokens in \S+ are ",
        ]
    )
)
# what is read before or while modules are imported, so that a forked command would not see it
READ_EARLY = {
    "HOME", "LANG", "LC_ALL", "PATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONWARNINGS",
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "OMP_NUM_THREADS", "TMPDIR", "TERM", "COLUMNS", "TZ", "RANK",
    "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One invocation in an empty folder of its own.

    name: "kind: what"; the counts go by kind. codes: the right exit codes. given: what lies in the folder, under these
    names: run and maxkey-run (finished runs), llama (a Hugging Face folder), cache (the token cache, which the command
    then uses). prepare: changes the folder; may return other arguments. shell: a line of bash in which "$@" is the
    command. says: what the answer must hold. leaves: files may stay, because the command may have begun, or wrote into
    what was there. ordinary_user: without root's right to open any file. colours: on a terminal. patience: seconds
    until it counts as a hang.
    """

    name: str
    args: Sequence[str] = ()
    codes: Sequence[int] = (2,)
    given: Sequence[str] = ()
    prepare: Callable[[Path], Sequence[str] | None] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    shell: str | None = None
    says: str = ""
    leaves: bool = False
    ordinary_user: bool = False
    colours: bool = False
    patience: float = 60

    @property
    def forked(self) -> bool:
        """Whether it can go without the imports of a process of its own."""
        return self.shell is None and not self.ordinary_user and not READ_EARLY & self.env.keys()


@cache
def lacking(what: str) -> str | None:
    """Why this machine cannot do something that a case needs, or None where it can."""
    if what == "ordinary_user" and os.geteuid() == 0:
        return None if shutil.which("setpriv") else "setpriv is not there to give up root's rights"
    if what == "mount":
        with tempfile.TemporaryDirectory() as folder:
            mounted = subprocess.run(["mount", "-t", "tmpfs", "t", folder], capture_output=True, check=False)
            subprocess.run(["umount", "-q", folder], capture_output=True, check=False)
        return "no right to mount a small disk" if mounted.returncode else None
    if what == "script" and not shutil.which("script"):
        return "script is not there to make a terminal"
    return None


def reason_to_skip(case: Case) -> str | None:
    needs = [tool for tool in ("mount", "script") if case.shell is not None and tool in case.shell]
    reasons = [lacking(need) for need in [*needs, *(["ordinary_user"] if case.ordinary_user else [])]]
    return next((reason for reason in reasons if reason), None)


def faults_of(case: Case, folder: Path, streams: Path, originals: Originals) -> list[str]:
    """What is wrong with the answer to a case, in words; nothing where it is as it should be."""
    args, extra = list(case.args), dict(case.env)
    for name in case.given:
        originals.copy(name, folder)
    if "cache" in case.given:
        extra["ROUNDROUND_CACHE"] = str(folder / "cache")
    if case.prepare is not None:
        args = list(case.prepare(folder) or args)
    there = files_in(folder)
    env = {name: value for name, value in {**originals.env, **extra}.items() if value is not None}
    if case.forked:
        ended = originals.server.run(args, folder, streams, env=env, timeout=case.patience)
    else:
        ended = in_a_process(case, args, folder, env)
    give_back_rights(folder)
    return [*about_the_end(case, ended), *about_the_text(case, ended), *about_the_files(case, ended, folder, there)]


def in_a_process(case: Case, args: Sequence[str], folder: Path, env: Mapping[str, str]) -> Ended:
    """Run a case as a shell would, imports included."""
    command = [sys.executable, "-m", "roundround", *args]
    if case.shell is not None:
        command = ["bash", "-c", case.shell, "bash", *command]
    if case.ordinary_user and os.geteuid() == 0:
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, *command]
    process = subprocess.Popen(
        [os.fsencode(part) for part in command], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=limit_memory,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=case.patience)
        hung = False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        hung = True
    finally:
        if case.shell is not None and "mount" in case.shell:
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
    if "-m" in case.args:  # other jobs of a sweep may end well, and say what they found
        told = [line for line in told if line.startswith("roundround ")]
    if "Traceback" in ended.out + ended.err:
        found.append(f"a traceback: {ended.err[-300:]!r}")
    if ended.code == 2 and len(told) != 1:
        found.append(f"{len(told)} lines where one is right: {told[:4]!r}")
    if ended.code in (1, 2) and any(len(line) > LONGEST_LINE for line in told):
        found.append(f"a line of {max(map(len, told))} characters")
    if not case.colours and any(is_control(character) for character in ended.out + ended.err):
        found.append("control characters")
    if case.says not in ended.out + ended.err:
        found.append(f"{case.says!r} is not said: {ended.err[-300:]!r}")
    if SECRET in ended.out + ended.err:
        found.append("a secret of the environment in the output")
    return found


def is_control(character: str) -> bool:
    """Whether a terminal would obey it: escapes, the other direction of writing, halves of characters."""
    return not character.isprintable() and character not in "\n\t"


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
    if SECRET in case.env.values():
        telling = [path for path in left if holds_secret(folder / path)]
        found += [f"a secret of the environment in {telling[:4]}"] if telling else []
    return found


def holds_secret(path: Path) -> bool:
    return path.is_file() and SECRET.encode() in path.read_bytes()


def files_in(folder: Path) -> set[str]:
    """Everything in a folder but the empty folders under outputs, the token cache and a case's own disk."""
    found = set()
    for parent, below, names in os.walk(folder):
        place = Path(parent).relative_to(folder)
        found |= {(place / name).as_posix() for name in (*below, *names)}
    aside = r"(disk|cache)(/.*)?|outputs(/[\w-]+(/\d{4}-\d\d-\d\d)?)?"
    return {path for path in found if not re.fullmatch(aside, path)}


def give_back_rights(folder: Path) -> None:
    """Make folders that a case has closed readable again."""
    for parent, below, _ in os.walk(folder):
        for path in (Path(parent), *(Path(parent) / name for name in below)):
            if not path.is_symlink():
                path.chmod(0o755)
