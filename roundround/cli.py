"""`roundround VERB [KEY=VALUE ...] [FLAGS]`: the table of verbs. No torch, no Hydra: --help is instant."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from roundround import __version__

VERBS = {
    "train": ("roundround.tasks.train:train", "Train a small language model."),
    "eval": ("roundround.tasks.evaluate:evaluate", "Perplexity of a model at several context lengths."),
    "probe": ("roundround.tasks.probe:probe", "How a model uses the frequencies of its RoPE."),
    "export": ("roundround.tasks.export:export", "A trained run as a folder for Hugging Face's transformers."),
    "max-retrieval": (
        "roundround.tasks.max_retrieval:max_retrieval",
        "Max retrieval: attention asked about ever more.",
    ),
}
ALIASES = {"maxkey": "max-retrieval"}
EVERYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    no_args_is_help=True,
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


def add(name: str, verb: str, target: str, help: str) -> None:
    @app.command(name, help=help, add_help_option=False, context_settings=EVERYTHING)
    def command(ctx: typer.Context, overrides: Overrides = None) -> None:
        from roundround.command_line.launch import dispatch

        raise typer.Exit(dispatch(verb, target, [*(overrides or []), *ctx.args]))


for _verb, (_target, _help) in VERBS.items():
    add(_verb, _verb, _target, _help)
for _alias, _verb in ALIASES.items():
    add(_alias, _verb, VERBS[_verb][0], f"The same as {_verb}.")


def groups(incomplete: str) -> list[str]:
    from roundround.command_line.catalogue import group_names

    return [name for name in group_names() if name.startswith(incomplete)]


@app.command("list", help="List what a group offers: name, idea, paper, parameters.")
def list_choices(
    group: Annotated[str, typer.Argument(help="pe, softmax, model, data, experiment, ...", autocompletion=groups)],
    config_dir: Annotated[Optional[str], typer.Option("--config-dir", "-cd", help="Your own conf folder.")] = None,  # noqa: UP045
) -> None:
    from roundround.command_line.catalogue import print_group

    raise typer.Exit(print_group(group, config_dir))


def version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="The version.")] = False,
) -> None:
    pass


def main() -> None:
    app(prog_name="roundround")
