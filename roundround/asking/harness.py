"""The tasks of EleutherAI's lm-evaluation-harness, and an adapter that lets the harness ask a run or a model.

No code in a folder of tasks is executed unless the folder is trusted.

Tested by tests/asking/test_harness.py. Shapes: B texts, T tokens.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any, final

import jinja2.sandbox
import lm_eval.evaluator
import lm_eval.utils
import numpy as np
import torch
import yaml
from lm_eval.api.registry import metric_registry
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.manager import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from roundround.asking.generation import DecoderWriter, PretrainedWriter, Writer
from roundround.data.hub import hub_is_reachable, offline
from roundround.data.tasks.text_task import TextTask
from roundround.distributed.peers import Peers
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.model.decoder import Decoder
from roundround.pe.scaled import FollowsLength
from roundround.support.console import print_status
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import home_expanded
from roundround.trained.export.folder import model_to_export, own_config, own_tokenizer
from roundround.trained.export.modeling import RoundroundForCausalLM
from roundround.trained.models import TrainedRun

DRAWS = 1000  # of a bootstrap; they determine a standard error to 2 %
VERSION: str = lm_eval.__version__


@final
class HarnessModel(HFLM):
    """A model with the interface of the harness: how likely a text is after another, and how the model continues it.

    writer: the model with its tokenizer, for likelihoods. model, tokenizer: the same model and tokenizer in the form
    that transformers' `generate` needs to write texts. first: the token in front of a text without context; if None,
    the first token of such a text is not scored. one_by_one: whether every batch is a single text, because the encoding
    of a text would depend on the other texts of a batch. longest: the largest number of tokens of a text; the beginning
    of a longer text is cut off, and `n_cut` counts such texts. batch_tokens: the number of tokens of a batch. peers:
    the processes that share the questions.
    """

    def __init__(
        self,
        writer: Writer,
        model: Any,
        tokenizer: Any,
        *,
        first: int | None,
        one_by_one: bool,
        longest: int,
        batch_tokens: int,
        peers: Peers | None = None,
    ) -> None:
        with quietly():
            size = 1 if one_by_one else max(1, batch_tokens // longest)
            super().__init__(pretrained=model, tokenizer=tokenizer, max_length=longest, batch_size=size)
        self.writer, self.first, self.peers, self.n_cut = writer, first, peers or Peers(), 0
        self._rank, self._world_size = self.peers.rank, self.peers.n

    @classmethod
    def of_run(cls, trained: TrainedRun, decoder: Decoder, **options: Any) -> HarnessModel:
        """The decoder of a run; texts begin as documents did in training. Raises UserError if it cannot read text."""
        if trained.learns_a_task and not isinstance(trained.task(), TextTask):
            raise UserError(
                f"{trained.directory} learned a task whose vocabulary cannot read text; lm_eval's tasks are text"
            )
        name = "/".join(trained.directory.parts[-2:])
        writer = DecoderWriter(name, decoder.requires_grad_(False), trained.vocabulary())
        exported = model_to_export(trained, decoder)
        model = RoundroundForCausalLM(own_config(exported), decoder)
        alone = decoder.draws_positions or any(isinstance(one, FollowsLength) for one in decoder.all_encodings)
        return cls(writer, model, own_tokenizer(exported), first=writer.first, one_by_one=alone, **options)

    @classmethod
    def of_pretrained(cls, probed: ProbedHuggingFaceModel, **options: Any) -> HarnessModel:
        """A loaded model. As in the harness, a text without context begins with BOS or, if there is none, with EOS."""
        tokenizer = probed.tokenizer
        first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        options |= {"first": first, "one_by_one": probed.follows_length}
        return cls(PretrainedWriter(probed), probed.pretrained, tokenizer, **options)

    @property
    def prefix_token_id(self) -> int | None:
        return self.first

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self.writer.tokens(string, first=add_special_tokens is not False)

    def tok_batch_encode(self, strings: Sequence[str], left_truncate_len: int, **options: Any) -> tuple[Tensor, Tensor]:
        """Token ids of questions to answer in writing, padded on the left, and a mask that is 0 at padding: [B, T]."""
        whole: list[list[Any]] = [self.tok_encode(string) or [self.first] for string in strings]
        self.n_cut += sum(len(tokens) > left_truncate_len for tokens in whole)
        kept = [torch.tensor(tokens[-left_truncate_len:]) for tokens in whole]
        masks = [torch.ones_like(tokens) for tokens in kept]
        ids_BT, mask_BT = (pad_sequence(rows, batch_first=True, padding_side="left") for rows in (kept, masks))
        return ids_BT, mask_BT

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """ln p of whole texts, read in windows of up to `max_length` tokens; each token is scored once."""
        totals, windows = [0.0] * len(requests), []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            cut = get_rolling_token_windows(tokens, self.first, max_seq_len=self.max_length, context_len=1)
            windows += [(number, *make_disjoint_window(window)) for window in cut]
        for (number, *_), (log_p, _) in zip(windows, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += log_p
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int | None], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """ln p of each continuation after its context, and whether every token of the continuation is the likeliest."""
        self.n_cut += sum(len(context) + len(target) > self.max_length + 1 for _, context, target in requests)
        known = [
            (key, target[:1], target[1:]) if context == [None] else (key, context, target)
            for key, context, target in requests
        ]
        found: list[tuple[float, bool]] = super()._loglikelihood_tokens(known, **options)
        return found

    @torch.inference_mode()
    def _model_call(self, inps: Tensor, **options: Any) -> Tensor:
        return self.writer.log_probabilities(inps, inps.shape[1])

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        if isinstance(self.model, RoundroundForCausalLM):  # an encoding may read the length of the whole text
            options["past_key_values"] = DynamicCache()
            self.model.own_cache(options["past_key_values"], max_length)
        tokens_BT: Tensor = super()._model_generate(context, max_length, stop, **options)
        return tokens_BT

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.peers.gather(tensor.cpu()))

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        gathered = self.peers.gather(obj)
        return gathered if self.peers.rank == dst else None

    def barrier(self) -> None:
        self.peers.gather(None)


def asked(model: HarnessModel, loaded: dict[str, Any], *, examples: int | None, trust: bool) -> dict[str, Any]:
    """The harness' results, with the versions of tasks and the numbers of examples and shots.

    examples: the number of examples of each task, counted from the first; None for all examples. The processes share
    the questions, and all processes get the results.
    """
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    options = {"limit": examples, "bootstrap_iters": DRAWS, "confirm_run_unsafe_code": trust, "log_samples": False}
    check_targets(loaded, examples)
    with quietly(trust=trust):
        found = lm_eval.evaluator.evaluate(model, loaded, **options)
    kept = found and {name: found[name] for name in ("results", "versions", "n-shot", "n-samples")}
    results: dict[str, Any] = model.peers.gather(kept)[0]  # the first process has them
    return results


def check_targets(loaded: dict[str, Any], examples: int | None) -> None:
    """Raises UserError if no example of a task has the right answer among the choices: every answer would be wrong."""
    for name, task in loaded["tasks"].items():
        docs = list(islice(task.eval_docs, examples)) if task.OUTPUT_TYPE == "multiple_choice" else []
        n_lost = sum(not has_right_answer(task, doc) for doc in docs)
        line = f"{name}: the right answer of {n_lost:,} of {len(docs):,} examples is none of its choices"
        if n_lost and n_lost == len(docs):
            raise UserError(f"{line} (doc_to_target)")
        if n_lost:
            print_status(f"{line} (doc_to_target); they count as wrong")


def has_right_answer(task: Any, doc: dict[str, Any]) -> bool:
    """Whether every right answer of an example, given as a text or a number, is one of the example's choices."""
    right, choices = (task.doc_to_text if task.multiple_input else task.doc_to_target)(doc), task.doc_to_choice(doc)
    each = right if isinstance(right, list) else [right]
    return all(one in choices if isinstance(one, str) else 0 <= one < len(choices) for one in each)


