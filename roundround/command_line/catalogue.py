"""What each group offers, read off the yamls and the docstrings of the classes they name, without Hydra or torch.

How many pairs a rotary encoding rotates, and how slowly, is computed by torch, so that a line of its yaml says it.

Tested by tests/command_line/test_pages.py and tests/command_line/test_arguments.py.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roundround.config.options import conf_dir, options_of
from roundround.config.verb import Verb
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import read_text
from roundround.verbs import verb_named

GROUPS = {
    "bench": "The sets of `roundround bench`, and the parts of each.",
    "data": "What a model learns or is asked: text, a task, or minimal pairs.",
    "experiment": "A published experiment with its settings, each for one verb.",
    "logger": "Where metrics go beside the run directory.",
    "model": "The architecture to train, or a pretrained model to measure.",
    "gate": "What changes the output of attention: gates, exclusive attention.",
    "optim": "The optimizer.",
    "pattern": "Kinds of layers and their order: windows, and parts that differ by layer.",
    "pe": "The positional encoding: where attention looks.",
    "qk_norm": "How queries and keys are normalised.",
    "schedule": "The learning rate over the steps.",
    "softmax": "The normaliser of attention: how sharply it looks.",
    "tokenizer": "How text becomes tokens.",
    "trainer": "Steps, devices and precision of training.",
}
# yamls of a group that are no options of it: what a list of loggers becomes, and what a pattern's kinds are made from
NO_OPTIONS = {"logger": "several", "pattern": "kind/"}
NO_KEYS = {"_target_", "kind", "defaults", "hydra"}  # of a yaml, that nobody types
# flags of Hydra's, with their short forms
WITH_VALUE = {"--cfg": "-c", "--package": "-p", "--config-name": "-cn", "--config-dir": "-cd", "--info": "-i"}
WITHOUT_VALUE = {
    "--help": "-h",
    "--hydra-help": "",
    "--version": "",
    "--resolve": "",
    "--run": "-r",
    "--multirun": "-m",
}
ROTATES = "rotates: "  # begins a line of the yaml of a rotary encoding: tests compare it with what the encoding does


@dataclass(frozen=True)
class Key:
    """A key of a config: its dotted name, its default as it is typed, and the comment on its line."""

    name: str
    default: str
    comment: str


@dataclass(frozen=True)
class Option:
    """One option of a group, from its yaml and the docstring of the class that this names.

    command: the one that uses it. idea: in a sentence or more; lines that begin with spaces are for a shell.
    docstring: its paragraphs, the first of which is the class's idea, and reference the one with the paper. layers: of
    a pattern, `LLLG ...`. values: the yaml's.
    """

    name: str
    command: str
    idea: str
    docstring: tuple[str, ...]
    reference: str
    rotates: str
    layers: str
    values: dict[str, Any]

    @property
    def paper(self) -> str:
        """`Author year, arXiv:id`: of the reference what stands before section and equation."""
        match = re.match(r".*?arXiv:\d{4}\.\d{5}", self.reference)
        return match[0] if match else self.reference

    @property
    def numbers(self) -> str:
        """Its keys with their defaults in a line; of a pattern its layers."""
        if self.layers:
            return self.layers
        plain = {key: value for key, value in self.values.items() if key not in NO_KEYS and not isinstance(value, dict)}
        words = [f"{key}={as_typed(value)}" for key, value in plain.items()]
        return " ".join([*words, *([ROTATES + self.rotates] if self.rotates else [])])


def group_names() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def options(group: str, config_dir: str | None) -> list[Option]:
    """The options of a group by name, also from the user's own conf folder. UserError for a broken file."""
    found = sorted(options_of(group, config_dir).items())
    return [option_of(name, path, config_dir) for name, path in found if not is_no_option(group, name)]


def is_no_option(group: str, name: str) -> bool:
    return name.startswith(NO_OPTIONS.get(group, "\0"))


