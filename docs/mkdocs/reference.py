"""What mkdocs asks while it builds the pages: the reference is written here, from the yamls and the docstrings.

`reference/verbs.md` has every verb with its keys, and `reference/groups/GROUP.md` every option of a group with idea,
formula and paper. Both are what the program itself reads, so they cannot say anything else. A page that would ask the
network for a script, a style, a picture or a font stops the build.

Tested by tests/test_docs.py.
"""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from roundround.command_line.catalogue import GROUPS
from roundround.config.options import conf_dir, options_of
from roundround.config.verbs import VERBS, Verb

WIDE = {"index.md": ["navigation"], "results.md": ["toc"]}
ROTATES = re.compile(r"rotates: (\d+) of (\d+)(?:, ([\d,.]+))?")
ROOT = Path(__file__).resolve().parents[2]
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
    """Wide pages leave out what would stand beside them."""
    page.meta["hide"] = WIDE.get(page.file.src_uri, [])
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
    parts = ["# Verbs and their keys\n\nWritten at build time from the yamls that the program reads. `roundround "]
    parts += [
        "VERB --help` prints the same keys with the groups' options; `--cfg job` prints the config that would run.\n"
    ]
    return "".join(parts) + "".join(verb_section(verb) for verb in VERBS)


def verb_section(verb: Verb) -> str:
    """A verb's sentence, and a table of its keys with their defaults."""
    parts = [f"\n## {verb.name}\n\n{verb.help}"]
    parts += [f" {escaped(verb.more)}"] if verb.more else []
    parts += [f" Also typed `{'`, `'.join(verb.aliases)}`."] if verb.aliases else []
    path = conf_dir() / f"{verb.name.replace('-', '_')}.yaml"
    parts += ["\n"]
    if path.exists():
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        comments = comments_of(text)
        chosen = [entry for entry in values.pop("defaults", []) if isinstance(entry, dict)]
        groups = {name: value for entry in chosen for name, value in entry.items() if name in GROUPS}
        rows = [
            (f"[{name}](groups/{name}.md)", value, comments.get(name, GROUPS[name])) for name, value in groups.items()
        ]
        rows += [(f"`{key}`", value, comments.get(key, "")) for key, value in values.items() if key != "hydra"]
        parts += ["\n", table(("key", "default", "what it is"), rows)]
    for flag, what in verb.flags.items():
        parts += [f"\n`{flag}` stands for `{what.override}`.\n"]
    return "".join(parts)


def groups_page() -> str:
    rows = [(f"[`{group}`]({group}.md)", idea) for group, idea in GROUPS.items()]
    return (
        "# Groups of options\n\nA group is chosen by `GROUP=OPTION`, and a value of the option by `GROUP.KEY=VALUE`. "
        "An option of your own is a yaml in a folder that `--config-dir` names.\n\n"
        + "| group | what it decides |\n|---|---|\n"
        + "".join(f"| {name} | {idea} |\n" for name, idea in rows)
    )


def group_page(group: str) -> str:
    """Every option of a group: idea, formula, paper, what else its class says, and its numbers."""
    parts = [f"# {group}=\n\n{GROUPS[group]} Written at build time from `conf/{group}` and the docstrings.\n"]
    for name, path in sorted(options_of(group, None).items()):
        text = path.read_text(encoding="utf-8")
        parts += [f"\n## {name}\n", option(text, yaml.safe_load(text) or {})]
    return "".join(parts)


def option(text: str, values: dict[str, Any]) -> str:
    """An option's section: the remarks of its yaml, its class's docstring, its values with their comments."""
    remarks = [
        line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#") and "@package" not in line
    ]
    parts = [f"\n```\n{remarks[0]}\n```\n"] if remarks and remarks[0].startswith("roundround ") else []
    own = [line for line in remarks[1:] if not ROTATES.match(line)]
    parts += ["\n" + escaped(" ".join(own)) + "\n"] if own else []
    docstring = docstring_of(str(values.get("_target_", "")))
    for number, paragraph in enumerate(filter(None, docstring.split("\n\n"))):
        is_formula = number == 1 and "arXiv" not in paragraph
        parts += [f"\n```\n{paragraph}\n```\n" if is_formula else f"\n{escaped(paragraph)}\n"]
    for n, of, slowest in ROTATES.findall(text):
        parts += [f"\nIn a head of {2 * int(of)} channels {n} of {of} pairs rotate"]
        parts += [f"; the slowest turns once in {slowest} tokens.\n" if slowest else ".\n"]
    comments = comments_of(text)
    shown = {key: value for key, value in values.items() if key not in ("_target_", "hydra", "defaults", "kind")}
    if shown:
        rows = [(f"`{key}`", value, comments.get(key, "")) for key, value in shown.items()]
        parts += ["\n", table(("key", "value", "what it is"), rows)]
    return "".join(parts)


def with_links(text: str, up: str) -> str:
    """The page with its mentions of `docs/PAGE.md` as links."""
    return re.sub(
        r"(?<![\w/(`])docs/([\w/\\]+\.md)", lambda found: f"[{found[1]}]({up}{found[1].replace(chr(92), '')})", text
    )


def table(heads: tuple[str, ...], rows: list[tuple[str, Any, str]]) -> str:
    n = 3 if any(comment for *_, comment in rows) else 2
    cells = [(key, f"`{as_yaml(value)}`", escaped(comment)) for key, value, comment in rows]
    lines = [f"| {' | '.join(heads[:n])} |", "|" + "---|" * n, *(f"| {' | '.join(row[:n])} |" for row in cells)]
    return "\n".join(lines) + "\n"


def as_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("\n...")
    return (text if len(text) < 200 else text[:200] + " ...").replace("|", "\\|")


def comments_of(text: str) -> dict[str, str]:
    """What the comment behind each key of the first level says, and those of the defaults list by group."""
    return dict(re.findall(r"^(?:  - )?(\w+):[^#\n]*#\s*(.*)$", text, re.MULTILINE))


def docstring_of(target: str) -> str:
    """The docstring of the class that a `_target_` names, read off its source; empty where it is not one of ours."""
    module, _, name = target.rpartition(".")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith("roundround.") or not path.exists():
        return ""
    found = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
    return next((ast.get_docstring(node) or "" for node in found if node.name == name), "")


def escaped(text: str) -> str:
    """Plain text for a page: code in backticks stays, and what Markdown or HTML would read otherwise is text."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([*_\[\]|~])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "".join(parts)
