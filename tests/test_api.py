"""`import roundround as rr`: each function against the verb that does the same, Hugging Face, or a float64 loop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import STORIES, Done, typed
from helpers_compare import write_eval, write_train
from helpers_runs import write_run
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import roundround as rr
from roundround.config.options import conf_dir, load_option
from roundround.data.tokenizers import Bytes, Vocabulary
from roundround.model.decoder import Decoder
from roundround.report.notebook import as_png
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun, build_decoder
from roundround.trained.patterns import parts_of

TEXT = "Once upon a time, there was a little girl named Lily."
STATE = r"step \d+/\d+  loss"


@pytest.fixture(scope="module")
def stories() -> tuple[Any, Any]:
    """The packaged model and its tokenizer, as transformers loads them."""
    model = AutoModelForCausalLM.from_pretrained(STORIES, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(STORIES)


def a_decoder(*overrides: str, seed: int = 0, **sizes: Any) -> tuple[Decoder, Vocabulary]:
    """A random decoder of bytes, with weights large enough that its heads differ, and its tokenizer."""
    torch.manual_seed(seed)
    small = {"d_model": 32, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 64, "initializer_range": 0.3}
    vocabulary = Bytes().build([])
    model = load_option("model", "tiny", **(small | {"n_layers": 4} | sizes))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        parts = parts_of(compose("train", list(overrides)))
    return build_decoder(model, n_vocab=vocabulary.size, **parts).eval(), vocabulary


# -- the package


def test_names_are_listed_and_importing_them_imports_no_torch(here: Path) -> None:
    lines = [
        "import sys, roundround as rr",
        "assert dir(rr) == sorted(rr.__all__), dir(rr)",
        "assert all(callable(getattr(rr, name)) for name in dir(rr) if name[0] != '_')",
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules",
        "import roundround.kernels.keys, roundround.records.directories",
        "assert callable(rr.attention) and callable(rr.runs) and roundround.kernels.keys.Keys",
        "assert len(rr.runs(outputs='.')) == 0",
        "from inspect import getdoc, signature; from roundround import api",
        "assert all(getdoc(getattr(rr, n)) == getdoc(getattr(api, n)) for n in dir(rr) if n[0] != '_')",
        "assert all(signature(getattr(rr, n)) == signature(getattr(api, n)) for n in ('attention', 'runs'))",
    ]
    code = "; ".join(lines).replace("; assert 'torch'", "\nassert 'torch'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- attention


def test_attention_is_hugging_faces(stories: tuple[Any, Any]) -> None:
    model, tokenizer = stories
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        theirs = model(ids, output_attentions=True).attentions
    found = rr.attention(model, tokenizer, TEXT)
    assert found.tokens == ids[0].tolist()
    assert "".join(found.words[1:]).replace(" ", "") == TEXT.replace(" ", "")
    assert len(found) == len(theirs) == 5
    rounding = 8 * 32 * torch.finfo(torch.float32).eps  # of logits up to 32, sums over 8 channels, in float32
    for layer, weights_HQK in enumerate(found):
        torch.testing.assert_close(weights_HQK, theirs[layer][0], atol=rounding, rtol=0)
        assert found[layer][3].shape == (len(found.tokens),) * 2


def test_attention_of_a_patched_model_is_that_of_its_patch(stories: tuple[Any, Any]) -> None:
    model, tokenizer = stories
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with rr.patch(model, softmax="adaptive_temperature"), torch.no_grad():
        found = rr.attention(model, tokenizer, TEXT)
        theirs = model(ids, output_attentions=True).attentions
        as_tuple = model(ids, output_attentions=True, return_dict=False)
    assert torch.equal(torch.stack(found.layers), torch.stack([layer[0] for layer in theirs]))
    assert torch.equal(as_tuple[-1][0], theirs[0])
    assert not torch.allclose(found[2], rr.attention(model, tokenizer, TEXT)[2], atol=1e-3)


def loop_over_float64(decoder: Decoder, layer: int, x_TD: Tensor, window: int | None) -> np.ndarray[Any, Any]:
    """The weights [H, T, T] of a layer by the formulas of RoPE and the adaptive temperature, from its input."""
    attention, shape = decoder.layers[layer].self_attn, decoder.normalisers[layer].shape
    x, n, c = x_TD.double().numpy(), len(x_TD), shape.head_dim
    q, k = (x @ proj.weight.detach().double().numpy().T for proj in (attention.q_proj, attention.k_proj))
    theta = decoder.all_encodings[decoder.encoding_of_layer[layer]].theta
    turn = np.exp(1j * np.outer(np.arange(n), theta ** (-2 * np.arange(c // 2) / c)))
    found = np.zeros((shape.n_heads, n, n))
    for head in range(shape.n_heads):
        g = head * shape.n_key_heads // shape.n_heads
        own_q, own_k = q[:, head * c : (head + 1) * c], k[:, g * c : (g + 1) * c]
        own_q, own_k = ((y[:, : c // 2] + 1j * y[:, c // 2 :]) * turn for y in (own_q, own_k))
        for i in range(n):
            first = 0 if window is None else max(0, i - window + 1)
            logits = np.array([(own_q[i] * own_k[j].conj()).sum().real / c**0.5 for j in range(first, i + 1)])
            alpha = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            entropy = -(alpha * np.log(alpha)).sum()
            beta = max(1.0, np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy)) if entropy > 0.5 else 1.0
            alpha = np.exp(beta * (logits - logits.max()))
            found[head, i, first : i + 1] = alpha / alpha.sum()
    return found


def test_attention_with_windows_and_adaptive_temperature_is_a_loop_over_float64() -> None:
    decoder, tokenizer = a_decoder(
        "pattern=local_global", "pattern.local.window=5", "pe=rope", "softmax=adaptive_temperature"
    )
    decoder.double()
    inputs: list[Tensor] = []
    for layer in decoder.layers:
        layer.self_attn.register_forward_pre_hook(lambda module, args: inputs.append(args[0][0].detach()))
    found = rr.attention(decoder, tokenizer, "The fox sang, and sang.")
    assert found.words[1] == "T"
    sharpened = 0
    for layer, window in enumerate([5, 5, 5, None]):
        expected = loop_over_float64(decoder, layer, inputs[layer], window)
        np.testing.assert_allclose(found[layer].numpy(), expected, atol=1e-12)
        sharpened += int((found[layer] > 0).sum(-1).max() == (window or len(found.tokens)))
    assert sharpened == 4


def test_attention_leaves_the_model_as_it_was_and_refuses_what_it_cannot_read(stories: tuple[Any, Any]) -> None:
    decoder, tokenizer = a_decoder("pe=learned")
    decoder.train()
    rr.attention(decoder, tokenizer, "The fox")
    assert decoder.training
    with pytest.raises(UserError, match="has 64 positions, and a text has 1001 tokens"):
        rr.attention(decoder, tokenizer, "x" * 1000)
    with pytest.raises(UserError, match="not a Linear"):
        rr.attention(torch.nn.Linear(2, 2), tokenizer, "a text")
    with pytest.raises(UserError, match="not a str"):
        rr.generate("stories260k", tokenizer, "a text")
    with pytest.raises(UserError, match="needs the tokenizer from"):
        rr.attention(decoder, stories[1], "a text")


# -- a model of one's own is patched as one of Hugging Face's


def test_a_patched_run_is_the_run_rebuilt_with_another_part(train: Callable[..., Done]) -> None:
    directory = train("pe=rope", "pe.theta=500").directory
    model, tokenizer = rr.load(directory)
    ids, names = torch.tensor([tokenizer.encode("The fox sang.")]), model.state_dict().keys()
    own = model(ids)
    parts: list[tuple[str, str, dict[str, Any]]] = [
        ("softmax", "adaptive_temperature", {}),
        ("softmax", "top_k", {"k": 3}),
        ("pe", "alibi", {}),
        ("pe", "p_rope", {"p": 0.5}),  # at the run's base
    ]
    for group, name, numbers in parts:
        node = load_option(group, name, **numbers)
        rebuilt = TrainedRun(directory, trust=False, **{group: node}).decoder("best")
        with rr.patch(model, **{group: name}, **numbers) as patched:
            assert torch.equal(patched(ids), rebuilt(ids)), name
            assert not torch.allclose(patched(ids), own, atol=1e-7), name
        assert torch.equal(model(ids), own)
    assert model.state_dict().keys() == names


def test_what_a_run_cannot_take_is_refused_and_leaves_it_as_it_was() -> None:
    decoder, _ = a_decoder("pattern=local_global", "pe=nope")
    ids = torch.arange(40)[None]
    own = decoder(ids)
    with pytest.raises(UserError, match="draw positions"):
        rr.patch(decoder, pe="rope_random")
    with pytest.raises(UserError, match=r"temperature=-1"):
        rr.patch(decoder, pe="alibi", softmax="temperature", temperature=-1.0)
    for wrong in (lambda shape: 5, 5):
        with pytest.raises(UserError, match="makes a AttentionSoftmax, not 5"):
            rr.patch(decoder, softmax=wrong)
    with pytest.raises(UserError, match=r"no pe=\.\./pe/rope"):
        rr.patch(decoder, pe="../pe/rope")
    assert torch.equal(decoder(ids), own)


def test_a_patched_run_takes_no_second_patch_before_the_first_is_removed() -> None:
    decoder, _ = a_decoder("pe=rope")
    ids = torch.arange(40)[None]
    own = decoder(ids)
    first = rr.patch(decoder, softmax="adaptive_temperature")
    with pytest.raises(UserError, match="the model is patched already; take that patch off first"):
        rr.patch(decoder, softmax="top_k", k=3)
    assert not torch.equal(decoder(ids), own)
    first.remove()
    with rr.patch(decoder, softmax="top_k", k=3):
        first.remove()  # again, which does nothing
        assert not torch.equal(decoder(ids), own)
    assert torch.equal(decoder(ids), own)


# -- numbers and texts are those of the verbs


def assert_same_records(frame: Any, done: Done) -> None:
    records = [{k: v for k, v in record.items() if k not in ("verb", "run")} for record in done.results]
    assert len(frame) == len(records) > 8
    for row, record in zip(frame.to_dict("records"), records, strict=True):
        for key in set(row) - {"stride"}:
            theirs, missing = record.get(key), isinstance(row[key], float) and np.isnan(row[key])
            assert (theirs is None) if missing or row[key] is None else theirs == row[key], (key, row, record)


def test_evaluate_has_the_numbers_of_the_verb(train: Callable[..., Done], corpus: Path) -> None:
    trained = train("pe=rope")
    done = typed("eval", "run=last", "length=16,32", "dispersion=true", "logger=none", "device=cpu")
    from roundround.config.build import build
    from roundround.data.corpora import Corpus

    own = build(TrainedRun(trained.directory, trust=False).config.data, Corpus)
    frame = rr.evaluate(*rr.load(trained.directory), own, length=[16, 32], dispersion=True)
    assert_same_records(frame, done)


def test_evaluate_has_the_numbers_of_the_verb_of_a_pretrained_model(stories: tuple[Any, Any], here: Path) -> None:
    words = ["length=64", "max_tokens=600", "logger=none", "device=cpu"]
    done = typed("eval", "model=stories260k", "softmax=adaptive_temperature", *words)
    with rr.patch(stories[0], softmax="adaptive_temperature"):
        assert_same_records(rr.evaluate(*stories, "stories", length=64, max_tokens=600), done)
    plain = rr.evaluate(*stories, "stories", length=64, max_tokens=600, bos=False)
    texts = rr.evaluate(*stories, [TEXT, TEXT], length=8)
    assert plain.query("metric == 'scored_targets'")["value"].item() == done.value("scored_targets")
    assert 1 < texts.query("metric == 'perplexity'")["value"].item() < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "copy"}, "data=copy is a task"),
        ({"data": "storys"}, "did you mean 'stories'"),
        ({"dispersion": True, "separate_documents": True}, "do not see each other"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(stories: tuple[Any, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        rr.evaluate(*stories, **({"data": "stories", "length": 32, "max_tokens": 100} | options))


def test_what_cannot_be_probed_is_refused(stories: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match=r"rr\.probe takes a list of texts"):
        rr.probe(*stories, TEXT)
    with pytest.raises(UserError, match="at least one text, and two tokens"):
        rr.probe(*stories, [])


def test_a_model_without_frequencies_is_probed_without_them() -> None:
    seen = rr.probe(*a_decoder("pe=alibi"), [TEXT])
    assert not seen.rotates
    assert {"places", "query_norm", "entropy"} <= seen.arrays().keys()
    assert rr.plot(seen, "labels") is not None
    with pytest.raises(UserError, match="there is no picture 'without_a_band'"):
        rr.plot(seen, "without_a_band")


def test_generate_writes_the_text_of_the_verb(stories: tuple[Any, Any], train: Callable[..., Done]) -> None:
    words = ["prompt=The fox", "length=20", "n=2", "seed=7", "top_k=20", "device=cpu"]
    options: dict[str, Any] = {"length": 20, "n": 2, "seed": 7, "top_k": 20}
    for subject, given in ((None, "model=stories260k"), (train("pe=rope").directory, "run=last")):
        done = typed("generate", given, *words)
        texts = [text["text"] for text in json.loads((done.directory / "texts.json").read_text())["texts"]]
        assert rr.generate(*(stories if subject is None else rr.load(subject)), "The fox", **options) == texts
        assert len(set(texts)) == 2
    with pytest.raises(UserError, match="temperature=-1"):
        rr.generate(*stories, "The fox", temperature=-1)
    with pytest.raises(UserError, match="empty"):
        rr.generate(*stories, "")
    for wrong in ({"top_k": 1.5}, {"n": 2.0}, {"seed": 1.5}):
        with pytest.raises(UserError, match="a whole number"):
            rr.generate(*stories, "The fox", **wrong)


def test_nothing_stands_before_a_text_where_nothing_stood_before_a_document(train: Callable[..., Done]) -> None:
    loaded = rr.load(train("data.separate_documents=true").directory)
    assert rr.attention(*loaded, "The fox").words[0] != "<|endoftext|>"
    assert rr.attention(*rr.load(train().directory), "The fox").words[0] == "<|endoftext|>"


def test_a_model_of_a_task_reads_its_symbols_alone(roundround: Callable[..., Done], fast: list[str]) -> None:
    of_text = ("data", "data.path", "tokenizer", "model.train_length", "validation_tokens")
    words = [word for word in fast if word.partition("=")[0] not in of_text]
    done = roundround("train", "data=copy", *words)
    assert done.code == 0, done.err
    loaded = rr.load(done.directory)
    symbols = [word for word in loaded.tokenizer.tokenizer.get_vocab() if word.isalnum()][:3]
    assert rr.attention(*loaded, " ".join(symbols))[0].shape[-1] == 4
    with pytest.raises(UserError, match="no symbol 'fox'"):
        rr.attention(*loaded, f"{symbols[0]} fox")
    with pytest.raises(UserError, match="no symbol 'fox'"):
        rr.probe(*loaded, [" ".join(symbols), f"{symbols[0]} fox"])
    with pytest.raises(UserError, match="learned a task"):
        rr.evaluate(*loaded, "pydoc")


# -- runs


def test_train_leaves_the_directory_that_the_verb_leaves(
    train: Callable[..., Done], fast: list[str], capfd: Any
) -> None:
    done = train("pe=rope", "seed=5")
    capfd.readouterr()
    run = rr.train(*fast, "pe=rope", "seed=5")
    assert re.search(STATE, capfd.readouterr().err)
    assert len(repr(rr.load(run).tokenizer)) < 200

    def kept(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in record.items() if key != "run"} for record in records]

    assert kept(run.results()) == kept(done.results)
    files, theirs = ({path.name for path in one.directory.iterdir()} for one in (run, done))
    assert files - theirs <= {"report.html"}  # pages are for tests that look at them
    assert theirs <= files
    assert run.status == "done"
    assert run.curves()["loss"].notna().all()
    assert list(run.curves().index) == [1, 2, 3, 4]
    assert torch.equal(rr.load(run).model.embed_tokens.weight, rr.load(done.directory).model.embed_tokens.weight)
    assert rr.run("last").directory == run.directory
    assert "train" in repr(run)
    assert len(rr.compare([run, rr.run(done.directory)]).table) > 0


def test_an_experiment_is_one_run_and_not_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=UserError("not today"))
    monkeypatch.setattr("roundround.distributed.child.start", asked)
    with pytest.raises(UserError, match="not today"):
        rr.train("experiment=length/reverse", "seed=1")
    assert asked.call_args.args == (["train", "experiment=length/reverse", "seed=1", "hydra.mode=RUN"],)


def test_what_train_refuses_is_raised_with_its_line(here: Path, fast: list[str]) -> None:
    with pytest.raises(UserError, match=r"^no pe=rop.*did you mean 'rope'"):
        rr.train(*fast, "pe=rop")
    with pytest.raises(UserError, match="one run"):
        rr.train("-m", "seed=1,2")


def stopped(words: list[str], line_before: str) -> str:
    """What `rr.train` says that is interrupted, as a terminal does it, once a line like this is there."""
    lines = ["import roundround as rr", "try:", f"    rr.train(*{words!r})", "except KeyboardInterrupt as stop:"]
    code = [sys.executable, "-c", "\n".join([*lines, "    print(stop)"])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(code, **pipes, process_group=0) as parent:
        assert any(re.search(line_before, line) for line in parent.stderr)
        os.killpg(parent.pid, signal.SIGINT)
        return parent.communicate(timeout=120)[0].strip()


@pytest.mark.slow  # four processes that import everything
def test_interrupting_train_saves_the_run_which_can_be_resumed(here: Path, fast: list[str]) -> None:
    words = [*fast, "trainer.max_steps=100000", "checkpoint_every=100000", "validate_every=100000"]
    said = stopped(words, STATE)
    run = rr.run("last")
    resume = f"resume={run.directory}"
    assert said == f'roundround train was stopped; rr.train("{resume}") resumes it'
    assert run.status == "interrupted"
    assert stopped([resume], STATE) == said
    again = rr.run("last")
    assert (again.directory, again.status) == (run.directory, "interrupted")
    assert again.manifest["processes"][-1]["from_step"] > 0


def test_runs_are_a_table_newest_first(here: Path) -> None:
    for minute, pe in enumerate(["rope", "nope", "rope"]):
        write_run(here / "outputs" / "eval" / str(minute), minute, choices={"pe": pe}, overrides=[f"pe={pe}"])
    (here / "outputs" / "eval" / "1" / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="passed over"):
        frame = rr.runs()
    assert frame["overrides"].tolist() == ["pe=rope", "pe=rope"]
    assert frame["run"].tolist() == [str(here / "outputs" / "eval" / name) for name in "20"]
    assert frame["perplexity"].tolist() == [12.345678] * 2
    assert "headline" not in frame
    assert len(rr.run(frame["run"][0]).curves()) == 0
    with pytest.warns(UserWarning, match="passed over"):
        assert len(rr.runs(where={"pe": "nope"})) == 0
    assert len(rr.runs(limit=1)) == 1
    with pytest.raises(UserError, match="holds 3 runs"):
        rr.run(here / "outputs")


# -- what a notebook shows of them


@pytest.fixture
def comparison(here: Path) -> Any:
    """Of two encodings with three seeds each, evaluated at two lengths."""
    for seed in range(3):
        for n, pe in enumerate(["rope", "<nope>"]):
            trained = write_train(here / "outputs" / "train" / f"{n}{seed}", pe, seed, minute=seed)
            values = {16: 10.0 + n + seed, 32: 20.0 + 2 * n + seed}
            write_eval(here / "outputs" / "eval" / f"{n}{seed}", trained, values, minute=seed)
    return rr.compare(here / "outputs", where={"verb": "eval"})


def test_filters_may_be_numbers_and_lists(comparison: Any, here: Path) -> None:
    assert len(rr.runs(where={"pe": ["rope", "nope"], "verb": "train"})) == 3
    assert len(rr.runs(where={"seed": 1, "verb": "train"})) == 2
    table = rr.compare(here / "outputs", where={"verb": "eval", "length": 32}).data_frame()
    assert table["length"].tolist() == [32, 32]


def test_a_comparison_is_drawn_as_the_verb_draws_it(comparison: Any) -> None:
    figure = rr.plot(comparison)
    assert isinstance(figure, Figure)
    lines = [line.get_ydata().tolist() for line in figure.axes[0].lines if "line" in (line.get_gid() or "")]
    assert sorted(lines) == [[11.0, 21.0], [12.0, 23.0]]
    with pytest.raises(UserError, match="there is no picture 'matrx'"):
        rr.plot(comparison, "matrx")
    with pytest.raises(UserError, match="not int"):
        rr.plot(3)


def test_a_probe_and_weights_show_themselves_and_are_drawn(stories: tuple[Any, Any]) -> None:
    seen = rr.probe(*stories, [TEXT, TEXT + " She sang."])
    assert repr(seen) == "probe of stories260k: 5 layers; 2 texts, 37 tokens"
    assert len(rr.plot(seen).axes[0].texts) == 40
    assert rr.plot(seen, "norms").axes[0].get_title() == "query norms"
    weights = rr.attention(*stories, TEXT)
    assert repr(weights) == f"attention of stories260k: 5 layers, 8 heads, {len(weights.tokens)} tokens"
    assert len(rr.plot(weights).axes) == 40
    axis = rr.plot(weights, "1.3").axes[0]
    assert np.array_equal(axis.images[0].get_array(), weights[1][3].numpy())
    assert [label.get_text() for label in axis.get_xticklabels()] == weights.words
    with pytest.raises(UserError, match=r"no picture '9\.9'"):
        rr.plot(weights, "9.9")


def test_a_run_is_drawn_as_on_its_page(train: Callable[..., Done]) -> None:
    done = train("pe=rope")
    figure = rr.plot(done.directory)
    titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    assert titles[0] == "Loss"
    assert as_png(figure).startswith(b"\x89PNG")
    assert figure._repr_png_() == as_png(figure)
    with pytest.raises(UserError, match="did you mean 'curves'"):
        rr.plot("last", "curve")
