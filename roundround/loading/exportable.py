"""A training run as what is exported: its decoder and all that it takes to build it elsewhere, and its card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roundround.config.build import checked_values
from roundround.data.tasks.base import Examples
from roundround.data.tasks.text_task import TextTask
from roundround.loading.rebuilt import TrainedRun
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.runs import checkpoints
from roundround.runs.directories import EXPORTED
from roundround.softmax.base import AttentionSoftmax
from roundround.support.files import folder_in_one_step, usual_mode
from roundround.support.memory import check_fits

if TYPE_CHECKING:
    from roundround.loading.export.card import Card, Question
    from roundround.loading.export.folder import ModelToExport

TO_READ = 4  # the length of the example in the card, where training had it
OF_THE_BUILDER = {"n_vocab", "make_encoding", "make_softmax", "shard_layer"}  # of the decoder, in no config
COPIES = 3  # of the weights at once: read, in the decoder, to be written


def model_to_export(trained: TrainedRun, checkpoint: str) -> ModelToExport:
    """The run's decoder with a checkpoint's weights and all that it takes to build it elsewhere."""
    from roundround.loading.export.folder import ModelToExport

    vocabulary, own = trained.vocabulary(), trained.config
    return ModelToExport(
        decoder=trained.decoder(checkpoint),
        sizes=checked_values(own.model, Decoder, OF_THE_BUILDER),
        encoding=checked_values(own.pe, PositionalEncoding, []),
        normaliser=checked_values(own.softmax, AttentionSoftmax, []),
        tokenizer=vocabulary.tokenizer,
        first_token=vocabulary.first_token,
        end_of_document=vocabulary.end_of_document,
        separate_documents=trained.separate_documents,
    )


def question_of(trained: TrainedRun) -> Question | None:
    """A short example of the task that the run learns, up to the first scored token; None where it is text."""
    from roundround.loading.export.card import Question

    task = trained.task()
    if task is None:
        return None
    shortest, longest = task.train_lengths
    length = min(longest, max(shortest, TO_READ))
    example = Examples(task, seed=trained.config.seed, split="test", length=length)[0]
    tokens, targets, scored = example.tokens, example.targets, example.scored
    first = int(scored.argmax())
    n_tokens = int(np.append(scored[first:], False).argmin())  # those that are written without another question
    text, of_text = trained.vocabulary().tokenizer, isinstance(task, TextTask)
    prompt, answer = (
        text.decode(part.tolist(), skip_special_tokens=of_text)
        for part in (tokens[:first], targets[first : first + n_tokens])
    )
    return Question(prompt=prompt, answer=answer, n_tokens=n_tokens, train_lengths=task.train_lengths, of_text=of_text)


def card_of(
    manifest: dict[str, Any], name: str, checkpoint: str, state: dict[str, Any], question: Question | None = None
) -> Card:
    """What the model card tells; the loss is the one measured at the checkpoint's own step."""
    from roundround.loading.export.card import Card

    known = [state[name] for name in ("best", "validated") if name in state]
    measured: dict[str, Any] = next((m for m in known if m["step"] == state["step"]), {})
    return Card(
        name=name, manifest=manifest, checkpoint=checkpoint, step=state["step"], measured=measured, question=question
    )


def export_best(directory: Path, n_parameters: int) -> Path:
    """Write the best checkpoint of a run whole, with Hugging Face's names, into its directory; the folder.

    Raises UserError where one machine does not hold the model, or where a class of it has no source file.
    """
    from roundround.loading.export.folder import write_folder  # transformers takes seconds to import

    what = f"exporting {n_parameters:,} parameters"
    check_fits(4 * COPIES * n_parameters, torch.device("cpu"), what, "export on a larger machine")
    trained, final = TrainedRun(directory, trust=True), directory / EXPORTED  # its classes have just been used
    state = checkpoints.read_state(checkpoints.find(directory, "best"))
    shutil.rmtree(final, ignore_errors=True)
    folder = final.with_name(f".{EXPORTED}")
    with folder_in_one_step(final, folder):
        card = card_of(trained.manifest, directory.name, "best", state, question_of(trained))
        write_folder(model_to_export(trained, "best"), folder, card)
        for file in folder.iterdir():
            usual_mode(file)
    return final
