"""`roundround theory`: every statement of the papers as a check, on its construction and on a trained model.

Tested by tests/verbs/test_theory.py.
"""

from __future__ import annotations

from itertools import chain

from omegaconf import DictConfig

from roundround.asking.reader import probed_model_of, subject_choices, texts_for, windows_for
from roundround.config.build import checked
from roundround.config.recorded import as_dict, give_theta
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.trial import FallsBack
from roundround.papers import statement_names
from roundround.papers.claim import FAILS, Answer, Trained, claim_of
from roundround.records.opening import opened_run
from roundround.records.provenance import config_hash
from roundround.records.run import Invocation
from roundround.report import theory as report
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import Refuted, UserError
from roundround.support.files import write_json
from roundround.verbs.theory import TheoryConfig


def theory(cfg: DictConfig, invocation: Invocation) -> None:
    """Check one statement, or all; Refuted where one does not hold."""
    choices = subject_choices(cfg, invocation, with_data=True)
    config = checked(TheoryConfig, cfg)
    claims = [claim_of(name) for name in dict.fromkeys(config.claim or statement_names())]
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
                model = Trained(probed, texts_for(config, probed, trained, windowed))
                of_model = [Answer(c, c.check_model(model), probed.name) for c in claims if c.check_model]
                if not of_model:
                    names = ", ".join(claim.name for claim in claims)
                    raise UserError(f"{names}: asks nothing of {probed.name}; leave out model= and run=")
        answers: list[Answer] = []
        for answer in chain((Answer(claim, claim.check()) for claim in claims), of_model):
            answers.append(answer)
            if run.writes:
                print_status(report.line(answer))
                report.draw(answer, run.directory / "figures", config.figures)
        failed = [answer.label for answer in answers if answer.finding.verdict == FAILS]
        run.results(report.records(answers), hold=len(answers) - len(failed), fail=len(failed))
        if run.writes:
            report.show(answers)
            report.write(answers, run.directory / "theory.md")
            write_json(run.directory / "curves.json", report.curves(answers))
        if failed:
            raise Refuted(f"{len(failed)} of {len(answers)} do not hold: {', '.join(failed)}")
