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


def whole(part: str) -> re.Pattern[str]:
    """The words or numbers, where they are no piece of a longer number or of one with another sign."""
    return re.compile(rf"(?<![\w.+\u2212-]){re.escape(part)}(?!\w|[.,]\d)")


def check_claim(page: str, start: str, numbers: list[str]) -> None:
    """The paragraph that starts so has all the numbers, in this order."""
    (block,) = [block for bold, block in claims_of(page).items() if bold.startswith(start)]
    behind = 0
    for number in numbers:
        found = whole(number).search(block, behind)
        assert found, f"{number!r} is not behind {block[:behind]!r}"
        behind = found.end()


# digits that are no numbers: names, and what a link points to
NAMES = re.compile(
    r"\]\([^)]*\)|Gemma 3( 270M)?|Gemma 7B|Ministral 3|SmolLM2-135M|stories260[Kk]|WikiText-2|Table 2|Theorem 6\.1"
)
WORDS = "two three four five six seven eight nine ten eleven twelve sixteen forty twice half quarter eighths"
NUMBERS = re.compile(rf"\d|\b({WORDS.replace(' ', '|')})\b", re.IGNORECASE)


def check_all_numbers(text: str, *said: str) -> None:
    """Each of `said` stands in the text once, and no number, in digits or in words, stands there beside them."""
    for part in said:
        text, n = whole(part).subn("", text)
        assert n == 1, f"{part!r} stands {n} times in {text!r}"
    left = NAMES.sub("]", text)
    assert not NUMBERS.search(left), f"not checked: {left!r}"