# -- tasks


def opened_tasks(names: Sequence[str], folder: str | None, *, trust: bool) -> dict[str, Any]:
    """The harness' tasks and groups with these names or patterns, with their data.

    folder: a folder of yamls in the harness' format, with their data files; its tasks take precedence over the harness'
    own. Raises UserError if a task does not exist or is broken, or if it would run code and `trust` is False.
    """
    root = None if folder is None else home_expanded(folder, "tasks_path").absolute()
    if root is not None and not root.is_dir():
        raise UserError(f"tasks_path={folder} is no folder")
    for path in [] if root is None or trust else sorted(root.glob("**/*.yaml")):
        refuse_code(path)
    with quietly(trust=trust), nullcontext() if hub_is_reachable() else offline(), chdir(root or "."):
        manager = None if root is None else TaskManager(include_path=root, include_defaults=False)
        if manager is None or manager.all_groups or not all(manager.match_tasks([name]) for name in names):
            manager = TaskManager(include_path=root)  # this takes ten seconds
        wanted = []
        for name in names:
            found = manager.match_tasks([name])
            if not found:
                near = nearest(name, manager.all_tasks).partition(" (choices")[0]
                raise UserError(f"tasks: lm_eval {VERSION} has no task '{name}'{near} (all of them: lm_eval ls tasks)")
            wanted += found
        try:
            loaded: dict[str, Any] = manager.load(list(dict.fromkeys(wanted)))
        except Exception as error:  # raised by datasets, jinja2, the harness or a task's own code
            raise UserError(f"tasks=lm_eval:{','.join(names)} cannot be read: {one_line(error)}") from error
    return loaded


