"""What cases damage copies of: finished runs, the packaged model, the token cache. Made once, when asked for."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forkserver import ROOT, Forkserver

MODEL = ROOT / "roundround" / "pretrained" / "stories260k"  # a Hugging Face folder of 1 MB
PLAIN_TEXT = MODEL / "stories.txt"  # always there, and never the subject of a case

# a model that trains in a second
SMALL = [
    "model=tiny", "model.d_model=16", "model.n_layers=1", "model.train_length=32", "model.d_mlp=32",
    "tokenizer=bytes", "logger=none", "trainer.devices=1", "trainer.accelerator=cpu",
]  # fmt: skip
ON_PLAIN_TEXT = ["data=text", f"data.path={PLAIN_TEXT}"]
TRAIN = ["train", *SMALL, *ON_PLAIN_TEXT, "trainer.max_steps=2", "validation_tokens=256"]
TASK = [
    "train",
    *(word for word in SMALL if not word.startswith(("tokenizer=", "model.train_length="))),
    *("data=copy", "data.train_lengths=[2,4]", "data.validation_examples=8", "trainer.max_steps=2"),
]
MAXKEY = ["maxkey", "preset=quick", "max_steps=2", "seeds=2", "test_sizes=[16]", "test_sets=8", "logger=none"]
RECIPES = {
    "run": [*TRAIN, "trainer.max_steps=6", "checkpoint_every=2", "validate_every=2"],
    "task-run": TASK,
    "maxkey-run": [*MAXKEY, "max_steps=4", "checkpoint_every=2"],
}


@dataclass(frozen=True)
class Originals:
    """The things that a case may be given, each made at the first call and copied for every case."""

    server: Forkserver
    env: Mapping[str, str]
    folder: Path

    def copy(self, name: str, folder: Path) -> None:
        """Put `run`, `task-run`, `maxkey-run`, `llama` or `cache` into a folder, under that name."""
        unused = shutil.ignore_patterns("stories.txt") if name == "llama" else None  # no part of a Hugging Face folder
        shutil.copytree(self.original(name), folder / name, symlinks=True, ignore=unused)

    def original(self, name: str) -> Path:
        """Where it lies; a run is trained at the first call, and leaves its tokens in `cache`."""
        if name == "llama":
            return MODEL
        run = self.folder / ("run" if name == "cache" else name)
        if not run.is_dir():
            env = {**self.env, "ROUNDROUND_CACHE": str(self.folder / "cache")}
            ended = self.server.run(RECIPES[run.name], self.folder, self.folder, env=env, timeout=300)
            assert ended.code == 0, ended.err
            Path(ended.out.split()[-1]).rename(run)
        return self.folder / name
