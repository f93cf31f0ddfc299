"""roundround: where attention looks (positional encodings) and how sharply (the softmax)."""

__version__ = "0.1.0"
