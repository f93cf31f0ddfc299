"""Which numbers say how good a model is, and in which direction.

Tested by tests/analysis/test_compare_tasks.py.
"""

from __future__ import annotations

LOWER = ("perplexity", "loss", "nats", "error", "bits")  # words in names of metrics that are better when lower
HIGHER = ("accuracy", "acc", "f1", "match", "bleu")
SHARES = ("accuracy", "acc", "match", "rate")  # of what was asked: from 0 to 1
# of several that say the same
FIRST = ("perplexity", "exact_match", "output_match", "accuracy", "token_accuracy", "nats_per_token", "nats_per_byte")


def direction(metric: str) -> int:
    """-1 where lower is better, 1 where higher is, 0 where neither is known."""
    parts = words_of(metric)
    if "share" in parts:
        return 0
    return -1 if any(word in parts for word in LOWER) else 1 if any(word in parts for word in HIGHER) else 0


def is_share(metric: str) -> bool:
    """Whether the number is a share of what was asked."""
    return any(word in words_of(metric) for word in SHARES)


def words_of(metric: str) -> list[str]:
    return metric.lower().replace("/", "_").replace(" ", "_").split("_")


def rank(metric: str) -> int:
    """Where a metric stands in tables: the most telling first."""
    if metric in FIRST:
        return FIRST.index(metric)
    return len(FIRST) + (direction(metric) == 0)
