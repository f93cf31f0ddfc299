"""What mkdocs asks while it builds the pages: the reference is written here, from the yamls and the docstrings.

`reference/verbs.md` has every verb with its keys, and `reference/groups/GROUP.md` every option of a group with idea,
formula and paper. Both are what the program itself reads, so they cannot say anything else. A page that would ask the
network for a script, a style, a picture or a font stops the build.

Tested by tests/test_docs.py.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from roundround.command_line.pages import GROUPS, Option, groups_of, keys_of, options, own_keys
from roundround.config.verb import Verb
from roundround.verbs import VERBS

WIDE = {"index.md": ["navigation"], "results.md": ["toc"], "results/questions.md": ["toc"]}
BOOSTS = {  # in the search: pages that explain come first, long lists last
    "reference/glossary.md": 4, "reference/encodings.md": 2, "howto/normaliser.md": 2, "howto/encoding.md": 2,
    "results.md": 2, "results/reproduction.md": 0.2, "results/questions.md": 0.5,
    "reference/groups/experiment.md": 0.2, "reference/groups/pe.md": 0.3,
}  # fmt: skip
FROM_THE_NETWORK = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
STYLE_FROM_THE_NETWORK = re.compile(r"(?:url\(|@import\s*)[\"' ]*(?:https?:)?//[^)\"';]*")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of docs/."""
    pages = {"reference/verbs.md": verbs_page(), "reference/groups/index.md": groups_page()}
    pages |= {f"reference/groups/{group}.md": group_page(group) for group in GROUPS}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=with_links(text, "../" * place.count("/"))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Wide pages leave out what would stand beside them; the search is told what to show first."""
    page.meta["hide"] = WIDE.get(page.file.src_uri, [])
    page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri, 1)}
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that asks the network for anything that a page is made of."""
    found = from_the_network(Path(config.site_dir))
    if found:
        raise PluginError("these are asked of the network: " + "; ".join(found))


def from_the_network(site: Path) -> list[str]:
    """Every script, style, picture and font of a built site that does not lie in it, as `file: what`."""
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        pattern = FROM_THE_NETWORK if path.suffix == ".html" else STYLE_FROM_THE_NETWORK
        text = path.read_text(encoding="utf-8")
        found += [
            f"{path.relative_to(site)}: {what}" for what in pattern.findall(text) if 'rel="canonical"' not in what
        ]
    return found


# -- the pages


def verbs_page() -> str:
    return (
        "# Verbs and their keys\n\nWritten at build time from the yamls that the program reads. "
        "`roundround VERB --help` prints the same; `--cfg job` prints the config that would run.\n"
        + "".join(verb_section(verb) for verb in VERBS)
    )


def verb_section(verb: Verb) -> str:
    """A verb's sentence, and a table of its groups and keys with their defaults."""
    parts = [f"\n## {verb.name}\n\n{verb.help}"]
    parts += [f" {escaped(verb.more)}"] if verb.more else []
    parts += [f" Also typed `{'`, `'.join(verb.aliases)}`."] if verb.aliases else []
    rows = []
    for group, (option, comment) in (groups_of(verb) if verb.config is not None else {}).items():
        name = f"[{group}](groups/{group}.md)" if group in GROUPS else f"`{group}`"
        rows.append((name, option, comment or GROUPS.get(group, "")))
    rows += [(f"`{key.name}`", key.default, key.comment) for key in own_keys(verb).values()]
    parts += ["\n\n", table(("key", "default", "what it is"), rows)]
    for flag, what in verb.flags.items():
        parts += [f"\n`{flag}` stands for `{what.override}`.\n"]
    return "".join(parts)


def groups_page() -> str:
    return (
        "# Groups of options\n\nA group is chosen by `GROUP=OPTION`, and a value of the option by `GROUP.KEY=VALUE`. "
        "An option of your own is a yaml in a folder that `--config-dir` names.\n\n"
        + "| group | what it decides |\n|---|---|\n"
        + "".join(f"| [`{group}`]({group}.md) | {idea} |\n" for group, idea in GROUPS.items())
    )


def group_page(group: str) -> str:
    """Every option of a group: idea, formula, paper, what else its class says, and its keys."""
    intro = f"# {group}=\n\n{GROUPS[group]} Written at build time from `conf/{group}` and the docstrings.\n"
    return intro + "".join(option_section(group, option) for option in options(group, None))


def option_section(group: str, option: Option) -> str:
    """The command that uses it, the remarks of its yaml, its class's docstring, its keys with their comments."""
    parts = [f"\n## {option.name}\n"]
    parts += [f"\n```\n{option.command}\n```\n"] if option.command else []
    parts += ["\n" + escaped(option.idea) + "\n"] if option.idea not in option.docstring else []
    for number, paragraph in enumerate(option.docstring):
        is_formula = number == 1 and "arXiv" not in paragraph
        parts += [f"\n```\n{paragraph}\n```\n" if is_formula else f"\n{escaped(paragraph)}\n"]
    parts += [f"\nLayers: `{option.layers}`\n"] if option.layers else []
    if option.rotates:
        pairs, _, slowest = option.rotates.partition(", ")
        n, _, of = pairs.partition(" of ")
        parts += [f"\nIn a head of {2 * int(of)} channels {n} of {of} pairs rotate"]
        parts += [f"; the slowest turns once in {slowest} tokens.\n" if slowest else ".\n"]
    is_setting = group in ("bench", "experiment")  # which give values to keys of others
    keys = keys_of(group, option.name, "" if is_setting else group, None).values()
    rows = [(f"`{key.name}`", key.default, key.comment) for key in keys]
    return "".join(parts) + ("\n" + table(("key", "value", "what it is"), rows) if rows else "")


def with_links(text: str, up: str) -> str:
    """The page with its mentions of `docs/PAGE.md` as links."""
    return re.sub(
        r"(?<![\w/(`])docs/([\w/\\]+\.md)", lambda found: f"[{found[1]}]({up}{found[1].replace(chr(92), '')})", text
    )


def table(heads: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    n = 3 if any(comment for *_, comment in rows) else 2
    cells = [(key, f"`{shortened(value)}`", escaped(comment)) for key, value, comment in rows]
    lines = [f"| {' | '.join(heads[:n])} |", "|" + "---|" * n, *(f"| {' | '.join(row[:n])} |" for row in cells)]
    return "\n".join(lines) + "\n"


def shortened(value: str) -> str:
    return (value if len(value) < 200 else value[:200] + " ...").replace("|", "\\|")


def escaped(text: str) -> str:
    """Plain text for a page: code in backticks stays, and what Markdown or HTML would read otherwise is text."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*_\[\]|~])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "".join(parts)
