"""Tables in Markdown, read again by a Markdown parser that nobody here wrote."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from roundround.support.errors import escaped
from roundround.support.markdown import markdown_table


@pytest.mark.parametrize("text", ["|psi|^2", "a\\|b", "C:\\new", "two\nlines", "\x1b[31m", "\u2028", ""])
def test_a_cell_holds_any_text(text: str) -> None:
    tokens = MarkdownIt().enable("table").parse(markdown_table(["number", text], [[text, "1"], ["2", text]]))
    cells = ["".join(part.content for part in token.children or ()) for token in tokens if token.type == "inline"]
    shown = escaped(text.replace("\n", " "))
    assert cells == ["number", shown, shown, "1", "2", shown]
