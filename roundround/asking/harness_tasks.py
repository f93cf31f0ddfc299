"""Tasks of EleutherAI's lm-evaluation-harness: found by name, among its own or in a folder, and read with their data.

Nothing that a folder brings is executed unless it is trusted.

Tested by tests/asking/test_harness.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2.sandbox
import lm_eval
import lm_eval.utils
import yaml
from lm_eval.api.registry import metric_registry
from lm_eval.tasks.manager import TaskManager, load_yaml

from roundround.data.corpora import first_line
from roundround.data.hub import hub_is_reachable, offline
from roundround.support.console import print_status
from roundround.support.errors import PeerLost, UserError, nearest, one_line
from roundround.support.files import home_expanded, read_text

OF_FILES = {"json", "csv", "text", "parquet", "arrow"}  # kinds of data sets that `data_files` lists
VERSION: str = lm_eval.__version__


def opened_tasks(names: Sequence[str], folder: str | None, *, trust: bool) -> dict[str, Any]:
    """The harness' tasks and groups of these names or patterns, with their data.

    folder: a folder of its yamls, whose tasks go before its own. UserError for what is not there or is broken, and for
    what would run code, unless `trust`.
    """
    root = None if folder is None else checked_folder(folder, trust=trust)
    with quietly():
        own = None if root is None else TaskManager(include_path=root, include_defaults=False)
    manager = own
    if manager is None or not (all(manager.match_tasks([name]) for name in names) and is_whole(manager)):
        print_status(f"reading the names of the tasks of lm_eval {VERSION}, which takes ten seconds")
        with quietly():
            manager = TaskManager(include_path=root)
    wanted = []
    for name in names:
        found = manager.match_tasks([name])
        if not found:
            near = nearest(name, manager.all_tasks).partition(" (choices")[0]
            raise UserError(f"tasks: lm_eval {VERSION} has no task '{name}'{near} (all of them: lm_eval ls tasks)")
        wanted += found
    alone = all(name in manager.all_subtasks for name in wanted)  # else groups say what they hold
    for name in () if own is None else {*own.all_subtasks} & {*wanted} if alone else own.all_subtasks:
        entry = manager.task_index[name]
        entry.cfg, entry.yaml_path = with_files_found(entry.yaml_path, trust=trust), None
    reachable = hub_is_reachable()
    with failing_in_one_line(names, "read", reachable), quietly(trust=trust), nullcontext() if reachable else offline():
        loaded: dict[str, Any] = manager.load(list(dict.fromkeys(wanted)))
    unsafe = [name for name, task in loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
    if unsafe and not trust:
        raise UserError(f"{unsafe[0]} runs code that the model writes; give trust=true if it may")
    return loaded


@contextmanager
def failing_in_one_line(names: Sequence[str], what: str, reachable: bool = True) -> Iterator[None]:
    """A UserError that names the tasks, for what datasets, jinja2, the harness or a task's own code raises inside.

    what: what cannot be done with the tasks then. reachable: whether the Hugging Face hub is.
    """
    try:
        yield
    except (UserError, PeerLost):
        raise
    except Exception as error:
        line = one_line(Exception(first_line(error)))
        if not reachable and isinstance(error, OSError):
            line += "; the Hugging Face hub cannot be reached: its data must be in the cache, or files in tasks_path="
        raise UserError(f"tasks=lm_eval:{','.join(names)} cannot be {what}: {line}") from error


def check_targets(loaded: dict[str, Any], examples: int | None) -> None:
    """UserError for a task whose right answers are none of its choices, which would all count as wrong."""
    for name, task in loaded["tasks"].items():
        docs = list(islice(task.eval_docs, examples)) if task.OUTPUT_TYPE == "multiple_choice" else []
        n_lost = sum(not has_right_answer(task, doc) for doc in docs)
        line = (
            f"{name}: the right answer of {n_lost:,} of {len(docs):,} examples is none of its choices (doc_to_target)"
        )
        if n_lost and n_lost == len(docs):
            raise UserError(line)
        if n_lost:
            print_status(f"{line}; they count as wrong")


def has_right_answer(task: Any, doc: dict[str, Any]) -> bool:
    """Whether what the task says is right is one of the choices, or several of them: by their texts or numbers."""
    right, choices = (task.doc_to_text if task.multiple_input else task.doc_to_target)(doc), task.doc_to_choice(doc)
    each = right if isinstance(right, list) else [right]
    return all(one in choices if isinstance(one, str) else 0 <= one < len(choices) for one in each)


def is_whole(manager: TaskManager) -> bool:
    """Whether the groups that it knows hold nothing but tasks that it knows."""
    members = [member for name in manager.all_groups for member in manager.task_index[name].cfg.get("task") or []]
    return all(member in manager.task_index for member in members if isinstance(member, str))


def checked_folder(folder: str, *, trust: bool) -> Path:
    """A folder of yamls of the harness' form. UserError where one is broken, or would run code without `trust`.

    The harness leaves out a yaml that it cannot read, and so a task would only seem to be missing.
    """
    root = home_expanded(folder, "tasks_path")
    if not root.is_dir():
        raise UserError(f"tasks_path={folder} is no folder")
    paths = sorted(root.glob("**/*.yaml"))
    if not paths:
        raise UserError(f"tasks_path={folder} has no .yaml file")
    for path in paths:
        why = code_of(path)
        if why is not None and not trust:
            raise UserError(f"{why}, which is not run unless you trust it: read it, then give trust=true")
    return root


def code_of(path: Path, seen: frozenset[Path] = frozenset()) -> str | None:
    """What code a yaml of a task would run, itself or by what it includes; None for none. UserError where it is broken.

    The harness' own files count for none: who installed it has trusted them.
    """
    path = path.resolve()
    if path in seen:
        raise UserError(f"{path} includes itself")
    if path.is_relative_to(Path(lm_eval.__file__).parent):
        return None
    try:
        text = read_text(path)
        for event in yaml.parse(text):
            if getattr(event, "tag", None) == "!function":  # however it is written
                return f"{path}:{event.start_mark.line + 1} calls a Python function (!function)"
        config = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        place = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise UserError(f"{path}{place} is no YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} is no YAML: {one_line(error)}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} describes no task: it is no mapping with a key task: or group:")
    for node in mappings(config):
        if node.get("trust_remote_code"):
            return f"{path} has trust_remote_code, for Python code that comes with a data set"
        metrics = node.get("metric_list")
        for metric in metrics if isinstance(metrics, list) else []:
            own = metric if isinstance(metric, dict) else {"metric": metric}
            if own.get("hf_evaluate") or str(own.get("metric")) not in metric_registry:
                return (
                    f"{path}: the metric '{own.get('metric')}' is none of lm_eval but a script of the library evaluate"
                )
    included = config.get("include") or []
    each = (path.parent / str(name) for name in (included if isinstance(included, list) else [included]))
    return next((why for other in each if (why := code_of(other, seen | {path})) is not None), None)


def mappings(value: Any) -> Iterator[dict[Any, Any]]:
    """Every mapping in a value of a yaml, itself first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(inner)


