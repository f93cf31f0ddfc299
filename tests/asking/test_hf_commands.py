"""`roundround probe` and `roundround eval` on a folder of Hugging Face's, as a user would type them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import STORIES, Done, assert_refused
from helpers_hf import saved_llama
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte tokenizer that puts a token before every text."""
    return saved_llama(tmp_path_factory.mktemp("models") / "little")


@pytest.fixture
def probe(roundround: Callable[..., Done], folder: Path) -> Callable[..., Done]:
    return lambda *args: roundround("probe", "logger=none", "model=hf", f"model.path={folder}", *args)


def test_a_probe_leaves_arrays_records_and_pictures(probe: Callable[..., Done]) -> None:
    done = probe()
    assert done.code == 0, done.err
    arrays = load_file(done.directory / "probe.safetensors")
    assert arrays["query_norm"].shape == (4, 4, 8)
    assert arrays["key_norm"].shape == (4, 2, 8)
    assert arrays["places"].shape == (4, 4, 7)
    prompt = load_file(done.directory / "prompt.safetensors")
    assert prompt["weights"].shape[:2] == (4, 4)
    assert (done.directory / "alignment.json").exists()
    assert {r["metric"] for r in done.results} >= {"share_of_slowest_quarter", "label", "entropy", "logit_spread"}
    names = ["norms", "heads", "labels", "logits_by_frequency", "without_a_band", "prompt"]
    left = {path.name for path in (done.directory / "figures").iterdir()}
    assert left >= {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}
    assert "heads that stand out" in done.err
    assert done.manifest["facts"]["texts"] == 10


@pytest.mark.parametrize(
    "words",
    [
        "train init=hf:few model.train_length=32 trainer.max_steps=1 data=text data.path={corpus}",
        "eval model=hf model.path=few data=text data.path={corpus} length=16",
        "eval model=hf model.path=few data=blimp",
        "probe model=hf model.path=few text={corpus}",
    ],
)
def test_text_that_the_tokenizer_cannot_read_is_refused_by_every_verb(
    roundround: Callable[..., Done], here: Path, corpus: Path, words: str
) -> None:
    saved_llama(here / "few")
    few = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "the": 3, "fox": 4}, unk_token="<unk>"))
    few.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=few, **named).save_pretrained("few")
    done = roundround(*words.format(corpus=corpus).split(), "logger=none")
    assert (done.code, "the tokenizer does not know" in done.err.splitlines()[-1]) == (2, True), done


def test_an_ablation_tells_perplexity_and_patterns(probe: Callable[..., Done]) -> None:
    done = probe("ablate=lowest:0.25,highest:0.25")
    assert done.code == 0, done.err
    whole = [r for r in done.results if r["metric"] == "perplexity" and "first_position" not in r]
    assert [r["ablate"] for r in whole] == ["none", "lowest:0.25,highest:0.25"]
    assert whole[0]["value"] != whole[1]["value"]
    assert {r.get("last_position") for r in done.results if r["metric"] == "perplexity"} >= {None, 63, 127}
    arrays = load_file(done.directory / "ablation.safetensors")
    assert (arrays["places_before"] - arrays["places_after"]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("ablate", "given"),
    [
        ("curve", ["bos=auto"]),
        ("lowest:0.25", ["bos=false"]),
        ("lowest:0.25", ["data.separate_documents=true"]),
        ("lowest:0.25", ["model.special_tokens=plain"]),
    ],
)
def test_the_baseline_of_windows_is_evals_perplexity(
    probe: Callable[..., Done], roundround: Callable[..., Done], folder: Path, here: Path, given: list[str], ablate: str
) -> None:
    text = here / "spelled.txt"
    text.write_text("\n\n".join(f"The fox number {i} saw <s>{i * i}</s> crows." for i in range(30)))
    options = ["data=text", f"data.path={text}", "data.held_out=1", "length=32", "max_tokens=500", *given]
    probed = probe(f"ablate={ablate}", "rows=false", *options)
    scored = roundround("eval", "logger=none", "model=hf", f"model.path={folder}", *options)
    assert probed.code == scored.code == 0, probed.err + scored.err
    baseline, *others = (r for r in probed.results if r["metric"] == "perplexity" and "first_position" not in r)
    assert baseline["ablate"] == "none"
    assert baseline["value"] == pytest.approx(scored.value("perplexity"), rel=1e-6)
    assert baseline["targets"] == scored.value("scored_targets")
    assert all(other["targets"] == baseline["targets"] for other in others)
    how = ("first_token", "joining_token", "separate_documents", "special_tokens", "length")
    assert [baseline[key] for key in how] == [scored.results[0][key] for key in how]
    assert "the text is read as roundround eval length=32 reads it" in probed.err


@pytest.mark.parametrize("apart", ["false", "true"])
def test_the_baseline_of_a_run_is_evals_perplexity(
    train: Callable[..., Done], roundround: Callable[..., Done], apart: str
) -> None:
    assert train("pe=rope", f"data.separate_documents={apart}").code == 0
    probed = roundround("probe", "logger=none", "run=last", "rows=false", "ablate=lowest:0.25", "length=24")
    scored = roundround("eval", "logger=none", "run=last", "length=24")
    assert probed.code == scored.code == 0, probed.err + scored.err
    (baseline,) = (r for r in probed.results if r.get("ablate") == "none" and "first_position" not in r)
    assert baseline["value"] == pytest.approx(scored.value("perplexity"), rel=1e-6)
    assert baseline["targets"] == scored.value("scored_targets")


