"""Checks a config node against the constructor that it names, and builds the object; checks a verb's whole config.

A node has a `_target_` (a class) and the values of the keyword-only parameters of its constructor. Hydra would pass a
wrong name or type on to Python, and would accept the added name in `+typo=1`. Here each of these errors has one
line that names the key.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roundround.config.private import where
from roundround.config.renamed import let_old_names_import, today
from roundround.support.errors import UserError, nearest, one_line

T = TypeVar("T")
NOT_PARAMETERS = {"_target_", "kind"}  # `kind` says which verbs may use a model


def build(node: DictConfig, family: type[T], *args: Any, **runtime: Any) -> T:
    """The object that `node` describes.

    family: the base class of the object. args, runtime: arguments that are not in the node, because only the caller
    knows them. Raises UserError if the node is wrong, or if the constructor rejects a value.
    """
    return constructed(node, family, checked_values(node, family, runtime), *args, **runtime)


def constructed(node: DictConfig, family: type[T], checked: Mapping[str, Any], *args: Any, **runtime: Any) -> T:
    """The object that `node` describes. checked: the values of the node, from `checked_values`."""
    target = target_class(node, family)
    parts: dict[str, Any] = {
        key: {str(name): build(node[key][name], part) for name in node[key]}
        for key, part in named_parts(target).items()
    }
    try:
        built: T = target(*args, **{**checked, **parts}, **runtime)
    except (ValueError, TypeError, OverflowError) as error:  # the last two if an annotation could not be checked
        raise UserError(f"{where(node)}: {one_line(error)}") from error
    return built


def named_parts(target: type) -> dict[str, type]:
    """{parameter: class of the values} for parameters that map names to objects, for example `Mapping[str, Corpus]`."""
    hints = constructor_hints(target)
    parts = {key: typing.get_args(hint)[1] for key, hint in hints.items() if typing.get_origin(hint) is Mapping}
    named = {key: part for key, part in parts.items() if isinstance(part, type)}
    return {key: part for key, part in named.items() if part.__module__.startswith("roundround.")}


def maker(node: DictConfig, family: type[T]) -> Callable[..., T]:
    """A function that builds a new object at every call, for example for each layer; values are checked only once."""
    checked = cache(lambda names: checked_values(node, family, names))
    return lambda *args, **runtime: constructed(node, family, deepcopy(checked(frozenset(runtime))), *args, **runtime)


def checked_values(node: DictConfig, family: type, runtime: Iterable[str]) -> dict[str, Any]:
    """The node's values as plain Python, converted to the types of the constructor's parameters.

    runtime: the names of the parameters that the caller supplies.
    """
    hints, required = constructor_options(target_class(node, family), frozenset(runtime))
    given = [key for key in map(str, node) if key not in NOT_PARAMETERS]  # `key in node` is False for the value ???
    for key in given:
        if key not in hints:
            raise UserError(f"{where(node)} has no parameter '{key}'{nearest(key, hints)}")
    missing = [key for key in required if key not in given]
    keys = [*given, *missing]  # the others keep the constructor's default
    values = plain(node)
    return {key: typed_value(values.get(key, MISSING), hints[key], f"{where(node)}.{key}") for key in keys}


def typed_value(value: Any, hint: Any, name: str) -> Any:
    """The value of a config key, as plain Python of the type `hint`.

    A string is never turned into a number. If the hint is a list, a single value, as in length=512, becomes a list of
    one item. name: the key in the config. Raises UserError for a wrong type, or if there is no value.
    """
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value == MISSING or (value is None and not {Any, types.NoneType} & {*parts}):
        raise UserError(f"{name} has no value; give {name}=...")
    if any(typing.get_origin(part) is list for part in parts) and isinstance(value, bool | int | float | str):
        value = [value]
    schema = schema_of(hint)
    try:
        OmegaConf.update(schema, "value", literal(value), force_add=False)
        return plain(schema.value)
    except OmegaConfBaseException as error:
        raise UserError(f"{name}: {without_place(error)}") from error


def plain(value: Any) -> Any:
    """A value of a config as plain Python, with interpolations resolved."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def literal(value: Any) -> Any:
    """Plain Python, with its strings escaped, so that a config does not resolve a "${...}" in them."""
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def without_place(error: Exception) -> str:
    """OmegaConf's message in one line, without the key that OmegaConf appends."""
    return one_line(error).split(" full_key:")[0]


