"""`roundround export`: a trained run as a folder for Hugging Face's `from_pretrained`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from torch import Tensor

from roundround.build import build, checked_values
from roundround.data.batches import evaluation_windows
from roundround.data.tokenizers import Saved
from roundround.directories import find_run, read_manifest
from roundround.errors import UserError
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.run import Logger, Run, opened, tell
from roundround.schema import ExportConfig, checked
from roundround.softmax.base import AttentionSoftmax
from roundround.tasks.assembly import as_dict, describe_device, n_parameters, told_in_lines
from roundround.tasks.rebuilding import held_out_text, load_decoder, own_config
from roundround.training import checkpoints

if TYPE_CHECKING:
    from roundround.hf.card import Card
    from roundround.hf.export import Trained

N_WINDOWS = 4  # of held-out text, on which logits are compared
OF_THE_BUILDER = {"n_vocab", "make_encoding", "make_softmax"}  # arguments of the decoder that stand in no config


def export(cfg: DictConfig) -> None:
    """Write the folder, check it in a process of its own, and put it in place.

    The exported folder is told above; the last line is the run directory as with every verb, because the folder is what
    the user has just typed.
    """
    from roundround.hf.export import check_free  # transformers takes seconds to import

    job = HydraConfig.get()
    config = checked(ExportConfig, cfg)
    assert config.to is not None, "the config has been checked"
    destination = Path(config.to).expanduser().absolute()
    check_free(destination)
    source = find_run(config.run, config.outputs, "train", done=True)
    manifest = finished(source)
    own = own_config(manifest, trust=config.trust, data=config.data)
    trained = rebuilt(own, manifest, source, config.checkpoint)
    windows = held_out_windows(own, manifest, source)
    state = checkpoints.read_state(checkpoints.find(source, config.checkpoint))
    card = card_of(manifest, destination.name, config.checkpoint, state)
    directory = Path(job.runtime.output_dir)
    sweep = str(directory.parent) if job.mode == RunMode.MULTIRUN else None
    overrides, logger = list(job.overrides.task), build(config.logger, Logger)
    with opened(directory, verb="export", config=as_dict(cfg), overrides=overrides, logger=logger, sweep=sweep) as run:
        run.note(
            choices=manifest.get("choices", {}),
            seed=own.seed,
            run=str(source),
            exported=str(destination),
            device=describe_device(torch.device("cpu")),
        )
        with told_in_lines():
            write_checked(run, trained, windows, destination, card)


def finished(source: Path) -> dict[str, Any]:
    """The manifest of a training run that has ended. UserError where it is none."""
    manifest = read_manifest(source)
    if manifest["verb"] != "train":
        raise UserError(f"{source} is a run of {manifest['verb']}; export takes one of train")
    if manifest["status"] != "done":
        status = str(manifest["status"]).partition(":")[0]
        raise UserError(f"{source} is not finished ({status}); go on with: roundround train resume={source}")
    return manifest


def rebuilt(own: DictConfig, manifest: dict[str, Any], source: Path, checkpoint: str) -> Trained:
    """The run's decoder with a checkpoint's weights and all that it takes to build it elsewhere."""
    from roundround.hf.export import Trained

    end_of_document = manifest["data"]["end_of_document"]
    return Trained(
        decoder=load_decoder(own, manifest, source, checkpoint=checkpoint).eval(),
        sizes=checked_values(own.model, Decoder, OF_THE_BUILDER),
        encoding=checked_values(own.pe, PositionalEncoding, []),
        normaliser=checked_values(own.softmax, AttentionSoftmax, []),
        tokenizer=Saved(source / "tokenizer.json", end_of_document).build([]).tokenizer,
        end_of_document=end_of_document,
    )


def held_out_windows(own: DictConfig, manifest: dict[str, Any], source: Path) -> Tensor:
    """A few windows of the trained length from the run's own held-out text, [B, T], int64."""
    tokens = held_out_text(own, manifest, source).held_out
    length = min(own.model.train_length, len(tokens) - 1)
    n_windows = min(N_WINDOWS, (len(tokens) - 1) // length)
    return evaluation_windows(tokens, length=length, longest=length, max_tokens=n_windows * length)[:][:, :-1]


def card_of(manifest: dict[str, Any], name: str, checkpoint: str, state: dict[str, Any]) -> Card:
    """What the model card tells; the loss is the one measured at the checkpoint's own step."""
    from roundround.hf.card import Card

    measured = [m["nats_per_token"] for m in (state["best"], state["validated"]) if m["step"] == state["step"]]
    nats = measured[0] if measured else None
    return Card(
        name=name,
        manifest=manifest,
        checkpoint=checkpoint,
        step=state["step"],
        nats_per_token=nats,
        perplexity=None if nats is None else math.exp(nats),
    )


def write_checked(run: Run, trained: Trained, windows: Tensor, destination: Path, card: Card) -> None:
    """Write beside the destination, compare logits, move into place, and tell what was done."""
    from roundround.hf.export import MODELING, agreement, is_stock, new_folder, write_folder

    stock, pe, softmax = is_stock(trained), run.manifest["choices"].get("pe"), run.manifest["choices"].get("softmax")
    kind = "a stock LlamaForCausalLM" if stock else f"a model with its own {MODELING}.py (trust_remote_code=True)"
    with new_folder(destination) as folder:
        tell(f"pe={pe}, softmax={softmax}: {kind}, {n_parameters(trained.decoder):,} parameters, step {card.step}")
        write_folder(trained, folder, card)
        found = agreement(trained, folder, windows)
    tell(
        f"loaded in a clean process: {found.n_logits:,} logits on {windows.numel():,} held-out tokens differ from the "
        f"run's by at most {found.difference:.2g}, the largest being {found.largest:.3g}"
    )
    tell(f"exported to {destination}")
    common = {"pe": pe, "softmax": softmax, "seed": run.manifest["seed"]}
    values = {"largest_difference": found.difference, "largest_logit": found.largest}
    run.results([{"metric": name, **common, "value": value} for name, value in values.items()], **values)