def test_a_curve_starts_at_the_model_and_ends_without_rope(probe: Callable[..., Done]) -> None:
    done = probe("ablate=curve")
    assert done.code == 0, done.err
    whole = {r["ablate"]: r["value"] for r in done.results if "first_position" not in r}
    assert len(whole) == 1 + 2 * 8
    assert whole["lowest:1"] == pytest.approx(whole["highest:1"], rel=1e-6)
    assert (done.directory / "figures" / "ablation.svg").exists()


def test_a_run_is_probed(roundround: Callable[..., Done], train: Callable[..., Done]) -> None:
    assert train("pe=p_rope").code == 0
    done = roundround("probe", "run=last", "logger=none")
    assert done.code == 0, done.err
    frequencies = load_file(done.directory / "probe.safetensors")["frequencies"]
    assert 0 < int((frequencies[0] > 0).sum()) < frequencies.shape[1]
    assert roundround("probe", "run=last", "logger=none", "ablate=highest:0.5", "texts=code").code == 0
    assert roundround("probe", "run=last", "logger=none", "pe=rope", "softmax=top_k", "rows=false").code == 0


def test_a_run_without_rope_is_probed_without_what_needs_a_frequency(
    roundround: Callable[..., Done], train: Callable[..., Done]
) -> None:
    assert train("pe=alibi").code == 0
    done = roundround("probe", "run=last", "logger=none")
    assert done.code == 0, done.err
    assert done.err.count("rotates no channels at known frequencies; left out:") == 1
    metrics = {record["metric"] for record in done.results}
    assert metrics >= {"label", "entropy", "logit_spread", "norm", "share_on_sink"}
    assert not metrics & {"share_of_slowest_quarter", "wavelength_of_strongest_pair"}
    drawn = {path.stem for path in (done.directory / "figures").iterdir()}
    assert drawn == {"labels", "norms", "heads", "prompt"}
    assert roundround("report", str(done.directory)).code == 0
    refused = roundround("probe", "run=last", "logger=none", "ablate=lowest:0.5")
    assert refused.code == 2
    assert "rotates no channels at known frequencies" in refused.err


# -- bad input: one line, exit code 2


def test_a_folder_with_foreign_code_or_without_some_weights_is_refused(
    roundround: Callable[..., Done], folder: Path, here: Path
) -> None:
    for name in ("code", "missing"):
        shutil.copytree(folder, here / name)
    config = json.loads(Path("code/config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"}}
    Path("code/config.json").write_text(json.dumps(config))
    Path("code/m.py").write_text("raise SystemExit('foreign code ran')")
    weights = Path("missing/model.safetensors")
    tensors = load_file(weights)
    save_file({name: x for name, x in tensors.items() if "layers.2." not in name}, weights, {"format": "pt"})
    probe = ["probe", "logger=none", "model=hf"]
    assert_refused(roundround(*probe, "model.path=code"), "model.trust_remote_code=true")
    assert_refused(roundround(*probe, "model.path=missing"), "lacks weights of its model: model.layers.2.")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["model=hf"], "give model.path=DIR"),
        (["model=tiny"], "model=hf model.path=DIR"),
        (["run=last"], "no finished train run"),
    ],
)
def test_a_model_that_is_not_there(roundround: Callable[..., Done], args: list[str], message: str) -> None:
    assert_refused(roundround("probe", "logger=none", *args), message)


# -- a trained model


def test_the_text_protocol_through_the_command(roundround: Callable[..., Done]) -> None:
    """Stories of 600 to 899 characters, the first ten, their first 230; transformers' own Llama gives these numbers."""
    done = roundround(
        "probe", "logger=none", "model=hf", f"model.path={STORIES}", "ablate=lowest:0.25", "data=text",
        f"data.path={STORIES / 'stories.txt'}", "data.keep_chars=[600,899]", "data.max_chars=230", "max_documents=10",
        "rows=false", "max_tokens=null", "batch_tokens=2048",
    )  # fmt: skip
    assert done.code == 0, done.err
    whole = [r["value"] for r in done.results if r["metric"] == "perplexity" and "first_position" not in r]
    assert whole == pytest.approx([2.98243, 3.02561], rel=1e-4)


# -- the model in the package


def test_probe_alone_reads_the_packaged_model_and_its_stories(roundround: Callable[..., Done]) -> None:
    done = roundround("probe", "logger=none", "rows=false", "entropy=false")
    assert done.code == 0, done.err
    assert {(r["model"], r["data"], r["run"]) for r in done.results} == {("stories260k", "stories", None)}
    assert done.manifest["facts"]["texts"] == 24


@pytest.mark.parametrize(
    ("given", "read"),
    [(["texts=sums"], {"texts": "sums", "data": None}), (["text=mine.txt"], {"data": "text", "data.path": "mine.txt"})],
)
def test_texts_that_are_given_win_over_the_models_own(
    roundround: Callable[..., Done], here: Path, given: list[str], read: dict[str, str | None]
) -> None:
    (here / "mine.txt").write_text("Once upon a time, there was a text of somebody else's.")
    done = roundround("probe", "logger=none", "rows=false", "entropy=false", *given)
    assert done.code == 0, done.err
    assert {name: done.results[0][name] for name in read} == read


def test_the_default_model_stands_aside_for_a_run(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    trained = train("pe=p_rope", "trainer.max_steps=1")
    done = roundround("probe", "logger=none", "run=last", "rows=false", "entropy=false", "length=32")
    assert done.code == 0, done.err
    assert done.manifest["config"]["model"] is None
    assert {(r["model"], r["run"]) for r in done.results} == {("tiny", str(trained.directory))}
