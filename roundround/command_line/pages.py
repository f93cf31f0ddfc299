"""The pages of help: all verbs, one verb with its keys, all groups, one group, one option of a group.

Their text comes from the yamls, the comments in the yamls, and the docstrings of the classes that the yamls name. No
page imports Hydra or torch. A rotary encoding's page says how many pairs of channels the encoding rotates, and in how
many tokens the slowest pair turns once; to compute these two numbers needs torch, so the encoding's yaml states them.
Lines fit the terminal, and no word is broken.

Tested by tests/command_line/test_pages.py and tests/command_line/test_arguments.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from roundround.config.options import checked_config_dir, conf_dir, config_name, options_of
from roundround.config.verb import Verb
from roundround.support import console
from roundround.support.console import print_document
from roundround.support.errors import UserError, escaped, nearest, one_line
from roundround.support.files import read_text
from roundround.verbs import VERBS, verb_named

GROUPS = {
    "attention": "How the tokens of a layer see each other: attention, or a layer in its place.",
    "bench": "The sets of `roundround bench`, and the parts of each.",
    "data": "What a model learns or is asked: text, a task, or minimal pairs.",
    "engine": "What answers the cases of `roundround check suite=DIR`.",
    "experiment": "A published experiment with its settings, each for one verb.",
    "logger": "Where metrics go besides the run directory.",
    "model": "The architecture to train, or a pretrained model to measure.",
    "gate": "What changes the output of attention: gates, exclusive attention.",
    "mix": "How tokens are mixed with the few before them, beside attention.",
    "optim": "The optimizer.",
    "pattern": "Kinds of layers and their order: windows, and parts that differ by layer.",
    "pe": "The positional encoding: where attention looks.",
    "qk_norm": "How queries and keys are normalised.",
    "schedule": "The learning rate over the steps.",
    "softmax": "The normaliser of attention: how sharply it looks.",
    "tokenizer": "How text becomes tokens.",
    "trainer": "Steps, devices and precision of training.",
}
# yamls in a group's folder that are no options: the node for several loggers, and the bases of a pattern's kinds
NO_OPTIONS = {"logger": "several", "pattern": "kind/"}
NO_KEYS = {"_target_", "kind", "defaults", "hydra"}  # keys of a yaml that users do not type
# Hydra's flags with their short forms
WITH_VALUE = {"--cfg": "-c", "--package": "-p", "--config-name": "-cn", "--config-dir": "-cd", "--info": "-i"}
WITHOUT_VALUE = {
    "--help": "-h",
    "--hydra-help": "",
    "--version": "",
    "--resolve": "",
    "--run": "-r",
    "--multirun": "-m",
}
ROTATES = "rotates: "  # begins a comment in a rotary encoding's yaml; tests compare it with the encoding
WIDEST = 100  # columns: longer lines are hard to read
NAMES = 28  # columns for the words to type; longer words get a line of their own
FLAGS_OF_HYDRA = [
    ("-m, --multirun", "run every combination: pe=rope,p_rope seed=1,2,3"),
    ("-c, --cfg job", "print the config and stop"),
    ("-cd, --config-dir DIR", "your own conf folder: its variants join the groups"),
]
HELP = ("-h, --help", "this page")
FLAGS = [
    ("--version", "print the version"),
    ("--install-completion", "let TAB complete verbs, groups and keys"),
    ("--show-completion", "print the script that completes with TAB"),
    HELP,
]
MOST_EXPERIMENTS = 5  # in the help of a verb
PARAGRAPHS = r"[ \n](?=(?:Contrast|Margin|Expected|Found)\b)"  # in the comment of an experiment's yaml
SENTENCES = r"(?<=[.?]) (?=[A-Z])"
ROTATION = "rotates {} pairs of a head of 64 channels; the slowest of them turns once in {} tokens"


@dataclass(frozen=True)
class Key:
    """A key of a config: its dotted name, its default as a user would type it, and the comment on its line."""

    name: str
    default: str
    comment: str


@dataclass(frozen=True)
class Option:
    """One option of a group, from its yaml and the docstring of the class that the yaml names.

    command: a command that uses the option. idea: the description of the option; lines that begin with spaces are shell
    commands. docstring: the paragraphs of the class's docstring; the first is the class's idea. reference: the
    paragraph of the docstring that names the paper. rotates: for a rotary encoding, how many pairs of channels it
    rotates, and the wavelength of the slowest pair. layers: for a pattern, the first letter of each layer's kind,
    `LLLG ...`. values: the values in the yaml.
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
        """`Author year, arXiv:id`: the beginning of the reference, without section and equation."""
        match = re.match(r".*?arXiv:\d{4}\.\d{5}", self.reference)
        return match[0] if match else self.reference

    @property
    def numbers(self) -> str:
        """The keys with their defaults in one line; for a pattern, its layers."""
        if self.layers:
            return self.layers
        plain = {key: value for key, value in self.values.items() if key not in NO_KEYS and not isinstance(value, dict)}
        words = [f"{key}={as_typed(value)}" for key, value in plain.items()]
        return " ".join([*words, *([ROTATES + self.rotates] if self.rotates else [])])


