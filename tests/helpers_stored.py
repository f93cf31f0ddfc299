"""The claims that a page of results makes of the values stored beside it.

A claim is a paragraph or a bullet with words in bold and a number.
"""

from __future__ import annotations

import re
from pathlib import Path

from results.stored import DOCS


def text_of(page: str) -> str:
    """A page and its further parts, such as length.md and length_recall.md."""
    return "\n\n".join(path.read_text() for path in [DOCS / f"{page}.md", *sorted(DOCS.glob(f"{page}_*.md"))])


def claims_of(page: str) -> dict[str, str]:
    """Paragraphs and bullets with bold words and a number, in one line each, by their first bold words."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\n|\n(?=- )", text)]
    bold = {block: re.search(r"\*\*(.+?)\*\*", block) for block in blocks if re.search(r"^[^|#<].*\d", block)}
    return {found[1]: block for block, found in bold.items() if found}


def check_listed(page: str, tests: str, not_claims: list[str]) -> None:
    """Every claim of the page is checked in this file of tests, or is named as what states no number of ours."""
    checked = re.findall(rf'check_claim\(\s*"{page}",\s*"(.+?)"', Path(tests).read_text())
    found = list(claims_of(page))
    assert len(found) == len(checked) + len(not_claims)
    for bold in found:
        assert bold.startswith((*checked, *not_claims))


def check_claim(page: str, start: str, numbers: list[str]) -> None:
    """The paragraph that starts so has all the numbers."""
    (block,) = [block for bold, block in claims_of(page).items() if bold.startswith(start)]
    for number in numbers:
        assert number in block
