"""`roundround generate`: texts that a model writes, token by token, from a prompt.

Tested by tests/asking/test_generation.py.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from omegaconf import DictConfig

from roundround.asking.generation import (
    TextStream,
    Writer,
    check_room,
    generators_of,
    opened_writer,
    prompt_tokens,
    write,
)
from roundround.asking.reader import subject_choices
from roundround.config.build import checked
from roundround.config.recorded import ITS_OWN
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.trial import FallsBack
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.report.generated import TEXTS
from roundround.support.console import print_document, print_status, warnings_as_lines
from roundround.support.errors import UserError, escaped
from roundround.support.files import write_json
from roundround.verbs.generate import GenerateConfig


def generate(cfg: DictConfig, invocation: Invocation) -> None:
    """Generate `n` texts of at most `length` tokens and stream the first; Ctrl-C keeps the text generated so far."""
    choices: dict[str, Any] = subject_choices(cfg, invocation)
    config = checked(GenerateConfig, cfg)
    device = pick_device(config.device)
    with opened_writer(config, device) as (writer, trained):
        own = {"softmax": ITS_OWN, "pe": ITS_OWN}
        choices = {**own, **choices} if trained is None else trained.choices_with(choices)
        tokens = prompt_tokens(writer, config.prompt, config.length)
        with opened_run(invocation, cfg) as run:
            run.note(
                choices=choices,
                device=describe_device(device),
                seed=config.seed if trained is None else trained.config.seed,
                run=None if trained is None else str(trained.directory),
                facts={"model": writer.name},
            )
            with warnings_as_lines(FallsBack):
                Session(run, config, writer, tokens).write()


class Session:
    """The texts of a run so far, and the time that they took.

    texts: the tokens of each text, including the prompt.
    """

    def __init__(self, run: Run, config: GenerateConfig, writer: Writer, prompt: list[int]) -> None:
        self.run, self.config, self.writer, self.n_prompt = run, config, writer, len(prompt)
        self.texts = [list(prompt) for _ in range(config.n)]
        self.generators = generators_of(config.seed, config.n)
        self.n_of_text = [0] * config.n  # tokens that the model has written
        self.n_read = 0
        self.seconds_of_prompt = self.seconds = 0.0

    def write(self) -> None:
        """Generate all texts at once and stream the first; with `interactive`, continue each line that is typed."""
        self.writer.begin(None if self.config.interactive else self.n_prompt + self.config.length)
        print_text(self.writer.decode(self.texts[0]))
        try:
            self.extend()
            while self.config.interactive and self.take_line():
                self.extend()
        finally:
            self.keep()
        for number, text in enumerate(self.texts[1:], 2):
            print_text(f"\n\n--- {number} of {self.config.n}\n{self.writer.decode(text)}")
        if not self.config.interactive:
            print_text("\n")
        print_status(
            f"{sum(self.n_of_text):,} tokens in {self.seconds:.1f} s, {self.speed:,.0f} a second, after "
            f"{self.n_prompt:,} of the prompt were read in {self.seconds_of_prompt:.2f} s; {TEXTS} has the text"
        )

    def take_line(self) -> bool:
        """Read a line from the user and append it to the text. Returns False at the end of the input."""
        self.run.log(self.n_of_text[0], tokens=len(self.texts[0]))
        print_text("\n")
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if line:
            self.texts[0] += self.writer.tokens(line.rstrip("\n"), first=False) if line.strip() else []
            check_room(self.writer, len(self.texts[0]), self.config.length)
        return bool(line)

    def extend(self) -> None:
        """Let the model read the tokens that it has not read yet, and generate up to `length` more tokens."""
        config, stream, start = self.config, TextStream(self.writer, self.texts[0]), time.perf_counter()
        unread = self.texts[0][self.n_read :]
        options: dict[str, Any] = {"length": config.length, "temperature": config.temperature, "top_k": config.top_k}
        try:
            with torch.inference_mode():
                logits_BV = self.writer.read(torch.tensor([unread], device=self.writer.device))
            self.seconds_of_prompt += time.perf_counter() - start
            start = time.perf_counter()
            for chosen in write(self.writer, logits_BV, n=config.n, generators=self.generators, **options):
                for number, token in enumerate(chosen):
                    self.texts[number].extend([] if token is None else [token])
                    self.n_of_text[number] += token is not None
                if chosen[0] is not None:
                    print_text(stream.add(chosen[0]))
        except ValueError as error:
            raise UserError(str(error)) from error
        finally:
            self.seconds += time.perf_counter() - start
            self.n_read = len(self.texts[0]) - 1  # the last one is written and not read

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return sum(self.n_of_text) / self.seconds if self.seconds else 0.0

    def keep(self) -> None:
        """Write the texts and the numbers of the run to files, if any text has been generated."""
        ends, written = self.writer.ends, self.n_of_text
        if not any(written):  # a run that is refused leaves nothing
            return
        if self.run.writes:
            kept = [
                {"text": self.writer.decode(text), "tokens": n, "ended": text[-1] in ends}
                for text, n in zip(self.texts, written, strict=True)
            ]
            write_json(self.run.directory / TEXTS, {"prompt": self.config.prompt, "texts": kept})
        self.run.log(max(written), tokens_per_second=self.speed)
        records = [
            {"metric": "tokens_per_second", "value": self.speed},
            {"metric": "prompt_tokens", "value": self.n_prompt},
            *({"metric": "tokens", "text": number, "value": n} for number, n in enumerate(written, 1)),
        ]
        self.run.results(records, tokens_per_second=self.speed)


def print_text(text: str) -> None:
    """Print a part of a text on standard output; control characters are escaped."""
    print_document("\n".join(map(escaped, text.split("\n"))))
