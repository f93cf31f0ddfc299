"""An exported folder computes what the decoder does, where roundround cannot be imported: every yaml, both kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, beside, option
from helpers_export import CARD, LENGTH, MANIFEST, greedy, loaded, some_tokens, trained, written, written_from_a_cache
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file
from test_export_sources import mine_below
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from roundround.config.options import load_option
from roundround.trained.export.folder import (
    TOLERANCE,
    ModelToExport,
    NotTheSame,
    agreement,
    write_folder,
)
from roundround.trained.export.stock import stock_config

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))
NORMALISERS = sorted(path.stem for path in (ROOT / "conf" / "softmax").glob("*.yaml"))
STOCK = {"rope", "rope_500k", "p_rope", "p_rope_25", "nope", "rope_random"}

WINDOWS: list[tuple[str, str, dict[str, int]]] = [
    ("rope", "softmax", {"window": 4}),
    ("rope", "softmax", {"window": 1}),
    ("p_rope", "sink", {"window": 4, "chunk": 6}),
    ("alibi", "softmax", {"chunk": 6}),
    ("fox", "adaptive_temperature", {"window": 7}),
]


def local_and_global(**sizes: int) -> DictConfig:
    """Two layers that see so far, then one that sees all."""
    return DictConfig({"local": sizes, "global": {}, "order": ["local", "local", "global"]})


OWN_ENCODINGS = ["p_rope", *sorted(set(ENCODINGS) - STOCK)]
AMONG_THE_REST = {"softmax", "ssmax", "as_entmax", "adaptive_temperature", "sink", "top_k"}
WITHOUT_POSITIONS = {name for name in NORMALISERS if beside(name) == "nope"}
OTHERS = sorted(set(NORMALISERS) - AMONG_THE_REST - WITHOUT_POSITIONS)
N_PAIRS = max(len(OWN_ENCODINGS), len(OTHERS))
MET = [(pe, softmax) for softmax, pe in islice(zip(cycle(OTHERS), cycle(OWN_ENCODINGS), strict=False), N_PAIRS)]
MET += [("nope", softmax) for softmax in sorted(WITHOUT_POSITIONS)]
# each encoding and each normaliser at least once: which of them meet makes no difference to a folder of their sources
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{f"{pe}-softmax": (option("pe", pe), load_option("softmax", "softmax"), {}) for pe in sorted({*STOCK, "alibi"})},
    **{f"{pe}-{softmax}": (option("pe", pe), load_option("softmax", softmax), {}) for pe, softmax in MET},
    "alibi-ssmax": (load_option("pe", "alibi"), load_option("softmax", "ssmax"), {}),
    "fire-as_entmax": (load_option("pe", "fire"), load_option("softmax", "as_entmax"), {}),
    "t5_bias-adaptive_temperature": (load_option("pe", "t5_bias"), load_option("softmax", "adaptive_temperature"), {}),
    "learned-sink": (load_option("pe", "learned"), load_option("softmax", "sink"), {"tied_embeddings": False}),
    "rope-top_k-3": (load_option("pe", "rope"), load_option("softmax", "top_k", k=3), {}),
    "sinusoidal-gemma": (
        load_option("pe", "sinusoidal"),
        load_option("softmax", "softmax1"),
        {"geglu": True, "scaled_embeddings": True, "head_dim": 6},
    ),
    "rope-temperature-1": (load_option("pe", "rope"), load_option("softmax", "temperature", temperature=1.0), {}),
    "reversed-1": (load_option("pe", "p_rope_reversed", p=1.0), load_option("softmax", "softmax"), {}),
    "partial-1": (load_option("pe", "partial_rope", p=1.0), load_option("softmax", "softmax"), {}),
    "rope-untied": (load_option("pe", "rope"), load_option("softmax", "softmax"), {"tied_embeddings": False}),
    "rope-geglu": (load_option("pe", "rope"), load_option("softmax", "softmax"), {"geglu": True, "norm_eps": 0.01}),
    "rope-scaled": (load_option("pe", "rope"), load_option("softmax", "softmax"), {"scaled_embeddings": True}),
    "rope-scaled-untied": (
        load_option("pe", "rope"),
        load_option("softmax", "softmax"),
        {"scaled_embeddings": True, "tied_embeddings": False},
    ),
    "rope-no-mlps": (load_option("pe", "rope"), load_option("softmax", "softmax"), {"d_mlp": 0}),
    "p_rope-gemma": (
        load_option("pe", "p_rope"),
        load_option("softmax", "softmax"),
        {"geglu": True, "scaled_embeddings": True, "head_dim": 10, "n_key_heads": 1},
    ),
    # layers that see less than the text: what falls out of a window while it is written is seen by nobody
    **{
        f"{pe}-{softmax}-{'-'.join(map(str, sum(sizes.items(), ())))}": (
            load_option("pe", pe),
            load_option("softmax", softmax),
            {"pattern": local_and_global(**sizes), "n_layers": 3},
        )
        for pe, softmax, sizes in WINDOWS
    },
}
ALSO_STOCK = {"rope-temperature-1", "reversed-1", "partial-1", "p_rope-gemma"}
FOLDERS_OF_LLAMA = {
    name
    for name in PAIRS
    if name in ALSO_STOCK or (name.endswith("-softmax") and name.removesuffix("-softmax") in STOCK)
} | {name for name in PAIRS if name.startswith(("rope-untied", "rope-geglu", "rope-scaled"))}
# half a second each; of the others test_export_sources.py has the files
OFTEN = {
    "rope-softmax", "nope-softmax", "alibi-softmax", "alibi-ssmax", "fire-as_entmax", "t5_bias-adaptive_temperature",
    "learned-sink", "reversed-1", "rope-untied", "rope-geglu", "p_rope-gemma", "p_rope-sink-window-4-chunk-6",
    "fox-adaptive_temperature-window-7",
}  # fmt: skip
SELDOM = PAIRS.keys() - OFTEN


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SELDOM else []) for name in names]
    )


each_pair, each_with_its_code = each(PAIRS), each(sorted(PAIRS.keys() - FOLDERS_OF_LLAMA))


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest) -> dict[str, ModelToExport]:
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    names = [name for name in PAIRS if name not in SELDOM or name in asked]
    return {name: trained(PAIRS[name][0], PAIRS[name][1], **PAIRS[name][2]) for name in names}


@pytest.fixture(scope="module")
def of_mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelToExport]:
    """A model with an encoding of a user's own."""
    with mine_below(tmp_path_factory.mktemp("of_mine")):
        yield trained(
            OmegaConf.create({"_target_": "mine.half.Half", "slower": 2.0}), load_option("softmax", "softmax")
        )


