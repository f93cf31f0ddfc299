"""A wrong invocation, and the rules by which its answer is judged.

The rules: the right exit code; on standard error one readable line of a failure, and beside what is told while all is
well no line that the case does not name; no traceback, no hang, no control characters; nothing left behind or changed;
nothing executed that lay among the data; the secrets of the environment neither shown nor written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkserver import COMMAND, ROOT, Ended, in_a_process
from originals import Originals

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
LONGEST_LINE = 700  # characters of an error that somebody still reads
# what the verbs tell while all is well
STATUS = re.compile(
    "|".join(
        [
            r"tokenising the corpus once; ",
            r"tokenised: ",
            r"another process is tokenising",
            r"prepared in |in [\d.,]+ s with n_processes=",
            r"(\S+ )?model(, \w+=\S+)*: ",
            r"[\d,]+ training tokens, ",
            r"W&B: ",
            r"step [\d,]+/[\d,]+  ",
            r"resuming after step ",
            r"held-out perplexity |exact match |training (never )?left the loss plateau ",
            r"new examples in every batch |[\d,]+ (training|test) examples ",
            r"starting from the weights of ",
            r"resume with: roundround ",
            r"Launching \d+ jobs",
            r"[ \u2500-\u257f]",  # of a table, or a job of a sweep; no error begins with a space
            r"max retrieval: accuracy",
            r"evaluated \d",
            r"near the largest priorities the logits rise",
            r"exported to ",
            r"windows (of \d+ )?(begin with|have )|text that spells a special token is |each text by itself",
            r"documents (are joined by|are read one by one|in a window do not)|a joint costs |read as roundround eval ",
            r"the loss is the mean of five draws",
            r"uniform is |wavelength: |heads: |diffuse$|\d+ texts, ",  # below the tables of a probe
            r"-slow, -fast: |pair: with ",
            r"(label|previous|diagonal|offset|semantic|local|sink|diffuse) +[h\d]|head: layer",  # its rows
            r"mean of \d+ seeds|per cent, one seed; |root mean square distance |\w+ = \w+: the same in every measure",
            r"(the same )?[\d,]+ targets",
            r"pe=.*: a stock LlamaForCausalLM",
            r"loaded in a clean process",
            r"documents have ",
            r"(holds|shown)  \w+\.\w+|margin: ",
            r"(agrees|sign agrees|not told apart|not tested|drawn|not run)  \w+\.\w+: |"
            r"items: \d+; |\d+ figures and tables: |roundround reproduce NAME makes one|"
            r"roundround (probe|theory|train|eval|max-retrieval) \S+=",  # what reproduce starts
            r"\w+( with \w+)? has no exact fused form: ",
            r"the learning rate warms up during ",
            r"\S+, \d+ runs?|\d+ of \d+ jobs failed: |page: |evaluate each run: |compare them: |last is \S+ of a sweep",
            r"not shown for lack of room: |\d+ of the \d+ runs of ",
        ]
    )
)
OF_HYDRA = ("Error executing job", "HYDRA_FULL_ERROR")  # its own words for an error, which nobody may have to read
# what is read before or while modules are imported, so that a forked command would not see it
READ_EARLY = {
    "HOME", "LANG", "LC_ALL", "PATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONWARNINGS",
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "OMP_NUM_THREADS", "TMPDIR", "TERM", "COLUMNS", "TZ", "RANK",
    "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES",
    "MPLBACKEND", "TORCH_LOGS",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One invocation in an empty folder of its own.

    name: "kind: what"; the counts go by kind. codes: the right exit codes. given: what lies in the folder, under these
    names: run, task-run and maxkey-run (finished runs), llama (a Hugging Face folder), cache (the token cache, which
    the command then uses). prepare: changes the folder. shell: a line of bash in which "$@"
    is the command. says: what the answer must hold. notes: with exit code 0, the lines beside the usual progress, each
    a pattern of what it says; no others may come. afterwards: with exit code 0, what is wrong in the folder. leaves:
    files may stay or change, because the command may have begun, or wrote into what was there. ordinary_user: without
    root's right to open any file. colours: on a terminal. patience: seconds until it counts as a hang.
    """

    name: str
    args: Sequence[str] = ()
    codes: Sequence[int] = (2,)
    given: Sequence[str] = ()
    prepare: Callable[[Path], object] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    shell: str | None = None
    says: str = ""
    notes: Sequence[str] = ()
    afterwards: Callable[[Path, Originals], Sequence[str]] | None = None
    leaves: bool = False
    ordinary_user: bool = False
    colours: bool = False
    patience: float = 60

    @property
    def forked(self) -> bool:
        """Whether it can go without the imports of a process of its own."""
        return self.shell is None and not self.ordinary_user and not READ_EARLY & self.env.keys()


