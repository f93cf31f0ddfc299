"""`roundround VERB [KEY=VALUE ...] [FLAGS]`: the table of verbs. No torch, no Hydra: --help is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperCommand

from roundround import __version__
from roundround.support.errors import OutputError, UserError, one_line

VERBS = {
    "prepare": ("roundround.verbs.prepare:prepare", "Tokenise a corpus once, in parallel, into shards."),
    "train": ("roundround.verbs.train:train", "Train a small language model."),
    "eval": (
        "roundround.verbs.evaluate:evaluate",
        "Perplexity of a model, or right answers to a task, at several lengths.",
    ),
    "probe": ("roundround.verbs.probe:probe", "How a model uses the frequencies of its RoPE."),
    "theory": ("roundround.verbs.theory:theory", "Every statement of the papers as a check that could fail."),
    "reproduce": ("roundround.verbs.reproduce:reproduce", "The papers' figures and tables, made again and compared."),
    "compare": ("roundround.verbs.compare:compare", "Runs compared: means over seeds, intervals, paired tests."),
    "rerun": ("roundround.verbs.rerun:rerun", "A run once more: do its numbers come out the same?"),
    "export": ("roundround.verbs.export:export", "A trained run as a folder for Hugging Face's transformers."),
    "max-retrieval": (
        "roundround.verbs.max_retrieval:max_retrieval",
        "Max retrieval: attention asked about ever more.",
    ),
}
ALIASES = {"maxkey": "max-retrieval"}
READERS = {  # verbs that only read runs: their words are runs, and key=value
    "runs": (
        "roundround.verbs.runs:runs",
        "The runs there are, newest first.",
        "RUN is a folder of runs, or a pattern in quotes; without one, all under outputs=DIR. KEY=VALUE chooses: "
        "verb=train status=failed,died since=2d pe=p_rope optim.lr=1e-3. Also limit=30 or all, format=table or json.",
    ),
    "show": (
        "roundround.verbs.show:show",
        "One run on a screen: settings, results, curves, files.",
        "RUN is a run directory, last, or last~3, the third before it; verb=train and outputs=DIR say among which.",
    ),
    "report": (
        "roundround.verbs.report:report",
        "One HTML page for a run, written into its directory.",
        "RUN as for show, a sweep or a pattern: a page for each. open=true shows it in the browser, to=FILE.html "
        "writes it elsewhere.",
    ),
}
WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]  # Typer's UsageError, which it does not export
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

    verb = ALIASES.get(str(ctx.info_name), str(ctx.info_name))
    return complete_override(verb, [*(ctx.params.get("overrides") or []), *ctx.args], incomplete)


Overrides = Annotated[Optional[list[str]], typer.Argument(metavar="[KEY=VALUE]...", autocompletion=complete)]  # noqa: UP045


class Verb(TyperCommand):
    """A verb's flags are Hydra's, which Typer does not know: they are completed as its overrides are."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return [item for param in self.get_params(ctx) for item in param.shell_complete(ctx, incomplete)]


def add(name: str, verb: str, target: str, help: str) -> None:
    @app.command(name, cls=Verb, help=help, add_help_option=False, context_settings=EVERYTHING)
    def command(ctx: typer.Context, overrides: Overrides = None) -> None:
        from roundround.command_line.launch import dispatch

        raise typer.Exit(dispatch(verb, target, [*(overrides or []), *ctx.args]))


for _verb, (_target, _help) in VERBS.items():
    add(_verb, _verb, _target, _help)
for _alias, _verb in ALIASES.items():
    add(_alias, _verb, VERBS[_verb][0], f"The same as {_verb}.")


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    from roundround.command_line.completion import complete_reader

    return complete_reader([*(ctx.params.get("words") or []), *ctx.args], incomplete)


RunWords = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="RUN|KEY=VALUE", autocompletion=complete_runs),
]


def add_reader(name: str, target: str, help: str, more: str) -> None:
    @app.command(name, help=f"{help}\n\n{more}", short_help=help)
    def command(words: RunWords = None) -> None:
        from roundround.command_line.readers import read

        raise typer.Exit(read(name, target, words or []))


for _verb, (_target, _help, _more) in READERS.items():
    add_reader(_verb, _target, _help, _more)


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
    """Do what is typed after `roundround`; the exit code. What goes wrong is one line."""
    try:
        code: int | None = app(args or ["--help"], prog_name="roundround", standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except WrongUsage as error:
        message, code = one_line(error), 2
    except UserError as error:
        message, code = one_line(error), 2
    except OutputError as error:
        message, code = one_line(error), 1
    from roundround.command_line.complaint import complain

    return complain("list" if args[:1] == ["list"] else "", message, code)
