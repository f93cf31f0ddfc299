"""`roundround export`: a trained run as a folder for Hugging Face's `from_pretrained`.

Tested by tests/trained/test_export_command.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor

from roundround.config.build import checked
from roundround.data.batches import validation_windows
from roundround.data.tasks.base import Examples
from roundround.data.tasks.batches import padded
from roundround.distributed.device import describe_device
from roundround.kernels.trial import FallsBack
from roundround.model.decoder import n_parameters
from roundround.records.directories import find_run
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import UserError
from roundround.support.files import folder_in_one_step, home_expanded
from roundround.trained.export.card import Card
from roundround.trained.export.folder import (
    MODELING,
    ModelToExport,
    agreement,
    card_of,
    check_free,
    model_to_export,
    write_folder,
)
from roundround.trained.export.stock import fitting_config, stock_config
from roundround.trained.models import TrainedRun
from roundround.trained.patterns import chosen_parts
from roundround.verbs.export import ExportConfig

N_WINDOWS = 4  # of held-out text, on which logits are compared


def export(cfg: DictConfig, invocation: Invocation) -> None:
    """Write the folder, check it in a separate process, and move it into place.

    The last line printed is the run directory, as with every verb; the line with the exported folder comes before it.
    """
    config = checked(ExportConfig, cfg)
    assert config.to is not None, "the config has been checked"
    destination = Path(os.path.abspath(home_expanded(config.to, "to")))  # without ..
    check_free(destination)
    source = find_run(config.run, config.outputs, "train", done=True)
    trained = TrainedRun(source, trust=config.trust, data=config.data)
    if trained.manifest["status"] != "done":
        status = trained.manifest["status"].partition(":")[0]
        raise UserError(f"{source} is not finished ({status}); resume it with: roundround train resume={source}")
    model = model_to_export(trained, trained.decoder(config.checkpoint))
    if config.stock:
        fitting_config(model.decoder, model.sizes)  # raises if there is none
    windows = held_out_windows(trained)
    card = card_of(trained, destination.name, config.checkpoint)
    with opened_run(invocation, cfg) as run:
        run.note(
            choices=trained.manifest.get("choices", {}),
            seed=trained.config.seed,
            run=str(trained.directory),
            exported=str(destination),
            device=describe_device(torch.device("cpu")),
        )
        with warnings_as_lines(FallsBack):
            write_checked(run, model, windows, destination, card)


def held_out_windows(trained: TrainedRun) -> Tensor:
    """A few texts [B, T] (int64) of the run's own data, at most as long as the training context.

    They are windows of held-out text, or, for a run that learnt a task, test examples.
    """
    task = trained.task()
    if task is not None:
        drawn = Examples(task, seed=trained.config.seed, split="test", length=task.train_lengths[1])
        return padded([drawn[i] for i in range(N_WINDOWS)]).tokens
    tokens = trained.held_out_text().held_out
    length = min(trained.config.model.train_length, len(tokens) - 1)
    n_windows = min(N_WINDOWS, (len(tokens) - 1) // length)
    return validation_windows(tokens, length=length, max_tokens=n_windows * length)[:, :-1]


def write_checked(run: Run, model: ModelToExport, windows: Tensor, destination: Path, card: Card) -> None:
    """Write the exported folder beside the destination, compare its logits with the run's, and move it into place.

    Prints what was done.
    """
    stock, choices = stock_config(model.decoder, model.sizes), run.manifest["choices"]
    pe, parts = choices.get("pe"), chosen_parts(choices)
    kind = (
        f"a stock {stock.architectures[0]}" if stock else f"a model with its own {MODELING}.py (trust_remote_code=True)"
    )
    folder = destination.with_name(f".{destination.name}.{os.getpid()}")
    with folder_in_one_step(destination, folder):  # the destination may be an empty folder
        print_status(f"{parts}: {kind}, {n_parameters(model.decoder):,} parameters, step {card.state['step']}")
        write_folder(model, folder, card)
        found = agreement(model, folder, windows)
    print_status(
        f"loaded in a clean process: {found.n_logits:,} logits on {windows.numel():,} held-out tokens differ from the "
        f"run's by at most {found.difference:.2g}; the largest logit is {found.largest:.3g}"
    )
    if model.decoder.draws_positions:
        print_status(
            f"pe={pe} draws positions in eval and probe; in the exported model, tokens have consecutive positions"
        )
    print_status(f"exported to {destination}")
    common = {"pe": pe, "softmax": choices.get("softmax"), "seed": run.manifest["seed"]}
    values = {"largest_difference": found.difference, "largest_logit": found.largest}
    run.results([{"metric": name, **common, "value": value} for name, value in values.items()], **values)
