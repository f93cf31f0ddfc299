"""`roundround export`: from a run to a folder, and what it says of wrong input."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import FAST, Done, saved_weights, typed
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """One training run for all tests of this file."""
    text = ["data=text", f"data.path={corpus}"]
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        done = typed("train", *FAST, *text, "trainer.max_steps=20", "optim.lr=0.02", "checkpoint_every=10")
    assert done.code == 0, done.err
    return done.directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the training run, for the test to do with as it likes."""
    copied = tmp_path / "run"
    shutil.copytree(trained, copied, symlinks=True)
    return copied


def one_line(done: Done) -> str:
    assert done.code == 2, done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    return done.err


@pytest.mark.usefixtures("checked_here")  # test_every_verb.py exports one that a clean process loads
def test_a_run_becomes_a_stock_llama(roundround: Callable[..., Done], run: Path) -> None:
    done = roundround("export", f"run={run}", "to=exported/model")
    assert done.code == 0, done.err
    place = Path("exported/model").absolute()
    assert done.manifest["exported"] == str(place)
    assert done.manifest["verb"] == "export"
    assert done.err.splitlines()[0].startswith("pe=rope, softmax=softmax: a stock LlamaForCausalLM, 8,")
    assert done.err.splitlines()[-1] == f"exported to {place}"
    assert "held-out tokens differ from the run's by at most" in done.err
    assert done.value("largest_difference") <= 1e-5 * done.value("largest_logit")
    model = AutoModelForCausalLM.from_pretrained(place)
    assert type(model) is LlamaForCausalLM
    assert model.get_input_embeddings().padding_idx is None  # its row would learn nothing when the model is trained on
    assert model.generation_config.pad_token_id == model.generation_config.eos_token_id
    assert [path.name for path in place.parent.iterdir()] == ["model"]
    assert (place / "model.safetensors").stat().st_mode & 0o077 == 0o044
    best = saved_weights(run, "best")
    weights = load_file(place / "model.safetensors")
    assert weights.keys() == {f"model.{name}" for name in best}
    assert all(torch.equal(weights[f"model.{name}"], tensor) for name, tensor in best.items())


@pytest.mark.usefixtures("checked_here")
def test_the_card_holds_the_perplexity_of_the_run(roundround: Callable[..., Done], run: Path) -> None:
    assert roundround("export", f"run={run}", "to=model").code == 0
    results = json.loads((run / "results.json").read_text())
    perplexity = next(record["value"] for record in results if record["metric"] == "perplexity")
    text = Path("model/README.md").read_text()
    assert f"| held-out perplexity | {perplexity:.3f} (" in text
    assert json.loads((run / "run.json").read_text())["command"] in text


@pytest.mark.usefixtures("checked_here")
def test_a_learnt_tokenizer_reads_and_writes_as_the_runs(
    roundround: Callable[..., Done], train: Callable[..., Done]
) -> None:
    from tokenizers import Tokenizer

    run = train("tokenizer=bpe", "tokenizer.vocab_size=300").directory
    assert roundround("export", f"run={run}", "to=model").code == 0
    theirs, ours = AutoTokenizer.from_pretrained("model"), Tokenizer.from_file(str(run / "tokenizer.json"))
    ours.encode_special_tokens = True
    for text in ("The fox met the crow.", "  two  spaces\n", "\u00e9 <|endoftext|> !"):
        assert theirs(text).input_ids == ours.encode(text, add_special_tokens=False).ids
        assert theirs.decode(theirs(text).input_ids) == text
    assert theirs.bos_token_id == theirs.eos_token_id == 0
    assert theirs.eos_token == "<|endoftext|>"


@pytest.mark.usefixtures("checked_here")
def test_a_folder_that_computes_something_else_is_not_left(
    roundround: Callable[..., Done], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundround.trained.export import folder

    sound = folder.stock_weights
    monkeypatch.setattr(folder, "stock_weights", lambda *of: {name: 1.001 * x for name, x in sound(*of).items()})
    done = roundround("export", f"run={run}", "to=model")
    assert done.code == 1
    assert "failed: NotTheSame: logits of the exported folder differ from the run's by up to" in done.err
    assert not Path("model").exists()
    assert list(Path().glob(".model*")) == []
    failed = next(Path("outputs/export").glob("*/*/run.json"))
    assert json.loads(failed.read_text())["status"].startswith("failed: NotTheSame")


@pytest.mark.usefixtures("checked_here")  # test_export_folder.py loads one where roundround is absent
def test_a_users_own_variant_is_taken_along_where_it_is_trusted(
    roundround: Callable[..., Done], train: Callable[..., Done]
) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/still.yaml").write_text("# still\n_target_: still_pe.Still\nfactor: 3.0\n")
    Path("mine/still_pe.py").write_text(
        "from roundround.pe.base import PositionalEncoding\nfrom still_factor import times\n\n\n"
        "class Still(PositionalEncoding):\n    '''Makes the embeddings larger.'''\n\n"
        "    def __init__(self, shape, *, factor: float):\n        super().__init__(shape)\n"
        "        self.factor = factor\n\n"
        "    def embed(self, x_BTD, pos_BT):\n        return times(x_BTD, self.factor)\n"
    )
    Path("mine/still_factor.py").write_text("def times(x, factor):\n    return x * factor\n")
    run = train("pe=still", "--config-dir", "mine").directory
    refused = roundround("export", f"run={run}", "to=model", "--config-dir", "mine")
    assert "trust=true" in one_line(refused)
    done = roundround("export", f"run={run}", "to=model", "trust=true", "--config-dir", "mine")
    assert done.code == 0, done.err
    assert Path("model/still_factor.py").read_text() == Path("mine/still_factor.py").read_text()
    assert "return times(x_BTD, self.factor)" in Path("model/still_pe.py").read_text()
    for name in ("still_pe", "still_factor"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "to has no value; give to=DIR"),
        (["to=full"], "is there already and not empty"),
        (["to=file"], "is a file; give a folder"),
        (["to=model", "checkpoint=bets"], "did you mean 'best'"),
        (["to=file/model"], "cannot be written"),
    ],
)
def test_a_mistake_costs_one_line(roundround: Callable[..., Done], run: Path, args: list[str], said: str) -> None:
    Path("full").mkdir()
    Path("full/precious").write_text("kept")
    Path("file").write_text("kept")
    assert said in one_line(roundround("export", f"run={run}", *args))
    assert Path("full/precious").read_text() == "kept"
    assert not Path("model").exists()
    assert list(Path("outputs").glob("export/*/*")) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "interrupted"}, "is not finished (interrupted); resume it with: roundround train resume="),
    ],
)
def test_only_a_finished_training_run_is_exported(
    roundround: Callable[..., Done], run: Path, change: dict[str, str], said: str
) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | change))
    assert said in one_line(roundround("export", f"run={run}", "to=model"))
