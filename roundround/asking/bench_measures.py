"""What a trained decoder costs relative to a plain one, which tokens its heads attend to, and which promises it keeps.

A promise is that the logits stay the same, for example if a cache is used. Each measurement returns a dict from names
to numbers, and a list of remarks.

Tested by tests/asking/test_bench_measures.py. Shapes: B texts, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
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
N_TEXTS = 16  # windows on which heads are measured
SHIFT = 23  # positions by which a text is moved; it still fits into a training context of 128
ROUNDED = 0.05  # nats; bfloat16 has 8 bits, so that a logit of 10 has an error of up to 0.04
EXACT = 2e-4  # times the largest logit; float32 sums in another order differ by less after two layers
STEP, TOKEN = (4096,), (4096, 32768)  # lengths of text at which costs are measured
TIMES_OF_STEP, TIMES_OF_TOKEN = 5, 60  # how often each model is timed in one repeat
AGREEING, MOST_REPEATS, STEADY = 3, 12, 0.05  # repeats in a row that must agree, the most repeats, the spread allowed
AT_ONCE = 4096  # tokens that a model reads into a cache at once


def promises(trained: TrainedRun) -> tuple[dict[str, float], list[str]]:
    """Which promises a trained decoder keeps, on a CPU in float32.

    A promise is that the logits stay the same (up to rounding) in bfloat16, with a cache, at shifted positions, with
    padding, or after an export. The number of a promise is 1 if it is kept and 0 if it is broken; `kept` is the sum.
    The remarks give, for each broken promise, the measured deviation or the error that prevented the measurement.
    """
    decoder, generator = trained.decoder("best"), torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(decoder.embed_tokens.num_embeddings, (2, TEXT), generator=generator)
    found: dict[str, float] = {}
    remarks = []
    with torch.inference_mode(), warnings_as_lines(FallsBack):
        logits_BTV = logits(decoder, tokens_BT)
        measures: dict[str, Callable[[], float]] = {
            "bfloat16": lambda: rounding(decoder, tokens_BT, logits_BTV),
            "cache": lambda: apart(cached(decoder, tokens_BT), logits_BTV),
            "shift": lambda: apart(shifted(decoder, tokens_BT), logits_BTV),
            "padding": lambda: apart(padded(decoder, tokens_BT), logits_BTV),
            "export": lambda: exported(trained, tokens_BT),
        }
        for name, measure in measures.items():
            most, of = (ROUNDED, "nats on the mean target") if name == "bfloat16" else (EXACT, "of the largest logit")
            try:
                deviation = measure()
                remark = f"{name}: {deviation:.2g} {of}, at most {most:.2g}"
            except Exception as error:  # a user's class may raise any error, and torch if precisions do not fit
                deviation, remark = math.inf, f"{name}: {one_line(error)}"
            found[name] = float(deviation <= most)
            remarks += [remark] * (not deviation <= most)  # NaN too
    return found | {"kept": sum(found.values())}, remarks


def logits(decoder: Decoder, tokens_BT: Tensor, **options: Tensor | Cache | None) -> Tensor:
    return decoder.unembed(decoder.hidden(tokens_BT, **options)).float()  # type: ignore[arg-type]


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def rounding(decoder: Decoder, tokens_BT: Tensor, logits_BTV: Tensor) -> float:
    """The mean distance between the next tokens' log-probabilities in bfloat16 and in float32, in nats."""
    rounded_BTV = logits(deepcopy(decoder).to(torch.bfloat16), tokens_BT)
    targets = tokens_BT[:, 1:, None]
    ours, theirs = (z.log_softmax(-1)[:, :-1].gather(-1, targets) for z in (rounded_BTV, logits_BTV))
    return float((ours - theirs).abs().mean())


