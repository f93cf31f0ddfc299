"""A class from outside the package travels with the runs that use it, and one that has changed since is named."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Done, assert_refused
from helpers_manifest import a_manifest

import roundround as rr
from roundround.config.options import load_option
from roundround.records.provenance import changes, keep_sources, sources_of
from roundround.trained.models import TrainedRun

SLOW = """import math
import torch
from importlib import metadata
from mine_rope import ladder
from mine_rope.parts import helper as _
from roundround.pe.rotary import RotaryEncoding

class Slow(RotaryEncoding):
    def __init__(self, shape, *, factor: float):
        super().__init__(shape, theta=100.0)
        self.factor = factor

    def frequencies(self, dtype=torch.float32, device="cpu"):
        return self.factor * ladder.steps(self.shape.head_dim // 2).to(dtype)
"""
FILES = {
    "pe/slow.yaml": "_target_: mine_rope.slow.Slow\nfactor: 1.0\n",
    "mine_rope/__init__.py": "",
    "mine_rope/slow.py": SLOW,
    "mine_rope/ladder.py": "import torch\n\ndef steps(n_pairs):\n    return 10.0 ** -torch.arange(n_pairs)\n",
    "mine_rope/parts/helper.py": "def helper():\n    from ..slowness import nothing  # is not there\n",
    "mine_rope/other.py": "this is not imported\n",
}
KEPT = {"mine_rope/__init__.py", "mine_rope/slow.py", "mine_rope/ladder.py", "mine_rope/parts/helper.py"}
CONFIG = {"pe": {"_target_": "mine_rope.slow.Slow", "factor": 1.0}, "softmax": {"_target_": "roundround.x.Y"}}


def write(folder: Path, **changed: str) -> None:
    for name, text in {**FILES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine_rope"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with an encoding in a package of its own; importable."""
    write(here / "mine")
    monkeypatch.syspath_prepend(here / "mine")
    forget()
    yield here / "mine"
    forget()


@pytest.fixture
def run(mine: Path, here: Path) -> tuple[Path, dict[str, object]]:
    """A run directory that has kept its variant, and its manifest."""
    directory = here / "run"
    directory.mkdir()
    return directory, {"config": CONFIG, "variants": keep_sources(CONFIG, directory)}


def test_the_sources_of_a_class_are_its_module_and_what_that_imports_beside_it(mine: Path) -> None:
    assert sources_of("mine_rope.slow.Slow") == {name: mine / name for name in KEPT}


def test_a_run_keeps_the_sources_and_their_hashes(run: tuple[Path, dict[str, object]]) -> None:
    directory, manifest = run
    assert {path.relative_to(directory / "variants").as_posix() for path in directory.rglob("*.py")} == KEPT
    assert manifest["variants"].keys() == {"mine_rope.slow.Slow"}
    assert (directory / "variants/mine_rope/slow.py").read_text() == SLOW


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mine_rope/other.py", "nobody reads this\n", None),
        ("mine_rope/slow.py", SLOW.replace("return self", "return 7 * self"), "mine_rope/slow.py"),
        ("mine_rope/slow.py", SLOW + "# a thought\n", None),
        ("mine_rope/ladder.py", None, "mine_rope/ladder.py"),
        ("mine_rope/slow.py", SLOW + "import mine_rope.other\n", "mine_rope/other.py"),
    ],
)
def test_what_has_changed_is_said_in_one_line(
    mine: Path, run: tuple[Path, dict[str, object]], name: str, text: str | None, said: str | None
) -> None:
    directory, manifest = run
    assert changes(directory, manifest, CONFIG) == []
    if text is None:
        (mine / name).unlink()
    else:
        (mine / name).write_bytes(text.encode())
    found = changes(directory, manifest, CONFIG)
    if said is None:
        assert found == []
        return
    assert len(found) == 1
    assert "\n" not in found[0]
    for part in (said, f"--config-dir {directory}/variants"):
        assert part in found[0]


