"""`roundround probe`: how a model uses the frequencies of its RoPE.

Tested by tests/asking/test_hf_commands.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    ARCHITECTURES,
    HOW,
    MEASURE,
    MEASURED,
    PAIRS,
    TASKS,
    WHERE,
    FigureStyle,
    Verb,
    at_least_one,
    check_checkpoint,
    checked_bos,
    key,
)
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.hf.load import Pretrained
    from roundround.pe.base import PositionalEncoding
    from roundround.records.loggers.base import Logger
    from roundround.softmax.base import AttentionSoftmax


@dataclass(kw_only=True, repr=False, eq=False)
class SubjectConfig:
    """A trained model and the texts that it reads. model: None for a run. data: None if `texts` is used."""

    checkpoint: str
    texts: str | None = key(MEASURED)
    length: int | None = key(MEASURED)
    bos: str = key(MEASURED)
    max_tokens: int | None
    max_documents: int | None
    device: str = key(HOW)
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    figures: FigureStyle = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    run: str | None = key(WHERE, None)
    model: Node[Pretrained] | None = None
    pe: Node[PositionalEncoding] | None = None
    softmax: Node[AttentionSoftmax] | None = None
    data: Node[Source] | None = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        at_least_one(max_tokens=self.max_tokens, max_documents=self.max_documents)
        self.bos = checked_bos(self.bos)
        if self.bos != "auto" and (self.length is None or self.run is not None):
            raise UserError(
                f"bos={self.bos} is only for a pretrained model= read in windows; give model= and length=, or leave "
                "bos= out"
            )
        if self.texts is not None and self.data is not None:
            raise UserError(
                "texts= names texts of the package, and data= (or text=) names other texts; give only one of them"
            )
        if self.run is not None and self.model is not None:
            raise UserError("give run= for a model trained here or model= for a pretrained one, not both")


@dataclass(kw_only=True, repr=False, eq=False)
class ProbeConfig(SubjectConfig):
    """The config of `roundround probe`."""

    prompt: str | None = key(MEASURED)
    ablate: list[str]
    batch_tokens: int = key(HOW)
    rows: bool = key(MEASURED)
    entropy: bool = key(MEASURED)

    def check(self) -> None:
        super().check()
        if self.run is None and self.model is None:
            raise UserError("give run= for a model trained here or model= for a pretrained one")
        if self.prompt == "maximum" and self.ablate:
            raise UserError("prompt=maximum and ablate= are two different probes; give one of them")
        if "curve" in self.ablate and len(self.ablate) > 1:
            raise UserError(
                "ablate=curve cannot be given with bands such as ablate=lowest:0.25; give the bands in another run"
            )


VERB = Verb(
    name="probe",
    run="roundround.verbs.probe.run:probe",
    order=5,
    purpose=MEASURE,
    help="What heads look at, and how they use RoPE.",
    config=ProbeConfig,
    refuses={"model": ARCHITECTURES, "data": (*TASKS, *PAIRS)},
    measures=True,
    repeats=True,
    title="Probe",
    page="roundround.report.probe_panels:view",
)
