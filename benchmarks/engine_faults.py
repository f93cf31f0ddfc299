"""Are faults that people reported named? Each is replayed in a copy of transformers' modelling code.

    python benchmarks/engine_faults.py SUITE      # a folder that `roundround check suite=all to=SUITE` wrote

engine_faults.yaml has the faults: the report, the case, what is wrong, and the edits of source files. Who wrote them
did not know the mistakes of the suite. `first` says whether the suite, as it was then, named the fault; mistakes that
it lacked were added afterwards. docs/results/engines/faults.csv gets the verdict of today. Untouched models are asked
too, in three precisions and with two kinds of attention; all of them should agree.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from roundround.engines.cases import read_case, read_suite
from roundround.engines.readers.transformers import Transformers
from roundround.engines.verdicts import AGREES, MISTAKE, judge

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "docs" / "results" / "engines" / "faults.csv"
INSTALLED = Path(transformers.__file__).parent
COLUMNS = ("set", "report", "case", "fault", "first", "now")
ASKED = [("float32", "eager"), ("float32", "sdpa"), ("bfloat16", "eager"), ("float16", "eager")]


# In a process of its own, so that nothing of transformers is imported before the edited copies stand in its place.
REPLAY = """
import importlib.util, json, sys
task = json.load(sys.stdin)
class Copies:
    def find_spec(self, name, path=None, target=None):
        if name in task["files"]:
            return importlib.util.spec_from_file_location(name, task["files"][name])
sys.meta_path.insert(0, Copies())
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(task["checkpoint"], attn_implementation="eager").eval()
assert all(sys.modules[name].__file__ == file for name, file in task["files"].items())
ids = torch.tensor([task["ids"]])
with torch.no_grad():
    log_p = model(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
print(json.dumps(log_p.gather(-1, ids[0, 1:, None])[:, 0].tolist()))
"""


def main(suite: Path) -> None:
    faults = yaml.safe_load((HERE / "engine_faults.yaml").read_text())
    with STORED.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for fault in faults:
            case = read_case(suite / fault["case"])
            verdict = judge(case, torch.tensor(replayed(fault, case.forms[0], case.ids)))
            now = verdict.words if verdict.kind == MISTAKE else verdict.kind
            writer.writerow({**fault, "fault": " ".join(fault["fault"].split()), "now": now})
            print(fault["report"], fault["case"], now, sep=" | ", flush=True)
    wrong, n = [], 0
    for case in read_suite(suite):
        for precision, attention in ASKED:
            engine = Transformers(precision=precision, attention=attention)
            try:
                answers = torch.as_tensor(engine.log_probs(case.forms[0], case.ids, suite))
            except ValueError:
                continue  # no sdpa in this family
            n += 1
            if (verdict := judge(case, answers, precision)).kind != AGREES:
                wrong.append(f"{case.folder.name} {precision} {attention}: {verdict.kind} {verdict.words}")
    print(f"{n} untouched models, {len(wrong)} with another verdict than agreement", *wrong, sep="\n")


def replayed(fault: dict[str, Any], checkpoint: Path, ids: list[int]) -> list[float]:
    """ln p of each token after the first, by a process that imports the edited copies of source files."""
    with tempfile.TemporaryDirectory() as folder:
        sources: dict[str, str] = {}
        for edit in fault["edits"]:
            text = sources.get(edit["file"], (INSTALLED / edit["file"]).read_text())
            assert text.count(edit["old"]) == edit.get("count", 1), f"{fault['report']}: {edit['file']} has changed"
            sources[edit["file"]] = text.replace(edit["old"], edit["new"])
        files = {}
        for number, (name, text) in enumerate(sources.items()):
            copy = Path(folder) / f"{number}.py"
            copy.write_text(text)
            files["transformers." + name.removesuffix(".py").replace("/", ".")] = str(copy)
        task = json.dumps({"files": files, "checkpoint": str(checkpoint), "ids": ids})
        done = subprocess.run([sys.executable, "-c", REPLAY], input=task, stdout=subprocess.PIPE, text=True, check=True)
        answers: list[float] = json.loads(done.stdout.splitlines()[-1])
        return answers


if __name__ == "__main__":
    disable_progress_bar()
    set_verbosity_error()
    main(Path(sys.argv[1]))