def group_names() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def options(group: str, config_dir: str | None) -> list[Option]:
    """The options of a group, the user's own included, sorted by name. Raises UserError for a broken file."""
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
    """A yaml's text and its values. Raises UserError if the file cannot be read."""
    try:
        text = read_text(path)
        values = yaml.safe_load(text) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not valid yaml: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must give values by name, such as theta: 100.0")
    return text, values


def letters(pattern: dict[str, Any]) -> str:
    """The first letter of each layer's kind: `LLLLLG ...`, or `LLLLLG ... G` if the last layer's kind is fixed."""
    row = "".join(str(name)[0].upper() for name in pattern["order"])
    return row + (f" ... {str(pattern['last'])[0].upper()}" if pattern.get("last") else " ...")


def as_typed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace(" ", "") if isinstance(value, list | dict) else str(value)


def docstring_of(target: str, config_dir: str | None) -> tuple[str, ...]:
    """The paragraphs of the docstring of the class that a `_target_` names; empty if there is no such class.

    The class is in this package or in a module below the user's own conf folder. Nothing is imported.
    """
    module, _, name = target.rpartition(".")
    roots = [Path(__file__).parents[2], *([Path(config_dir)] if config_dir else [])]
    files = [root.joinpath(*module.split(".")).with_suffix(".py") for root in roots if module]
    for source in filter(Path.is_file, files):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == name:
                paragraphs = (ast.get_docstring(node) or "").split("\n\n")
                return tuple(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
    return ()


# -- which groups and options a verb takes


def groups_of(verb: Verb) -> dict[str, tuple[str, str]]:
    """{group: (its option, the comment on its line)} from the defaults list of a verb's yaml.

    If the defaults list puts the option into a node whose name is not the group's name, the key is GROUP@NODE, as in
    `softmax@normalisers.ssmax`.
    """
    found = {}
    text, values = read_yaml(conf_dir() / f"{verb.name.replace('-', '_')}.yaml")
    for group, option in defaults_of(values):
        if group:
            line = re.search(rf"^  - {re.escape(group)}: .*?(?: # *(.*))?$", text, re.MULTILINE)
            found[group] = (option, (line and line[1]) or "")
    return found


def defaults_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The defaults list of a yaml as pairs (group, option).

    The group is empty if the entry names only a yaml, which is in the same folder.
    """
    listed = values.get("defaults")
    entries = [
        entry if isinstance(entry, dict) else {"": entry} for entry in (listed if isinstance(listed, list) else [])
    ]
    return [(str(group), as_typed(option)) for entry in entries for group, option in entry.items()]


def offered(verb: Verb, group: str, config_dir: str | None) -> list[str]:
    """The names of a group's options, without those that the verb refuses."""
    found = options_of(group, config_dir)
    return [name for name in sorted(found) if takes(verb, group, name, found)]


def takes(verb: Verb, group: str, name: str, found: dict[str, Path]) -> bool:
    """Whether a verb takes an option. A verb refuses the classes of some modules, and experiments of other verbs."""
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
    """The groups and options that complete the word under the cursor, given the words before it.

    Bash breaks words at `=`: `pe=p_` arrives as the three words `pe`, `=` and `p_`, and `pe=` as the one word `pe`.
    Completions of such a word contain only what follows the `=`.
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


# -- the keys of a yaml, each with the comment on its line


def keys_of(folder: str, name: str, prefix: str, config_dir: str | None, *, verb: bool = False) -> dict[str, Key]:
    """{name: key} for the keys of an option; each name begins with a prefix such as `pe`.

    Keys of the yamls in the option's defaults list come first. If the option chooses options of other groups
    (`chosen_by`), the keys of those options are left out. folder: the folder of the option's group, such as `pe` or
    `pattern/kind`; empty for a verb's yaml. verb: True for a verb's yaml; the keys of the verb's groups are left out.
    Raises UserError if a defaults list names a yaml that does not exist.
    """
    options = options_of(folder, config_dir) if folder else {name: conf_dir() / f"{name}.yaml"}
    if name not in options:
        raise UserError(f"a defaults list names {folder}/{name}, which does not exist")
    text, values = read_yaml(options[name])
    beside = "/".join([folder, *name.split("/")[:-1]])  # the folder of the names in its defaults list
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
    """{key: chosen option} for the options of other groups that an option chooses.

    A key is written as a user types it, such as pe@pattern.local.pe.
    """
    typed = [
        (re.sub(r"^(override )?/", "", name), chosen) for name, chosen in defaults_of(option.values) if "/" in name
    ]
    return {name.replace("@", f"@{group}."): chosen for name, chosen in typed}


def keys_in(text: str, prefix: str) -> Iterator[Key]:
    """The keys in the text of a yaml, without those of the yamls in its defaults list."""
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
            if not getattr(value, "flow_style", True):  # a list with one line for each item
                default = as_typed(
                    [yaml.safe_load(text[item.start_mark.index : item.end_mark.index]) for item in value.value]
                )
            _, _, comment = lines[last.line][last.column :].partition("#")
            yield Key(dotted, default, comment.strip())

    root = yaml.compose(text, yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        yield from inside(root, prefix)


# -- lines of a page


def wrapped(text: str, indent: int) -> list[str]:
    """A text in lines that are indented by `indent` columns; no word and no command is broken."""
    width = max(40, min(shutil.get_terminal_size((80, 24)).columns, WIDEST))
    return console.wrapped(text, width, " " * indent)


def rows(pairs: Iterable[tuple[str, str]], widest: int = NAMES, column: int | None = None) -> Iterator[str]:
    """Lines of two columns: the words to type, and what they mean."""
    pairs = list(pairs)
    column = column or 4 + min(widest, max((len(name) for name, _ in pairs), default=0))
    for name, text in pairs:
        lines = wrapped(text, column)
        if lines and len(name) <= column - 4:
            yield f"  {name}".ljust(column) + lines.pop(0).lstrip()
        else:
            yield f"  {name}"
        yield from lines


def show(lines: Iterable[str]) -> None:
    print_document("".join(f"{escaped(line)}\n" for line in lines))


# -- all verbs


def print_verbs() -> None:
    """Print all verbs, each with a sentence."""
    sections = [
        (purpose, [(", ".join([verb.name, *verb.aliases]), verb.help) for verb in verbs])
        for purpose, verbs in groupby(VERBS, key=lambda verb: verb.purpose)
    ]
    look_up = [
        ("list [GROUP [NAME]]", "The groups, the options of one, or what one option is."),
        ("VERB --help", "The groups and keys that a verb takes."),
    ]
    lines = ["roundround VERB [KEY=VALUE ...] [FLAGS]", ""]
    lines += wrapped(
        "Where attention looks, and how sharply: experiments on positional encodings and attention normalisers.", 0
    )
    for heading, pairs in [*sections, ("Look up", look_up), ("Flags", FLAGS)]:
        lines += ["", heading, *rows(pairs, column=25)]
    lines += ["", *wrapped("After the verb comes Hydra's grammar: key=value, group=option, -m, --cfg job.", 0)]
    lines += wrapped("For a start: roundround train pe=p_rope, and when it is done roundround eval.", 0)
    show(lines)


# -- one verb


def print_verb(verb: Verb, words: list[str]) -> None:
    """Print the groups and keys that a verb takes, each with its default and a sentence.

    words: the words typed with --help. GROUP=OPTION shows the keys of that option, and --config-dir adds the user's own
    options; all other words are ignored. Raises UserError for an option that does not exist.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir")
    known, rest = parser.parse_known_args(words)
    config_dir = checked_config_dir(known.config_dir)
    groups = {} if verb.config is None else groups_of(verb)
    chosen = {group: option for group, (option, _) in groups.items() if "@" not in group}
    for group, equals, option in (word.partition("=") for word in rest):
        if equals and group in chosen and re.fullmatch(r"[\w./-]+", option):
            names = offered(verb, group, config_dir)
            if option not in (*names, "null"):
                raise UserError(f"no {group}={option}{nearest(option, names)}")
            chosen[group] = option
    word = f"[{word_of(verb)} ...] " if verb.words else "[RUN] " if verb.config is None else ""
    lines = [f"roundround {verb.name} {word}[KEY=VALUE ...]{' [FLAGS]' if verb.config else ''}", ""]
    lines += wrapped(f"{verb.help} {verb.more}", 0)
    if groups:
        lines += ["", "Groups and their options: GROUP=OPTION"]
        for group, option in chosen.items():
            lines += rows([(f"{group}={option}", groups[group][1] or GROUPS.get(group, ""))], widest=20)
            names = offered(verb, group, config_dir)
            if group == "experiment" and len(names) > MOST_EXPERIMENTS:  # the first of each folder
                few = {name.partition("/")[0]: name for name in reversed(names)}
                shown = sorted(few.values())[:MOST_EXPERIMENTS]
                names = [*shown, f"and {len(names) - len(shown)} more: roundround list experiment"]
            lines += wrapped(", ".join(names), 6)
        placed = {group: option for group, (option, _) in groups.items() if "@" in group}
        for node, members in groupby(placed, key=lambda group: group.rpartition(".")[0]):
            names = [group.rpartition(".")[2] for group in members]
            lines += rows([(f"+{node}.NAME=OPTION", f"one more besides {', '.join(names)}")], widest=20)
    lines += ["", "Keys and their defaults: KEY=VALUE", *rows_of_keys(own_keys(verb).values())]
    for group, option in chosen.items():
        keys = keys_of(group, option, "" if group == "experiment" else group, config_dir) if option != "null" else {}
        lines += ["", *rows_of_keys(keys.values())] if keys else []
    if verb.config is not None:
        lines += ["", "Flags", *rows([*FLAGS_OF_HYDRA, HELP, *own_words(verb)]), ""]
        lines += wrapped(
            "roundround list GROUP NAME explains an option. GROUP=OPTION --help shows the keys of that option.", 0
        )
    show(lines)


def own_keys(verb: Verb) -> dict[str, Key]:
    """The keys of a verb that do not belong to a group; `outputs`, which all verbs have, comes last."""
    if verb.config is None:
        return {name: Key(name, default, comment) for name, (default, comment) in verb.reads.items()}
    own = keys_of("", config_name(verb.name), "", None, verb=True)
    return own | {"outputs": own.pop("outputs")}


def rows_of_keys(keys: Iterable[Key]) -> Iterator[str]:
    return rows([(f"{key.name}={key.default}", key.comment) for key in keys])


def own_words(verb: Verb) -> Iterator[tuple[str, str]]:
    """The words and flags that a verb takes besides keys, each with the override that it is rewritten to."""
    if verb.words:
        word = word_of(verb)
        yield f"{word} ...", f"the same as {verb.words}=[{word},...]"
    if verb.filters:
        yield "other KEY=VALUE", f"the same as {verb.filters}=[KEY=VALUE,...]"
    for name, flag in verb.flags.items():
        short = "".join(f"; {word} is {name}" for word, name in flag.short.items())
        value = " NAME,NAME" if "{}" in flag.override else ""
        yield f"{name}{value}", f"the same as {flag.override.format('NAME,NAME')}{short}"


def word_of(verb: Verb) -> str:
    """The name that a verb's page gives to a word without a key, such as PATH for paths=[...]."""
    return verb.words.removesuffix("s").upper()


# -- groups and options


def print_groups() -> None:
    """Print the groups, each with a sentence."""
    show([*rows((group, GROUPS[group]) for group in group_names()), "", "roundround list GROUP lists its options."])


def print_group(group: str, config_dir: str | None) -> None:
    """Print the idea, paper and numbers of each option of a group.

    If standard output is a file or a pipe instead of a terminal, each option has one line.
    """
    found = options(group, config_dir)
    column = max(len(option.name) for option in found) + 2
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    lines = []
    for option in found:
        parts = [re.split(SENTENCES, option.idea.partition("\n")[0])[0], option.paper, option.numbers]
        if is_wide:
            lines.append(f"{option.name:<{column}}" + "  ".join(filter(None, parts)))
            continue
        first, *rest = [line for part in parts for line in wrapped(part, column)] or [""]
        lines += [f"{option.name:<{column}}{first.lstrip()}", *rest]
    show([*lines, f"roundround list {group} NAME explains one of them."])


def print_option(group: str, name: str, config_dir: str | None) -> None:
    """Print what one option is: its idea, formula and paper, its keys, and the command that uses it.

    Raises UserError for a name that does not exist.
    """
    found = options_of(group, config_dir)
    if name not in found:
        raise UserError(f"no {group}={name}{nearest(name, sorted(found))}")
    option = option_of(name, found[name], config_dir)
    is_setting = group in ("bench", "experiment")  # these give values to keys of other groups
    keys = keys_of(group, name, "" if is_setting else group, config_dir)
    lines = [f"{group}={name}"]
    for paragraph in dict.fromkeys([*re.split(PARAGRAPHS, option.idea), *option.docstring]):
        lines.append("")
        for line in paragraph.split("\n"):  # a shell command is not broken, so that it can be copied
            lines += [f" {line}"] if line.startswith(" ") else wrapped(line, 2)
    if option.layers:
        lines += ["", f"  layers: {option.layers}"]
    chosen = chosen_by(option, group)
    if option.rotates:
        pairs, _, slowest = option.rotates.partition(", ")
        lines += ["", *wrapped(ROTATION.format(pairs, slowest), 2)]
    if chosen:
        lines += ["", "Options", *rows([(f"{name}={choice}", "") for name, choice in chosen.items()])]
    keys = {name: key for name, key in keys.items() if not any(node.endswith(f"@{name}") for node in chosen)}
    if keys:
        lines += ["", "Values" if is_setting else "Keys and their defaults", *rows_of_keys(keys.values())]
    swept: Any = option.values
    for part in ("hydra", "sweeper", "params"):
        swept = swept.get(part) if isinstance(swept, dict) else None
    if isinstance(swept, dict):
        lines += ["", "Sweep", *rows([(f"{key}={as_typed(values)}", "") for key, values in swept.items()])]
    show([*lines, *(["", "Command", *wrapped(option.command, 2)] if option.command else [])])