def option_of(name: str, path: Path, config_dir: str | None) -> Option:
    text, values = read_yaml(path)
    docstring = docstring_of(str(values.get("_target_", "")), config_dir)
    comments = [line.lstrip("#").rstrip() for line in text.splitlines() if re.match("#(?! @package)", line)]
    lines = [line if line.startswith("  ") else line.strip() for line in comments]
    command = next(iter(lines), "") if re.match(r"roundround\b", next(iter(lines), "")) else ""
    rotates = [line for line in lines if line.startswith(ROTATES)]
    others = [line for line in lines if line != command and line not in rotates]
    own_idea = re.sub(r"(?m)(^\S.*)\n(?=\S)", r"\1 ", "\n".join(others))
    return Option(
        name=name,
        command=command,
        idea=own_idea or next(iter(docstring), ""),
        docstring=docstring,
        reference=next((paragraph for paragraph in docstring if "arXiv:" in paragraph), ""),
        rotates=rotates[0].removeprefix(ROTATES) if rotates else "",
        layers=letters(values) if "order" in values else "",
        values=values,
    )


def read_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """A yaml's text and its values. UserError for one that cannot be read."""
    try:
        text = read_text(path)
        values = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not valid yaml: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must give values by name, such as theta: 100.0")
    return text, values


def letters(pattern: dict[str, Any]) -> str:
    """The layers of a pattern as a row, a letter for each kind: `LLLLLG ... G`, the last one where it is fixed."""
    row = "".join(str(name)[0].upper() for name in pattern["order"])
    return row + (f" ... {str(pattern['last'])[0].upper()}" if pattern.get("last") else " ...")


def as_typed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace(" ", "") if isinstance(value, list | dict) else str(value)


