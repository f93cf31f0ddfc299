"""What a trained decoder costs beside another one, where its heads attend, and which promises it keeps.

Tested by tests/asking/test_bench_measures.py. Shapes: B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor

from roundround.config.options import load_option
from roundround.data.batches import validation_windows
from roundround.kernels.trial import FallsBack
from roundround.model.cache import Cache
from roundround.model.decoder import Decoder
from roundround.probing.rows import PLACES, places_of_heads
from roundround.support.console import warnings_as_lines
from roundround.support.errors import one_line
from roundround.trained.export.folder import agreement, card_of, model_to_export, write_folder
from roundround.trained.models import TrainedRun, build_decoder, decoder_of_config

TEXT = 96  # tokens of the texts that promises are checked on
N_TEXTS = 16  # on which heads are measured
SHIFT = 23  # tokens by which a text is moved: still within a training context of 128
ROUNDED = 0.05  # nats: bfloat16 has 8 bits, and a logit of 10 is then known to 0.04
EXACT = 2e-4  # times the largest logit: float32 sums in another order, two layers deep
STEP, TOKEN = (4096,), (4096, 32768)  # lengths at which costs are taken
TIMES_OF_STEP, TIMES_OF_TOKEN = 5, 60  # that each is measured, in turn, in one repeat
AGREEING, MOST_REPEATS, STEADY = 3, 12, 0.05  # repeats in a row whose ratios lie this close together make a number
AT_ONCE = 4096  # tokens that a cache is filled with at once


@dataclass(frozen=True)
class Promise:
    """One promise, whether it is kept, and in words by how much it is missed or why it cannot be asked."""

    name: str
    kept: bool
    remark: str


def promises(trained: TrainedRun) -> list[Promise]:
    """The promises of a trained decoder, on a CPU in float32: the same logits however the same text is given."""
    decoder, generator = trained.decoder("best"), torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(decoder.embed_tokens.num_embeddings, (2, TEXT), generator=generator)
    with torch.inference_mode(), warnings_as_lines(FallsBack):
        logits_BTV = logits(decoder, tokens_BT)
        return [
            asked("bfloat16", lambda: rounding(decoder, tokens_BT, logits_BTV), ROUNDED, "nats on the mean target"),
            asked("cache", lambda: apart(cached(decoder, tokens_BT), logits_BTV), EXACT, "of the largest logit"),
            asked("shift", lambda: apart(shifted(decoder, tokens_BT), logits_BTV), EXACT, "of the largest logit"),
            asked("padding", lambda: apart(padded(decoder, tokens_BT), logits_BTV), EXACT, "of the largest logit"),
            asked("export", lambda: exported(trained, tokens_BT), EXACT, "of the largest logit"),
        ]


def asked(name: str, measure: Callable[[], float], most: float, of: str) -> Promise:
    """A promise that is kept where the measured deviation is at most this."""
    try:
        found = measure()
    except Exception as error:  # a user's class may raise any, and torch a RuntimeError where precisions do not fit
        return Promise(name, False, one_line(error))
    return Promise(name, found <= most, f"{found:.2g} {of}, at most {most:.2g}")


def logits(decoder: Decoder, tokens_BT: Tensor, **options: Tensor | Cache | None) -> Tensor:
    return decoder.unembed(decoder.hidden(tokens_BT, **options)).float()  # type: ignore[arg-type]


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def rounding(decoder: Decoder, tokens_BT: Tensor, logits_BTV: Tensor) -> float:
    """How far the log-probabilities of the next tokens are from the ones in bfloat16, in nats, on average."""
    rounded_BTV = logits(deepcopy(decoder).to(torch.bfloat16), tokens_BT)
    targets = tokens_BT[:, 1:, None]
    ours, theirs = (z.log_softmax(-1)[:, :-1].gather(-1, targets) for z in (rounded_BTV, logits_BTV))
    return float((ours - theirs).abs().mean())


def cached(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits of a text that is read in pieces of several sizes, single tokens among them."""
    cache = decoder.empty_cache(length=TEXT)
    pieces = torch.split(tokens_BT, [40, 1, 1, 22, 1, TEXT - 65], 1)
    return torch.cat([logits(decoder, piece, cache=cache) for piece in pieces], 1)


