"""Checks of the numbers that encodings and normalisers are given.

Tested by tests/pe/test_pe_contract.py and tests/softmax/test_normalisers.py.
"""

from __future__ import annotations


def checked_finite(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number."""
    for name, value in values.items():
        if not abs(value) < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number")


def checked_positive(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number above 0")