def cached(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits of texts that are read with a cache, in pieces of several sizes; some pieces are single tokens."""
    cache = decoder.empty_cache(length=TEXT)
    pieces = torch.split(tokens_BT, [40, 1, 1, 22, 1, TEXT - 65], 1)
    return torch.cat([logits(decoder, piece, cache=cache) for piece in pieces], 1)


def shifted(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    return logits(decoder, tokens_BT, pos_BT=torch.arange(SHIFT, SHIFT + TEXT)[None])


def padded(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits of two texts that are padded on the left by different numbers of tokens."""
    n_pad = (5, 11)
    whole_BT = torch.zeros(2, TEXT + max(n_pad), dtype=torch.int64)
    valid_BT = torch.zeros_like(whole_BT, dtype=torch.bool)
    for text, n in enumerate(n_pad):
        whole_BT[text, n : n + TEXT], valid_BT[text, n : n + TEXT] = tokens_BT[text], True
    found = logits(decoder, whole_BT, valid_BT=valid_BT)
    return torch.stack([found[text, n : n + TEXT] for text, n in enumerate(n_pad)])


def exported(trained: TrainedRun, tokens_BT: Tensor) -> float:
    """The largest distance between logits of the run and of its export, as a share of the largest logit.

    The exported folder is loaded in a process without roundround.
    """
    model = model_to_export(trained, trained.decoder("best"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        folder.mkdir()
        write_folder(model, folder, card_of(trained, "model", "best"))
        found = agreement(model, folder, tokens_BT)
    return found.difference / found.largest


# -- where its heads attend


def places(trained: TrainedRun) -> tuple[dict[str, float], list[str]]:
    """For each place in PLACES (such as the previous token), the largest share of attention that a head gives to it.

    The shares are measured on held-out windows of the training context length.
    """
    decoder, length = trained.decoder("best"), int(trained.config.model.train_length)
    if not decoder.normalisers:
        return {}, ["the model has no layer of attention"]
    tokens = trained.held_out_text().held_out
    windows = validation_windows(tokens, length=length, max_tokens=N_TEXTS * length)[:, :-1]
    shares_LH7 = places_of_heads(decoder.normalisers, decoder.hidden, windows)
    return dict(zip(PLACES, shares_LH7.amax((0, 1)).tolist(), strict=True)), []


# -- costs


def costs(trained: TrainedRun) -> tuple[dict[str, float], list[str]]:
    """Time and memory of a run's decoder, relative to the same decoder with RoPE and the plain softmax.

    step_time@T: the time of a training step with one text of T tokens. step_memory@T: the bytes that the step keeps for
    its backward pass. token_time@T: the time to read one token after T others. token_memory@T: the bytes of the cache.
    The two decoders are timed alternately, in one thread of a CPU. If other work on the machine keeps the ratio of the
    times from being steady, the number is NaN and a remark says so.
    """
    config, n_vocab = trained.config, trained.manifest["data"]["n_vocab"]
    torch.manual_seed(0)
    own = decoder_of_config(config, n_vocab)
    plain = build_decoder(config.model, load_option("pe", "rope"), load_option("softmax", "softmax"), n_vocab)
    both = (own, plain)
    found = {}
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings_as_lines(FallsBack):
            for length in STEP:
                tokens_BT = torch.randint(n_vocab, (1, length))
                steps = [partial(step, model, tokens_BT) for model in both]
                found[f"step_time@{length}"] = steady_ratio(partial(list, steps), TIMES_OF_STEP)
                n_bytes = [kept_bytes(model, tokens_BT) for model in both]
                found[f"step_memory@{length}"] = n_bytes[0] / n_bytes[1]
            with torch.inference_mode():
                for length in TOKEN:
                    tokens_BT = torch.randint(n_vocab, (1, length))
                    caches = [filled(model, tokens_BT) for model in both]
                    # a fresh copy of a cache has another address in memory, and the time depends on this address
                    reads = lambda caches=caches, token_B1=tokens_BT[:, :1]: [  # noqa: E731
                        partial(model.hidden, token_B1, cache=cache)
                        for model, cache in zip(both, deepcopy(caches), strict=True)
                    ]
                    found[f"token_time@{length}"] = steady_ratio(reads, TIMES_OF_TOKEN)
                    found[f"token_memory@{length}"] = caches[0].n_bytes / caches[1].n_bytes
    finally:
        torch.set_num_threads(n_threads)
    busy = [name for name, cost in found.items() if math.isnan(cost)]
    return found, [f"{name} has no value: this machine was too busy to time it" for name in busy]


def step(decoder: Decoder, tokens_BT: Tensor) -> None:
    decoder.zero_grad(set_to_none=True)
    decoder(tokens_BT, targets_BT=tokens_BT, step=0).mean().backward()


def kept_bytes(decoder: Decoder, tokens_BT: Tensor) -> int:
    """Bytes that a training step keeps for its backward pass; each storage counts once, and parameters do not count."""
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
    """A cache that holds these tokens and has room for a few more."""
    cache = decoder.empty_cache(length=tokens_BT.shape[1] + TIMES_OF_TOKEN + 1)
    for piece in torch.split(tokens_BT, AT_ONCE, 1):
        decoder.hidden(piece, cache=cache)
    return cache


def steady_ratio(pair: Callable[[], Sequence[Callable[[], object]]], times: int) -> float:
    """The time of the first call divided by that of the second, measured until the ratio is steady; NaN if it never is.

    pair: a function that makes the two calls; each repeat makes them anew.
    """
    ratios: list[float] = []
    for _ in range(MOST_REPEATS):
        first, second = in_turn(pair(), times)
        ratios.append(first / second)
        latest = ratios[-AGREEING:]
        if len(latest) == AGREEING and max(latest) <= (1 + STEADY) * min(latest):
            return statistics.median(latest)
    return math.nan


def in_turn(calls: Sequence[Callable[[], object]], times: int) -> list[float]:
    """The shortest time of each call in seconds; the calls alternate, and the first round does not count.

    The shortest time counts because other work on the machine only adds to a time.
    """
    shortest = [math.inf] * len(calls)
    for n in range(times + 1):
        for which, call in enumerate(calls):
            began = time.perf_counter()
            call()
            if n:
                shortest[which] = min(shortest[which], time.perf_counter() - began)
    return shortest
