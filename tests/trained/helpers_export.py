"""Small decoders as exports, and a process that loads many folders at once where roundround cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

from roundround.asking.generation import DecoderWriter, generators_of, write
from roundround.config.build import checked_values
from roundround.config.options import load_option
from roundround.data.tokenizers import Bytes
from roundround.model.decoder import Decoder
from roundround.trained.export.card import Card
from roundround.trained.export.folder import ModelToExport, exported_kinds, write_folder
from roundround.trained.models import OF_THE_BUILDER, build_decoder

LENGTH = 72  # more than whole_rows.FEWEST_QUERIES: what is compiled here is computed by the definition there
SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": LENGTH}
SHARP = {"initializer_range": 0.4}  # logits of several units, so that no normaliser looks like another
MANIFEST = {
    "roundround": "0.2.0",
    "seed": 0,
    "command": "roundround train",
    "choices": {"pe": "a", "softmax": "b", "data": "text"},
    "config": {"pe": {"_target_": "a.A"}, "softmax": {"_target_": "b.B", "k": 3}},
    "data": {"training_tokens": 100, "corpus_hash": "0" * 64, "n_vocab": 257},
}
STATE = {"step": 7, "best": {"step": 7, "nats_per_token": 2.5257}}
CARD = Card(name="small", manifest=MANIFEST, checkpoint="best", state=STATE)

CHILD = """
import json, sys
sys.modules["roundround"] = None
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
logging.disable_progress_bar()
again, folders, facts = sys.argv[2], sys.argv[3:], {}
torch.set_grad_enabled(False)
saved = []
while folders + saved:
    first, folder = bool(folders), (folders or saved).pop(0)
    tokens, mask = (load_file(sys.argv[1])[name] for name in ("tokens", "mask"))
    trust = (json.load(open(folder + "/config.json"))["model_type"] == "roundround")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    out = model(input_ids=tokens, labels=tokens)
    padded = model(input_ids=tokens, attention_mask=mask).logits
    text = model.generate(input_ids=tokens[:, :9], max_new_tokens=5, do_sample=False, eos_token_id=None)
    batch = model.generate(input_ids=tokens[:, :9], attention_mask=mask[:, :9], max_new_tokens=5, do_sample=False,
                           eos_token_id=None)
    own = {"attention_mask": mask[:, :9], "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    beams = [model.generate(input_ids=tokens[:, :9], num_beams=3, use_cache=use, **own) for use in (True, False)]
    anew = model.generate(input_ids=tokens[:, :9], use_cache=False, **own)
    refused = []
    calls = {
        "generate": lambda: model.generate(input_ids=tokens[:, :9], cache_implementation="static", **own),
        "hidden": lambda: model(input_ids=tokens[:, :9], output_hidden_states=True),
    }
    for call in calls.values() if trust else ():
        try:
            call()
        except ValueError as error:
            refused.append(str(error))
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    if again and trust and first:
        saved.append(again + "/" + folder.split("/")[-1] + "_again")  # transformers calls the package of its code so
        model.save_pretrained(saved[-1])
        tokenizer.save_pretrained(saved[-1])
    save_file({"logits": out.logits, "padded": padded, "text": text.contiguous(), "batch": batch.contiguous(),
               "anew": anew.contiguous(), "beams": beams[0].contiguous(), "beams_anew": beams[1].contiguous()},
              folder + "/../" + folder.split("/")[-1] + ".answer")
    facts[folder] = {"class": type(model).__name__, "module": type(model).__module__, "loss": out.loss.item(),
                     "ids": tokenizer("Once \\u00e9<|endoftext|> x").input_ids, "fast": tokenizer.is_fast,
                     "refused": refused}
assert sys.modules["roundround"] is None and not any(name.startswith("roundround.") for name in sys.modules)
print(json.dumps(facts))
"""


def trained(pe: DictConfig, softmax: DictConfig, *, pattern: DictConfig | None = None, **model: Any) -> ModelToExport:
    """A decoder with random weights, as what a run would export."""
    torch.manual_seed(0)
    sizes = load_option("model", "tiny", **(SMALL | SHARP | model))
    parts = {"pe": pe, "softmax": softmax, "pattern": pattern, "qk_norm": None, "gate": None}
    decoder = build_decoder(sizes, n_vocab=257, **parts).eval()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():  # nothing may hide at a start of ones or zeros
            if "encodings." in name or ".softmax." in name or "norm" in name:
                parameter += 0.1 * torch.rand_like(parameter)
    vocabulary, (kinds, classes) = Bytes().build([]), exported_kinds(**parts)
    return ModelToExport(
        decoder=decoder,
        sizes=checked_values(sizes, Decoder, OF_THE_BUILDER),
        kinds=kinds,
        classes=classes,
        tokenizer=vocabulary.tokenizer,
        first_token=vocabulary.end_of_document,
        end_of_document=vocabulary.end_of_document,
    )


def written(trained: ModelToExport, folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_folder(trained, folder, CARD)
    return folder


def some_tokens() -> Tensor:
    return torch.randint(256, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def loaded(folders: list[Path], cwd: Path, *, again: Path | None = None) -> dict[Path, dict[str, Any]]:
    """What a clean process makes of the folders: facts, logits, padded logits and generated tokens of each.

    again: where that process saves those with code of their own by `save_pretrained`, each as NAME_again, to load them
    from there with the code that is there.
    """
    question = cwd / "question.safetensors"
    # a mask whose second row has five tokens of padding on the left
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, :5] = 0
    save_file({"tokens": some_tokens(), "mask": mask}, question)
    cache = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(cwd / "modules"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-W", "ignore", "-c", CHILD, str(question), str(again or ""), *map(str, folders)]
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | cache, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    return {Path(folder): facts[folder] | load_file(f"{folder}.answer") for folder in facts}


@torch.no_grad()
def greedy(decoder: Decoder, tokens_BT: Tensor, n: int) -> Tensor:
    for _ in range(n):
        tokens_BT = torch.cat([tokens_BT, decoder(tokens_BT)[:, -1:].argmax(-1)], dim=1)
    return tokens_BT


def written_from_a_cache(model: ModelToExport, tokens_1T: Tensor, n: int) -> Tensor:
    """One text with the n likeliest tokens behind it, by what `roundround generate` calls."""
    writer = DecoderWriter("small", model.decoder, Bytes().build([]))
    writer.ends = set()
    writer.begin(None)
    with torch.inference_mode():
        logits_1V = writer.read(tokens_1T)
    options: dict[str, Any] = {"temperature": 0.0, "top_k": None, "generators": generators_of(0, 1)}
    chosen = [token for (token,) in write(writer, logits_1V, n=1, length=n, **options)]
    return torch.cat([tokens_1T, torch.tensor([chosen])], dim=1)