def test_a_variant_that_changed_after_training_is_named_wherever_the_run_is_used(
    mine: Path, train: Callable[..., Done], roundround: Callable[..., Done], capsys: pytest.CaptureFixture[str]
) -> None:
    own, trusted = ["--config-dir", "mine"], ["trust=true", "logger=none"]
    done = train(*own, "pe=slow", "trainer.max_steps=2")
    assert done.code == 0, done.err
    directory = done.directory
    assert set(done.manifest["variants"]["mine_rope.slow.Slow"]) == KEPT
    evaluate = ["eval", f"run={directory}", "length=16,32", "max_tokens=64", *trusted]

    write(mine, **{"mine_rope/slow.py": SLOW.replace("return self.factor", "return 7 * self.factor")})
    forget()
    after = roundround(*evaluate, *own)
    lines = [line for line in after.err.splitlines() if "mine_rope.slow.Slow is not the code" in line]
    assert len(lines) == 1, after.err
    for part in ("mine_rope/slow.py", f"--config-dir {directory}/variants"):
        assert part in lines[0]
    assert {record["source"] for record in after.results} == {"changed"}

    rr.load(directory, trust=True)
    assert "mine_rope.slow.Slow is not the code" in capsys.readouterr().err
    TrainedRun(directory, trust=True, pe=load_option("pe", "nope"))
    assert capsys.readouterr().err == ""

    manifest = json.loads((directory / "run.json").read_text())
    manifest["config"]["trainer"]["max_steps"] = 3
    (directory / "run.json").write_text(json.dumps(manifest))
    resume = ["train", f"resume={directory}", *trusted]
    refused = roundround(*resume, *own)
    assert (refused.code, refused.out) == (2, "")
    assert "a resumed run must keep its code, but the code of mine_rope.slow.Slow is not" in refused.err

    sys.path.remove(str(mine))
    forget()
    kept = ["--config-dir", str(directory / "variants")]
    again = roundround(*evaluate, *kept)
    assert "is not the code" not in again.err
    assert all("source" not in record for record in again.results)
    assert again.value("perplexity", length=32) != after.value("perplexity", length=32)
    forget()
    resumed = roundround(*resume, *kept)
    assert resumed.code == 0, resumed.err


SHARP = """from roundround.softmax.row_scale import RowScale

class Sharp(RowScale):
    reads_entropy = False

    def beta(self, n_visible, entropy):
        return 2.0
"""


def test_a_normaliser_that_changed_after_max_retrieval_is_named_when_its_models_are_evaluated_again(
    mine: Path, roundround: Callable[..., Done]
) -> None:
    write(mine, **{"mine_rope/sharp.py": SHARP, "softmax/sharp.yaml": "_target_: mine_rope.sharp.Sharp\n"})
    own = ["--config-dir", "mine", "logger=none"]
    small = ["max_steps=1", "seeds=1", "model.width=16", "batch_size=2", "test_sizes=16", "test_sets=4", "device=cpu"]
    first = roundround("maxkey", *own, *small, "+softmax@normalisers.sharp=sharp", "evaluate=sharp")
    assert first.code == 0, first.err
    again = ["maxkey", *own, f"run={first.directory}", "trust=true", "test_sizes=16"]
    same = roundround(*again)
    assert all("source" not in record for record in same.results)

    write(mine, **{"mine_rope/sharp.py": SHARP.replace("2.0", "9.0")})
    forget()
    changed = roundround(*again)
    assert "mine_rope.sharp.Sharp is not the code" in changed.err
    assert {record["source"] for record in changed.results} == {"changed"}
    given = roundround(*again, "+softmax@normalisers.sharp=sharp")
    others = ["+softmax@normalisers.new=sharp", "evaluate=new", "+softmax@normalisers.sharp=log_n"]
    new = roundround(*again, *others)
    for done in (given, new):
        assert done.code == 0, done.err
        assert "mine_rope.sharp.Sharp" not in done.err, "the run knows nothing of what is given now"
        assert all("source" not in record for record in done.results)


def test_what_it_takes_to_run_a_foreign_class_is_said_at_once(here: Path, roundround: Callable[..., Done]) -> None:
    directory = here / "run"
    directory.mkdir()
    manifest = a_manifest(variants={"mine_rope.slow.Slow": {}})
    manifest["config"] = {**manifest["config"], **CONFIG}
    (directory / "run.json").write_text(json.dumps(manifest))
    done = roundround("eval", f"run={directory}", "logger=none")
    assert_refused(
        done, "pe is mine_rope.slow.Slow", "trust=true", "--config-dir DIR", f"{directory}/variants has the copy"
    )
