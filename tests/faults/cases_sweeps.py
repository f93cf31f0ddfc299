"""-m: one wrong job among several, nothing to launch, launchers that are not there."""

from __future__ import annotations

import shutil

from case import Case, of_words
from originals import MAXKEY, PLAIN_TEXT, TRAIN

WRONG = [
    "seed=0,-1", "seed=-1", "seed=1,abc", "pe=p_rope,prope", "batch_size=0,1", "seed=range(0)", "seed=range(3,1)",
    "pe=glob(no-such-*)",
    "optim.lr=0.01,nan", "seed=0,4294967296", "trainer.max_steps=2,x", "seed=${oc.env:NOPE},1", "seed=${nope}",
    "pe=choice()",
    f"data.path={PLAIN_TEXT},/nope.txt", "hydra.sweep.dir=/dev/null/x", "hydra.sweep.dir=", "seed=0,1 2",
    "seed=interval(0,1)",
    "seed=range(0,1e9)", ("resume=nope", "seed=0,1"), ("resume=last",), ("hydra/launcher=nope",), ("outputs=",),
    ("outputs=/dev/null",),
    ("softmax=top_k", "softmax.k=4,0"), "+nope=1",
]  # fmt: skip
GOOD = [(), ("seed=range(2)",), ("pe=rope,nope",), ("seed=choice(1,2)",), ("hydra.sweep.dir=there",)]
# launchers that may be installed or not; places outside that a user asked for
EITHER = [
    # where Slurm is there it answers itself: make test-cluster has jobs of it
    *([] if shutil.which("sbatch") else [("seed=0", "hydra/launcher=submitit_slurm")]),
    ("hydra.sweep.subdir=../../../x",),
]

CASES = [
    # a sweep has begun when a job is refused: the directories of the others stay
    *of_words("sweeps", [*TRAIN, "-m"], WRONG, leaves=True),
    *of_words("sweeps of maxkey", [*MAXKEY, "-m"], ["seed=0,-1", "seeds=0,1", "test_sizes=[0],[16]"], leaves=True),
    *of_words(
        "sweeps of eval", ["eval", "run=run", "max_tokens=64", "length=32", "logger=none", "-m"],
        ["length=32,0", "checkpoint=best,x", "run=run,nope", "stride=8,33"], given=("run",), leaves=True,
    ),
    *of_words("sweeps", [*TRAIN, "-m"], EITHER, codes=(0, 2), leaves=True),
    # in a process of its own: workers of joblib do not start from one that was forked
    *of_words(
        "sweeps", [*TRAIN, "-m"], [("seed=0,1", "hydra/launcher=joblib")],
        codes=(0, 2), leaves=True, shell='"$@"', patience=200,
        notes=[r"Joblib\.Parallel", "Launching jobs"],
    ),
    *of_words("good sweeps", [*TRAIN, "-m"], GOOD, codes=(0,)),
    *of_words("good sweeps", [*TRAIN, "-m"], ["seed=1,1"], codes=(0,), notes=["the same training as job 0"]),
    Case(
        name="sweeps: one job that diverges", args=[*TRAIN, "-m", "optim.lr=1e38,0.01", "schedule.warmup_steps=0"],
        codes=(1,)
    ),
]  # fmt: skip
