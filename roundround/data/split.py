"""Plain text of any size as a stream: decoded in blocks, cut into lines or into documents by a regular expression."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from roundround.data.corpora import in_time
from roundround.support.errors import UserError

BLOCK_BYTES = 1 << 22
MARGIN = 1 << 16  # characters


def decoded(path: Path) -> Iterator[str]:
    """A UTF-8 file in pieces, line ends made `\\n`, a byte order mark dropped. UserError names file and byte offset."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    n_read = 0
    with path.open("rb") as file:
        block = b"start"
        while block:
            block = file.read(BLOCK_BYTES)
            n_read += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                offset = n_read - len(error.object) + error.start
                raise UserError(
                    f"{path}: byte {offset} (0x{error.object[error.start]:02x}) is not UTF-8; re-encode the file, "
                    f"e.g. iconv -f latin1 -t utf-8"
                ) from None
            yield text


def lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines with their `\\n`, cut at that character alone (str.splitlines would cut at ten others too)."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def split_stream(chunks: Iterable[str], separator: re.Pattern[str], *, margin: int) -> Iterator[str]:
    """What lies between the separators, as `re.split` would cut the joined chunks, groups aside.

    A separator is only accepted when `margin` characters after it have been read, so that text not yet read cannot
    change it: exact as long as no decision (a look-ahead, the length of a run) hangs on more than that, and no
    look-behind reaches further. Memory: the longest document, a chunk and the margin.
    """
    text, begin, scan, used = "", 0, 0, -1  # begin: of the document; scan: settled up to here; used: an empty separator
    for chunk in itertools.chain(chunks, [None]):
        text += chunk or ""
        settled, whole = len(text) - (margin if chunk is not None else 0), []
        with in_time(separator):
            while (found := _first(separator, text, scan, used)) and found.end() <= settled:
                whole.append(text[begin : found.start()])
                begin = scan = found.end()
                used = scan if found.start() == scan else -1
        yield from whole
        scan = max(scan, min(settled, found.start() if found else settled))
        cut = max(0, begin - margin)  # what stays in front is for look-behind
        text, begin, scan, used = text[cut:], begin - cut, scan - cut, used - cut
    yield text[begin:]


def _first(separator: re.Pattern[str], text: str, scan: int, used: int) -> re.Match[str] | None:
    """The first match from `scan` on that is not the empty one already used there."""
    return next((found for found in separator.finditer(text, scan) if found.span() != (used, used)), None)
