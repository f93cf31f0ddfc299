"""`roundround theory`: every statement of the papers as a check, on its construction and on a trained model."""

from __future__ import annotations

from itertools import chain

from omegaconf import DictConfig

from roundround.asking.reader import probed_model_of, subject_choices, texts_for, windows_for
from roundround.config.build import checked
from roundround.config.recorded import as_dict, give_theta
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.trial import FallsBack
from roundround.papers import statement_names
from roundround.papers.claim import Answer, Claim, Trained, claim_of
from roundround.records.opening import opened_run
from roundround.records.provenance import config_hash
from roundround.records.run import Invocation, Run
from roundround.report import theory as report
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import Refuted, UserError
from roundround.support.files import write_json
from roundround.verbs.theory import TheoryConfig


def theory(cfg: DictConfig, invocation: Invocation) -> None:
    """Check one statement, or all; Refuted where one does not hold."""
    choices = subject_choices(cfg, invocation, with_data=True)
    config = checked(TheoryConfig, cfg)
    claims = {name: claim_of(name) for name in config.claim or statement_names()}
    device = pick_device(config.device)
    with opened_run(invocation, cfg) as run:
        run.note(choices=choices, device=describe_device(device))
        of_model: list[Answer] = []
        if config.model is not None or config.run is not None:
            with probed_model_of(config, device) as (probed, trained), warnings_as_lines(FallsBack):
                give_theta(cfg, probed.theta)
                run.note(config=as_dict(cfg), config_hash=config_hash(as_dict(cfg)))
                if trained is not None:
                    run.note(run=str(trained.directory))
                windowed = windows_for(config, probed, trained, invocation.peers)
                of_model = ask(claims, Trained(probed, texts_for(config, probed, trained, windowed)))
        answers: list[Answer] = []
        for answer in chain((Answer(name, claim, claim.check()) for name, claim in claims.items()), of_model):
            answers.append(answer)
            if run.writes:
                print_status(report.line(answer))
                report.draw(answer, run.directory / "figures", config.figures)
        conclude(run, answers)


def ask(claims: dict[str, Claim], trained: Trained) -> list[Answer]:
    """What the model says to each statement that can be asked of one. UserError where none can."""
    model = trained.probed.name
    asked = [(name, claim, claim.check_model(trained)) for name, claim in claims.items()]
    answers = [Answer(name, claim, finding, model) for name, claim, finding in asked if finding is not None]
    if not answers:
        raise UserError(f"{', '.join(claims)}: asks nothing of {model}; leave out model= and run=")
    return answers


def conclude(run: Run, answers: list[Answer]) -> None:
    """Results and table of all; Refuted names those that do not hold."""
    failed = [answer.label for answer in answers if answer.finding.verdict == "FAILS"]
    counts = report.counts(answers)
    run.results(report.records(answers), hold=counts["holds"], shown=counts["shown"], fail=counts["FAILS"])
    if run.writes:
        report.show(answers)
        report.write(answers, run.directory / "theory.md")
        write_json(run.directory / "curves.json", report.curves(answers))
    if failed:
        raise Refuted(f"{len(failed)} of {len(answers) - counts['shown']} do not hold: {', '.join(failed)}")