def docstring_of(target: str, config_dir: str | None) -> tuple[str, ...]:
    """The paragraphs of the docstring of the class that a `_target_` names; none where there is no such class."""
    module, _, name = target.rpartition(".")
    source = source_of(module, config_dir)
    if source is None:
        return ()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            paragraphs = (ast.get_docstring(node) or "").split("\n\n")
            return tuple(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
    return ()


def source_of(module: str, config_dir: str | None) -> Path | None:
    """The file of a module of ours, or of one beside the user's own conf folder; nothing is imported."""
    if not module:
        return None
    roots = [Path(__file__).parents[2], *([Path(config_dir)] if config_dir else [])]
    files = [root.joinpath(*module.split(".")).with_suffix(".py") for root in roots]
    return next((path for path in files if path.is_file()), None)


# -- which groups and options a verb takes


def groups_of(verb: Verb) -> dict[str, tuple[str, str]]:
    """The groups in the defaults list of a verb's yaml: the option of each, and the comment on its line.

    A group whose option fills another node of the config has that in its name: `softmax@normalisers.ssmax`.
    """
    found = {}
    text, values = read_yaml(conf_dir() / f"{verb.name.replace('-', '_')}.yaml")
    for group, option in defaults_of(values):
        if group:
            line = re.search(rf"^  - {re.escape(group)}: .*?(?: # *(.*))?$", text, re.MULTILINE)
            found[group] = (option, (line and line[1]) or "")
    return found


def defaults_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The defaults list of a yaml as pairs of a group, empty for a yaml of the same folder, and an option."""
    listed = values.get("defaults")
    entries = [
        entry if isinstance(entry, dict) else {"": entry} for entry in (listed if isinstance(listed, list) else [])
    ]
    return [(str(group), as_typed(option)) for entry in entries for group, option in entry.items()]


def offered(verb: Verb, group: str, config_dir: str | None) -> list[str]:
    """The options of a group that a verb takes."""
    found = options_of(group, config_dir)
    return [name for name in sorted(found) if takes(verb, group, name, found)]


def takes(verb: Verb, group: str, name: str, found: dict[str, Path]) -> bool:
    """Whether a verb takes an option: no class of a module that it refuses, no experiment of another verb's."""
    if is_no_option(group, name):
        return False
    if group == "experiment":
        command = re.search(r"^# roundround ([\w-]+)", read_yaml(found[name])[0], re.MULTILINE)
        return command is None or verb_named(command[1]) is verb
    refused = verb.refuses.get(group, ())
    if not refused:
        return True
    _, values = read_yaml(found[name])
    made_from = [read_yaml(found[base])[1] for group, base in defaults_of(values) if not group and base in found]
    return not any(str(node.get("_target_")).startswith(refused) for node in [values, *made_from])


def completions(verb: Verb, words: list[str], incomplete: str) -> list[str]:
    """The groups and options that the word under the cursor may become, given the words before it.

    Bash breaks words at `=`, so `pe=p_` arrives as `pe`, `=`, `p_`, and a lone `=` as nothing; the answers then begin
    after the `=`.
    """
    if not incomplete and os.environ.get("COMP_WORDS", "").endswith("="):
        words = [*words, "="]
    prefix = f"{words[-2]}=" if words[1:] and words[-1] == "=" else ""
    group, equals, _ = (prefix + incomplete).partition("=")
    groups = groups_of(verb) if verb.config is not None else {}
    found = [name for name in groups if name == group or (not equals and name.startswith(group))]
    if len(found) > 1:
        return [f"{name}=" for name in found]
    options = [f"{name}={option}" for name in found for option in offered(verb, name, None)]
    return [option.removeprefix(prefix) for option in options if option.startswith(prefix + incomplete)]


# -- the keys of a yaml, with what the comment on the line of each says


def keys_of(folder: str, name: str, prefix: str, config_dir: str | None, *, verb: bool = False) -> dict[str, Key]:
    """The keys that an option gives, each behind a prefix such as `pe`; first the keys of the yamls it is made from.

    Options of other groups that it chooses are `chosen_by`, and their keys are left out. folder: the one of its group,
    `pe` or `pattern/kind`; empty for a verb's own yaml, whose groups are left out. UserError for a yaml that is not
    there, although another one names it.
    """
    options = options_of(folder, config_dir) if folder else {name: conf_dir() / f"{name}.yaml"}
    if name not in options:
        raise UserError(f"a defaults list names {folder}/{name}, which is not there")
    text, values = read_yaml(options[name])
    beside = "/".join([folder, *name.split("/")[:-1]])  # where names in its defaults list begin
    found: dict[str, Key] = {}
    for group, option in defaults_of(values):
        group = group.removeprefix("optional ")
        of_another = group.startswith("/") and "@" in group  # puts an option into a node: /pe@local.pe
        if option in ("null", "_self_") or group.startswith("override ") or of_another or (verb and group):
            continue
        option, _, at = option.partition("@")
        group, _, below = group.partition("@")
        if option.startswith("/"):
            group, _, option = option[1:].partition("/")
            group = f"/{group}"
        there = group[1:] if group.startswith("/") else "/".join(filter(None, [beside, group]))
        where = ".".join(filter(None, [prefix, at or below]))
        found |= keys_of(there, option, where, config_dir)
    for key in keys_in(text, prefix):
        comment = key.comment or (found[key.name].comment if key.name in found else "")
        found[key.name] = Key(key.name, key.default, comment)
    return found


def chosen_by(option: Option, group: str) -> dict[str, str]:
    """The options of other groups that an option chooses, by what is typed to choose others: pe@pattern.local.pe."""
    typed = [
        (re.sub(r"^(override )?/", "", name), chosen) for name, chosen in defaults_of(option.values) if "/" in name
    ]
    return {name.replace("@", f"@{group}."): chosen for name, chosen in typed}


def keys_in(text: str, prefix: str) -> Iterator[Key]:
    """The keys that a yaml itself gives."""
    lines = text.splitlines()

    def inside(node: yaml.MappingNode, prefix: str) -> Iterator[Key]:
        for name, value in node.value:
            dotted = f"{prefix}.{name.value}" if prefix else str(name.value)
            if not isinstance(name.value, str) or name.value in NO_KEYS:
                continue
            if isinstance(value, yaml.MappingNode) and value.value:
                yield from inside(value, dotted)
                continue
            default, last = text[value.start_mark.index : value.end_mark.index], value.end_mark
            if isinstance(value, yaml.SequenceNode):
                default, last = "".join(default.split()), last if value.flow_style else name.end_mark
            if not getattr(value, "flow_style", True):  # a list of a line for each item
                default = as_typed(
                    [yaml.safe_load(text[item.start_mark.index : item.end_mark.index]) for item in value.value]
                )
            _, _, comment = lines[last.line][last.column :].partition("#")
            yield Key(dotted, default, comment.strip())

    root = yaml.compose(text, yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        yield from inside(root, prefix)


def named_option(group: str, name: str, config_dir: str | None) -> Option:
    """The option of this name. UserError for a group or a name that does not exist."""
    if group not in group_names():
        raise UserError(f"no group '{group}'{nearest(group, group_names())}")
    found = options_of(group, config_dir)
    if name not in found:
        raise UserError(f"no {group}={name}{nearest(name, sorted(found))}")
    return option_of(name, found[name], config_dir)
