"""The texts that are part of the package: the texts that a probe reads if the user gives none, and a probe's prompts.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

import random
from pathlib import Path

from roundround.support.errors import UserError, nearest

HERE = Path(__file__).parent
DOMAINS = ("shakespeare", "italian", "chinese", "code", "sums")
APOSTROPHE = "I'm not sure. You're not sure. He's not sure."


def texts_of(domain: str) -> list[str]:
    """The texts of one of DOMAINS. Raises UserError for any other name."""
    if domain not in DOMAINS:
        raise UserError(f"no texts={domain}{nearest(domain, DOMAINS)}; for your own texts, give text=FILE or data=...")
    return (HERE / f"{domain}.txt").read_text(encoding="utf-8").strip().split("\n\n")


def maximum_prompt(n: int, seed: int) -> str:
    """A question about the largest of n whole numbers from 0 to 999, after arXiv:2410.01104, figure 3.

    The paper does not print its prompt; this one is ours.
    """
    listed = ", ".join(map(str, random.Random(f"{seed} {n}").choices(range(1000), k=n)))
    return f"What is the maximum in the following sequence: {listed}? The maximum is:"
