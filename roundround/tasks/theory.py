"""`roundround theory`: every statement of the papers as a check, on its construction and on a trained model."""

from __future__ import annotations

from omegaconf import DictConfig

from roundround.config.build import build
from roundround.config.recorded import as_dict
from roundround.config.schema import TheoryConfig, checked
from roundround.console import print_status, warnings_as_lines
from roundround.errors import Refuted, UserError
from roundround.report import theory as report
from roundround.runs.device import describe_device, pick_device
from roundround.runs.loggers.base import Logger
from roundround.runs.opening import opened
from roundround.runs.run import Invocation, Run
from roundround.runs.subject import probed_model_of, settle_model_and_data, texts_for
from roundround.softmax.base import RunsInBlocks
from roundround.theory import names
from roundround.theory.claim import Claim, Finding, Trained, claim_of


def theory(cfg: DictConfig, invocation: Invocation) -> None:
    """Check one statement, or all; Refuted where one does not hold."""
    choices = settle_model_and_data(cfg, invocation)
    config = checked(TheoryConfig, cfg)
    claims = {name: claim_of(name) for name in config.claim or names()}
    device = pick_device(config.device)
    with opened(invocation, config=as_dict(cfg), logger=build(config.logger, Logger)) as run:
        run.note(choices=choices, device=describe_device(device))
        of_model = {}
        if config.model is not None or config.run is not None:
            with probed_model_of(config, device) as (probed, trained), warnings_as_lines(RunsInBlocks):
                if trained is not None:
                    run.note(run=str(trained.directory))
                of_model = ask(claims, Trained(probed, texts_for(config, probed, trained)))
        found = {}
        for name, claim in claims.items():
            found[name] = claim.check()
            tell(run, name, claim, found[name])
        for name, finding in of_model.items():
            tell(run, name, claim_of(name.partition(" ")[0]), finding)
        conclude(run, found | of_model)


def ask(claims: dict[str, Claim], trained: Trained) -> dict[str, Finding]:
    """Each statement that can be asked of a model, by its name and the model's. UserError where none can."""
    asked = {f"{name} ({trained.probed.name})": claim.check_model(trained) for name, claim in claims.items()}
    found = {name: finding for name, finding in asked.items() if finding is not None}
    if not found:
        raise UserError(f"{', '.join(claims)}: asks nothing of {trained.probed.name}; leave out model= and run=")
    return found


def tell(run: Run, name: str, claim: Claim, finding: Finding) -> None:
    """One line, and the figure."""
    if run.writes:
        print_status(report.line(name, claim, finding))
        report.draw(name, claim, finding, run.directory / "figures")


def conclude(run: Run, found: dict[str, Finding]) -> None:
    """Results and table of all; Refuted names those that do not hold."""
    failed = [name for name, finding in found.items() if not finding.holds]
    run.results(report.records(found), hold=len(found) - len(failed), checked=len(found))
    if run.writes:
        report.show(found)
        report.write(found, run.directory / "theory.md")
    if failed:
        raise Refuted(f"{len(failed)} of {len(found)} do not hold: {', '.join(failed)}")