def of_words(
    kind: str, base: Sequence[str], lines: Sequence[str | Sequence[str]] | Mapping[str, Sequence[str]], **more: Any
) -> list[Case]:
    """One case for each line of words, or each `key=value` of a table, behind the same words; names are short."""
    if isinstance(lines, Mapping):
        lines = [f"{key}={value}" for key, values in lines.items() for value in values]
    found = []
    for line in lines:
        words = (line,) if isinstance(line, str) else tuple(line)
        text = ascii(" ".join(words))[1:-1]
        shown = text if len(text) <= 60 else f"{text[:30]}... of {len(text):,} characters"
        found.append(Case(name=f"{kind}: {shown}", args=(*base, *words), **more))
    return found


def faults_of(case: Case, folder: Path, streams: Path, originals: Originals) -> list[str]:
    """What is wrong with the answer to a case, in words; nothing where it is as it should be."""
    for name in case.given:
        originals.copy(name, folder)
    if case.prepare is not None:
        case.prepare(folder)
    before = snapshot(folder)
    cache = {"ROUNDROUND_CACHE": str(folder / "cache")} if "cache" in case.given else {}
    env = {name: value for name, value in {**originals.env, **case.env, **cache}.items() if value is not None}
    if case.forked:
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
    folder.chmod(0o755)
    for parent, below, _ in os.walk(folder):  # folders that the case has closed can be read again
        for path in (Path(parent, name) for name in below):
            if not path.is_symlink():
                path.chmod(0o755)
    secret = any(SECRET in value for value in env.values())
    files = about_the_files(folder, before, ended.code, leaves=case.leaves, secret=secret)
    found = [*about_the_text(case, ended), *files]
    if ended.hung:
        found = [f"no answer in {case.patience:g} s", *found]
    elif ended.code not in case.codes:
        found = [f"exit code {ended.code}, not {' or '.join(map(str, case.codes))}: {ended.err[-300:]!r}", *found]
    if case.afterwards is not None and ended.code == 0:
        found += case.afterwards(folder, originals)
    return found


def about_the_text(case: Case, ended: Ended) -> list[str]:
    """What is wrong with what it printed; on standard error beside the usual progress: one line, or the notes."""
    text, found = ended.out + ended.err, []
    told = [line for line in ended.err.splitlines() if line.strip() and not STATUS.match(line)]
    if ended.code == 0 and not (len(told) == len(case.notes) and all(map(re.search, case.notes, told))):
        found.append(f"told {told[:4]!r} where {list(case.notes)!r} is right")
    if ended.code in (1, 2) and len(told) != 1:
        found.append(f"{len(told)} lines where one is right: {told[:4]!r}")
    if ended.code in (1, 2) and (longest := max(map(len, told), default=0)) > LONGEST_LINE:
        found.append(f"a line of {longest} characters")
    if "Traceback" in text:
        found.append(f"a traceback: {ended.err[-300:]!r}")
    found += [f"Hydra's own {words!r}" for words in OF_HYDRA if words in text]
    # what a terminal would obey: escapes, the other direction of writing, halves of characters
    if not case.colours and not text.replace("\n", "").replace("\t", "").isprintable():
        found.append("control characters")
    if case.says not in text:
        found.append(f"{case.says!r} is not said: {text[-300:]!r}")
    if SECRET in text:
        found.append("a secret of the environment in the output")
    return found


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """(kind, permissions, content) of everything below a folder by its path there; of a log its text, else a hash.

    The permissions of folders are left out: the judge gives them back before it looks.
    """
    found = {}
    for path in (Path(parent, name) for parent, below, names in os.walk(folder) for name in (*below, *names)):
        about = path.lstat()
        kind, mode, content = stat.S_IFMT(about.st_mode), stat.S_IMODE(about.st_mode), b"%d bytes" % about.st_size
        if kind == stat.S_IFDIR:
            mode, content = 0, b""
        elif kind == stat.S_IFLNK:
            content = os.fsencode(os.readlink(path))
        elif kind == stat.S_IFREG and about.st_size <= READ_WHOLE and os.access(path, os.R_OK):
            data = path.read_bytes()
            content = data if path.suffix == ".log" else hashlib.sha256(data).digest()
        found[path.relative_to(folder).as_posix()] = kind, mode, content
    return found


def about_the_files(
    folder: Path, before: Mapping[str, tuple[int, int, bytes]], code: int, *, leaves: bool, secret: bool
) -> list[str]:
    """What is wrong with what a command left behind, in words.

    leaves: with exit code 2, too, files may stay or change. secret: its environment held the secret.
    """
    after, found = snapshot(folder), []
    new = sorted(after.keys() - before.keys())
    changed = sorted(path for path, state in before.items() if after.get(path) != state)
    if any(CANARY in path for path in new) or (ROOT / CANARY).exists():
        found.append("something among the data was executed")
    if code == 2 and not leaves:
        left = [path for path in new if not ALLOWED.fullmatch(path)]
        # of a run that was refused, its log keeps why, with the traceback: it may have got more lines
        logs = {path for path in changed if path.endswith(".log") and path in after}
        grown = {path for path in logs if after[path][2].startswith(before[path][2])}
        spoilt = [path for path in changed if path not in grown]
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
