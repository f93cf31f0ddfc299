"""How many bytes of its text each token stands for, so that a loss can be told per byte of whatever was scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BYTES = np.dtype("uint32")  # a token that stands for a whole unknown word can have many


def bytes_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.uint32]:
    """UTF-8 bytes of the text that each token stands for, and 0 for the end of the document: [n_tokens + 1].

    offsets: (first, last + 1) character of each token, as `tokenizers` gives them. Characters that no token claims,
    such as a dropped space, count with the next token, or the last one; of tokens that share a character the first has
    all its bytes.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    up_to = np.concatenate([[0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))])
    reached = np.maximum.accumulate(up_to[[last for _, last in offsets]]) if offsets else np.empty(0, up_to.dtype)
    reached[-1:] = up_to[-1]
    return np.append(np.diff(reached, prepend=0), 0).astype(BYTES)
