"""All items by name."""

from __future__ import annotations

from roundround.papers.figures import max_retrieval, names, of_models, perplexity, statements, synthetic
from roundround.papers.figures.item import Item
from roundround.support.errors import UserError, nearest

ITEMS: dict[str, Item] = synthetic.ITEMS | of_models.ITEMS | perplexity.ITEMS | statements.ITEMS | max_retrieval.ITEMS


def in_order() -> dict[str, Item]:
    """All items in the papers' order."""
    return {name: ITEMS[name] for name in names()}


def chosen(wanted: list[str]) -> dict[str, Item]:
    """The items of these names, all of them for `all`. UserError for a name that does not exist."""
    known = in_order()
    for name in wanted:
        if name not in (*known, "all"):
            raise UserError(f"no item '{name}'{nearest(name, [*known, 'all'])}")
    return known if "all" in wanted else {name: known[name] for name in dict.fromkeys(wanted)}
