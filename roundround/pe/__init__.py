"""Positional encodings: one file each, by the hooks of `base.PositionalEncoding`."""
