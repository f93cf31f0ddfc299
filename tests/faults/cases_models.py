"""A Hugging Face folder, damaged or hostile, before the verbs that read one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from case import Case
from damage import (
    COMMAND,
    LONG_INTEGER,
    NESTED,
    PICKLE,
    WEIGHTS,
    ZIPPED_PICKLE,
    Damage,
    all_of,
    changed,
    holding,
    linked,
    put,
    replaced,
    values,
)
from originals import ON_PLAIN_TEXT, PLAIN_TEXT, SMALL

BYTES = "tokenizer=bytes"
SHORT_RUN = ["trainer.max_steps=2", "model.train_length=32", "validation_tokens=256", "logger=none"]
VERBS = {
    "init": ["train", "init=hf:llama", *ON_PLAIN_TEXT, *SHORT_RUN, "trainer.devices=1", "trainer.accelerator=cpu"],
    "probe": ["probe", "model=hf", "model.path=llama", "max_tokens=100", "rows=false", "entropy=false", "logger=none"],
    "eval": ["eval", "model=hf", "model.path=llama", "length=32", "max_tokens=64", f"text={PLAIN_TEXT}", "logger=none"],
    "tokenizer": [
        "train", *(word for word in SMALL if word != BYTES), "tokenizer=hf", "tokenizer.name=llama", *ON_PLAIN_TEXT,
        *SHORT_RUN,
    ],
}  # fmt: skip
WEIGHED = ("init", "probe")
READ = ("init", "probe", "tokenizer")


def of_model(
    what: str, change: Damage, verbs: Sequence[str] = WEIGHED, *, kind: str = "models", **more: Any
) -> list[Case]:
    return [
        Case(
            name=f"{kind}: {what}, {verb}",
            args=VERBS[verb],
            given=("llama",),
            prepare=lambda folder: change(folder / "llama"),
            **more,
        )
        for verb in verbs
    ]


hostile = partial(of_model, kind="models with code")
weights = partial(of_model, kind="models' weights")
tokenizer = partial(of_model, kind="models' tokenizers")
good = partial(of_model, kind="good models")
config = partial(values, "config.json")


def instead_of_weights(files: Mapping[str, str | bytes]) -> Damage:
    """These files, and not the weights."""
    return all_of(replaced("model.safetensors"), holding(files))


def index(content: Any) -> Damage:
    """An index instead of the one file, which lies outside the folder."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        text = content if isinstance(content, str) else json.dumps({"metadata": {}, "weight_map": content})
        (folder / "model.safetensors.index.json").write_text(text)

    return change


HOSTILE = "import os\nos.system('touch EXECUTED')\n"


CODE_OF_ITS_OWN = all_of(
    config(auto_map={"AutoConfig": "hostile.C", "AutoModelForCausalLM": "hostile.M"}, model_type="hostile"),
    put("hostile.py", HOSTILE + "class C: pass\nclass M: pass\n"),
)
CODE_BESIDE_LLAMA = all_of(config(auto_map={"AutoModelForCausalLM": "hostile.M"}), put("hostile.py", HOSTILE))
TOKENIZER_WITH_CODE = all_of(
    values("tokenizer_config.json", auto_map={"AutoTokenizer": ["hostile.T", "hostile.T"]}, tokenizer_class="T"),
    put("hostile.py", HOSTILE + "class T: pass\n"),
)


