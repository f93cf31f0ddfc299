"""A case of the suite on disk: a checkpoint, a prompt, and the log-probabilities that each hypothesis expects.

    CASE/transformers5/       config.json in the form of transformers 5, weights, tokenizer
    CASE/transformers4/       the same weights and the older form of config.json, if the family existed then
    CASE/prompt.json          {"ids": [...], "sha256": "..."}
    CASE/expected.safetensors ln p of each prompt token after the first, [T - 1] in float32: `right`, the same in other
                              precisions (`rounded/float16`), and under each mistake (`mistake/the window is ignored`)

Letters: T tokens of the prompt, V vocabulary.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from roundround.engines.families import N_BYTES, SPECIAL, config_of, model_of
from roundround.engines.mistakes import AND, code_of, mistakes_of, ropes
from roundround.support.console import print_status
from roundround.support.errors import UserError, one_line

FORMAT, WRONG = "roundround case 1", "mistake/"  # WRONG stands before the name of a mistake
N_TOKENS, LONG = 320, {"llama": 1_100, "gemma3": 1_100}  # more than 1,000, so that bfloat16 rounds positions
SHOWN = 2.0  # a mistake shows if it moves more than so many times what bfloat16 moves, root mean square
NEW, OLD = "transformers5", "transformers4"  # folders of the two forms of config.json
PROMPT, EXPECTED = "prompt.json", "expected.safetensors"
N_PRINTABLE = 94  # the first tokens of the sorted vocabulary are the characters from ! to ~
NOT_IN_4 = ("ministral3", "gemma4_text", "mimo_v2_flash")
PRECISIONS: Mapping[str, Callable[[PreTrainedModel], PreTrainedModel]] = {
    "bfloat16": lambda model: in_precision(model, torch.bfloat16),
    "float16": lambda model: in_precision(model, torch.float16),
    "int8": lambda model: with_int8_weights(model),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case that was read. expected: the tensors [T - 1] of expected.safetensors, by their names."""

    folder: Path
    ids: list[int]
    expected: dict[str, Tensor]

    @property
    def right(self) -> Tensor:
        """The right answers, [T - 1]."""
        return self.expected["right"]

    @property
    def forms(self) -> list[Path]:
        """The folders of its checkpoint, one for each form of config.json."""
        return [path for path in (self.folder / NEW, self.folder / OLD) if path.is_dir()]


# -- making a case


def prompt_of(case: str) -> list[int]:
    """The ids of a case's prompt: printable characters of ASCII, which every tokenizer reads and writes alike."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, N_PRINTABLE, (LONG.get(case, N_TOKENS),), generator=generator).tolist()


@torch.no_grad()
def log_probs(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """ln p of each token after the first, [T - 1] in float32."""
    return chosen(model(torch.tensor([ids]), use_cache=False).logits.float(), ids)


def chosen(logits: Any, ids: Sequence[int]) -> Tensor:
    """ln p of each id after the first, [T - 1]. logits: an array [T, V] or [1, T, V]."""
    log_p_TV = torch.from_numpy(np.asarray(logits).astype(np.float32)).squeeze(0)[: len(ids) - 1].log_softmax(-1)
    return log_p_TV.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def expectations(case: str, model: PreTrainedModel, ids: list[int]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of expected.safetensors; and the mistakes that do not show, which are left out."""
    weights, own = model.state_dict(), config_of(case)
    found = {"right": log_probs(model, ids)}
    for name, rounded in PRECISIONS.items():
        found[f"rounded/{name}"] = log_probs(rounded(model_of(case, weights=weights)), ids)
    noise, hidden = rms(found["rounded/bfloat16"] - found["right"]), list[str]()
    for name, (changes, edit) in mistakes_of(own, model).items():
        if not {*name.split(AND)}.isdisjoint(hidden):
            continue  # a pair that looks like one of its two
        try:
            wrong = model_of(case, changes, weights)
        except RuntimeError:
            continue  # other kinds of layers would need weights of other shapes
        with patch.dict(vars(code_of(wrong)), edit(wrong)):
            moved = log_probs(wrong, ids)
        if rms(moved - found["right"]) > SHOWN * noise:
            found[f"{WRONG}{name}"] = moved
        else:
            hidden.append(name)
    return found, hidden


def rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())


