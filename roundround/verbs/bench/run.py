"""`roundround bench`: measures a variant on the standard set and compares it with all others.

Tested by tests/verbs/test_bench.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from roundround.analysis.repetition import Runner, planned_config
from roundround.analysis.standings import (
    GROUPS,
    RATE,
    SIZE,
    TUNED,
    Part,
    StandardSet,
    Standing,
    Variant,
    add,
    at_better_rate,
    decide,
    format_variant,
    read_set,
    read_standing,
    read_tries,
    read_yaml,
    stored,
    variants_of,
)
from roundround.config.build import checked
from roundround.config.options import as_value, options_of
from roundround.distributed.child import VerbFailed
from roundround.distributed.device import pick_device
from roundround.records.directories import RESULTS, all_runs, read_manifest, runs_of
from roundround.records.opening import now, opened_run
from roundround.records.provenance import config_hash, sources_of
from roundround.records.run import Invocation
from roundround.report import bench as report
from roundround.support.console import print_document, print_result, print_status
from roundround.support.errors import AlreadyReported, UserError, nearest, one_line
from roundround.support.files import home_expanded, parse_json, read_text, sha256, write_atomically
from roundround.verbs.bench import BenchConfig

VALUES = "values"  # the folder of a run with the values of its variants
LOG = "verbs.log"  # the file of a run with the output of the verbs that it starts
FIXED = ("trainer.precision=32-true",)  # for every training, as in the stored values: a GPU would choose bfloat16


def bench(cfg: DictConfig, invocation: Invocation) -> int | None:
    """Measure the named variants that have no values yet, then show all variants in comparison with the baseline.

    Returns the exit code for format=json, which says the verdict.
    """
    config = checked(BenchConfig, cfg)
    the_set = read_set(config.set, config.size, invocation.config_dir)
    baseline, *more = variants_of(config.baseline)
    if more:
        raise UserError(f"baseline={','.join(config.baseline)} names several variants; give one")
    wanted = variants_of(config.where, vars(config)) if config.where else []
    others = [variant for variant in wanted if variant != baseline]
    first, as_json = 1 if config.seed is None else config.seed, config.format == "json"
    seeds = list(range(first, first + config.seeds))
    if as_json and invocation.sweep is not None:
        raise UserError("format=json prints one document; give all variants to one command, without -m")
    about = {"set": the_set.name, "size": the_set.size, "hash": the_set.hash, "baseline": baseline}
    if config.tune and the_set.tuned_rate is None:
        raise UserError(f"tune=true needs a second learning rate, and set={the_set.name} has none (tuned_rate:)")
    if config.tune and config.history is not None:
        raise UserError("a search decides at one learning rate; give history= or tune=true")
    history = None if config.history is None else home_expanded(config.history, "history")
    if history is not None and not (others and the_set.decides):
        raise UserError("history= needs a variant to try, and a set and size that say what decides, as v2, default")
    if history is not None:
        read_tries(history, about)  # a damaged file is refused before anything is trained
    if config.device != "auto":
        pick_device(config.device)
    rates: list[Variant] = [{}, {RATE: f"{the_set.tuned_rate:g}"}] if config.tune else [{}]
    named = [{**one, **rate} for one in [*([baseline] if wanted else []), *others] for rate in rates]
    found = all_values(the_set, config, invocation.config_dir, named)
    for variant in [one for one in named if format_variant(one) not in found]:
        from roundround.trained.models import check_buildable  # imports torch, which the table does not need

        words = the_set.words(the_set.parts[0], variant, 1)
        check_buildable(OmegaConf.create(planned_config("train", words, config.outputs, invocation.config_dir)))
    with opened_run(invocation, cfg, tell=print_status if as_json else print_result) as run:
        runner = SetRunner(the_set, config, invocation, found, run.directory)
        for variant in named:
            runner.complete(variant, seeds)
        if config.seed is not None:
            found = {own: less for own, s in found.items() if (less := s.without(s.made.keys() - {*seeds})).made}
        shown = [own for own, s in found.items() if RATE not in s.variant]
        if wanted:
            shown = [format_variant(one) for one in [baseline, *wanted]]
        if config.tune:
            found = at_better_rate(found, shown, the_set, seeds)
        if (name := format_variant(baseline)) not in found:
            of_seeds = f" for seed {', '.join(map(str, seeds))}; name a variant, and both are run"
            some = config.tune or config.seed is not None
            lacks = f"{' at both rates' * config.tune}{of_seeds}" if some else nearest(name, found)
            raise UserError(f"baseline {name} has no values{lacks}")
        chosen = [s for own, s in found.items() if own in shown]
        tries = {
            own: decide(history, about, the_set.decides, found[own], found[name], seeds, source)
            for own, source in (
                (format_variant(v), config_hash([v, files_of(v, invocation.config_dir)])) for v in others
            )
            if history is not None and the_set.decides is not None
        }
        standings = report.Standings(the_set, chosen, found[name], tries, tuned=config.tune)
        run.results(standings.records(), variants=len(chosen))
        if run.writes:
            standings.leave(run.directory)
            standings.show(on_output=not as_json)
        document = standings.document(run.directory, run.manifest["git"])
        if as_json:
            print_document(json.dumps(document, indent=2) + "\n")
    return report.CODES[document["verdict"]] if as_json else None


def all_values(
    the_set: StandardSet, config: BenchConfig, config_dir: str | None, named: Sequence[Variant]
) -> dict[str, Standing]:
    """The values for the current set: from the package, from the given files and from earlier runs, the latest first.

    Prints a line for each file or seed that is left out. A file is left out if its values are of another set. A seed
    is left out if it has values already, or if the code of a user's variant has changed since it was measured. So is,
    without a line, a seed of an earlier run of a named variant if one of its parts failed: it is run again.
    """
    found = {standing.name: standing for standing in stored(the_set.name, the_set.size)}
    if config.tune and the_set.size == SIZE:
        found |= {standing.name: standing for standing in stored(the_set.name, TUNED)}
    second = f"{the_set.tuned_rate:g}" if the_set.tuned_rate else None
    own = [
        path
        for directory, _ in sorted(all_runs(runs_of(config.outputs, "bench"), "bench"), reverse=True)
        for path in sorted((directory / VALUES).glob("*.json"))
    ]
    for is_named, path in [*((True, Path(file)) for file in config.files), *((False, path) for path in own)]:
        try:
            standing = read_standing(path)
        except UserError as error:
            if is_named:
                raise
            print_status(f"passed over: {one_line(error)}")
            continue
        own_rate = standing.variant.get(RATE)
        if own_rate is not None and not (config.tune and own_rate == second):
            if is_named:
                known = " (tune=true takes it)" if own_rate == second else ""
                print_status(f"{path} has values at a learning rate of {own_rate}{known}, and is left out")
            continue
        of = (standing.set, standing.size, standing.hash, standing.rate)
        if of != (the_set.name, the_set.size, the_set.hash, the_set.rate):
            if is_named or of[:2] == (the_set.name, the_set.size):
                print_status(f"{path} has values of another set ({', '.join(map(str, of))}), and is left out")
            continue
        now = files_of(standing.variant, config_dir)
        old = {seed for seed, made in standing.made.items() if now and made.get("files", now) != now}
        twice = {*found[standing.name].made} & {*standing.made} if is_named and standing.name in found else set()
        for seeds, why in ((old, "was made with other code"), (twice, "has values already")):
            if seeds:
                print_status(
                    f"{path}: {standing.name}, seed {', '.join(map(str, sorted(seeds)))} {why}, and is left out"
                )
        again = standing.failed(the_set.parts) if not is_named and standing.variant in named else frozenset()
        if len(old | again) < len(standing.made):
            add(found, standing.without(old | again))
    return found


def files_of(variant: Variant, config_dir: str | None) -> dict[str, str]:
    """{file name: hash} of the yaml files and modules in the user's folder that define a variant."""
    if config_dir is None:
        return {}
    folder, found = Path(config_dir).resolve(), dict[str, str]()
    for group in GROUPS:
        path = options_of(group, config_dir).get(variant.get(group, ""))
        if path is None or not path.resolve().is_relative_to(folder):
            continue
        found[path.resolve().relative_to(folder).as_posix()] = sha256(path)
        found |= {name: sha256(file) for name, file in sources_of(str(read_yaml(path).get("_target_"))).items()}
    return found


