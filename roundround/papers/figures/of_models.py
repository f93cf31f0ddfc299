"""All items that are made of a pretrained model."""

from __future__ import annotations

from roundround.papers.figures import alignment, dispersion, head_norms, layer_norms, token_figures
from roundround.papers.figures.item import Item

ITEMS: dict[str, Item] = layer_norms.ITEMS | head_norms.ITEMS | token_figures.ITEMS | alignment.ITEMS | dispersion.ITEMS

# what docs/gemma3.md found in Gemma 3 270M, 4-bit weights, on the package's quotations where a text matters
GEMMA_3 = {
    "rope.fig3": "share of the slowest quarter: queries 0.19, keys 0.53",
    "rope.fig5": "diagonal: 0.50; previous: 0.65",
    "rope.fig7": "layer 0, head 0: 0.83 on the apostrophe from the token behind it, else 0.59 on the first token",
    "rope.fig12": "3.1 to 6.9 on the first token, 7.5 to 8.0 on an apostrophe",
    "rope.fig13": "share of the slowest quarter: values 0.27",
    "rope.fig19": "correlation with the map of Shakespeare 0.93 at least",
    "rope.table3": "diagonal heads: 0.09 and 0.12 of the bound on itself, 0.05 and 0.10 on the token before",
    "rope.table4": "diagonal heads: 0.09 and 0.12 of the bound on itself, 0.05 and 0.10 on the token before",
    "rope.table5": "previous-token heads: 0.01 to 0.02 of the bound on itself, 0.02 to 0.05 on the token before",
    "softmax.fig3": "first layer: from 1.3 to 2.5 nats with one number to 3.3 to 5.4 with 128, flat beyond",
    "softmax.deltas": "0.02 to 41.24, mean 7.34",
}
