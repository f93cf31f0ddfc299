"""What each group offers, read off the yamls and the docstrings of the classes they name, without importing torch.

How many pairs a rotary encoding rotates, and how slowly, is computed by torch: so a line of its yaml says it.

Tested by tests/command_line/test_command_line.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError, safe_load

from roundround.config.options import conf_dir, options_of
from roundround.config.recorded import flat
from roundround.support.console import print_result, print_table
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import read_text

GROUPS = {
    "bench": "The sets of `roundround bench`, and the parts of each.",
    "data": "What is learnt or asked: text of your own, of the Hub, of Python's documentation; a task; minimal pairs.",
    "experiment": "A published experiment with its settings, for one verb each.",
    "logger": "Where metrics go beside the run directory.",
    "model": "The sizes of a model to train, or a pretrained model to measure.",
    "gate": "What changes the output of attention: gates that read the layer's input, exclusive attention.",
    "optim": "The optimizer.",
    "pattern": "Kinds of layers and their order: windows, encodings and normalisers that differ by layer.",
    "pe": "The positional encoding: where attention looks.",
    "qk_norm": "How queries and keys are normalised.",
    "schedule": "The learning rate over the steps.",
    "softmax": "The normaliser of attention: how sharply it looks.",
    "tokenizer": "How text becomes tokens.",
    "trainer": "Steps, devices and precision of training.",
}


ROTATES = "rotates: "  # begins a line of the yaml of a rotary encoding: tests compare it with what the encoding does
EXPLAINED = (
    "rotates: pairs of a head of 64 channels that rotate, and the tokens in which the slowest of them turns once; what "
    "is scaled is scaled by 4"
)


@dataclass(frozen=True)
class Entry:
    """One option of a group, as `roundround list` shows it."""

    name: str
    idea: str
    paper: str
    parameters: str


def group_names() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def entries(group: str, config_dir: str | None) -> list[Entry]:
    """The options of a group by name, those of the user's own conf folder included. UserError for a broken file."""
    return [entry_of(name, path, config_dir) for name, path in sorted(options_of(group, config_dir).items())]


def entry_of(name: str, path: Path, config_dir: str | None) -> Entry:
    text, values = read_yaml(path)
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UserError(f"{path}: must give values by name, such as theta: 100.0")
    idea, paper = docstring_parts(str(values.get("_target_", "")), config_dir)
    remarks = [
        line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#") and "@package" not in line
    ]
    rotates = [line for line in remarks if line.startswith(ROTATES)]
    own_idea = " ".join(line for line in remarks[1:] if line not in rotates)  # the first is the command that uses it
    if "order" in values:  # a pattern of layers
        return Entry(name, own_idea, paper, letters(values))
    numbers = [f"{key}={as_typed(value)}" for key, value in flat(values).items() if key.split(".")[0] not in NOT_SHOWN]
    return Entry(name, own_idea or idea, paper, "\n".join([*numbers, *rotates]))


def read_yaml(path: Path) -> tuple[str, Any]:
    """A yaml's text and its values. UserError for one that cannot be read."""
    try:
        text = read_text(path)
        return text, safe_load(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply") from error
    except ValueError as error:  # Python's limit for the digits of a whole number
        raise UserError(f"{path}: {one_line(error)}") from error
    except YAMLError as error:
        raise UserError(f"{path}: not valid yaml: {one_line(error)}") from error


def letters(pattern: dict[str, Any]) -> str:
    """The layers of a pattern as a row, a letter for each kind: `LLLLLG ... G`, the last one where it is fixed."""
    row = "".join(str(name)[0].upper() for name in pattern["order"])
    return row + (f" ... {str(pattern['last'])[0].upper()}" if pattern.get("last") else " ...")


NOT_SHOWN = {"_target_", "kind", "defaults", "hydra"}


def as_typed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace(" ", "") if isinstance(value, list | dict) else str(value)


def docstring_parts(target: str, config_dir: str | None) -> tuple[str, str]:
    """(first sentence, reference) of the docstring of the class that a `_target_` names; empty where there is none."""
    module, _, name = target.rpartition(".")
    source = source_of(module, config_dir)
    if source is None:
        return "", ""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"{source}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: no Python that can be read: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            paragraphs = [" ".join(p.split()) for p in (ast.get_docstring(node) or "").split("\n\n")]
            papers = [p for p in paragraphs if "arXiv:" in p]
            return paragraphs[0], short_reference(papers[0]) if papers else ""
    return "", ""


def short_reference(paragraph: str) -> str:
    """`Author year, arXiv:id` out of a reference paragraph: what stands before section and equation."""
    match = re.match(r".*?arXiv:\d{4}\.\d{5}", paragraph)
    return match.group(0) if match else paragraph


def source_of(module: str, config_dir: str | None) -> Path | None:
    """The file of a module of ours, or of one beside the user's own conf folder; nothing is imported."""
    if not module:
        return None
    roots = [Path(__file__).parents[2], *([Path(config_dir)] if config_dir else [])]
    candidates = [root.joinpath(*module.split(".")).with_suffix(".py") for root in roots]
    return next((path for path in candidates if path.is_file()), None)


def print_groups() -> None:
    """Print the groups on standard output, with a sentence each."""
    for group in group_names():
        print_result(f"{group:<12}{GROUPS[group]}")
    print_result("roundround list GROUP explains the options of a group.")


def print_group(group: str, config_dir: str | None) -> None:
    """Print the table of a group on standard output. UserError for a group that there is not."""
    from rich import box
    from rich.table import Table

    if group not in group_names():
        raise UserError(f"no group '{group}'{nearest(group, group_names())}")
    table = Table("name", "idea", "paper", "parameters", box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    found = entries(group, config_dir)
    if any(ROTATES in entry.parameters for entry in found):
        table.caption = EXPLAINED
    for entry in found:
        table.add_row(entry.name, entry.idea, entry.paper, entry.parameters)
    print_table(table, on_output=True, first_to_leave=["paper", "parameters"])
