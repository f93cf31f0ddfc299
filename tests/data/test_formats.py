"""The stream of documents equals `re.split` on the whole text, whatever the pieces it comes in."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest

from roundround.data import text as formats
from roundround.data.text import decoded, lines, split_stream
from roundround.support.errors import UserError

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
        expected = re.split(pattern, text)
        pieces = []
        while text:
            n = rng.choice([1, 2, 3, 7, 30])
            pieces.append(text[:n])
            text = text[n:]
        assert list(split_stream(pieces, re.compile(pattern), margin=MARGIN)) == expected, repr(text)


def test_a_separator_may_be_longer_than_the_margin() -> None:
    text = "a" + "\n" * 50 + "b\n \nc"
    assert list(split_stream(text, re.compile(r"\n\s*\n"), margin=2)) == ["a", "b", "c"]


def test_groups_add_nothing() -> None:
    assert list(split_stream(["a-b", "-c"], re.compile("(-)"), margin=1)) == ["a", "b", "c"]


def test_a_real_text_is_cut_as_the_whole_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydoc_data.topics import topics  # half a megabyte of Python's documentation

    path = tmp_path / "topics.txt"
    path.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    pattern = r"\n\n(?=The |If )"
    monkeypatch.setattr(formats, "BLOCK_BYTES", 10_007)
    found = list(split_stream(decoded(path), re.compile(pattern), margin=100))
    assert found == re.split(pattern, path.read_text(encoding="utf-8"))
    assert len(found) > 200


def test_memory_stays_with_the_longest_document() -> None:
    pieces = ("word " * 20 + "\n\n" for _ in range(20_000))  # two million characters
    documents = split_stream(pieces, re.compile(r"\n\n"), margin=MARGIN)
    tracemalloc.start()
    assert all(len(document) in (0, 100) for document in documents)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1 << 20])
def test_decoding_in_blocks_is_decoding_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(formats, "BLOCK_BYTES", block)
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffh\u00e9llo\r\n\u65e5\u672c \U0001f600\rend\n".encode())
    assert "".join(decoded(path)) == "h\u00e9llo\n\u65e5\u672c \U0001f600\nend\n"
    assert list(lines(decoded(path))) == ["h\u00e9llo\n", "\u65e5\u672c \U0001f600\n", "end\n"]


def test_lines_are_cut_at_line_feeds_alone() -> None:
    assert list(lines(["a\u2028b\x0bc", "\n\nd"])) == ["a\u2028b\x0bc\n", "\n", "d"]


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"])
def test_the_undecodable_byte_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, head: bytes
) -> None:
    monkeypatch.setattr(formats, "BLOCK_BYTES", block)
    path = tmp_path / "latin.txt"
    path.write_bytes(head + "ok \u00e9 ".encode() + b"caf\xe9 au lait")
    offset = len(head) + 6 + 3
    with pytest.raises(UserError, match=rf"latin.txt: byte {offset} \(0xe9\) is not UTF-8; re-encode.*utf-8$"):
        list(decoded(path))


def test_a_character_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_bytes("abc\u65e5".encode()[:-1])
    with pytest.raises(UserError, match=r"byte 3 \(0xe6\)"):
        list(decoded(path))
