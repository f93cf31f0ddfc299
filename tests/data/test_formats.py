"""The stream of documents equals `re.split` on the whole text, empty ones aside, whatever the pieces it comes in."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest

from roundround.data.text import split_stream, text_file

MARGIN = 8  # characters, above the reach of every pattern here
PATTERNS = [
    r"\n\s{0,4}\n",
    r"\n\n(?=On|ab)",
    r"(?<=b)\n",
    r"(?=ab)",
    r"(?=a)|ab",
    r"a|(?<=a)b?",
    r"(?m)^a",
    r"a{1,3}$",
    r"\bb+?",
    r"abO|b",
    r"zzz",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_stream_is_split_as_the_whole_text_is(pattern: str) -> None:
    rng = random.Random(pattern)
    for _ in range(300):
        text = "".join(rng.choice(["a", "b", "\n", "\n\n", " ", "On"]) for _ in range(rng.randrange(60)))
        text = re.sub(r"\s{5,}", "\n \n", text)  # runs within the margin
        text = re.sub(r"b{4,}|a{4,}", "ba", text)
        # re.split without what groups would add: the oracle
        assert re.compile(pattern).groups == 0
        expected = list(filter(None, re.split(pattern, text)))
        pieces = []
        while text:
            n = rng.choice([1, 2, 3, 7, 30])
            pieces.append(text[:n])
            text = text[n:]
        found = split_stream(pieces, re.compile(pattern), margin=MARGIN)
        assert list(filter(None, found)) == expected, repr(text)


def test_memory_stays_with_the_longest_document() -> None:
    pieces = ("word " * 20 + "\n\n" for _ in range(20_000))  # two million characters
    documents = split_stream(pieces, re.compile(r"\n\n"), margin=MARGIN)
    tracemalloc.start()
    assert all(len(document) in (0, 100) for document in documents)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000  # a quarter of the text: other threads of the test runner allocate too


def test_line_ends_are_line_feeds_and_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffh\u00e9llo\r\na\u2028b\x0bc \U0001f600\rend\n".encode())
    with text_file(path) as file:
        assert list(file) == ["h\u00e9llo\n", "a\u2028b\x0bc \U0001f600\n", "end\n"]
