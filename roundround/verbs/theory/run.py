"""`roundround theory`: checks the statements of the papers on constructed examples and on a trained model.

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
from roundround.papers.claim import FAILS, Finding, checks_of
from roundround.records.opening import opened_run
from roundround.records.provenance import config_hash
from roundround.records.run import Invocation
from roundround.report import papers as report
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import Refuted, UserError
from roundround.verbs.theory import TheoryConfig


def theory(cfg: DictConfig, invocation: Invocation) -> None:
    """Check one statement, or all. Raises Refuted if one does not hold."""
    choices = subject_choices(cfg, invocation, with_data=True)
    config = checked(TheoryConfig, cfg)
    checks = {name: checks_of(name) for name in dict.fromkeys(config.claim or statement_names())}
    device = pick_device(config.device)
    with opened_run(invocation, cfg) as run:
        run.note(choices=choices, device=describe_device(device))
        of_model: dict[str, Finding] = {}
        if config.model is not None or config.run is not None:
            with probed_model_of(config, device) as (probed, trained), warnings_as_lines(FallsBack):
                give_theta(cfg, probed.theta)
                run.note(config=as_dict(cfg), config_hash=config_hash(as_dict(cfg)))
                if trained is not None:
                    run.note(run=str(trained.directory))
                texts = texts_for(config, probed, trained, windows_for(config, probed, trained, invocation.peers))
                of_model = {f"{name} ({probed.name})": ask(probed, texts) for name, (_, ask) in checks.items() if ask}
                if not of_model:
                    raise UserError(
                        f"none of {', '.join(checks)} is checked on a model such as {probed.name}; leave out model= "
                        "and run="
                    )
        findings: dict[str, Finding] = {}
        for label, finding in chain(((name, check()) for name, (check, _) in checks.items()), of_model.items()):
            findings[label] = finding
            if run.writes:
                print_status(report.line(label, finding))
                report.draw_statement(label, finding, run.directory / "figures", config.figures)
        failed = [label for label, finding in findings.items() if finding.of_statement == FAILS]
        run.results(report.statement_records(findings), hold=len(findings) - len(failed), fail=len(failed))
        if run.writes:
            report.show_statements(findings)
            report.write_statements(findings, run.directory / "theory.md")
        if failed:
            raise Refuted(f"{len(failed)} of {len(findings)} statements do not hold: {', '.join(failed)}")
