"""What a task decides beside its examples: the vocabulary, and the context that training needs."""

from __future__ import annotations

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.config.build import build, target_class
from roundround.config.recorded import overridden
from roundround.data.corpora import Source
from roundround.data.tasks.base import BYTES_OF_TOKEN, Task
from roundround.data.tasks.text_task import TextTask
from roundround.support.errors import UserError
from roundround.support.memory import check_fits

OF_TEXT = {  # keys that mean nothing beside a task, and what says it there
    "tokenizer": "a task has its own vocabulary",
    "validation_tokens": "a task says data.validation_examples",
    "model.train_length": "a task says data.train_lengths, which make the context",
}


def task_of(node: DictConfig) -> Task | None:
    """The task that the node `data` describes; None where it describes text."""
    if not issubclass(target_class(node, Source), Task):
        return None
    return build(node, Task)  # type: ignore[type-abstract]


def config_of_task(
    cfg: DictConfig, task: Task, overrides: list[str], choices: dict[str, str | None]
) -> tuple[DictConfig, dict[str, str | None]]:
    """The config without a tokenizer, unless it is a task of text, and with the choices that this makes.

    Raises UserError for what the command line says of text.
    """
    refused = {"validation_tokens": OF_TEXT["validation_tokens"]} if isinstance(task, TextTask) else OF_TEXT
    for key in sorted(overridden(overrides)):
        for name, reason in refused.items():
            if key == name or key.startswith(name + "."):
                raise UserError(f"{key}= is for text; leave it out: {reason}")
    if isinstance(task, TextTask):
        return cfg, choices
    if cfg.init is not None:
        raise UserError("init= brings a tokenizer, and this task has its own vocabulary; leave one of them out")
    with open_dict(cfg):
        OmegaConf.update(cfg, "tokenizer", None, merge=False)
    return cfg, {**choices, "tokenizer": None}


def with_context(cfg: DictConfig, task: Task, overrides: list[str]) -> DictConfig:
    """The config with the task's context as the one of training, where the command line gives none.

    UserError where the validation examples, half as long in the mean, are more than the memory holds.
    """
    if "model.train_length" not in overridden(overrides):
        shortest, longest = task.train_lengths
        context = task.context(longest)
        check_fits(
            task.validation_examples * context // 2 * BYTES_OF_TOKEN,
            torch.device("cpu"),
            f"data.validation_examples={task.validation_examples} of data.train_lengths=[{shortest},{longest}]",
            "give fewer or shorter ones",
        )
        with open_dict(cfg):
            OmegaConf.update(cfg, "model.train_length", context)
    return cfg
