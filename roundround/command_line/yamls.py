"""Yamls of the user's own conf folder, read with bounds: a file of a kilobyte can stand for a billion values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from roundround.config.options import conf_dir, options_in
from roundround.support.errors import UserError, one_line
from roundround.support.files import UnfitToRead, read_text

MOST_VALUES = 1_000_000
LARGEST = 16 << 20  # bytes; most have a hundred


def read_yaml(path: Path) -> tuple[str, Any]:
    """A yaml's text and its values. UserError for one that cannot be read."""
    try:
        text = read_text(path, LARGEST)
        refuse_too_large(path, text)
        return text, yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply") from error
    except ValueError as error:  # Python's limit for the digits of a whole number
        raise UserError(f"{path}: {one_line(error)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid yaml: {one_line(error)}") from error


def check_conf_folder(config_dir: str) -> None:
    """UserError for a yaml in the folder that Hydra would wait for, or that fills the memory.

    One with aliases can be larger than its text.
    """
    for path in own_yamls(config_dir):
        try:
            text = read_text(path, LARGEST)
            if "&" in text and "*" in text:
                refuse_too_large(path, text)
        except UnfitToRead as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue  # said where the file is used


def unreadable_yaml(config_dir: str) -> str | None:
    """A line about the first yaml in the folder that cannot be read, None where all can: Hydra does not name it."""
    for path in own_yamls(config_dir):
        try:
            _, values = read_yaml(path)
        except UserError as error:
            return one_line(error)
        if values is not None and not isinstance(values, dict):
            return f"{path}: must give values by name, such as theta: 100.0"
    return None


def own_yamls(config_dir: str) -> list[Path]:
    """The yamls that Hydra may read from the folder."""
    own, groups = Path(config_dir), [path.name for path in conf_dir().iterdir() if path.is_dir()]
    return [*own.glob("*.yaml"), *(path for group in groups for path in options_in(own / group).values())]


def refuse_too_large(path: Path, text: str) -> None:
    """UserError where the aliases of a yaml, written out, make more than a million values."""
    counted: dict[int, int] = {}

    def count(node: yaml.Node | None) -> int:
        if not isinstance(node, yaml.CollectionNode):
            return 1
        if id(node) not in counted:
            counted[id(node)] = MOST_VALUES  # of a node inside itself
            below = (
                node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
            )
            counted[id(node)] = min(MOST_VALUES, 1 + sum(map(count, below)))
        return counted[id(node)]

    if count(yaml.compose(text, Loader=yaml.SafeLoader)) >= MOST_VALUES:
        raise UserError(f"{path}: its aliases stand for more than {MOST_VALUES:,} values; write out fewer")
