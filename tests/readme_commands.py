"""Run the commands of pages, each as printed and in order: readme_commands.py PAGE ...

What follows `$ ` needs nothing but an installation; `last` means a run of the commands before. A command is a line of a
fenced block that begins with `$ `, with its continuation lines; its output follows. They run in one new folder, each
page with an empty home, with the clone's files beside them, W&B offline, and no network where the system allows
`unshare -rn`. Every exit code must be 0, or 2 where the printed output is an error; every printed line must come out,
with its numbers, by this rule:

- A time, a speed, a date, a size in bytes, a path and a hash may be any.
- A whole number must be the same.
- A number with a decimal point or an exponent must be the same but for one unit of its last printed digit, on the kind
  of machine that the pages were printed on (MADE_ON). Another instruction set or another torch rounds otherwise, and a
  training makes more of it: there such a number may differ by a tenth of itself and one unit, and a p may be any.
- A part of a line that is `...` on the page may be anything.

A command whose comment says `kill -9` is killed after its first checkpoint. A block whose first line names a file of
`mine/`, such as `# mine/half.py`, is written there before the commands of its page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ["README.md", "benchmarks", "docs", "conf", "roundround"]  # of the clone, for commands that name its files
WITHOUT_NETWORK = ["unshare", "-rn", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"]
MADE_ON = "AVX512, torch 2.13.0"  # the instructions and the torch with which the pages were printed
NUMBER = re.compile(r"(?<![A-Za-z_\d])[-\u00b1]?\d(?:[\d.,:e-]*\d)?")
FREE = re.compile(r"\d[\d-]*:[\d:]+|\d{4}-\d\d-\d\d|\d\d-\d\d-\d\d")  # clocks and dates
UNITS = r" ?(s|ms|seconds?|minutes?|hours?|tokens/s|steps/s|a second|[kMG]i?B|bytes)\b"
FREE_BEHIND = re.compile(rf"{UNITS}|% [\d:]+ left")  # a utilisation stands before the time that is left
INSIDE = "ROUNDROUND_COMMANDS_RUN_INSIDE"


@dataclass
class Command:
    """What is typed, and the lines that are printed below it."""

    typed: str
    printed: list[str] = field(default_factory=list)

    @property
    def is_killed(self) -> bool:
        return "kill -9" in self.typed

    @property
    def exit_code(self) -> int:
        if self.is_killed:
            return -9
        return 2 if re.match(r"roundround [a-z-]+: ", " ".join(self.printed)) else 0


def commands(page: str) -> list[Command]:
    """The commands of all fenced blocks, with what is printed up to the next command or the end of the block."""
    found: list[Command] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if language:
            continue
        inside = False
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
                inside = True
            elif inside:
                found[-1].printed.append(line)
    assert len(found) == len(re.findall(r"^\$ ", page, re.MULTILINE)), "a fence is not closed"
    return found


def in_one_line(text: str) -> str:
    """A text in which hashes, folders, frames of tables and breaks of lines are all alike."""
    text = re.sub(r"\S*/outputs/|\S*/(?=stories)|\S*/\.cache/", "/", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "HASH", text)
    return " ".join(re.sub("[\u2500-\u257f|]", " ", text).split())


def is_printed(part: str, said: str, *, same_machine: bool) -> bool:
    """Whether a part of a page stands in what a command has said, with its numbers by the rule above."""
    part, said = in_one_line(part), in_one_line(said)
    numbers, places = list(NUMBER.finditer(part)), [found.start() for found in NUMBER.finditer(said)]
    values = NUMBER.findall(said)
    shape = re.compile(re.escape(NUMBER.sub("\0", part)))
    shapes = NUMBER.sub("\0", said)
    assert shapes.count("\0") == len(places)
    for found in shape.finditer(shapes):
        first = shapes.count("\0", 0, found.start())
        theirs = values[first : first + len(numbers)]
        if all(agrees(part, number, value, same_machine) for number, value in zip(numbers, theirs, strict=True)):
            return True
    return False


def agrees(part: str, number: re.Match[str], value: str, same_machine: bool) -> bool:
    """Whether a number of a page may have come out as this value."""
    if FREE_BEHIND.match(part, number.end()) or FREE.fullmatch(number.group()) or value == number.group():
        return True
    try:
        ours, theirs = (float(text.replace(",", "").lstrip("\u00b1")) for text in (number.group(), value))
    except ValueError:  # of several parts, such as 2-5
        return False
    if not re.search(r"\.|e", number.group()):
        return ours == theirs
    mantissa, _, exponent = number.group().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    if not same_machine:
        return is_p(part, number) or abs(ours - theirs) <= 0.1 * abs(ours) + 1.01 * unit
    return abs(ours - theirs) <= 1.01 * unit


def is_p(part: str, number: re.Match[str]) -> bool:
    return re.search(r"\bp(?: \(Holm\))? $", part[: number.start()]) is not None


def machine() -> str:
    import torch

    return f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__.partition('+')[0]}"


def check(command: Command, folder: Path) -> list[str]:
    """What is wrong with a command: its exit code, and the printed lines that it does not print."""
    environment = os.environ | {"HOME": str(folder / "home"), "WANDB_MODE": "offline", "COLUMNS": "120"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for of_caches in ("ROUNDROUND_CACHE", "XDG_CACHE_HOME"):
        environment.pop(of_caches, None)
    shell = ["bash", "-c", command.typed if not command.is_killed else f"exec {command.typed}"]
    with open(folder / "output.txt", "w+") as output:
        process = subprocess.Popen(shell, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if command.is_killed:
            before = set(folder.glob("outputs/train/*/*/checkpoints/last"))
            while process.poll() is None:
                if set(folder.glob("outputs/train/*/*/checkpoints/last")) - before:
                    process.kill()
                time.sleep(0.1)
        code = process.wait()
        output.seek(0)
        said = output.read()
    wrong = [] if code == command.exit_code else [f"exit code {code}, not {command.exit_code}: {said[-500:]}"]
    parts = [part for line in command.printed for part in line.split("...")]
    same = machine() == MADE_ON
    return wrong + [f"not printed: {part}" for part in parts if not is_printed(part, said, same_machine=same)]


def main(pages: list[str]) -> int:
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        possible = shutil.which("unshare") is not None and subprocess.call([*WITHOUT_NETWORK, "true"]) == 0
        print(f"the network is {'cut off' if possible else 'still there: this system allows no unshare -rn'}")
        return subprocess.call([*(WITHOUT_NETWORK if possible else []), sys.executable, __file__, *pages])
    n_wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for needed in NEEDED:
            (folder / needed).symlink_to(ROOT / needed)
        for page in pages:
            text = Path(page).read_text(encoding="utf-8")
            shutil.rmtree(folder / "home", ignore_errors=True)
            (folder / "home").mkdir()
            for name, content in re.findall(r"^```\w+\n# (mine/\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(content, encoding="utf-8")
            for command in commands(text):
                began = time.monotonic()
                wrong = check(command, folder)
                n_wrong += bool(wrong)
                print(
                    f"{'WRONG' if wrong else 'ok':5} {time.monotonic() - began:6.1f} s  {page}: {command.typed}",
                    flush=True,
                )
                print("".join(f"      {line}\n" for line in wrong), end="", flush=True)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