WRONG: dict[str, dict[str, Any]] = {
    "model_type gpt2": {"model_type": "gpt2"}, "model_type nope": {"model_type": "nope"},
    "model_type 5": {"model_type": 5},
    "model_type null": {"model_type": None}, "model_type bert": {"model_type": "bert"},
    "hidden_size text": {"hidden_size": "x"}, "hidden_size -8": {"hidden_size": -8},
    "hidden_size 0": {"hidden_size": 0},
    "hidden_size 10^9": {"hidden_size": 10**9}, "hidden_size null": {"hidden_size": None},
    "hidden_size 1.5": {"hidden_size": 1.5},
    "hidden_size a list": {"hidden_size": [64]},
    "heads 0": {"num_attention_heads": 0}, "heads 3": {"num_attention_heads": 3},
    "heads text": {"num_attention_heads": "x"},
    "heads -8": {"num_attention_heads": -8}, "key heads 0": {"num_key_value_heads": 0},
    "key heads 3": {"num_key_value_heads": 3},
    "head_dim 0": {"head_dim": 0}, "head_dim 7": {"head_dim": 7}, "head_dim text": {"head_dim": "x"},
    "layers 10^9": {"num_hidden_layers": 10**9}, "layers 10^5": {"num_hidden_layers": 10**5},
    "layers 7": {"num_hidden_layers": 7},
    "layers -1": {"num_hidden_layers": -1}, "layers 0": {"num_hidden_layers": 0},
    "layers text": {"num_hidden_layers": "x"},
    "vocabulary 0": {"vocab_size": 0}, "vocabulary 100": {"vocab_size": 100}, "vocabulary text": {"vocab_size": "x"},
    "vocabulary 10^12": {"vocab_size": 10**12}, "vocabulary -1": {"vocab_size": -1},
    "intermediate_size 0": {"intermediate_size": 0}, "intermediate_size 10^9": {"intermediate_size": 10**9},
    "rope_theta text": {"rope_theta": "x"},
    "rope_theta 0": {"rope_theta": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 0}},
    "rope_theta NaN": {"rope_theta": float("nan")},
    "rope type nope": {"rope_scaling": {"rope_type": "nope"}, "rope_parameters": {"rope_type": "nope"}},
    "rope_parameters text": {"rope_parameters": "x"}, "rope_parameters a list": {"rope_parameters": [1]},
    "eps null": {"rms_norm_eps": None}, "eps text": {"rms_norm_eps": "x"}, "activation nope": {"hidden_act": "nope"},
    "activation 5": {"hidden_act": 5}, "quantised": {"quantization_config": {"quant_method": "gptq"}},
    "quantised by nobody": {"quantization_config": 5},
    "max_position 0": {"max_position_embeddings": 0}, "max_position -1": {"max_position_embeddings": -1},
}  # fmt: skip
# what this project reads or not, according to transformers: either is right, one line and no hang
EITHER: dict[str, dict[str, Any]] = {
    "a command": COMMAND, "attention nope": {"_attn_implementation": "nope", "attn_implementation": "nope"},
    "attention from the hub": {"_attn_implementation": "kernels-community/flash-attn"},
    "dtype nope": {"dtype": "nope", "torch_dtype": "nope"}, "max_position text": {"max_position_embeddings": "x"},
    "max_position 1": {"max_position_embeddings": 1}, "layers 3, two unused": {"num_hidden_layers": 3},
    "architectures text": {"architectures": "x"}, "bos 10^9": {"bos_token_id": 10**9},
    "a key that nobody knows": {"foo": "x"},
}  # fmt: skip

