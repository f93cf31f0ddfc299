"""What each verb reads, with its types, and the bounds that its values must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING, DictConfig

from roundround.config.bounds import at_least_one, at_most_inputs, check_checkpoint, check_seed, is_utf8
from roundround.config.build import plain
from roundround.support.errors import UserError, nearest

MOST_PROCESSES = 256  # one process reads the text for all: beyond about twenty the others wait for it


@dataclass
class TrainConfig:
    """What `roundround train` reads; the nodes are checked against the constructors they name by `build`."""

    pe: Any = MISSING
    softmax: Any = MISSING
    model: Any = MISSING
    data: Any = MISSING
    optim: Any = MISSING
    schedule: Any = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING
    outputs: str = MISSING
    seed: int = MISSING
    batch_size: int = MISSING
    validate_every: int = MISSING
    validation_tokens: int = MISSING
    checkpoint_every: int = MISSING
    compile: bool = MISSING
    resume: str | None = MISSING
    trust: bool = MISSING
    tokenizer: Any = None  # a task has its own vocabulary
    init: str | None = MISSING
    activation_checkpointing: bool = MISSING

    def check(self) -> None:
        at_least_one(
            batch_size=self.batch_size,
            validate_every=self.validate_every,
            validation_tokens=self.validation_tokens,
            checkpoint_every=self.checkpoint_every,
        )
        check_seed(seed=self.seed)


@dataclass
class PrepareConfig:
    """What `roundround prepare` reads."""

    data: Any = MISSING
    tokenizer: Any = MISSING
    to: str | None = MISSING
    n_processes: int | None = MISSING
    outputs: str = MISSING
    logger: Any = MISSING

    def check(self) -> None:
        if self.n_processes is not None:
            at_least_one(n_processes=self.n_processes)
            if self.n_processes > MOST_PROCESSES:
                raise UserError(f"n_processes={self.n_processes} must be at most {MOST_PROCESSES}")
        if self.to is not None and not self.to.strip():
            raise UserError("to= is empty; give a folder or an address, or leave it out for the token cache")


@dataclass
class EvalConfig:
    """What `roundround eval` reads; pe, softmax and data are None where the run's own are meant."""

    run: str = MISSING
    checkpoint: str = MISSING
    length: list[int] = MISSING
    stride: int | None = MISSING
    bos: str = MISSING
    max_tokens: int | None = MISSING
    examples: int = MISSING
    batch_tokens: int = MISSING
    dispersion: bool = MISSING
    table: str = MISSING
    device: str = MISSING
    trust: bool = MISSING
    outputs: str = MISSING
    logger: Any = MISSING
    pe: Any = None
    softmax: Any = None
    data: Any = None
    model: Any = None

    def check(self) -> None:
        if self.table not in ("stderr", "stdout"):
            raise UserError(f"table={self.table} must be stderr or stdout")
        at_least_one(batch_tokens=self.batch_tokens, examples=self.examples)
        at_most_inputs(examples=self.examples)
        check_checkpoint(self.checkpoint)
        if not self.length:
            raise UserError("length is empty; give context lengths in tokens, such as length=128,256")
        for length in self.length:
            at_least_one(length=length)
        if self.max_tokens is not None:
            at_least_one(max_tokens=self.max_tokens)
        if self.stride is not None and not 1 <= self.stride <= min(self.length):
            raise UserError(f"stride={self.stride} must be from 1 to the smallest length, {min(self.length)}")
        self.bos = checked_bos(self.bos)


def checked_bos(bos: str) -> str:
    """auto, true or false; the latter two come as True and False."""
    if bos.lower() not in ("auto", "true", "false"):
        raise UserError(f"bos={bos.lower()} must be auto, true or false")
    return bos.lower()


@dataclass
class ExportConfig:
    """What `roundround export` reads; data is None where the run's own is meant."""

    run: str = MISSING
    to: str | None = MISSING
    checkpoint: str = MISSING
    trust: bool = MISSING
    outputs: str = MISSING
    logger: Any = MISSING
    data: Any = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        if not self.to:
            raise UserError("to has no value; give to=DIR, the folder to write")
        if "://" in self.to:
            raise UserError("to= is an address, perhaps with a password; give to=DIR, a folder of this machine")


@dataclass
class SubjectConfig:
    """A trained model and the texts that it reads; model is None where a run is meant, data where `texts` are."""

    checkpoint: str = MISSING
    texts: str | None = MISSING
    length: int | None = MISSING
    bos: str = MISSING
    max_tokens: int | None = MISSING
    max_documents: int | None = MISSING
    device: str = MISSING
    trust: bool = MISSING
    outputs: str = MISSING
    logger: Any = MISSING
    run: str | None = None
    model: Any = None
    pe: Any = None
    softmax: Any = None
    data: Any = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        for name in ("max_tokens", "max_documents"):
            value = getattr(self, name)
            if value is not None:
                at_least_one(**{name: value})
        if self.length is not None and self.length < 2:
            raise UserError(f"length={self.length} must be at least 2 tokens")
        self.bos = checked_bos(self.bos)
        if self.bos != "auto" and (self.length is None or self.run is not None):
            raise UserError(f"bos={self.bos} is for windows of a pretrained model=; give length= too, or leave it out")
        if self.texts is not None and self.data is not None:
            raise UserError("texts= names texts of the package, and data= (or text=) others; give one of them")
        if self.run is not None and self.model is not None:
            raise UserError("give run= for a model trained here or model= for a pretrained one, not both")


