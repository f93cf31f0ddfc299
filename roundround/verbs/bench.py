"""`roundround bench`: a variant on the standard set, beside all others.

Tested by tests/verbs/test_bench.py.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.analysis.repetition import Runner, planned_config
from roundround.analysis.standings import (
    Part,
    StandardSet,
    Standing,
    Variant,
    format_variant,
    joined,
    read_set,
    read_standing,
    stored,
    variants_of,
)
from roundround.config.build import checked
from roundround.config.verbs.bench import BenchConfig
from roundround.distributed.child import VerbFailed
from roundround.distributed.device import pick_device
from roundround.report import bench as report
from roundround.runs.directories import RESULTS, all_runs, read_manifest, runs_of
from roundround.runs.opening import now, opened_run
from roundround.runs.provenance import git_state
from roundround.runs.run import Invocation
from roundround.support.console import print_status
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import home_expanded, parse_json, read_text, write_atomically

VALUES = "values"  # the folder of a run for what its variants reached
LOG = "verbs.log"  # of a run: what the verbs print that it starts


def bench(cfg: DictConfig, invocation: Invocation) -> None:
    """Run what has no values yet of the variants that are named, and show where they stand."""
    config = checked(BenchConfig, cfg)
    the_set = read_set(config.set, config.size, invocation.config_dir)
    [baseline] = variants_of(config.baseline)
    wanted = variants_of(config.where) if config.where else []
    seeds = [config.seed] if config.seed is not None else list(range(1, config.seeds + 1))
    folder = None if config.to is None else folder_to_cite(config.to)
    if config.device != "auto":
        pick_device(config.device)
    found = all_values(the_set, config)
    named = [*([baseline] if wanted else []), *(v for v in wanted if v != baseline)]
    for variant in named:
        if not any(s.variant == variant for s in found):
            check_trainable(the_set, variant, config, invocation.config_dir)
    with opened_run(invocation, cfg) as run:
        runner = SetRunner(the_set, config, invocation, found, run.directory)
        for variant in named:
            runner.complete(variant, seeds, tune=config.tune and variant in wanted)
        base = next((s for s in found if s.variant == baseline), None)
        if base is None:
            have = [standing.name for standing in found]
            raise UserError(
                f"baseline {format_variant(baseline)} has no values{nearest(format_variant(baseline), have)}"
            )
        chosen = [s for s in found if s.variant in wanted or s is base] if wanted else found
        standings = report.Standings(the_set, found, chosen, base)
        run.results(standings.records(), variants=len(chosen))
        if run.writes:
            standings.leave(run.directory)
            standings.show()
    if run.writes and folder is not None:
        standings.leave_report(run.directory, folder, invocation.command, config.figures)


def folder_to_cite(to: str) -> Path:
    """The folder, which is made before anything runs. UserError where it cannot be."""
    folder = home_expanded(to, "to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"to={to} cannot be made: {error.strerror}") from error
    return folder


def check_trainable(the_set: StandardSet, variant: Variant, config: BenchConfig, config_dir: str | None) -> None:
    """Raises UserError, or what Hydra says of a wrong name, for a variant that no part could be trained with."""
    from roundround.loading.models import check_buildable  # torch, which the table of values does not wait for

    words = the_set.words(the_set.parts[0], variant, 1, the_set.rates[0])
    check_buildable(OmegaConf.create(planned_config("train", words, config.outputs, config_dir)))


def all_values(the_set: StandardSet, config: BenchConfig) -> list[Standing]:
    """What travels with the package, what is named, and what earlier runs left: of the set as it is now alone."""
    found: list[Standing] = []
    own = [
        path
        for directory, _ in all_runs(runs_of(config.outputs, "bench"), "bench", done=False)
        for path in sorted((directory / VALUES).glob("*.json"))
    ]
    named = [read_standing(Path(file)) for file in config.files]
    for standing in [*stored(the_set.name, the_set.size), *named, *map(read_standing, own)]:
        if (standing.set, standing.size) != (the_set.name, the_set.size):
            continue
        if standing.hash != the_set.hash:
            print_status(f"{standing.name}: its values are of another {the_set.name} ({standing.hash}), and left out")
            continue
        add(found, standing)
    return found


def add(found: list[Standing], standing: Standing) -> None:
    """Among the others, with the seeds of the same variant at the same learning rate together."""
    for n, other in enumerate(found):
        if (other.variant, other.rate) == (standing.variant, standing.rate):
            found[n] = joined(other, standing)
            return
    found.append(standing)


class SetRunner:
    """Runs the parts of a set for a variant, and adds what comes of it to the values `found`."""

    def __init__(
        self,
        the_set: StandardSet,
        config: BenchConfig,
        invocation: Invocation,
        found: list[Standing],
        directory: Path,
    ) -> None:
        self.set, self.config, self.invocation = the_set, config, invocation
        self.found, self.directory = found, directory

    def complete(self, variant: Variant, seeds: Iterable[int], *, tune: bool) -> None:
        """The seeds that have no values yet, at the set's learning rate, or at the best of three."""
        [rate] = self.set.rates
        if tune:
            rate = self.best_rate(variant)
        standing = Standing(self.set.name, self.set.size, self.set.hash, variant, rate)
        known = next((s for s in self.found if (s.variant, s.rate) == (variant, rate)), standing)
        for seed in seeds:
            if seed not in known.seeds:
                self.run_seed(standing, seed)
        if standing.seeds:
            add(self.found, standing)

    def best_rate(self, variant: Variant) -> float:
        """Of the three learning rates, that whose model of seed 1 is best in the first number of the first part."""
        part = self.set.parts[0]
        column = part.columns[0]
        found = {rate: self.numbers(part, variant, 1, rate, {}).get(column.number) for rate in self.set.tuned}
        known = {rate: value for rate, value in found.items() if value is not None and math.isfinite(value)}
        if not known:
            raise UserError(f"{format_variant(variant)}: {part.name} has no {column.name} at any learning rate")
        best = (max if column.better == "higher" else min)(known, key=lambda rate: known[rate])
        told = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in known.items())
        print_status(f"{format_variant(variant)}: learning rate {best:g} ({column.name} at {told})")
        return best

    def run_seed(self, standing: Standing, seed: int) -> None:
        """Every part, for one seed; a part that fails has a remark in place of its numbers."""
        began = time.monotonic()
        numbers: dict[str, Mapping[str, float]] = {}
        remarks: list[tuple[str, str]] = []
        trained: dict[str, Path] = {}
        for part in self.set.parts:
            since = time.monotonic()
            try:
                if part.measures:
                    numbers[part.name], told = self.measured(part, trained)
                    remarks += [(part.name, remark) for remark in told]
                else:
                    numbers[part.name] = self.numbers(part, standing.variant, seed, standing.rate, trained)
            except (VerbFailed, UserError, ValueError, RuntimeError, IndexError) as error:
                remarks.append((part.name, self.why(error)))
                print_status(f"{standing.name}, seed {seed}: {part.name} failed: {remarks[-1][1]}")
                continue
            print_status(f"{standing.name}, seed {seed}: {part.name}, {time.monotonic() - since:.0f} s")
        git, _ = git_state()
        made = {
            "commit": None if git is None else f"{git['commit']}{' with changes' if git.get('dirty') else ''}",
            "machine": machine(trained),
            "command": self.invocation.command,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "ended": now(),
        }
        standing.add(seed, numbers, remarks, made)
        (self.directory / VALUES).mkdir(exist_ok=True)
        name = standing.file_name if standing.rate in self.set.rates else f"lr={standing.rate:g}+{standing.file_name}"
        write_atomically(self.directory / VALUES / name, standing.as_json())

    def numbers(
        self, part: Part, variant: Variant, seed: int, rate: float, trained: dict[str, Path]
    ) -> dict[str, float]:
        """Train a model and look at it; what was finished before is taken."""
        config = self.config
        cpu = ("trainer.accelerator=cpu",) if config.device == "cpu" else ()
        log = self.directory / LOG
        own = self.invocation.config_dir  # whose modules this command has just trained with: its runs may be looked at
        run = Runner(config.outputs, own, config.device, config.trust or own is not None, cpu, log)
        trained[part.name] = run("train", *self.set.words(part, variant, seed, rate))
        found: dict[str, float] = {}
        for verb, *words in part.looks:
            asked = [f"run={trained[part.name]}", *words]
            try:
                looks = [run(verb, *asked)]
            except (VerbFailed, UserError) as error:  # as of learned positions, of which there are no more
                looks = self.by_length(run, verb, asked)
                if not looks:
                    raise
                print_status(f"{part.name}: {self.why(error)}; asked of each length by itself")
            for look in looks:
                found |= part.numbers_of(parse_json(read_text(look / RESULTS)))
        return found

    def by_length(self, run: Runner, verb: str, words: Sequence[str]) -> list[Path]:
        """A look of several lengths, one by one, as far as the model takes them."""
        found = []
        for word in [word for word in words if word.startswith("length=[")]:
            for length in word.removeprefix("length=[").removesuffix("]").split(","):
                with suppress(VerbFailed, UserError):
                    found.append(run(verb, *(f"length={length}" if other == word else other for other in words)))
        return found

    def measured(self, part: Part, trained: Mapping[str, Path]) -> tuple[Mapping[str, float], list[str]]:
        """What a measurement finds on another part's model, and remarks on it."""
        if part.model_of not in trained:
            raise UserError(f"{part.model_of} left no model")
        from roundround.loading import conduct  # torch and transformers, which the table of values waits for
        from roundround.loading.models import TrainedRun

        run = TrainedRun(trained[part.model_of], trust=True)
        if part.measures == "costs":
            return conduct.costs(run.config, run.manifest["data"]["n_vocab"], pick_device(self.config.device)), []
        if part.measures == "places":
            return conduct.places(run), []
        found = conduct.promises(run)
        return conduct.share_kept(found), [f"{p.name}: {p.remark}" for p in found if not p.kept]

    def why(self, error: Exception) -> str:
        """The line that a verb printed last, or the error's own."""
        log = self.directory / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        own = not isinstance(error, VerbFailed) and "was refused" not in str(error)
        return one_line(error) if own or not lines else re.sub(r"^roundround [\w-]+: ", "", lines[-1].strip())


def machine(trained: Mapping[str, Path]) -> str | None:
    """The device of the first model, as its run describes it."""
    for directory in trained.values():
        found: Any = read_manifest(directory).get("device")
        return None if found is None else str(found)
    return None