CASES = [
    *of_model("config.json not json", put("config.json", "{"), (*WEIGHED, "eval")),
    *of_model("config.json empty", put("config.json", "")),
    *of_model("config.json not utf-8", put("config.json", b"\xff\xfe")),
    *of_model("config.json a list", put("config.json", "[]"), (*WEIGHED, "eval")),
    *of_model("config.json null", put("config.json", "null")),
    *of_model("config.json nested", put("config.json", NESTED)),
    *of_model("config.json with a long integer", put("config.json", '{"hidden_size": ' + LONG_INTEGER + "}")),
    *of_model("config.json gone", replaced("config.json"), (*WEIGHED, "eval")),
    *of_model("config.json a fifo", replaced("config.json", os.mkfifo), patience=30),
    *of_model("config.json a folder", replaced("config.json", Path.mkdir)),
    *of_model("config.json a link to itself", linked("config.json", "config.json")),
    *[case for what, changes in WRONG.items() for case in of_model(what, config(**changes))],
    *[case for what, changes in EITHER.items() for case in of_model(what, config(**changes), codes=(0, 2))],
    *hostile("code of its own", CODE_OF_ITS_OWN, (*WEIGHED, "eval")),
    *hostile("code beside a llama", CODE_BESIDE_LLAMA, (*WEIGHED, "eval"), codes=(0, 2)),
    *hostile("code beside the tokenizer", TOKENIZER_WITH_CODE, READ, codes=(0, 2)),
    *hostile("pickle as pytorch_model.bin", instead_of_weights({"pytorch_model.bin": PICKLE}), (*WEIGHED, "eval")),
    *hostile("zipped pickle as pytorch_model.bin", instead_of_weights({"pytorch_model.bin": ZIPPED_PICKLE})),
    *hostile("pickle as weights.pt", instead_of_weights({"weights.pt": PICKLE})),
    *hostile("pickle as model.ckpt", instead_of_weights({"model.ckpt": PICKLE}), ("init",)),
    *hostile(
        "zipped pickle beside other weights",
        lambda folder: (
            (folder / "model.safetensors").rename(folder / "other.safetensors"),
            put("pytorch_model.bin", ZIPPED_PICKLE)(folder),
        ),
    ),
    *hostile(
        "index of pickles",
        instead_of_weights(
            {"pytorch_model.bin.index.json": '{"metadata": {}, "weight_map": {"a": "x.bin"}}', "x.bin": PICKLE}
        ),
    ),
    *[
        case for what, change in WEIGHTS.items()
        for case in weights(f"weights {what}", changed("model.safetensors", change))
    ],
    *weights("weights gone", replaced("model.safetensors"), (*WEIGHED, "eval")),
    *weights("weights a fifo", replaced("model.safetensors", os.mkfifo), patience=30),
    *weights("weights a folder", replaced("model.safetensors", Path.mkdir)),
    *weights("weights a dead link", linked("model.safetensors", "gone")),
    *weights("weights unreadable", lambda folder: (folder / "model.safetensors").chmod(0), ordinary_user=True),
    *weights("index that leads out", index({"a": "../outside.safetensors"})),
    *weights("index of an absolute path", index({"a": "/etc/passwd"})),
    *weights("index of odd types", index({"a": 5})),
    *weights("index a list", index([])),
    *weights("index of nothing", index({})),
    *weights("index broken", index("[")),
    *weights("index nested", index(NESTED)),
    *weights("index of a file that is gone", index({"a": "gone.safetensors"})),
    *tokenizer("gone", lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], READ),
    *tokenizer("broken", put("tokenizer.json", "{"), READ),
    *tokenizer("nested", put("tokenizer.json", NESTED), READ),
    *tokenizer("a list", put("tokenizer.json", "[]"), READ),
    *tokenizer("empty", put("tokenizer.json", ""), READ),
    *tokenizer("{}", put("tokenizer.json", "{}"), READ),
    *tokenizer("not utf-8", put("tokenizer.json", b"\xff\xfe"), READ),
    *tokenizer("a fifo", replaced("tokenizer.json", os.mkfifo), READ, patience=30),
    *tokenizer("tokenizer_config.json broken", put("tokenizer_config.json", "{"), READ),
    *tokenizer("tokenizer_config.json a list", put("tokenizer_config.json", "[]"), READ),
    *tokenizer("tokenizer_config.json nested", put("tokenizer_config.json", NESTED), READ),
    # the text may not reach the token of that id; it must not take the memory of one
    *tokenizer(
        "an id of 4,000,000,000", changed("tokenizer.json", lambda text: text.replace(b": 511", b": 4000000000")), READ,
        codes=(0, 2),
    ),
    *good("as it was", lambda folder: None, (*READ, "eval"), codes=(0,)),
    *good("without generation_config.json", lambda folder: (folder / "generation_config.json").unlink(), codes=(0,)),
]  # fmt: skip