def target_class(node: DictConfig, family: type) -> type:
    """The class that the node names. Raises UserError if it does not exist or is no subclass of `family`."""
    name = node.get("_target_")
    if not isinstance(name, str):
        raise UserError(f"{where(node)} has no _target_; give one that names a subclass of {family.__name__}")
    from hydra.utils import get_class  # Hydra is not imported for verbs that only read runs

    try:
        if not name.startswith("roundround."):
            let_old_names_import()
        target = get_class(today(name))
    except Exception as error:  # importing a user's module may raise anything
        raise UserError(f"{where(node)}._target_={name} cannot be imported: {one_line(error)}") from error
    if not issubclass(target, family):
        raise UserError(f"{where(node)}._target_={name} is not a {family.__name__}")
    return target


@cache
def constructor_options(target: type, runtime: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """(types, required) of the constructor's keyword-only parameters, without the parameters in `runtime`.

    types: {name: type} of the parameters. required: the names of the parameters without a default.
    """
    hints = constructor_hints(target)
    signature = inspect.signature(target).parameters.values()
    ours = [p for p in signature if p.kind is p.KEYWORD_ONLY and p.name not in runtime]
    return {p.name: config_type(hints.get(p.name)) for p in ours}, [p.name for p in ours if p.default is p.empty]


def constructor_hints(target: type) -> dict[str, Any]:
    """The types of the constructor's parameters; empty if its annotations cannot be used to check values.

    Lightning's annotations exclude some values that a yaml can give. Annotations that use names imported only for type
    checkers cannot be evaluated.
    """
    constructor: Any = target.__init__  # type: ignore[misc]
    if target.__module__.startswith("lightning"):  # a library's annotations may be narrower than what a yaml may give
        return {}
    try:
        return typing.get_type_hints(constructor)
    except NameError:  # a name imported for type checkers only
        return {}


def config_type(hint: Any) -> Any:
    """The hint if OmegaConf can check it (numbers, strings, lists of these, each perhaps optional), otherwise Any."""
    if typing.get_origin(hint) is Sequence:  # OmegaConf knows only list
        hint = list[typing.get_args(hint)]  # type: ignore[misc]
    try:
        schema_of(hint)
    except OmegaConfBaseException:
        return Any
    return hint


def schema_of(hint: Any) -> Any:
    """A config with one key, `value`, whose type is the hint."""
    return OmegaConf.structured(dataclasses.make_dataclass("Values", [("value", hint, MISSING)]))


# -- the whole config of a verb


def checked(schema: type[T], cfg: DictConfig, below: str = "") -> T:
    """The composed config as an object of the verb's dataclass, `schema`.

    Nodes stay DictConfig until `build` makes objects from them. A field whose type is a dataclass is converted too.
    below: the prefix of keys in messages. Raises UserError for an unknown key, a wrong type or a value out of range.
    """
    declared = {field.name: field for field in fields(schema)}  # type: ignore[arg-type]
    names = dict(item for base in reversed(schema.__mro__) for item in vars(sys.modules[base.__module__]).items())
    nodes = {name for name, field in declared.items() if re.search(r"Node\[|\bAny$", str(field.type))}
    others = {name: field.type for name, field in declared.items() if name not in nodes}
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=others), names)
    values: dict[str, Any] = {}
    given: Any = OmegaConf.to_container(cfg, resolve=True)
    required = [name for name, field in declared.items() if field.default is dataclasses.MISSING]
    for key in dict.fromkeys([*map(str, cfg), *required]):
        if key not in declared:
            raise UserError(f"no config key '{below}{key}'{nearest(key, declared)}")
        part = hints.get(key)  # None for a node
        if part is not None and not dataclasses.is_dataclass(part):
            values[key] = typed_value(given.get(key, MISSING), part, f"{below}{key}")
            continue
        node = OmegaConf.select(cfg, key)
        if isinstance(node, DictConfig):
            values[key] = checked(part, node, f"{key}.") if isinstance(part, type) else node
        elif node is None and declared[key].default is None:
            values[key] = None
        else:
            raise UserError(f"{below}{key} must map names to values, and it is {node}")
    config = schema(**values)
    config.check()  # type: ignore[attr-defined]
    return config