@dataclass
class ProbeConfig(SubjectConfig):
    """What `roundround probe` reads."""

    prompt: str | None = MISSING
    ablate: list[str] = MISSING
    batch_tokens: int = MISSING
    rows: bool = MISSING
    entropy: bool = MISSING

    def check(self) -> None:
        super().check()
        at_least_one(batch_tokens=self.batch_tokens)
        if self.run is None and self.model is None:
            raise UserError("give run= for a model trained here or model= for a pretrained one")
        if self.prompt is not None and not is_utf8(self.prompt):
            raise UserError("prompt= is no UTF-8 text")
        if self.prompt == "maximum" and self.ablate:
            raise UserError("prompt=maximum and ablate= are two different probes; give one of them")
        if "curve" in self.ablate and len(self.ablate) > 1:
            raise UserError("ablate=curve stands alone; give bands, such as ablate=lowest:0.25, in another run")


@dataclass
class TheoryConfig(SubjectConfig):
    """What `roundround theory` reads; without run and model the statements are checked on their constructions alone."""

    claim: list[str] = MISSING

    def check(self) -> None:
        super().check()
        if self.run is None and self.model is None:
            for name in ("pe", "softmax", "data", "texts"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name}= is for a trained model; give model= or run= too")


@dataclass
class ReproduceConfig:
    """What `roundround reproduce` reads; model is None where the papers' own models are meant."""

    item: list[str] = MISSING
    device: str = MISSING
    trust: bool = MISSING
    write_docs: bool = MISSING
    outputs: str = MISSING
    logger: Any = MISSING
    model: Any = None
    data: Any = None

    def check(self) -> None:
        for name in ("model", "data"):
            if getattr(self, name) is not None and not self.item:
                raise UserError(f"{name}= is for items that are made; name some, such as rope.fig3, or all")


@dataclass
class MaxRetrievalConfig:
    """What `roundround max-retrieval` reads."""

    model: Any = MISSING
    optim: Any = MISSING
    normalisers: Any = MISSING
    logger: Any = MISSING
    outputs: str = MISSING
    seed: int = MISSING
    seeds: int = MISSING
    max_steps: int = MISSING
    batch_size: int = MISSING
    min_items: int = MISSING
    max_items: int = MISSING
    size_of_each_set: bool = MISSING
    evaluate: list[str] = MISSING
    test_sizes: list[int] = MISSING
    test_sets: int = MISSING
    fit: bool = MISSING
    fit_sizes: list[int] = MISSING
    fit_inputs: int = MISSING
    log_every: int = MISSING
    checkpoint_every: int = MISSING
    device: str = MISSING
    run: str | None = MISSING
    resume: str | None = MISSING
    trust: bool = MISSING
    bfloat16: str = MISSING
    one_temperature: bool = MISSING

    def check(self) -> None:
        at_least_one(
            seeds=self.seeds,
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            min_items=self.min_items,
            test_sets=self.test_sets,
            fit_inputs=self.fit_inputs,
            log_every=self.log_every,
            checkpoint_every=self.checkpoint_every,
        )
        at_most_inputs(test_sets=self.test_sets, fit_inputs=self.fit_inputs)
        self.bfloat16 = self.bfloat16.lower()  # true and false come as True and False
        if self.bfloat16 not in ("false", "true", "factors"):
            raise UserError(f"bfloat16={self.bfloat16} must be false, true or factors")
        check_seed(seed=self.seed)
        check_seed(**{"seed + seeds - 1": self.seed + self.seeds - 1})
        for name, node in self.normalisers.items():
            if not isinstance(node, DictConfig):
                raise UserError(f"normalisers.{name} must give values by name, _target_ first; it is {plain(node)}")
        if self.max_items < self.min_items:
            raise UserError(f"max_items={self.max_items} must be at least min_items={self.min_items}")
        for name, sizes in (("test_sizes", self.test_sizes), ("fit_sizes", self.fit_sizes)):
            if not sizes or min(sizes) < 1 or sorted(set(sizes)) != sizes:
                raise UserError(f"{name}={sizes} must be numbers of items from 1 up, each larger than the one before")
        names = [str(name) for name in self.normalisers]
        for name in self.evaluate:
            if name not in (*names, "all"):
                raise UserError(f"no normaliser '{name}' to evaluate{nearest(name, [*names, 'all'])}")

    @property
    def names(self) -> list[str]:
        """The normalisers to evaluate, in the order of `normalisers`; the plain softmax is always the first."""
        names = [str(name) for name in self.normalisers]
        wanted = {"softmax", *(names if "all" in self.evaluate else self.evaluate)}
        if self.fit or "fitted" in wanted:
            wanted |= {"adaptive_temperature", "fitted"}
        return [name for name in names if name in wanted]
