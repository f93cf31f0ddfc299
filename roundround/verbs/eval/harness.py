"""`roundround eval tasks=lm_eval:NAME`: tasks of EleutherAI's lm-evaluation-harness, asked of a run or a loaded model.

Tested by tests/asking/test_harness.py.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.config.recorded import overridden
from roundround.kernels.trial import FallsBack
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report.eval_panels import label, scope_of_harness, table_of_harness
from roundround.report.evaluation import records_of_harness
from roundround.support.console import warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.trained.patterns import chosen_parts
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.questions import AskedModel, refuse, show

# options that mean nothing to a task of the harness
OF_TEXT = ("data", "stride", "max_tokens", "bos", "dispersion", "by")


def evaluate_harness(cfg: DictConfig, config: EvalConfig, invocation: Invocation, subject: AskedModel) -> None:
    """Ask the tasks that the config names. UserError where the harness is not installed, or has no such task."""
    keys = overridden(invocation.overrides)
    refuse(invocation, OF_TEXT, "is for text or a task of a run's own; tasks=lm_eval:... takes length= and examples=")
    if "length" in keys and len(config.length) > 1:
        raise UserError("length= is the longest context of tasks=lm_eval:..., in tokens; give one")
    try:
        from roundround.asking.harness import VERSION, HarnessModel, asked, failing_in_one_line, opened_tasks
    except ModuleNotFoundError as error:
        raise UserError(
            f"tasks=lm_eval:... needs EleutherAI's harness ({error}): pip install 'roundround[lm_eval]'"
        ) from error
    examples = config.examples if "examples" in keys else None
    loaded = opened_tasks(config.tasks, config.tasks_path, trust=config.trust)
    longest = config.length[0] if "length" in keys else subject.context
    options: dict[str, Any] = {"longest": longest, "batch_tokens": config.batch_tokens, "peers": invocation.peers}
    subject.check_room(longest, f"length={longest}")
    if subject.trained is not None and subject.decoder is not None:
        model = HarnessModel.of_run(subject.trained, subject.decoder, **options)
    else:
        model = HarnessModel.of_pretrained(subject.probed, **options)
    OmegaConf.update(cfg, "length", [longest])
    if examples is None:
        OmegaConf.update(cfg, "examples", None)
    begins = model.tok_encode("a")[:1] == [model.first]  # else it stands there alone where there is no context
    tokenizer: Any = subject.vocabulary.tokenizer
    first = tokenizer.id_to_token(model.first) if begins else None
    with opened_run(invocation, cfg) as run:
        versions = {name: task.VERSION for name, task in loaded["tasks"].items()}
        run.note(lm_eval=VERSION, tasks=versions, first_token=first, **subject.known())
        with warnings_as_lines(FallsBack), failing_in_one_line(config.tasks, "asked"):
            found = asked(model, loaded, examples=examples, trust=config.trust)
        common = subject.common() | {"length": longest, "first_token": first, "lm_eval": VERSION}
        records = records_of_harness(found, common)
        if not records:
            raise UserError(f"tasks=lm_eval:{','.join(config.tasks)} measure nothing; give a metric_list")
        numbers = {label(record): record["value"] for record in records}
        run.results(records, **numbers)
        run.log(0, **numbers)
        n_cut, n_read = (sum(invocation.peers.gather(n)) for n in (model.n_cut, model.n_read))
        if not run.writes:
            return
        title = printable(f"{subject.choices.get('model')}, {chosen_parts(subject.choices)}")
        lines = scope_of_harness(records, n_cut=n_cut, n_read=n_read)
        show(run, config, None, [table_of_harness(records, f"lm_eval {VERSION}, {title}")], lines)