def shifted(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    return logits(decoder, tokens_BT, pos_BT=torch.arange(SHIFT, SHIFT + TEXT)[None])


def padded(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits of texts behind padding of two lengths."""
    n_pad = (5, 11)
    whole_BT = torch.zeros(2, TEXT + max(n_pad), dtype=torch.int64)
    valid_BT = torch.zeros_like(whole_BT, dtype=torch.bool)
    for text, n in enumerate(n_pad):
        whole_BT[text, n : n + TEXT], valid_BT[text, n : n + TEXT] = tokens_BT[text], True
    found = logits(decoder, whole_BT, valid_BT=valid_BT)
    return torch.stack([found[text, n : n + TEXT] for text, n in enumerate(n_pad)])


def exported(trained: TrainedRun, tokens_BT: Tensor) -> float:
    """How far the logits of the exported folder, loaded in a process without roundround, are from the run's."""
    model = model_to_export(trained, trained.decoder("best"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        folder.mkdir()
        write_folder(model, folder, card_of(trained, "model", "best"))
        found = agreement(model, folder, tokens_BT)
    return found.difference / found.largest


# -- where its heads attend


def places(trained: TrainedRun) -> dict[str, float]:
    """The largest share of any head's weight by place, on held-out windows of its training context length."""
    decoder, length = trained.decoder("best"), int(trained.config.model.train_length)
    tokens = trained.held_out_text().held_out
    windows = validation_windows(tokens, length=length, max_tokens=N_TEXTS * length)[:, :-1]
    shares_LH7 = places_of_heads(decoder.normalisers, decoder.hidden, windows)
    return dict(zip(PLACES, shares_LH7.amax((0, 1)).tolist(), strict=True))


# -- costs


def costs(config: DictConfig, n_vocab: int, device: torch.device) -> dict[str, float]:
    """Time and memory of a run's decoder, over the time and memory of the same decoder with RoPE and the plain softmax.

    step_time@T, step_memory@T: a step of training with one text of T tokens, and the bytes that it keeps for its
    backward pass. token_time@T, token_memory@T: a token behind T others, and the bytes of the cache. Both models are
    timed in turn, in one thread of a CPU. A time is NaN where other work on the machine leaves no steady ratio.
    """
    torch.manual_seed(0)
    own = decoder_of_config(config, n_vocab).to(device)
    plain = build_decoder(config.model, load_option("pe", "rope"), load_option("softmax", "softmax"), n_vocab)
    both = (own, plain.to(device))
    found = {}
    with one_thread(), warnings_as_lines(FallsBack):
        for length in STEP:
            tokens_BT = torch.randint(n_vocab, (1, length), device=device)
            found[f"step_time@{length}"] = steady_ratio(partial(steps_of, both, tokens_BT), device, TIMES_OF_STEP)
            n_bytes = [kept_bytes(model, tokens_BT) for model in both]
            found[f"step_memory@{length}"] = n_bytes[0] / n_bytes[1]
        with torch.inference_mode():
            for length in TOKEN:
                tokens_BT = torch.randint(n_vocab, (1, length), device=device)
                caches = [filled(model, tokens_BT) for model in both]
                reads = partial(reads_of, both, caches, tokens_BT[:, :1])
                found[f"token_time@{length}"] = steady_ratio(reads, device, TIMES_OF_TOKEN)
                found[f"token_memory@{length}"] = caches[0].n_bytes / caches[1].n_bytes
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step(decoder: Decoder, tokens_BT: Tensor) -> None:
    decoder.zero_grad(set_to_none=True)
    decoder(tokens_BT, targets_BT=tokens_BT, step=0).mean().backward()


def kept_bytes(decoder: Decoder, tokens_BT: Tensor) -> int:
    """Bytes of the tensors that a training step keeps for its backward pass, each storage once, parameters left out."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = decoder(tokens_BT, targets_BT=tokens_BT, step=0).mean()
    del loss
    return sum(kept.values())


def filled(decoder: Decoder, tokens_BT: Tensor) -> Cache:
    """A cache that has read these tokens and has room for a few more."""
    cache = decoder.empty_cache(length=tokens_BT.shape[1] + TIMES_OF_TOKEN + 1)
    for piece in torch.split(tokens_BT, AT_ONCE, 1):
        decoder.hidden(piece, cache=cache)
    return cache


def steps_of(decoders: Sequence[Decoder], tokens_BT: Tensor) -> list[Callable[[], object]]:
    return [partial(step, model, tokens_BT) for model in decoders]


def reads_of(decoders: Sequence[Decoder], caches: Sequence[Cache], token_B1: Tensor) -> list[Callable[[], object]]:
    """A read of this token by each, behind a copy of its cache: where in memory a cache lies changes the time."""
    copies = [deepcopy(cache) for cache in caches]
    return [partial(model.hidden, token_B1, cache=cache) for model, cache in zip(decoders, copies, strict=True)]


def steady_ratio(pair: Callable[[], Sequence[Callable[[], object]]], device: torch.device, times: int) -> float:
    """Seconds of the first call over seconds of the second, repeated until the ratio is steady; NaN if it never is."""
    ratios: list[float] = []
    for _ in range(MOST_REPEATS):
        first, second = in_turn(pair(), device, times)
        ratios.append(first / second)
        latest = ratios[-AGREEING:]
        if len(latest) == AGREEING and max(latest) <= (1 + STEADY) * min(latest):
            return statistics.median(latest)
    return math.nan


def in_turn(calls: Sequence[Callable[[], object]], device: torch.device, times: int) -> list[float]:
    """The shortest seconds of each call, made in turn, after one of each that does not count.

    Other work on the machine only adds to them.
    """
    shortest = [math.inf] * len(calls)
    for n in range(times + 1):
        for which, call in enumerate(calls):
            synchronise(device)
            began = time.perf_counter()
            call()
            synchronise(device)
            if n:
                shortest[which] = min(shortest[which], time.perf_counter() - began)
    return shortest


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def share_kept(found: list[Promise]) -> Mapping[str, float]:
    """1 for each promise that is kept and 0 for one that is not, and how many are."""
    return {**{promise.name: float(promise.kept) for promise in found}, "kept": float(sum(p.kept for p in found))}
