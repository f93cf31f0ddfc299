"""All items that are made of a pretrained model."""

from __future__ import annotations

from roundround.reproduction import alignment, dispersion, head_norms, layer_norms, token_figures
from roundround.reproduction.item import Item

ITEMS: dict[str, Item] = layer_norms.ITEMS | head_norms.ITEMS | token_figures.ITEMS | alignment.ITEMS | dispersion.ITEMS