@dataclass
class SetRunner:
    """Runs the parts of a set for a variant, and adds the results to the values `found`."""

    set: StandardSet
    config: BenchConfig
    invocation: Invocation
    found: dict[str, Standing]
    directory: Path

    def complete(self, variant: Variant, seeds: Iterable[int]) -> None:
        """Run the seeds that have no values yet."""
        standing = Standing(self.set.name, self.set.size, self.set.hash, variant, self.set.rate)
        known = self.found.get(standing.name, standing).made
        for seed in seeds:
            if seed not in known:
                self.run_seed(standing, seed)
        if standing.made:
            add(self.found, standing)

    def run_seed(self, standing: Standing, seed: int) -> None:
        """Run every part of the set for one seed. A part that fails gets a remark in place of numbers."""
        began = time.monotonic()
        numbers: dict[str, Mapping[str, float]] = {}
        remarks: dict[str, list[str]] = {}
        trained: dict[str, Path] = {}
        for part in self.set.parts:
            since, own = time.monotonic(), remarks.setdefault(part.name, [])
            try:
                if part.measures:
                    numbers[part.name] = self.measured(part, trained, own)
                else:
                    numbers[part.name] = self.numbers(part, standing.variant, seed, trained, own)
                print_status(f"{standing.name}, seed {seed}: {part.name}, {time.monotonic() - since:.0f} s")
            except Exception as error:
                own.append(self.why(error))
                print_status(f"{standing.name}, seed {seed}: {part.name} failed: {own[-1]}")
        made = {
            **origin(trained.values()),
            "command": self.invocation.command,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "ended": now(),
        }
        files = files_of(standing.variant, self.invocation.config_dir)
        standing.add(seed, numbers, remarks, made | ({"files": files} if files else {}))
        (self.directory / VALUES).mkdir(exist_ok=True)
        write_atomically(self.directory / VALUES / standing.file_name, standing.as_json())

    def numbers(
        self, part: Part, variant: Variant, seed: int, trained: dict[str, Path], remarks: list[str]
    ) -> dict[str, float]:
        """Train a model and measure it; finished runs are reused. Appends to `remarks` what could not be measured."""
        config = self.config
        own = self.invocation.config_dir  # this command has just trained with its modules, so that they are trusted
        kind, _, which = config.device.partition(":")
        one_device = [
            f"trainer.accelerator={'gpu' if kind == 'cuda' else kind}",
            f"trainer.devices={f'[{which}]' if which else 1}",
        ]
        trust, log = config.trust or own is not None, self.directory / LOG
        run = Runner(config.outputs, own, config.device, trust, [*FIXED, *one_device], log)
        trained[part.name] = run("train", *self.set.words(part, variant, seed))
        found: dict[str, float] = {}
        for verb, *words in part.looks:
            asked = [f"run={as_value(trained[part.name])}", *words]
            try:
                looks = [run(verb, *asked)]
            except (VerbFailed, UserError):  # such as learned positions, whose number is limited
                looks = self.by_length(run, verb, asked, remarks)
                if not looks:
                    raise
            for look in looks:
                found |= part.numbers_of(parse_json(read_text(look / RESULTS)))
        return found

    def by_length(self, run: Runner, verb: str, words: Sequence[str], remarks: list[str]) -> list[Path]:
        """Measure at each length separately; lengths that the model does not support become a remark."""
        found: list[Path] = []
        lost: dict[str, str] = {}
        for word in [word for word in words if word.startswith("length=[")]:
            for length in word.removeprefix("length=[").removesuffix("]").split(","):
                try:
                    found.append(run(verb, *(f"length={length}" if other == word else other for other in words)))
                except (VerbFailed, UserError) as error:
                    lost[length] = self.why(error)
        if found and lost:
            remarks.append(f"not measured at length {', '.join(lost)}: {next(iter(lost.values()))}")
        return found

    def measured(self, part: Part, trained: Mapping[str, Path], remarks: list[str]) -> Mapping[str, float]:
        """Measure another part's model; returns the numbers. Appends lines that explain numbers to `remarks`."""
        if part.model_of not in trained:
            raise UserError(f"the part {part.model_of} made no model")
        from roundround.asking import bench_measures  # imports torch and transformers
        from roundround.trained.models import TrainedRun

        measurements = {
            "costs": bench_measures.costs,
            "places": bench_measures.places,
            "promises": bench_measures.promises,
        }
        found, more = measurements[part.measures](TrainedRun(trained[part.model_of], trust=True))
        remarks += more
        return found

    def why(self, error: Exception) -> str:
        """The error as one line; for a verb that reported its error itself, the last line that it printed."""
        log = self.directory / LOG
        reported = isinstance(error, AlreadyReported) or (isinstance(error, VerbFailed) and 0 < error.code < 128)
        text = log.read_text(encoding="utf-8", errors="replace") if reported and log.exists() else ""
        lines = text.strip().splitlines()
        return re.sub(r"^roundround [\w-]+: ", "", lines[-1].strip()) if lines else one_line(error)


def origin(trained: Iterable[Path]) -> dict[str, str | None]:
    """The commits and the machines with which the models were trained. Some models come from earlier runs."""
    manifests = list(map(read_manifest, trained))
    codes = [manifest.get("git") or {"commit": f"version {manifest['roundround']}"} for manifest in manifests]
    commits = dict.fromkeys(f"{git['commit']}{' with changes' if git.get('dirty') else ''}" for git in codes)
    machines = dict.fromkeys(str(manifest["device"]) for manifest in manifests if manifest.get("device"))
    return {"commit": " and ".join(commits) or None, "machine": " and ".join(machines) or None}
