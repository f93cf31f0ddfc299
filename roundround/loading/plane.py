"""Where rotary encodings lie on the plane of all ladders: how many pairs rotate, and how slow the slowest is.

Tested by tests/command_line/test_command_line.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from roundround.attention.keys import AttentionShape
from roundround.config.build import build
from roundround.config.options import load_option, options_of
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding

HEAD_DIM, TRAIN_LENGTH, FACTOR = 64, 2048, 4.0
EXPLAINED = (
    f"rotates: pairs of a head of {HEAD_DIM} channels that rotate, and the tokens in which the slowest of them turns "
    f"once; what is scaled is scaled by {FACTOR:g}"
)


def points_of_options(names: Iterable[str]) -> dict[str, str]:
    """Both numbers of each packaged option of `pe=` that is a rotary encoding, at its defaults, in words."""
    shape = AttentionShape(
        n_heads=1, n_key_heads=1, head_dim=HEAD_DIM, d_model=HEAD_DIM, layer=0, train_length=TRAIN_LENGTH
    )
    found = {}
    for name in sorted(options_of("pe").keys() & set(names)):
        node = load_option("pe", name)
        if "factor" in node and node.factor is None:
            node.factor = FACTOR
        encoding = build(node, PositionalEncoding, shape)
        if isinstance(encoding, RotaryEncoding):
            facts = encoding.facts()
            slowest = f", {facts['slowest_wavelength']:,}" if facts["rotated_pairs"] else ""
            found[name] = f"{facts['rotated_pairs']} of {facts['pairs']}{slowest}"
    return found
