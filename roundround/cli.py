"""`roundround VERB [KEY=VALUE ...] [FLAGS]`: every verb as a command. --help loads neither torch nor Hydra.

Tested by tests/command_line/test_command_line.py and tests/command_line/test_printing.py.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, NoReturn, Optional

import typer

from roundround.config.verb import Verb
from roundround.support import __version__
from roundround.support.errors import Failed, OutputError, UserError, check_no_credentials, nearest
from roundround.verbs import VERBS, verb_named

COMPLETE = "_ROUNDROUND_COMPLETE"  # environment variable with which a shell asks for completions
HELP = ("-h", "--help")
EVERYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
    context_settings={"help_option_names": [*HELP]},
)


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    from roundround.command_line.pages import completions

    return completions(verb_named(str(ctx.info_name)), [*(ctx.params.get("words") or []), *ctx.args], incomplete)


Words = Annotated[Optional[list[str]], typer.Argument(autocompletion=complete)]  # noqa: UP045


def call(verb: Verb, words: list[str], typed: str = "") -> int:
    """Run a verb with the words after it; returns the exit code. typed: the verb's name or alias, as it was typed."""
    if {*HELP} & {*words}:
        from roundround.command_line.pages import print_verb

        print_verb(verb, words)
        return 0
    if verb.config is None:
        return read(verb, words)
    from roundround.command_line.launch import dispatch

    return dispatch(verb, words, typed or verb.name)


def read(verb: Verb, words: list[str]) -> int:
    """Call a verb that only reads runs, without Hydra or a run directory; returns the exit code.

    words: runs, and key=value. A word is a run if it is an existing path, even if it contains =. Raises UserError for a
    key that is given twice.
    """
    names: list[str] = []
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            raise UserError(f"no flag {word}; the only flag of {verb.name} is --help")
        if not equals or os.path.lexists(word):
            names.append(word)
        elif not key or key in values:
            raise UserError(f"{word}: {f'{key} is given twice' if key else 'write key=value'}")
        else:
            values[key] = value
    module, _, name = verb.run.partition(":")
    getattr(importlib.import_module(module), name)(names, values)
    return 0


def add(name: str, verb: Verb) -> None:
    @app.command(name, help=verb.help, add_help_option=False, context_settings=EVERYTHING)
    def command(ctx: typer.Context, words: Words = None) -> None:
        raise typer.Exit(call(verb, [*(words or []), *ctx.args], name))


for _verb in VERBS:
    for _name in (_verb.name, *_verb.aliases):
        add(_name, _verb)


@app.command("list", help="List the groups, the options of one, or what one option is: idea, formula, paper, keys.")
def list_choices(
    group: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="pe, softmax, model, data, experiment, ..."),
    ] = None,
    name: Annotated[Optional[str], typer.Argument(help="One of its options.")] = None,  # noqa: UP045
    config_dir: Annotated[Optional[str], typer.Option("--config-dir", "-cd", help="Your own conf folder.")] = None,  # noqa: UP045
) -> None:
    from roundround.command_line.pages import group_names, print_group, print_groups, print_option
    from roundround.config.options import checked_config_dir

    own = checked_config_dir(config_dir)
    if group is not None and group not in group_names():
        raise UserError(f"no group '{group}'{nearest(group, group_names())}")
    if group is None:
        print_groups()
    elif name is None:
        print_group(group, own)
    else:
        print_option(group, name, own)


def version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="The version.")] = False,
) -> None:
    pass


def leave(code: int) -> NoReturn:
    """End the process. If it failed and its run has several processes, it ends at once, without Python's cleanup.

    The cleanup takes seconds, and in this time a launcher that has seen one process end kills the others. Broken
    connections can also block the cleanup forever.
    """
    if code:
        from roundround.distributed.launcher import together

        try:
            is_one_of_several = together() is not None
        except UserError:  # the launcher's environment variables contradict each other
            is_one_of_several = False
        if is_one_of_several:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    raise SystemExit(code)


def run(args: list[str]) -> int:
    """Run the command that is typed after `roundround`; returns the exit code. An error is printed as one line.

    A verb is called directly, because Typer would import pydantic to read its words. Typer reads all other commands. It
    also completes words after TAB.
    """
    try:
        for word in args:
            check_no_credentials(word, word.partition("=")[0] if "=" in word else "an argument")
        verb = next((verb for verb in VERBS if args and args[0] in (verb.name, *verb.aliases)), None)
        code: int | None = 0
        if COMPLETE not in os.environ and args in ([], ["-h"], ["--help"]):
            from roundround.command_line.pages import print_verbs

            print_verbs()
        elif COMPLETE in os.environ or verb is None:
            code = app(args, prog_name="roundround", standalone_mode=False)
        else:
            code = call(verb, args[1:], args[0])
        sys.stdout.flush()
        return code or 0
    except Exception as error:
        from roundround.command_line.complaint import complain, outcome

        is_usage = hasattr(error, "format_message")  # Typer does not export the common class of its errors
        expected = is_usage or isinstance(error, UserError | Failed | OutputError)
        if os.environ.get("HYDRA_FULL_ERROR") == "1" and not expected:
            raise
        code, message = outcome(UserError(error) if is_usage else error)
        known = ["list", *(name for verb in VERBS for name in (verb.name, *verb.aliases))]
        return complain(args[0] if args and args[0] in known else "", message, code) if message else code
