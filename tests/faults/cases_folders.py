"""--config-dir: yamls and modules of the user's own, broken or hostile."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from case import Case
from damage import holding
from originals import MAXKEY, TRAIN

COMMAND = "_target_: os.system\ncommand: touch EXECUTED\n"
TAG = "!!python/object/apply:os.system ['touch EXECUTED']\n"
GOOD_MODULE = """from roundround.pe.rotary import RotaryEncoding, ladder
class Half(RotaryEncoding):
    "Half."
    def frequencies(self, dtype=None, device="cpu"):
        return 0.5 * ladder(self.shape.head_dim // 2, self.shape.head_dim, self.theta, dtype, device)
"""
BASE = "from roundround.pe.base import PositionalEncoding\n"


def of_folder(what: str, files: Mapping[str, str | bytes], *args: str, verb: list[str] = TRAIN, **more: Any) -> Case:
    words = [*verb, "--config-dir", "mine", *(args or ([] if verb[0] == "list" else ["pe=x"]))]
    prepare = holding({f"mine/{name}": data for name, data in files.items()})
    return Case(name=f"config folder: {what}", args=words, prepare=prepare, **more)


def of_yaml(what: str, yaml: str | bytes, **more: Any) -> Case:
    return of_folder(what, {"pe/x.yaml": yaml}, **more)


def of_module(what: str, module: str | bytes, **more: Any) -> Case:
    return of_folder(what, {"pe/x.yaml": "_target_: own.Half\n", "own.py": module}, **more)


CASES = [
    of_yaml("a command", COMMAND),
    of_yaml("a python tag", TAG),
    of_yaml("a python tag as target", f"_target_: {TAG}"),
    of_yaml("a python tag as parameter", f"_target_: roundround.pe.rope.RoPE\ntheta: {TAG}"),
    of_yaml("an object tag", "!!python/object/new:subprocess.Popen [['touch','EXECUTED']]\n"),
    of_yaml("broken", "a: [1\n"),
    of_yaml("a list", "- 1\n"),
    of_yaml("a number", "5\n"),
    of_yaml("a string", "abc\n"),
    of_yaml("null", "null\n"),
    of_yaml("empty", ""),
    of_yaml("only a comment", "# nothing\n"),
    of_yaml("binary", random.Random(1).randbytes(300)),
    of_yaml("utf-16", "_target_: x\n".encode("utf-16")),
    of_yaml("NUL", "a: \0"),
    of_yaml("tabs", "\ta: 1\n"),
    of_yaml("a key twice", "_target_: a\n_target_: b\n"),
    of_yaml("keys that are numbers", "5: 6\n"),
    of_yaml("keys that are lists", "? [1, 2]\n: 3\n"),
    of_yaml("two documents", "a: 1\n---\nb: 2\n"),
    of_yaml("itself among its defaults", "defaults: [x]\n"),
    of_yaml("defaults that are missing", "defaults: [nowhere]\n"),
    of_yaml("defaults that are a number", "defaults: 5\n"),
    of_yaml("defaults outside", "defaults: [../../../etc/passwd]\n"),
    of_folder("two that need each other", {"pe/x.yaml": "defaults: [y]\n", "pe/y.yaml": "defaults: [x]\n"}),
    of_yaml("no target", "p: 0.5\n"),
    of_yaml("a target of a number", "_target_: 5\n"),
    of_yaml("an alias of itself", "a: &a [*a]\n"),
    of_yaml("nested 5,000 deep", "a: " + "[" * 5000 + "]" * 5000),
    of_yaml("a line of a million letters", "a: " + "x" * 1_000_000),
    of_yaml("an integer of 5,000 digits", "_target_: roundround.pe.rope.RoPE\ntheta: " + "9" * 5000),
    of_yaml("a package of its own", "# @package _global_\nhydra:\n  run:\n    dir: /dev/null/x\n"),
    of_yaml("a resolver of the environment", "_target_: ${oc.env:CANARY}\n", env={"CANARY": "os.system"}),
    of_yaml("an interpolation of nothing", "_target_: roundround.pe.rope.RoPE\ntheta: ${nope}\n"),
    of_yaml("a parameter that is not there", "_target_: roundround.pe.rope.RoPE\nq: 1\n"),
    of_yaml("control characters", "_target_: \"\\x1b[31mx\"\n"),
    of_yaml("a module that is missing", "_target_: nowhere.Half\n"),
    of_yaml("a module of a file name", "_target_: own.py\n"),
    of_module("a module with an error of syntax", "def (:\n"),
    of_module("a module that is not utf-8", "# \u00ff\n".encode("latin-1")),
    of_module("a module that raises", "raise RuntimeError('no\\nmore')\n"),
    of_module("a module that raises control characters", "raise RuntimeError('\\x1b[31mno')\n"),
    of_module("a module that imports what is missing", "import nowhere\n"),
    of_module("a module that leaves with 0", "raise SystemExit(0)\n", codes=(1, 2), leaves=True),  # code of the user's
    of_module("a module that leaves with words", "raise SystemExit('bye')\n", codes=(1, 2), leaves=True),
    of_module("a module that is interrupted", "raise KeyboardInterrupt\n", codes=(2, 130)),
    of_module("a module that recurses", "def f(): f()\nf()\n"),
    of_module("a module without the class", "class Other: pass\n"),
    of_module("a class of another kind", "class Half: pass\n"),
    of_module("a function in the place of a class", "def Half(shape): pass\n"),
    of_module("an abstract class", BASE + "class Half(PositionalEncoding):\n    pass\n", codes=(0, 2)),
    # the user's own code failed, not the user's words: that is what 1 says; 2 where it is seen before the start
    of_module(
        "a constructor that raises",
        BASE + "class Half(PositionalEncoding):\n    def __init__(self, shape): raise TypeError('no')\n", codes=(1, 2),
        leaves=True,
    ),
    of_folder("a group that is a file", {"pe": "x"}),
    of_folder("no such option", {"pe/y.yaml": "a: 1\n"}, "pe=nowhere"),
    of_folder("an option that is a folder", {"pe/x.yaml/z": "a"}),
    of_folder("an empty folder", {"README": ""}),
    of_folder("a hostile softmax", {"softmax/x.yaml": COMMAND}, "softmax=x"),
    of_folder("a hostile data set", {"data/x.yaml": COMMAND}, "data=x"),
    of_folder("a hostile optimiser", {"optim/x.yaml": COMMAND}, "optim=x"),
    of_folder("a hostile logger", {"logger/x.yaml": COMMAND}, "logger=x"),
    of_folder("a hostile model", {"model/x.yaml": COMMAND}, "model=x"),
    of_folder(
        "a hostile experiment",
        {"experiment/x.yaml": "# @package _global_\npe:\n  _target_: os.system\n  command: touch EXECUTED\n"},
        "experiment=x",
    ),
    of_folder(
        "an experiment with an unknown key", {"experiment/x.yaml": "# @package _global_\nsede: 1\n"}, "experiment=x",
    ),
    of_folder("an experiment that is a list", {"experiment/x.yaml": "# @package _global_\n- 1\n"}, "experiment=x"),
    of_folder(
        "a hostile normaliser of maxkey", {"softmax/x.yaml": COMMAND}, "+softmax@normalisers.mine=x", "evaluate=[mine]",
        verb=MAXKEY,
    ),
    of_folder("its own hydra", {"hydra/launcher/x.yaml": COMMAND}, "hydra/launcher=x", "-m"),
    # a yaml named as one of ours: theirs may win, or ours
    of_folder("its own train.yaml", {"train.yaml": "a: 1\n"}, "pe=rope", codes=(0, 2)),
    of_folder("its own rope.yaml", {"pe/rope.yaml": COMMAND}, "pe=rope", codes=(0, 2)),
    of_folder("a broken yaml that is not asked for", {"pe/x.yaml": "a: [1\n"}, "pe=rope", codes=(0,)),
    of_folder(
        "good: an encoding of one's own", {"pe/x.yaml": "_target_: own.Half\ntheta: 100.0\n", "own.py": GOOD_MODULE},
        codes=(0,),
    ),
    of_folder(
        "good: an experiment", {"experiment/x.yaml": "# @package _global_\nseed: 3\n"}, "experiment=x", codes=(0,),
    ),
    of_folder("list: a broken yaml", {"pe/x.yaml": "a: [1\n"}, verb=["list", "pe"], codes=(0, 2)),
    of_folder("list: a hostile yaml", {"pe/x.yaml": COMMAND}, verb=["list", "pe"], codes=(0, 2)),
]  # fmt: skip
