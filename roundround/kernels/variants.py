"""What encodings and normalisers share: a base class that forbids subclasses of variants, and checks of numbers.

This module does not import torch.

Tested by tests/pe/test_pe_contract.py and tests/softmax/test_normalisers.py.
"""

from __future__ import annotations


class FinalVariants:
    """Base of the base classes of variants: deriving a class from a variant marked `@final` raises TypeError.

    Exports, checks and patches recognise a variant by its type, and would mistake a subclass for the variant itself.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for final in cls.__mro__[1:]:
            if "__final__" in vars(final):
                bases = [base.__name__ for base in final.__mro__[1:] if FinalVariants in base.__mro__[1:]]
                raise TypeError(
                    f"{cls.__name__} cannot derive from {final.__name__}, because it would be mistaken for that "
                    f"class; derive from {' or '.join(bases)} instead, give the class a {final.__name__} as "
                    "an attribute, and call that"
                )


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
