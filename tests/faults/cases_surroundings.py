"""Where a command stands: environment variables, streams, limits, disks. Most need a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from case import SECRET, Case
from originals import MAXKEY, TRAIN

WANDB = [word for word in TRAIN if word != "logger=none"]
EITHER = (0, 2)


def of_env(env: Mapping[str, str | None], codes: Sequence[int] = (0,), notes: Sequence[str] = ()) -> Case:
    name = " ".join(f"{key}={'(unset)' if value is None else value!r}" for key, value in env.items())
    return Case(name=f"environment: {name}", args=TRAIN, env=env, codes=codes, notes=notes)


def of_wandb(
    what: str, *args: str, codes: Sequence[int] = (2,), says: str = "", notes: Sequence[str] = (), **env: str
) -> Case:
    return Case(
        name=f"weights and biases: {what}", args=[*WANDB, *args], env=env, codes=codes, says=says, notes=notes,
        patience=120,
    )  # fmt: skip


def of_shell(what: str, line: str, codes: Sequence[int], args: Sequence[str] = TRAIN, **more: object) -> Case:
    return Case(
        name=f"streams and limits: {what}", args=args, shell=line, codes=codes, leaves=True, patience=90, **more
    )  # type: ignore[arg-type]


def of_disk(what: str, options: str, codes: Sequence[int], args: Sequence[str], **more: object) -> Case:
    mounted = f'mkdir disk; mount -t tmpfs -o {options} t disk && "$@"; code=$?'
    line = f"{mounted}; cp -a disk kept; umount disk; rmdir disk; mv kept disk; exit $code"  # so that it can be judged
    return Case(
        name=f"disks: {what}",
        args=args,
        shell=line,
        codes=codes,
        patience=120,
        **more,
    )  # type: ignore[arg-type]


ENVIRONMENTS = [
    of_env({"RANK": "abc"}, (2,)),
    of_env({"LOCAL_RANK": "x"}, (2,)),
    of_env({"RANK": "1"}, (0,)),  # left over from a launcher that is not there, which a run alone need not mind
    # some launchers leave them empty, -1 or alone
    of_env({"RANK": ""}, EITHER),
    of_env({"SLURM_PROCID": "-1"}, EITHER),
    of_env({"WORLD_SIZE": "2"}, EITHER),
    of_env({"SLURM_NTASKS": "abc"}, EITHER),
    of_env({"TORCHELASTIC_RUN_ID": "x"}, EITHER),
    of_env({"HOME": None}),
    of_env({"HOME": "/nonexistent"}),
    of_env({"HOME": None, "ROUNDROUND_CACHE": None, "XDG_CACHE_HOME": None}, EITHER),
    of_env({"HOME": "/dev/null", "ROUNDROUND_CACHE": None}, (2,)),
    of_env({"ROUNDROUND_CACHE": "/dev/null"}, (2,)),
    of_env({"ROUNDROUND_CACHE": "/proc/x"}, (2,)),
    of_env({"ROUNDROUND_CACHE": "/sys"}, (2,)),
    of_env({"ROUNDROUND_CACHE": "~nobody-here/x"}, (2,)),
    of_env({"ROUNDROUND_CACHE": "x" * 5000}, (2,)),
    of_env({"ROUNDROUND_CACHE": None, "XDG_CACHE_HOME": "/dev/null"}, (2,)),
    of_env({"ROUNDROUND_CACHE": "", "XDG_CACHE_HOME": "cache"}),
    of_env({"ROUNDROUND_CACHE": "cache"}),
    of_env({"LC_ALL": "C", "LANG": "C"}),
    of_env({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    of_env({"PYTHONIOENCODING": "ascii"}),
    of_env({"COLUMNS": "20"}),
    of_env({"COLUMNS": "abc"}),
    of_env({"COLUMNS": "0"}),
    of_env({"TERM": "dumb"}),
    of_env({"TMPDIR": "/nonexistent"}),
    of_env({"OMP_NUM_THREADS": "abc"}, notes=["libgomp: Invalid value"]),
    of_env({"PYTHONWARNINGS": "error"}),
    of_env({"PYTHONOPTIMIZE": "2"}),
    of_env({"PYTHONDEVMODE": "1"}),
    of_env({"CUDA_VISIBLE_DEVICES": "0"}),
    of_env({"HYDRA_FULL_ERROR": "1"}),
    of_env({"TZ": "Mars/Base"}),
    of_env({"PATH": "/nonexistent"}),
    of_env({"GIT_DIR": "/nonexistent"}),
    of_env({"NO_COLOR": "1"}),
    of_env({"SOURCE_DATE_EPOCH": "x"}),
    of_env({"API_TOKEN": SECRET}),
    of_env({"TORCH_LOGS": "nonsense"}, (2,)),
    Case(
        name="environment: MPLBACKEND of a notebook",
        args=["reproduce", "rope.fig1"],
        codes=(0,),
        env={"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
    ),
    Case(name="environment: WANDB_MODE='foo' with logger=none", args=TRAIN, env={"WANDB_MODE": "foo"}, codes=(0,)),
]
# refused before the start: a word in the environment must not end a run in its middle
WANDBS = [
    of_wandb("WANDB_MODE=foo", says="WANDB_MODE", WANDB_MODE="foo"),
    of_wandb("WANDB_MODE empty", codes=(0,), WANDB_MODE=""),  # as one that is not set
    of_wandb("a base address of nonsense", says="nonsense", WANDB_BASE_URL="nonsense"),
    of_wandb("a folder that is none", codes=EITHER, WANDB_DIR="/dev/null"),
    of_wandb("a key that is too short", codes=EITHER, WANDB_API_KEY="short"),
    of_wandb("a secret key", codes=(0,), WANDB_API_KEY=SECRET + "0" * 24),
    of_wandb("a project of slashes", "logger.project='a/b\\?'"),
    of_wandb("a project of nothing", "logger.project=''", says="must be a name of 1 to 128 characters"),
    of_wandb("a project of 300 letters", "logger.project=" + "x" * 300),
    of_wandb("a project of control characters", "logger.project='a\x1b[31mb'", codes=EITHER),
    of_wandb("tags a number", "logger.tags=5", codes=EITHER),
    of_wandb("tags a dictionary", "logger.tags={a:1}"),
    of_wandb("a tag of 100 letters", "logger.tags=[" + "x" * 100 + "]"),
    of_wandb("a parameter that is not there", "+logger.nope=1"),
    of_wandb("good: offline", codes=(0,)),
]
# a finished run stays finished whoever listens; what could not be told is a failure of telling, 1
STREAMS = [
    of_shell("stdout closed", '"$@" >&-', (0, 1)),
    of_shell("stderr closed", '"$@" 2>&-', (0,)),
    of_shell("both closed", '"$@" >&- 2>&-', (0, 1)),
    of_shell("stdin closed", '"$@" <&-', (0,)),
    of_shell("stdout full", '"$@" >/dev/full', (1,), says="standard output cannot be written"),
    of_shell("stderr full", '"$@" 2>/dev/full', (0,)),
    of_shell("stdout into head", '"$@" | head -1; exit ${PIPESTATUS[0]}', (0,), args=["list"]),
    of_shell("stdout into a reader who has left", '"$@" | true; exit ${PIPESTATUS[0]}', (0,)),
    of_shell("both into head", '"$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}', (0,)),
    of_shell("16 open files", 'ulimit -n 16; "$@"', (0, 1, 2)),
    of_shell("40 open files", 'ulimit -n 40; "$@"', (0, 1, 2)),
    of_shell("files of one block", 'ulimit -f 1; "$@"', (2,)),
    of_shell("1 GB of memory", 'ulimit -v 1000000; "$@"', (0, 1, 2)),  # some builds of torch fit in
    of_shell("a small stack", 'ulimit -s 256; "$@"', (0, 1, 2)),
    of_shell("umask 077", 'umask 077; "$@"', (0,)),
    of_shell("umask 777", 'umask 777; "$@"', (0, 2)),
    of_shell("the working directory removed", 'mkdir d; cd d; rmdir ../d; "$@"', (2,)),
    of_shell("the working directory removed, list", 'mkdir d; cd d; rmdir ../d; "$@"', (0, 2), args=["list", "pe"]),
    of_shell("a terminal", 'script -qec "$(printf \'%q \' "$@")" /dev/null', (0,), colours=True),
    of_shell(
        "a terminal of 20 columns", 'script -qec "stty cols 20 rows 5; $(printf \'%q \' "$@")" /dev/null', (0,),
        colours=True,
    ),
]  # fmt: skip
SHORT = [["list", "pe"], ["--help"], ["train", "--help"], ["train", "--cfg", "job"]]
SHORT_STREAMS = [
    case
    for args in SHORT
    for case in (
        of_shell(
            f"stdout full, {' '.join(args)}", '"$@" >/dev/full', (1,), args=args,
            says="standard output cannot be written",
        ),
        of_shell(
            f"stdout into a reader who has left, {' '.join(args)}", '"$@" | true; exit ${PIPESTATUS[0]}', (0,),
            args=args,
        ),
        Case(
            name=f"environment: LC_ALL=C, {' '.join(args)}", args=args, codes=(0,),
            env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        ),
        Case(name=f"environment: COLUMNS=20, {' '.join(args)}", args=args, codes=(0,), env={"COLUMNS": "20"}),
    )
]  # fmt: skip
DISKS = [
    # a run that has begun stays, and says in its run.json how it ended
    *[
        of_disk(f"{size}k for outputs", f"size={size}k", EITHER, [*TRAIN, "outputs=disk"], leaves=True)
        for size in (4, 64, 300, 1500)
    ],
    *[
        of_disk(f"{size}k for the token cache", f"size={size}k", EITHER, TRAIN, env={"ROUNDROUND_CACHE": "disk"})
        for size in (4, 64, 1500)
    ],
    of_disk("300k for maxkey", "size=300k", (2,), [*MAXKEY, "outputs=disk"], leaves=True),
    of_disk("20k for export", "size=20k", (2,), ["export", "run=run", "to=disk/x"], given=("run",)),
    of_disk("read-only for outputs", "ro", (2,), [*TRAIN, "outputs=disk"]),
    of_disk("read-only for the token cache", "ro", (2,), TRAIN, env={"ROUNDROUND_CACHE": "disk"}),
    of_disk("read-only for export", "ro", (2,), ["export", "run=run", "to=disk/x"], given=("run",)),
    of_disk("52k for a figure", "size=52k", (2,), ["reproduce", "rope.fig1", "outputs=disk/o"], leaves=True),
    of_disk("4k for temporary files", "size=4k", EITHER, TRAIN, env={"TMPDIR": "disk"}),
]

CASES = [*ENVIRONMENTS, *WANDBS, *STREAMS, *SHORT_STREAMS, *DISKS]
