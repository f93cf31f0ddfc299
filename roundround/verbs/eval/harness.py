"""`roundround eval tasks=lm_eval:NAME`: tasks of EleutherAI's lm-evaluation-harness, asked of a run or a loaded model.

Tested by tests/asking/test_harness.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from roundround.asking.reader import check_lengths
from roundround.config.recorded import overridden
from roundround.distributed.device import describe_device
from roundround.kernels.trial import FallsBack
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import harness as report
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.trained.models import TrainedRun
from roundround.trained.patterns import chosen_parts
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.task import decoder_of

if TYPE_CHECKING:
    from roundround.asking.harness import HarnessModel
    from roundround.hf.load import ProbedHuggingFaceModel

# options that mean nothing to a task of the harness
OF_TEXT = ("data", "stride", "max_tokens", "bos", "dispersion", "by")


def evaluate_harness(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, subject: TrainedRun | ProbedHuggingFaceModel
) -> None:
    """Ask the tasks that the config names. UserError where the harness is not installed, or has no such task."""
    keys = overridden(invocation.overrides)
    for key in OF_TEXT:
        if any(name.partition(".")[0] == key for name in keys):
            raise UserError(
                f"{key}= is for text or a task of a run's own; tasks=lm_eval:... takes length= and examples="
            )
    if "length" in keys and len(config.length) > 1:
        raise UserError("length= is the longest context of tasks=lm_eval:..., in tokens; give one")
    try:
        from roundround.asking.harness import VERSION, asked, failing_in_one_line, opened_tasks
    except ModuleNotFoundError as error:
        raise UserError(
            f"tasks=lm_eval:... needs EleutherAI's harness ({error}): pip install 'roundround[lm_eval]'"
        ) from error
    examples = config.examples if "examples" in keys else None
    loaded = opened_tasks(config.tasks, config.tasks_path, trust=config.trust)
    model, choices, tokenizer = model_of(config, invocation, subject, config.length[0] if "length" in keys else None)
    if "length" not in keys:
        OmegaConf.update(cfg, "length", [model.max_length])
    if examples is None:
        OmegaConf.update(cfg, "examples", None)
    begins = model.tok_encode("a")[:1] == [model.first]  # else it stands there alone where there is no context
    first = tokenizer.id_to_token(model.first) if begins else None
    seed = subject.config.seed if isinstance(subject, TrainedRun) else None
    with opened_run(invocation, cfg) as run:
        run.note(
            choices=choices,
            device=describe_device(model.device),
            seed=seed,
            run=str(subject.directory) if isinstance(subject, TrainedRun) else None,
            lm_eval=VERSION,
            tasks={name: task.VERSION for name, task in loaded["tasks"].items()},
            first_token=first,
        )
        with warnings_as_lines(FallsBack), failing_in_one_line(config.tasks, "asked"):
            found = asked(model, loaded, examples=examples, trust=config.trust)
        common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": seed}
        common |= {"length": model.max_length, "first_token": first, "lm_eval": VERSION}
        records = report.records(found, common)
        if not records:
            raise UserError(f"tasks=lm_eval:{','.join(config.tasks)} measure nothing; give a metric_list")
        numbers = {report.label(record): record["value"] for record in records}
        run.results(records, **numbers)
        run.log(0, **numbers)
        n_cut, n_read = (sum(invocation.peers.gather(n)) for n in (model.n_cut, model.n_read))
        if run.writes:
            title = printable(f"{choices.get('model')}, {chosen_parts(choices)}")
            print_table(report.table(records, title=f"lm_eval {VERSION}, {title}"), on_output=config.table == "stdout")
            if model.writer.remark is not None and "generate_until" in {
                t.OUTPUT_TYPE for t in loaded["tasks"].values()
            }:
                print_status(f"in texts that it writes {model.writer.remark}")
            for line in report.scope(records, n_cut=n_cut, n_read=n_read):
                print_status(line)


def model_of(
    config: EvalConfig, invocation: Invocation, subject: TrainedRun | ProbedHuggingFaceModel, length: int | None
) -> tuple[HarnessModel, dict[str, Any], Any]:
    """The model as the harness asks it, the choices that results name, and its tokenizer.

    length: tokens of context; None for those that the model was trained on.
    """
    from roundround.asking.harness import HarnessModel

    options: dict[str, Any] = {"batch_tokens": config.batch_tokens, "peers": invocation.peers}
    if not isinstance(subject, TrainedRun):
        choices = {"softmax": "its own", "pe": "its own", **invocation.given, "model": subject.name}
        model = HarnessModel.of_pretrained(subject, longest=length or subject.longest, **options)
        return model, choices, subject.vocabulary().tokenizer
    decoder, of_run, _ = decoder_of(config, invocation, subject)
    longest = length or int(subject.config.model.train_length)
    check_lengths(decoder, longest, f"length={longest}", of_run.get("pe"))
    return HarnessModel.of_run(subject, decoder, longest=longest, **options), of_run, subject.vocabulary().tokenizer
