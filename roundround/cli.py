"""`roundround VERB [KEY=VALUE ...] [FLAGS]`: every verb as a command. No torch, no Hydra: --help is instant.

Tested by tests/command_line/test_command_line.py and tests/command_line/test_printing.py.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperCommand

from roundround.config.verbs import VERBS, Verb
from roundround.support import __version__
from roundround.support.errors import OutputError, UserError

WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]  # Typer's UsageError, which it does not export
COMPLETE = "_ROUNDROUND_COMPLETE"  # variable: a shell asks what may stand under the cursor
EVERYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help answers in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Where attention looks, and how sharply: experiments on positional encodings and attention normalisers.",
    epilog="After the verb comes Hydra's grammar: key=value, -m, --cfg job. roundround VERB --help lists the choices.",
)


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    from roundround.command_line.completion import complete_override

    return complete_override(str(ctx.info_name), [*(ctx.params.get("overrides") or []), *ctx.args], incomplete)


Overrides = Annotated[Optional[list[str]], typer.Argument(metavar="[KEY=VALUE]...", autocompletion=complete)]  # noqa: UP045


def call(verb: Verb, words: list[str], typed: str = "") -> int:
    """Run a verb with the words behind it; the exit code. typed: the name it was called by, where that is an alias."""
    if verb.config is None:
        from roundround.command_line.readers import read

        return read(verb, words)
    from roundround.command_line.launch import dispatch

    return dispatch(verb, words, typed or verb.name)


class CommandOfHydra(TyperCommand):
    """A verb's flags are Hydra's, which Typer does not know: they are completed as its overrides are."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return [item for param in self.get_params(ctx) for item in param.shell_complete(ctx, incomplete)]


def add(name: str, verb: Verb, help: str) -> None:
    @app.command(name, cls=CommandOfHydra, help=help, add_help_option=False, context_settings=EVERYTHING)
    def command(ctx: typer.Context, overrides: Overrides = None) -> None:
        raise typer.Exit(call(verb, [*(overrides or []), *ctx.args], name))


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    from roundround.command_line.completion import complete_reader

    return complete_reader([*(ctx.params.get("words") or []), *ctx.args], incomplete)


RunWords = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="RUN|KEY=VALUE", autocompletion=complete_runs),
]


def add_reader(verb: Verb) -> None:
    @app.command(verb.name, help=f"{verb.help}\n\n{verb.more}", short_help=verb.help)
    def command(words: RunWords = None) -> None:
        raise typer.Exit(call(verb, words or []))


for _verb in VERBS:
    if _verb.config is None:
        add_reader(_verb)
    else:
        add(_verb.name, _verb, _verb.help)
        for _alias in _verb.aliases:
            add(_alias, _verb, f"The same as {_verb.name}.")


def groups(incomplete: str) -> list[str]:
    from roundround.command_line.catalogue import group_names

    return [name for name in group_names() if name.startswith(incomplete)]


@app.command("list", help="List the groups, or what one offers: name, idea, paper, parameters.")
def list_choices(
    group: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="pe, softmax, model, data, experiment, ...", autocompletion=groups),
    ] = None,
    config_dir: Annotated[Optional[str], typer.Option("--config-dir", "-cd", help="Your own conf folder.")] = None,  # noqa: UP045
) -> None:
    from roundround.command_line.catalogue import print_group, print_groups
    from roundround.config.options import checked_config_dir

    own = checked_config_dir(config_dir)
    if group is None:
        print_groups()
    else:
        print_group(group, own)


@app.command("help", help="This page, or the page of a verb.")
def help_page(verb: Annotated[Optional[str], typer.Argument(help="train, eval, ...")] = None) -> None:  # noqa: UP045
    raise typer.Exit(run([*([] if verb is None else [verb]), "--help"]))


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
    """End the process; one of several that has failed at once.

    Python takes seconds to tidy up, in which a launcher that has seen the first one go kills the others; and broken
    connections may keep it from ending at all.
    """
    if code:
        from roundround.command_line.complaint import one_of_several

        if one_of_several():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    raise SystemExit(code)


def run(args: list[str]) -> int:
    """Do what is typed after `roundround`; the exit code. What goes wrong is one line.

    A verb is called directly: Typer would import pydantic to look at its words. Typer reads the others, --help and TAB.
    """
    try:
        verb = next((verb for verb in VERBS if args and args[0] in (verb.name, *verb.aliases)), None)
        has_page = verb is not None and verb.config is None and any(word.startswith("-") for word in args)
        if verb is None or has_page or COMPLETE in os.environ:
            code: int | None = app(args or ["--help"], prog_name="roundround", standalone_mode=False)
        else:
            code = call(verb, args[1:], args[0])
        sys.stdout.flush()
        return code or 0
    except (WrongUsage, UserError, OutputError) as error:
        from roundround.command_line.complaint import complain, outcome

        code, message = outcome(UserError(error) if isinstance(error, WrongUsage) else error)
        return complain("list" if args[:1] == ["list"] else "", message, code)
