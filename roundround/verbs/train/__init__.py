"""`roundround train`: a small language model, or a task.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    HOW,
    PAIRS,
    PRETRAINED,
    REPLICATE,
    SETTING,
    TRAIN,
    WHERE,
    Verb,
    at_least_one,
    check_seed,
    key,
)

if TYPE_CHECKING:
    from lightning import Trainer

    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.data.tokenizers import TokenizerRecipe
    from roundround.model.block import AttentionLayer, LayerKind
    from roundround.model.decoder import Decoder
    from roundround.model.gate import OutputGate
    from roundround.model.mix import TokenMix
    from roundround.model.qk_norm import QueryKeyNorm
    from roundround.pe.base import PositionalEncoding
    from roundround.records.loggers.base import Logger
    from roundround.softmax.base import AttentionSoftmax
    from roundround.training.optim import OptimizerFactory, Schedule


@dataclass(kw_only=True, repr=False, eq=False)
class TrainConfig:
    """The config of `roundround train`. `build` checks each node against the constructor that the node names."""

    model: Node[Decoder]
    data: Node[Source]
    optim: Node[OptimizerFactory]
    schedule: Node[Schedule]
    trainer: Node[Trainer] = key(
        SETTING,
        accelerator=HOW,
        devices=HOW,
        num_nodes=HOW,
        strategy=HOW,
        accumulate_grad_batches=HOW,
        log_every_n_steps=HOW,
        peak_flops=HOW,
    )
    logger: Node[Logger] = key(WHERE)
    outputs: str = key(WHERE)
    seed: int = key(REPLICATE)
    batch_size: int
    validate_every: int
    validation_tokens: int
    checkpoint_every: int = key(HOW)
    compile: bool = key(HOW)
    resume: str | None = key(WHERE)
    trust: bool = key(WHERE)
    tokenizer: Node[TokenizerRecipe] | None = None  # a task has its own vocabulary
    pattern: Node[LayerKind] | None = None
    pe: Node[PositionalEncoding] | None = None  # None if every kind of layer has its own
    softmax: Node[AttentionSoftmax] | None = None
    qk_norm: Node[QueryKeyNorm] | None = None
    gate: Node[OutputGate] | None = None
    mix: Node[TokenMix] | None = None
    attention: Node[AttentionLayer] | None = None
    init: str | None
    activation_checkpointing: bool = key(HOW)
    attention_stats_every: int | None = key(HOW, None)

    def check(self) -> None:
        at_least_one(
            batch_size=self.batch_size,
            validate_every=self.validate_every,
            validation_tokens=self.validation_tokens,
            checkpoint_every=self.checkpoint_every,
            attention_stats_every=self.attention_stats_every,
        )
        check_seed(seed=self.seed)


VERB = Verb(
    name="train",
    run="roundround.verbs.train.run:train",
    order=1,
    purpose=TRAIN,
    help="Train a small language model, or a model for a task.",
    config=TrainConfig,
    refuses={"model": PRETRAINED, "data": PAIRS},
    partly=("pattern",),
    parallel=True,
    measures=True,
    repeats=True,
    title="Training run",
    page="roundround.report.train_panels:view",
)