def with_files_found(path: Path, *, trust: bool) -> dict[str, Any]:
    """The config of a task with its files of data where they are: from the working directory, as the harness reads
    them, else beside the yaml. UserError where one is not there, or a line of it is no JSON.
    """
    config: dict[str, Any] = load_yaml(path, resolve_func=trust)
    kwargs = config.get("dataset_kwargs")
    if config.get("dataset_path") not in OF_FILES or not isinstance(kwargs, dict) or not kwargs.get("data_files"):
        return config

    def found(name: str) -> str:
        if "://" in name or "*" in name:
            return name
        here = next((place for place in (Path(name), path.parent / name) if place.is_file()), None)
        if here is None:
            raise UserError(f"{path}: there is no file {name}, neither here nor beside the yaml")
        if config["dataset_path"] == "json" and kwargs.get("field") is None:
            check_json(here)
        return str(here.resolve())

    def each(files: Any) -> Any:
        if isinstance(files, dict):
            return {split: each(some) for split, some in files.items()}
        return [found(str(name)) for name in files] if isinstance(files, list) else found(str(files))

    return {**config, "dataset_kwargs": {**kwargs, "data_files": each(kwargs["data_files"])}}


def check_json(path: Path) -> None:
    """UserError for a file that is neither a list nor an object a line, with the number of the line."""
    lines = path.read_bytes().splitlines()
    if lines[:1] and lines[0].lstrip().startswith(b"["):
        lines = [b" ".join(lines)]
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line.strip() or b"{}")
        except ValueError as error:
            raise UserError(f"{path}: line {number} is no JSON ({error})") from None
        if not isinstance(row, dict | list):
            raise UserError(f"{path}: line {number} is no object, with a value for each field")


@contextmanager
def quietly(*, trust: bool = False) -> Iterator[None]:
    """Inside, the harness reports nothing but bars, and those to a terminal alone; nothing goes to standard output.

    Without `trust`, templates of tasks are rendered by jinja2's sandbox: in an ordinary one they reach all of Python.
    """
    logger, own = logging.getLogger("lm_eval"), lm_eval.utils.env
    level = logger.level
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        bars = sys.stderr if sys.stderr.isatty() else nowhere
        stack.enter_context(redirect_stdout(bars))
        stack.enter_context(redirect_stderr(bars))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(lm_eval|datasets|evaluate)\b")
        logger.setLevel(logging.CRITICAL)
        os.environ.setdefault("DISABLE_MULTIPROC", "1")  # a thousand draws need no processes
        if not trust:
            safe = jinja2.sandbox.SandboxedEnvironment(undefined=own.undefined, keep_trailing_newline=True)
            safe.filters.update(own.filters)
            lm_eval.utils.env = safe
        try:
            yield
        finally:
            lm_eval.utils.env = own
            logger.setLevel(level)