def in_precision(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Keep weights and activations in another precision. Frequencies, which are buffers, stay in float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def with_int8_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Round the weights of linear layers to 8 bits, with one scale for each output channel."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            scale = module.weight.abs().amax(1, keepdim=True) / 127
            module.weight.data = (module.weight / scale).round() * scale
    return model


def write_case(case: str, folder: Path) -> None:
    """Write a case into a new folder."""
    model, ids = model_of(case), prompt_of(case)
    found, hidden = expectations(case, model, ids)
    model.save_pretrained(folder / NEW)
    tokenizer().save_pretrained(folder / NEW)
    config = json.loads((folder / NEW / "config.json").read_text())
    if config["model_type"] not in NOT_IN_4:
        shutil.copytree(folder / NEW, folder / OLD)
        (folder / OLD / "config.json").write_text(json.dumps(older_form(config), indent=2))
    (folder / PROMPT).write_text(json.dumps({"ids": ids, "sha256": hash_of(ids)}))
    about = {"format": FORMAT, "hidden": json.dumps(hidden), "prompt": hash_of(ids)}
    save_file({name: x.contiguous() for name, x in found.items()}, folder / EXPECTED, metadata=about)


def hash_of(ids: list[int]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of exactly the model's vocabulary."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pair = ("\u0100", "\u0100")  # two bytes of 0, which no prompt has
    made = Tokenizer(models.BPE(vocab={**vocabulary, "".join(pair): N_BYTES}, merges=[pair]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=SPECIAL[0], eos_token=SPECIAL[1], pad_token=SPECIAL[2], unk_token=SPECIAL[3]
    )


def older_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json in the form of transformers 4: `rope_theta`, `rope_scaling`, `rope_local_base_freq`, ..."""
    older = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    older |= {"torch_dtype": config["dtype"], "transformers_version": "4.57.1"}
    by_kind = ropes(config)
    rope = by_kind.get("full_attention", by_kind.get("", {}))
    base, share = rope.get("rope_theta"), rope.get("partial_rotary_factor")
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    if config["model_type"] == "gpt_neox":
        return older | {"rotary_emb_base": base, "rotary_pct": share}
    if base is not None:
        scaling |= {"type": rope["rope_type"]}  # its name before transformers 4.43, which some engines read
        older |= {"rope_theta": base, "rope_scaling": None if rope["rope_type"] == "default" else scaling}
    if share is not None:
        older["partial_rotary_factor"] = share
    if config["model_type"] == "gemma3_text":
        older["rope_local_base_freq"] = by_kind["sliding_attention"]["rope_theta"]
    return older


# -- reading a case


def read_suite(folder: Path) -> list[Case]:
    """The cases in a folder. Raises UserError if it has none, or if one is incomplete or damaged."""
    found = sorted({path.parent for path in folder.glob("*/*") if path.name in (NEW, OLD, PROMPT, EXPECTED)})
    if not found:
        none = f"has no cases; roundround check suite=all to={folder.name} writes them"
        raise UserError(f"{folder} {f'is a case; give suite={folder.parent}' if (folder / PROMPT).exists() else none}")
    return read_each(read_case, found)


def read_each(read: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What is read of each item. Raises UserError if one cannot be read; every such item has its own line."""
    made, wrong = [], []
    for item in items:
        try:
            made.append(read(item))
        except UserError as error:
            wrong.append(str(error))
    for line in wrong[:-1]:
        print_status(line)
    if wrong:
        raise UserError(wrong[-1] + (f" (and {len(wrong) - 1} more, above)" if wrong[1:] else ""))
    return made


def read_case(folder: Path) -> Case:
    """A case. Raises UserError if a file is missing or damaged, or if there is code that an engine could run."""
    try:
        prompt = json.loads((folder / PROMPT).read_text())
        with safe_open(folder / EXPECTED, "pt") as opened:
            expected = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = opened.metadata() or {}
        case = Case(folder=folder, ids=prompt["ids"], expected=expected)
        whole = [x.shape == (len(case.ids) - 1,) and bool(x.isfinite().all()) for x in (case.right, *expected.values())]
        if (about.get("format"), about.get("prompt")) != (FORMAT, hash_of(case.ids)) or not all(whole):
            raise ValueError("its files do not belong together")
        if code := [*folder.rglob("*.py")]:
            raise ValueError(f"{code[0]} is code, and a case has none")
        configs = [json.loads((form / "config.json").read_text()) for form in case.forms]
        if not all(configs) or not [safe_open(form / "model.safetensors", "pt") for form in case.forms]:
            raise ValueError(f"it needs {NEW} or {OLD}, with a config.json")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder} is not a case of a suite: {one_line(error)}") from error
    return case
