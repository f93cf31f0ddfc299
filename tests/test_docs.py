"""The pages of docs/, and what docs/mkdocs/reference.py writes beside them. `make docs` checks links."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT

from roundround.command_line.pages import GROUPS, NO_OPTIONS, group_names
from roundround.config.options import conf_dir, options_of
from roundround.support import __version__
from roundround.verbs import VERBS


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("mkdocs")
    found = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "mkdocs" / "reference.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_verb_stands_in_the_reference_with_every_key_of_its_yaml(reference: ModuleType) -> None:
    page = reference.verbs_page()
    for verb in VERBS:
        _, _, section = page.partition(f"\n## {verb.name}\n")
        section = section.partition("\n## ")[0]
        assert section, verb.name
        path = conf_dir() / f"{verb.name.replace('-', '_')}.yaml"
        keys = re.findall(r"^(\w+):", path.read_text(), re.MULTILINE) if path.exists() else []
        keys = [key for key in keys if key not in ("defaults", "hydra")]
        assert [key for key in keys if f"| `{key}` |" not in section and f"| `{key}." not in section] == []


@pytest.mark.parametrize("group", group_names())
def test_every_option_stands_in_the_reference(reference: ModuleType, group: str) -> None:
    assert group in GROUPS
    headings = re.findall(r"^## (.+)$", reference.group_page(group), re.MULTILINE)
    assert headings == [
        name for name in sorted(options_of(group, None)) if not name.startswith(NO_OPTIONS.get(group, "\0"))
    ]


def test_a_variant_is_shown_with_idea_formula_paper_and_the_words_behind_its_keys(reference: ModuleType) -> None:
    section = reference.group_page("pe").partition("\n## p_rope\n")[2].partition("\n## ")[0]
    assert "RoPE without its slowest frequencies" in section
    assert "```\ng_k = theta^(-2k / head_dim)" in section
    assert "arXiv:2410.06205" in section
    assert "| `pe.p` | `0.75` |" in section
    assert "| `pe.theta` | `null` | base of the frequencies; null: the loaded model's or the pattern's" in section


def test_text_that_markdown_would_read_otherwise_stays_text(reference: ModuleType) -> None:
    assert reference.escaped("a*b <eos> [B, T] `x_y|z` c_d") == r"a\*b &lt;eos&gt; \[B, T\] `x_y\|z` c\_d"


def test_a_seed_of_the_standard_set_takes_the_hours_of_the_table_of_results() -> None:
    files = (ROOT / "roundround" / "standings" / "v2" / "default").glob("*.json")
    minutes = [made["minutes"] for file in files for made in json.loads(file.read_text())["made"]]
    assert (
        f"| {statistics.median(minutes) / 60:.1f} a seed |" in (ROOT / "docs" / "results" / "questions.md").read_text()
    )


def test_every_page_that_code_and_yamls_name_is_there() -> None:
    places = [path for name in ("roundround", "conf", "benchmarks", "tests") for path in (ROOT / name).rglob("*.*")]
    places += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
    text = "".join(path.read_text(encoding="utf-8") for path in places if path.suffix in ("", ".py", ".yaml", ".md"))
    named = set(re.findall(r"(?<![\w/])docs/[\w/]+\.(?:md|csv|svg)\b", text))
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M):
        shown = re.sub(r"[*`]|(?<!\w)_|_(?!\w)", "", re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading))
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{n}" if n else anchor for anchor, last in found.items() for n in range(last + 1)}


def dead_links(pages: list[Path]) -> list[str]:
    """The links to files and headings that are not there in a checkout, without a build."""
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)", prose):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                found.append(f"{page.name}: {link}")
    return found


def test_every_link_of_the_unbuilt_pages_leads_to_a_file_and_a_heading() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    assert len(pages) > 40
    assert dead_links(pages) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A & `b_c`: [d](e.md)\n\n# Twice\n\n# Twice\n\n```\n# no heading [x](y.md)\n```\n`[x](y.md)`\n")
    assert anchors(page.read_text()) == {"a--b_c-d", "twice", "twice-1"}
    right = "[1](page.md) [2](#here) [3](page.md#a--b_c-d) [4](https://example.org/#x) ![5](page.md#twice-1)"
    wrong = ["page.md#a-b_c-d", "#there", "other.md", "page.md#twice-2", "page.md#no-heading-x"]
    other = tmp_path / "links.md"
    other.write_text(f"# Here\n{right}\n" + " ".join(f"[w]({link})" for link in wrong))
    assert dead_links([other]) == [f"links.md: {link}" for link in wrong]


def test_the_start_page_names_every_howto_and_reference_page() -> None:
    table = (ROOT / "docs" / "index.md").read_text().partition("## Which page do I need?")[2]
    pages = [path for name in ("howto", "reference") for path in (ROOT / "docs" / name).glob("*.md")]
    assert [path.name for path in pages if f"({path.parent.name}/{path.name})" not in table] == []


def test_the_citation_names_the_version_and_the_start_page_the_citation() -> None:
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()
    assert "`CITATION.cff`" in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("p-RoPE", "reference/encodings.md"), ("Add a normaliser", "howto/normaliser.md"),
        ("Add an encoding", "howto/encoding.md"), ("seeds", "howto/seeds.md"), ("training loop", "howto/your_code.md"),
        ("Fine-tune", "howto/model.md"), ("Slurm", "howto/clusters.md"),
    ],
)  # fmt: skip
def test_what_is_searched_for_stands_in_a_heading_of_its_page(words: str, page: str) -> None:
    """The search puts pages with all words in a heading first."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert any(words in heading for heading in headings)


def test_a_hyphen_parts_words_in_the_index_as_in_what_is_typed() -> None:
    separator = re.findall(r"separator: '(.+?)'  #", (ROOT / "docs" / "mkdocs" / "mkdocs.yml").read_text())[0]
    assert re.split(separator, "p-RoPE, softmax.k=32 at 0.5") == ["p", "RoPE", "softmax", "k", "32", "at", "0.5"]


def test_no_page_is_long() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    lengths = {str(path): path.read_text().count("\n") for path in pages}
    assert {path: n for path, n in lengths.items() if n > (140 if "README" in path else 200)} == {}


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src=https://example.org/a.png>',
    ],
)
def test_a_page_that_asks_the_network_is_found(reference: ModuleType, tmp_path: Path, page: str) -> None:
    (tmp_path / "good.html").write_text('<a href="https://arxiv.org/abs/1">paper</a><img src="figure.svg">')
    assert reference.from_the_network(tmp_path) == []
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "style.css").write_text("@font-face { src: url('https://example.org/a.woff2') }")
    assert [line.split(":")[0] for line in reference.from_the_network(tmp_path)] == ["page.html", "style.css"]