def refuse_code(path: Path, seen: frozenset[Path] = frozenset()) -> None:
    """Raises UserError if a yaml is broken, or if it or a file that it includes would run code.

    The harness' own files are not checked, because whoever installs the harness trusts them.
    """
    path = path.resolve()
    if path in seen or path.is_relative_to(Path(lm_eval.__file__).parent):
        return
    how = "it is not run unless you trust it: read it, then give trust=true"
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; if a tag calls a Python function, {how}") from error

    def checked(node: dict[str, Any]) -> dict[str, Any]:  # called for every mapping in the yaml
        metrics = [m if isinstance(m, dict) else {"metric": m} for m in node.get("metric_list") or []]
        foreign = any(m.get("hf_evaluate") or str(m.get("metric")) not in metric_registry for m in metrics)
        if foreign or node.get("trust_remote_code"):
            raise UserError(f"{path}: the data or a metric of the task is a Python script; {how}")
        return node

    json.loads(json.dumps(config, default=str), object_hook=checked)
    included = config.get("include") if isinstance(config, dict) else None
    for name in included if isinstance(included, list) else [included] if included else []:
        refuse_code(path.parent / str(name), seen | {path})


@contextmanager
def quietly(*, trust: bool = False) -> Iterator[None]:
    """Inside the block the harness shows only progress bars, and only on a terminal; nothing goes to standard output.

    Without `trust`, the templates of tasks are rendered in the sandbox of jinja2, because outside the sandbox a
    template can reach all of Python.
    """
    own = lm_eval.utils.env
    safe = jinja2.sandbox.SandboxedEnvironment(undefined=own.undefined, keep_trailing_newline=True)
    safe.filters.update(own.filters)
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # a thousand draws need no extra processes
    with open(os.devnull, "w") as nowhere:
        bars = sys.stderr if sys.stderr.isatty() else nowhere
        lm_eval.utils.env = own if trust else safe
        try:
            with redirect_stdout(bars), redirect_stderr(bars):
                yield
        finally:
            lm_eval.utils.env = own