@pytest.fixture(scope="module")
def answers(
    models: dict[str, ModelToExport], of_mine: ModelToExport, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What one clean process says of a folder for each of PAIRS, and of NAME_again, which it has written itself."""
    root, all_models = tmp_path_factory.mktemp("exported"), {**models, "mine": of_mine}
    for name, model in all_models.items():
        written(model, root / name)
    found = loaded([root / name for name in all_models], root, again=root / "again")
    return {folder.name: answer | {"folder": folder} for folder, answer in found.items()}


def test_every_encoding_and_every_normaliser_is_in_a_folder() -> None:
    assert PAIRS.keys() >= OFTEN
    for group, names, at in (("pe", ENCODINGS, 0), ("softmax", NORMALISERS, 1)):
        targets = {pair[at]["_target_"] for pair in PAIRS.values()}
        assert targets == {load_option(group, name)["_target_"] for name in names}


@each_pair
def test_logits_and_loss_are_the_decoders(
    name: str, models: dict[str, ModelToExport], answers: dict[str, dict[str, Any]]
) -> None:
    tokens_BT = some_tokens()
    with torch.no_grad():
        ours = models[name].decoder(tokens_BT)
    theirs = answers[name]["logits"]
    assert float((ours - theirs).abs().max()) <= TOLERANCE * float(ours.abs().max())  # some are compiled here alone
    loss = F.cross_entropy(ours[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten())
    assert answers[name]["loss"] == pytest.approx(float(loss), rel=1e-5)


@each_pair
def test_only_what_llama_computes_is_a_stock_llama(name: str, answers: dict[str, dict[str, Any]]) -> None:
    stock = name in FOLDERS_OF_LLAMA
    files = {path.name for path in answers[name]["folder"].iterdir()}
    assert answers[name]["class"] == ("LlamaForCausalLM" if stock else "RoundroundForCausalLM")
    assert answers[name]["module"].startswith("transformers.models.llama") == stock
    assert ("modeling_roundround.py" in files) != stock
    assert any(file.endswith(".py") for file in files) != stock
    assert {file for file in files if not file.endswith(".py")} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }


@each_with_its_code
def test_a_loaded_model_saves_its_code_and_loads_again(name: str, answers: dict[str, dict[str, Any]]) -> None:
    first, again = answers[name], answers[f"{name}_again"]
    assert again["class"] == "RoundroundForCausalLM"
    assert again["module"] != first["module"]
    for what in ("logits", "padded", "text", "batch"):
        assert torch.equal(first[what], again[what])
    assert first["ids"] == again["ids"]
    assert sources(first["folder"]) == sources(again["folder"])


def test_a_users_own_variant_travels_with_its_modules(
    of_mine: ModelToExport, answers: dict[str, dict[str, Any]]
) -> None:
    with torch.no_grad():
        ours = of_mine.decoder(some_tokens())
    assert torch.equal(ours, answers["mine"]["logits"])
    assert torch.equal(ours, answers["mine_again"]["logits"])
    files = {path.name for path in answers["mine_again"]["folder"].glob("mine*.py")}
    assert files == {"mine_half.py", "mine_base.py", "mine_base_slow.py", "mine_helpers_turning.py", "mine_angles.py"}


@each_pair
def test_padding_on_the_left_changes_nothing(
    name: str, models: dict[str, ModelToExport], answers: dict[str, dict[str, Any]]
) -> None:
    decoder, tokens_BT = models[name].decoder, some_tokens()
    padded = answers[name]["padded"]
    with torch.no_grad():
        whole, short = decoder(tokens_BT[:1]), decoder(tokens_BT[1:, 5:])
    close = 2e-5 * float(whole.abs().max())  # with a mask other kernels add up
    assert float((padded[:1] - whole).abs().max()) <= close
    assert float((padded[1:, 5:] - short).abs().max()) <= close
    assert padded.isfinite().all()


@each_pair
def test_generation_is_greedy_decoding(
    name: str, models: dict[str, ModelToExport], answers: dict[str, dict[str, Any]]
) -> None:
    decoder, tokens_BT = models[name].decoder, some_tokens()[:, :9]
    assert torch.equal(answers[name]["text"], greedy(decoder, tokens_BT, 5))
    whole, short = greedy(decoder, tokens_BT[:1], 5), greedy(decoder, tokens_BT[1:, 5:], 5)
    assert torch.equal(answers[name]["batch"][0], whole[0])
    assert torch.equal(answers[name]["batch"][1, 5:], short[0])
    assert torch.equal(written_from_a_cache(models[name], tokens_BT[:1], 5), whole)


@each_pair
def test_a_cache_changes_no_text(name: str, answers: dict[str, dict[str, Any]]) -> None:
    """Greedy and by beams, of a batch that is padded on the left."""
    assert torch.equal(answers[name]["batch"], answers[name]["anew"])
    assert torch.equal(answers[name]["beams"], answers[name]["beams_anew"])


@each_with_its_code
def test_what_its_code_has_no_place_for_is_refused(name: str, answers: dict[str, dict[str, Any]]) -> None:
    static, hidden = answers[name]["refused"]
    assert static.startswith("this model supports only a dynamic cache: leave out cache_implementation=")
    assert hidden.startswith("output_hidden_states is not supported")


def test_the_tokenizer_gives_the_runs_tokens(
    models: dict[str, ModelToExport], answers: dict[str, dict[str, Any]]
) -> None:
    tokenizer = models["rope-softmax"].tokenizer
    ids = tokenizer.encode("Once \u00e9<|endoftext|> x", add_special_tokens=False).ids
    for name in ("rope-softmax", "alibi-ssmax"):
        assert answers[name]["ids"] == ids
        assert answers[name]["fast"]


def test_parameters_have_llamas_names(answers: dict[str, dict[str, Any]]) -> None:
    custom = load_file(answers["learned-sink"]["folder"] / "model.safetensors")
    llama = load_file(answers["rope-untied"]["folder"] / "model.safetensors")
    more = {name for name in custom if ".encodings." in name or ".softmax." in name}
    assert custom.keys() - more == llama.keys()
    assert more == {"model.encodings.0.table", *(f"model.layers.{i}.self_attn.softmax.logit" for i in range(2))}


def sources(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}


def test_a_folder_holds_the_sources_that_the_model_needs_and_no_others(answers: dict[str, dict[str, Any]]) -> None:
    files = sources(answers["alibi-ssmax"]["folder"])
    assert files.keys() >= {"modeling_roundround.py", "pe_alibi.py", "softmax_ssmax.py", "kernels_keys.py"}
    assert not files.keys() & {"pe_rope.py", "pe_rotary.py", "softmax_softmax.py", "softmax_projection.py"}
    assert "from .pe_alibi import ALiBi\n" in files["modeling_roundround.py"]
    assert "from .softmax_ssmax import SSMax\n" in files["modeling_roundround.py"]
    assert not any(re.search(r"^\s*(from|import) (roundround|entmax)", text, re.MULTILINE) for text in files.values())
    assert "import entmax" in sources(answers["fire-as_entmax"]["folder"])["softmax_projection.py"]


def test_the_card_tells_the_runs_numbers_and_leaves_the_licence(answers: dict[str, dict[str, Any]]) -> None:
    text = (answers["alibi-ssmax"]["folder"] / "README.md").read_text()
    assert "| held-out perplexity | 12.500 (2.5257 nats per token) |" in text
    assert "| steps | 7 (checkpoint best) |" in text
    assert "\nlicense:" not in text
    assert "pip install" not in text
    assert "it needs: pip install entmax." in (answers["fire-as_entmax"]["folder"] / "README.md").read_text()


# -- frequencies


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("head_dim", [2, 8, 10, 64, 96, 256])
def test_frequencies_of_the_exported_configuration_are_ours_to_the_last_bit(head_dim: int, p: float) -> None:
    model = trained(
        load_option("pe", "p_rope", p=p, theta=12345.0), load_option("softmax", "softmax"), head_dim=head_dim
    )
    config = stock_config(model.decoder, model.sizes)
    assert config is not None
    theirs, scaling = ROPE_INIT_FUNCTIONS["proportional"](LlamaConfig(**config.to_dict()))
    assert scaling == 1.0
    assert torch.equal(theirs, model.decoder.encoding.frequencies())  # type: ignore[operator]


# -- the check sees what is wrong


def agreed(model: ModelToExport, folder: Path) -> None:
    agreement(model, folder, some_tokens())


@pytest.mark.slow
def test_a_softmax_that_silently_turned_plain_is_seen(tmp_path: Path) -> None:
    model = trained(load_option("pe", "rope"), load_option("softmax", "adaptive_temperature"))
    folder = written(model, tmp_path / "folder")
    agreed(model, folder)
    file = folder / "softmax_adaptive_temperature.py"
    text = file.read_text()
    assert "beta_at(entropy())" in text
    file.write_text(text.replace("return self.beta_at(entropy())", "return None"))
    with pytest.raises(NotTheSame, match="logits of the exported folder differ from the run's by up to"):
        agreed(model, folder)


def test_documents_apart_are_position_ids_that_begin_again_in_transformers(tmp_path: Path) -> None:
    model = replace(trained(load_option("pe", "p_rope"), load_option("softmax", "softmax")), separate_documents=True)
    card = replace(CARD, manifest=MANIFEST | {"data": MANIFEST["data"] | {"separate_documents": True}})
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(model, folder, card)
    assert json.loads((folder / "config.json").read_text())["separate_documents"] is True
    told = (folder / "README.md").read_text()
    assert "give `position_ids` that begin at 0 in each document" in told
    assert "bos_token_id" not in told
    tokens = some_tokens()
    ends = torch.zeros_like(tokens, dtype=torch.bool)
    ends[0, 6] = ends[1, 0] = ends[1, 15] = True
    begin = [[0, 7], [0, 1, 16]]
    positions = [[t - max(b for b in row if b <= t) for t in range(LENGTH)] for row in begin]
    llama = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        ours = model.decoder(tokens, ends_BT=ends)
        theirs = llama(input_ids=tokens, position_ids=torch.tensor(positions), use_cache=False).logits
        joined = llama(input_ids=tokens).logits
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    assert (joined - ours).abs().max() > 0.1
