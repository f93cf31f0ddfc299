"""EleutherAI's lm-evaluation-harness: a run or a loaded model as it asks one, and its numbers.

Tested by tests/asking/test_harness.py. Shapes: B texts, T tokens, n last tokens of a text, V vocabulary.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from typing import Any, TypeVar, final

import lm_eval.evaluator
import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from torch import Tensor
from tqdm import tqdm

from roundround.asking.generation import DecoderWriter, PretrainedWriter, Writer, generator_of, write
from roundround.asking.harness_tasks import quietly
from roundround.config.verb import at_least_one
from roundround.data.tasks.text_task import TextTask
from roundround.distributed.device import pick_device
from roundround.distributed.peers import Peers
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.model.decoder import Decoder
from roundround.records.directories import find_run
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun

NUMBERS_AT_ONCE = 2**27  # half a GiB of float32
DRAWS = 1000  # of a bootstrap: a standard error is known to 2 %
Item = TypeVar("Item")
SAMPLING = {"top_k", "top_p", "min_p", "typical_p"}  # mean nothing to a greedy text


@final
@register_model("roundround")
class HarnessModel(TemplateLM):
    """A model as the harness asks it: how likely a text is after another, and how it goes on.

    writer: the model with its tokenizer. first: the token before a text, which is all the context of one that is given
    none; None where nothing begins a text, and then its first token is not scored. longest: tokens of context; of a
    longer text the beginning is cut off, which `n_cut` counts. batch_tokens: tokens read at once. peers: the processes
    that share the questions.

    Texts of a batch are equally long, so that none is padded.
    """

    def __init__(
        self, writer: Writer, *, first: int | None, longest: int, batch_tokens: int, peers: Peers | None = None
    ) -> None:
        super().__init__()
        self.writer, self.first, self.max_length, self.batch_tokens = writer, first, longest, batch_tokens
        self.peers, self.n_cut, self.n_read = peers or Peers(), 0, 0
        self.stderr = sys.stderr  # ours, where the harness' own lines are held back
        self._rank, self._world_size, self._device = self.peers.rank, self.peers.n, writer.device

    # -- as `lm_eval --model roundround --model_args run=DIR` makes it

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> HarnessModel:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> HarnessModel:
        device = (additional_config or {}).get("device") or "auto"
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "auto"  # the harness' own default is cuda:0, whatever there is
        unknown = sorted(arg_dict.keys() - {"run", "checkpoint", "outputs", "max_length", "batch_tokens", "trust"})
        if unknown:
            raise UserError(f"--model_args: no {unknown[0]}; give run=, checkpoint=, max_length=, batch_tokens=")
        for name in ("max_length", "batch_tokens"):
            if not isinstance(arg_dict.get(name, 1), int) or arg_dict.get(name, 1) < 1:
                raise UserError(f"--model_args: {name}={arg_dict[name]} must be a whole number from 1")
        run, outputs = str(arg_dict.get("run", "last")), str(arg_dict.get("outputs", "outputs"))
        trained = TrainedRun(
            find_run(run, outputs, "train", done=True), trust=str(arg_dict.get("trust")).lower() == "true"
        )
        decoder = trained.decoder(str(arg_dict.get("checkpoint", "best"))).to(pick_device(device))
        longest = arg_dict.get("max_length", int(trained.config.model.train_length))
        most = decoder.longest()
        if most is not None and longest > most:
            raise UserError(f"--model_args: max_length={longest}, and the run's encoding has {most} positions")
        return cls.of_run(trained, decoder, longest=longest, batch_tokens=arg_dict.get("batch_tokens", 8192))

    @classmethod
    def of_run(cls, trained: TrainedRun, decoder: Decoder, **options: Any) -> HarnessModel:
        """The decoder of a run, whose texts begin as documents did in training. UserError where it learnt no text."""
        if trained.learns_a_task and not isinstance(trained.task(), TextTask):
            raise UserError(
                f"{trained.directory} learns a task, whose vocabulary reads no text; lm_eval's tasks are text"
            )
        vocabulary = trained.vocabulary()
        first = trained.first_token(vocabulary)
        writer = DecoderWriter("/".join(trained.directory.parts[-2:]), decoder.requires_grad_(False), vocabulary, first)
        return cls(writer, first=first, **options)

    @classmethod
    def of_pretrained(cls, probed: ProbedHuggingFaceModel, **options: Any) -> HarnessModel:
        """A loaded model; before a text without context stands what the harness puts there, which may be its end."""
        tokenizer = probed.tokenizer
        first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        reads = probed.reads_special_tokens
        writer = PretrainedWriter(probed.name, probed.pretrained, tokenizer, reads_special_tokens=reads)
        return cls(writer, first=first, **options)

    # -- what the harness calls

    @property
    def eot_token_id(self) -> int | None:
        return min(self.writer.ends, default=None)

    @property
    def prefix_token_id(self) -> int | None:
        return self.first

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self.writer.tokens(string, first=add_special_tokens is not False)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """ln p of whole texts, each token once, in windows of `max_length` tokens that meet."""
        windows = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            cut = get_rolling_token_windows(tokens, self.first, max_seq_len=self.max_length, context_len=1)
            windows += [(number, *make_disjoint_window(window)) for window in cut]
        totals = [0.0] * len(requests)
        for (number, *_), (log_p, _) in zip(windows, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += log_p
        return totals

    @torch.inference_mode()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int | None], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """ln p of each continuation after its context, and whether every token of it is the likeliest."""
        texts, n_scored = [], []
        for _, context, continuation in requests:
            tokens = [token for token in (*context, *continuation) if token is not None]
            n = min(len(continuation), len(tokens) - 1)
            if n > self.max_length:
                raise UserError(f"an answer has {n} tokens, more than length={self.max_length}; give a larger length")
            self.n_cut += len(tokens) > self.max_length + 1
            texts.append(tokens[-self.max_length - 1 :])
            n_scored.append(n)
        self.n_read += len(texts)
        found = [(0.0, True)] * len(texts)  # of no token
        for some in self.bar(list(self.batches(texts, n_scored)), "scoring"):
            tokens_BT, n = torch.tensor([texts[i] for i in some], device=self.device), max(n_scored[i] for i in some)
            with redirect_stderr(self.stderr):  # of a normaliser's warning
                log_p_BnV = self.writer.log_probabilities(tokens_BT[:, :-1], n)
            targets_Bn = tokens_BT[:, -n:]
            log_p_Bn = log_p_BnV.gather(-1, targets_Bn[..., None])[..., 0].double()
            likeliest_Bn = log_p_BnV.argmax(-1) == targets_Bn
            for i, log_p_n, likeliest_n in zip(some, log_p_Bn.cpu(), likeliest_Bn.cpu(), strict=True):
                found[i] = float(log_p_n[-n_scored[i] :].sum()), bool(likeliest_n[-n_scored[i] :].all())
        return found

    def bar(self, items: list[Item], what: str) -> Iterable[Item]:
        """The items, with a bar on a terminal."""
        bar: Iterable[Item] = tqdm(items, desc=what, file=self.stderr, disable=not self.stderr.isatty())
        return bar

    def batches(self, texts: Sequence[Sequence[int]], n_scored: Sequence[int]) -> Iterator[list[int]]:
        """The numbers of texts of a batch, the longest first; those without a target are in none."""
        by_length: dict[int, list[int]] = {}
        for i, text in enumerate(texts):
            if n_scored[i] > 0:
                by_length.setdefault(len(text), []).append(i)
        for length, alike in sorted(by_length.items(), reverse=True):
            most = max(n_scored[i] for i in alike)
            size = max(1, min(self.batch_tokens // length, NUMBERS_AT_ONCE // (most * self.writer.n_vocab)))
            yield from (alike[start : start + size] for start in range(0, len(alike), size))

    @torch.inference_mode()
    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """How each text goes on until one of its stop sequences, from a cache of keys and values."""
        groups: dict[tuple[int, str], list[int]] = {}
        prompts = []
        for i, request in enumerate(requests):
            text, options = request.args
            known = writing_options(options)
            room = self.max_length - known["length"]
            if room < 1:
                raise UserError(
                    f"a task writes {known['length']} tokens, which leaves no room for a question within "
                    f"length={self.max_length}; give a larger length"
                )
            tokens = self.writer.tokens(text, first=True) or [t for t in [self.first] if t is not None]
            if not tokens:
                raise UserError("a question is empty, and the run's texts begin with no token; nothing can follow")
            self.n_cut += len(tokens) > room
            prompts.append(tokens[-room:])
            groups.setdefault((len(prompts[i]), json.dumps(known)), []).append(i)
        self.n_read += len(prompts)
        # by question and repetition, so that a text is the same in whichever process and batch
        repeats: Counter[tuple[Any, ...]] = Counter()
        found, generators = [""] * len(prompts), []
        for request in requests:
            question = (request.task_name, request.doc_id, request.idx)
            generators.append(generator_of(DEFAULT_OTHER_SEED, *question, repeats[question]))
            repeats[question] += 1
        for (n_prompt, options), alike in self.bar(list(groups.items()), "writing"):
            known = json.loads(options)
            size = max(1, self.batch_tokens // (n_prompt + known["length"]))
            for start in range(0, len(alike), size):
                some = alike[start : start + size]
                own = [generators[i] for i in some]
                for i, text in zip(some, self.continued([prompts[i] for i in some], own, **known), strict=True):
                    found[i] = text
        return found

    def continued(
        self,
        prompts: list[list[int]],
        generators: list[torch.Generator],
        *,
        length: int,
        until: list[str],
        temperature: float,
        top_k: int | None,
    ) -> list[str]:
        """What follows each of some equally long prompts, up to its first stop sequence."""
        texts: list[list[int]] = [[] for _ in prompts]
        try:
            self.writer.begin(len(prompts[0]) + length)
            logits_BV = self.writer.read(torch.tensor(prompts, device=self.device))
            options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "generators": generators}
            for chosen in write(self.writer, logits_BV, n=len(prompts), length=length, **options):
                for text, token in zip(texts, chosen, strict=True):
                    text.extend([] if token is None else [token])
                decoded = [self.writer.decode(text) for text in texts]
                ended = [text[-1] in self.writer.ends for text in texts]
                if all(over or any(stop in text for stop in until) for over, text in zip(ended, decoded, strict=True)):
                    break
        except ValueError as error:
            raise UserError(f"{self.writer.name} cannot write: {error}") from error
        return [postprocess_generated_text(self.writer.decode(text), until, None) for text in texts]

    # -- among processes

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.peers.gather(tensor.cpu()))

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        gathered = self.peers.gather(obj)
        return gathered if self.peers.rank == dst else None

    def barrier(self) -> None:
        self.peers.gather(None)


def writing_options(options: dict[str, Any]) -> dict[str, Any]:
    """How a task wants its answers written, by our names. UserError for what is not done here."""
    given = normalize_gen_kwargs(options)
    temperature = float(given.get("temperature", 1.0 if given["do_sample"] else 0.0))
    greedy = temperature == 0
    honoured = {"max_gen_toks", "until", "temperature", "do_sample", *(SAMPLING if greedy else {"top_k"})}
    unknown = [key for key in given.keys() - honoured if not (key in ("num_beams", "top_p") and given[key] == 1)]
    if unknown:
        raise UserError(f"a task's generation_kwargs have {', '.join(sorted(unknown))}, which is not honoured here")
    top_k = None if greedy else given.get("top_k") or None  # 0: all
    at_least_one(max_gen_toks=given["max_gen_toks"], top_k=top_k)
    until = [stop for stop in given["until"] if stop]
    return {"length": given["max_gen_toks"], "until": until, "temperature": temperature, "top_k": top_k}


def asked(model: HarnessModel, loaded: dict[str, Any], *, examples: int | None, trust: bool) -> dict[str, Any]:
    """The harness' results, versions and numbers of examples and shots, of the first `examples` of each (None: all).

    The processes share the questions, and all get the results.
    """
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    options = {"limit": examples, "bootstrap_iters": DRAWS, "confirm_run_unsafe_code": trust, "log_samples": False}
    with quietly(trust=trust):
        found = lm_eval.evaluator.evaluate(model, loaded, **options)
    kept = None if found is None else {name: found[name] for name in ("results", "versions", "n-shot", "n-samples")}
    results = model.peers.gather(kept)[0]
    assert results is not None, "the first process has them"
    return results
