"""Decoding from a cache, token by token, beside transformers' `generate` on the exported model; and the prefill.

    python benchmarks/generate.py                         # model=small, 1,024 tokens of context, about 2 minutes
    python benchmarks/generate.py --rounds 9 --tokens 64 --context 1024

Then the length tests passkey and needle as `eval by=generation` asks them, at the same context: how long a question
takes beside one forward pass over it, and what a written token adds.

One sequence, greedy, float32. A round writes the same tokens once by each, in one process; printed is the median over
rounds of tokens a second, and of the ratio in a round. The prefill is `Decoder.hidden` into an empty cache beside the
same forward pass without one, which is that of `eval`. `docs/inside/benchmarks.md` holds the figures.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from roundround.asking.generation import DecoderWriter, generators_of, score_written, write
from roundround.config.build import build, checked_values
from roundround.config.options import load_option
from roundround.data.tasks.base import Examples, Task
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import Bytes
from roundround.model.decoder import Decoder
from roundround.trained.export.card import Card
from roundround.trained.export.folder import ModelToExport, exported_kinds, write_folder
from roundround.trained.models import OF_THE_BUILDER, build_decoder

N_VOCAB = 4096
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu: of this process alone, on a busy machine


def exported(decoder: Decoder, parts: dict[str, dict], folder: Path) -> torch.nn.Module:
    """The decoder as transformers loads its export."""
    vocabulary = Bytes().build([])
    model = ModelToExport(
        decoder=decoder,
        tokenizer=vocabulary.tokenizer,
        first_token=vocabulary.end_of_document,
        end_of_document=vocabulary.end_of_document,
        **parts,
    )
    data = {"training_tokens": 0, "corpus_hash": "0" * 64, "n_vocab": N_VOCAB}
    config = {"pe": {"_target_": "a.A"}, "softmax": {"_target_": "b.B"}}
    manifest = {"roundround": "", "seed": 0, "command": "", "choices": {}, "config": config, "data": data}
    write_folder(model, folder, Card(name="small", manifest=manifest, checkpoint="best", state={"step": 0}))
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    loaded.generation_config.eos_token_id = loaded.generation_config.pad_token_id = None
    return loaded


class Streamer:
    """What `generate` tells of the prompt and of each token."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []

    def put(self, tokens: Tensor) -> None:
        self.times.append(self.clock())

    def end(self) -> None:
        """Nothing more to tell."""


def length_tests(decoder: Decoder, asked: argparse.Namespace, clock: Callable[[], float]) -> None:
    """Print what a question costs by generation: one pass over it and one step a token."""
    passes: list[int] = []
    hidden = decoder.hidden

    def counting(tokens_BT: Tensor, **options: object) -> Tensor:
        passes.append(tokens_BT.shape[1])
        return hidden(tokens_BT, **options)

    for name in ("passkey", "needle"):
        task = build(load_option("data", name), Task)
        if isinstance(task, TextTask):
            task = task.with_vocabulary(Bytes().build([]))
        writer = DecoderWriter("small", decoder, task.vocabulary(), None)
        writer.ends = set()
        examples = Examples(task, seed=0, split="test", length=asked.context)
        whole, steps, n_steps = [], [], []
        for number in range(asked.rounds + 1):
            example = examples[number]
            prompt_1T = torch.from_numpy(example.tokens[None, : int(example.scored.argmax())])
            plain = seconds(partial(hidden, prompt_1T), clock)
            passes.clear()
            decoder.hidden = counting
            own = seconds(partial(score_written, writer, task, [(example, 1)]), clock)
            del decoder.hidden
            assert passes[0] == prompt_1T.shape[1], "the question is read once"
            assert set(passes[1:]) == {1}, "a token a step"
            if number:
                whole.append(own / plain)
                steps.append(1000 * (own - plain) / len(passes[1:]))
                n_steps.append(len(passes[1:]))
        print(f"{name} by generation: 1 pass over {prompt_1T.shape[1]:,} tokens and {max(n_steps)} steps, ", end="")
        print(f"{statistics.median(whole):.2f} times one forward pass ({statistics.median(steps):.1f} ms a step)")


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rounds", 7), ("--tokens", 64), ("--context", 1024), ("--threads", 1)):
        parser.add_argument(name, type=int, default=default)
    for name, default in (("--model", "small"), ("--pe", "rope"), ("--softmax", "softmax")):
        parser.add_argument(name, default=default)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    asked = parser.parse_args()
    clock = CLOCKS[asked.clock]
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    model, pe = load_option("model", asked.model), load_option("pe", asked.pe)
    softmax = load_option("softmax", asked.softmax)
    decoder = build_decoder(model, pe, softmax, N_VOCAB).eval()
    kinds, classes = exported_kinds(pe=pe, softmax=softmax)
    parts = {"sizes": checked_values(model, Decoder, OF_THE_BUILDER), "kinds": kinds, "classes": classes}
    tokens_1T = torch.randint(N_VOCAB, (1, asked.context))
    writer = DecoderWriter("small", decoder, Bytes().build([]), None)
    writer.ends = set()
    with tempfile.TemporaryDirectory() as folder:
        theirs = exported(decoder, parts, Path(folder))

    def ours_writes() -> tuple[float, Tensor]:
        writer.begin(None)
        with torch.inference_mode():
            logits_1V = writer.read(tokens_1T)
        times, written = [], []
        options = {"temperature": 0.0, "top_k": None, "generators": generators_of(0, 1)}
        for chosen in write(writer, logits_1V, n=1, length=asked.tokens, **options):
            times.append(clock())
            written += chosen
        return times[-1] - times[0], torch.tensor(written)

    def theirs_writes() -> tuple[float, Tensor]:
        streamer, mask = Streamer(clock), torch.ones_like(tokens_1T)
        options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": asked.tokens, "streamer": streamer}
        out = theirs.generate(tokens_1T, **options)
        return streamer.times[-1] - streamer.times[1], out[0, asked.context :]

    speeds, prefills = [], []
    for number in range(asked.rounds + 1):
        ours, mine = ours_writes()
        hf, other = theirs_writes()
        assert torch.equal(mine, other), "both write the same tokens"
        plain = seconds(lambda: decoder.hidden(tokens_1T), clock)
        cached = seconds(lambda: decoder.hidden(tokens_1T, cache=decoder.empty_cache()), clock)
        if number:  # the first round warms up
            speeds.append(((asked.tokens - 1) / ours, (asked.tokens - 1) / hf))
            prefills.append((plain, cached))
    own, hf = (statistics.median(values) for values in zip(*speeds, strict=True))
    ratio = statistics.median(a / b for a, b in speeds)
    print(f"decoding after {asked.context:,} tokens: roundround {own:.0f} tokens/s, {type(theirs).__name__} {hf:.0f}; ")
    print(f"  roundround is faster by {ratio:.2f} ({min(a / b for a, b in speeds):.2f} to ", end="")
    print(f"{max(a / b for a, b in speeds):.2f}) over {asked.rounds} rounds")
    more = statistics.median(cached / plain for plain, cached in prefills)
    plain = statistics.median(plain for plain, _ in prefills)
    print(f"prefill: {1000 * plain:.0f} ms without a cache, with one {more:.3f} times as long")
    length_tests(decoder, asked, clock)


if __name__ == "__main__":
    main()
