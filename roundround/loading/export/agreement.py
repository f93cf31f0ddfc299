"""Whether an exported folder computes what the run's decoder does, checked in a process without roundround.

Tested by tests/loading/test_export_folder.py.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from roundround.loading.export import check
from roundround.loading.export.folder import ModelToExport, is_stock
from roundround.loading.nodes import target

log = logging.getLogger(__name__)

# largest difference allowed, as a share of the largest logit
TOLERANCE = 1e-5  # of the same code in another process, where nothing should differ
STOCK_TOLERANCE = 5e-5  # of Llama's code, whose sums round otherwise: by 4e-7, by 3e-6 where attention is very sharp
LOGITS_COMPARED = 2**24  # at most: 64 MiB


class NotTheSame(Exception):
    """What was exported does not compute what the run's own decoder does."""


@dataclass(frozen=True)
class Agreement:
    """How an exported folder was found to agree: logits compared, their largest difference and their largest size."""

    n_logits: int
    difference: float
    largest: float


def agreement(trained: ModelToExport, folder: Path, tokens_BT: Tensor) -> Agreement:
    """Load the folder in a process that cannot import roundround, and compare logits on these tokens.

    Raises NotTheSame where the folder does not load, or computes or tokenises something else.
    """
    stock = is_stock(trained)
    rows = rows_compared(tokens_BT, trained.decoder.embed_tokens.num_embeddings)
    text = trained.tokenizer.decode(tokens_BT[0].tolist())
    facts, theirs = answer_of(folder, tokens_BT, rows, text, code="stock" if stock else "trust")
    llama = target(LlamaForCausalLM)
    if stock and facts["class"] != llama:
        raise NotTheSame(f"the folder loads as {facts['class']}, not as {llama}")
    ids = trained.tokenizer.encode(text, add_special_tokens=False).ids
    ends = facts["first_token"], facts["end_of_document"]
    if facts["ids"] != ids or not facts["fast"] or ends != (trained.first_token, trained.end_of_document):
        raise NotTheSame("the folder's tokenizer does not give the run's tokens")
    decoder = trained.decoder.eval()
    with torch.no_grad():
        ours = decoder.unembed(decoder.hidden(tokens_BT)[:, rows])
    if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
        raise NotTheSame(f"logits of shape {list(theirs.shape)}, where the run's are finite and {list(ours.shape)}")
    found = Agreement(ours.numel(), float((ours - theirs).abs().max()), float(ours.abs().max()))
    if not found.difference <= (STOCK_TOLERANCE if stock else TOLERANCE) * found.largest:
        raise NotTheSame(
            f"logits of the exported folder differ from the run's by up to {found.difference:.2g}, "
            f"where the largest is {found.largest:.3g}"
        )
    return found


def rows_compared(tokens_BT: Tensor, n_vocab: int) -> Tensor:
    """Positions whose logits are compared: all, or as many as fit, spread evenly."""
    n_windows, length = tokens_BT.shape
    n_rows = max(1, min(length, LOGITS_COMPARED // (n_windows * n_vocab)))
    return torch.linspace(0, length - 1, n_rows).round().long()


def answer_of(folder: Path, tokens_BT: Tensor, rows: Tensor, text: str, *, code: str) -> tuple[dict[str, Any], Tensor]:
    """What `check.py` says of the folder in a process of its own: facts, and logits. NotTheSame where it fails."""
    with tempfile.TemporaryDirectory() as name:
        question, answer = Path(name, "question.safetensors"), Path(name, "answer.safetensors")
        save_file({"tokens": tokens_BT.contiguous(), "rows": rows}, question, metadata={"text": text})
        done = subprocess.run(
            [sys.executable, "-I", check.__file__, str(folder), str(question), str(answer), code],
            cwd=name,
            stdin=subprocess.DEVNULL,
            env=os.environ
            | {
                "HF_HUB_OFFLINE": "1",
                "HF_MODULES_CACHE": name,  # where the folder's code is copied to be imported
                "OMP_NUM_THREADS": str(torch.get_num_threads()),  # the same order of sums
            },
            capture_output=True,
            text=True,
            check=False,
        )
        log.debug("check of %s:\n%s%s", folder, done.stdout, done.stderr)
        if done.returncode:
            last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotTheSame(f"the exported folder does not load in a process of its own: {last[-1]}")
        with safe_open(answer, framework="pt") as file:
            return json.loads(file.metadata()["facts"]), file.get_tensor("logits")
