"""The two papers: checks of their statements, code that makes their figures and tables again, and max retrieval.

This module holds only the names of statements and figures, so that completion by TAB imports nothing else. Max
retrieval is the task of the softmax paper (`max_retrieval`).

Tested by tests/papers/test_claims.py.
"""

from __future__ import annotations

CLAIMS = {  # the title of each statement; the function of the statement's name, in its paper's module, checks it
    "rope.apostrophe": "the apostrophe head's channel",
    "rope.equation_3": "the orientation of RoPE",
    "rope.figure_6": "norms of about 10 suffice",
    "rope.lemma_a_1": "no rotation returns",
    "rope.lemma_a_2": "the angles are dense",
    "rope.lemma_a_3": "half the weight needs the largest logit",
    "rope.p_rope_listing": "p-RoPE as code",
    "rope.prop_3_1": "a maximum at any distance",
    "rope.prop_3_2": "no decay for random vectors",
    "rope.prop_5_2": "one NoPE head has no positions",
    "rope.side_computations": "numbers in passing",
    "rope.table_1": "p-RoPE has both halves of table 1",
    "rope.thm_5_3": "RoPE can attend to a fixed distance",
    "rope.thm_6_1": "no slow channel lasts",
    "softmax.gap_counting": "collapsed above Lambda, dispersed below",
    "softmax.lemma_2_1": "bounded logits disperse",
    "softmax.polynomial": "where the adaptive temperature acts",
    "softmax.prop_3_1": "sharp rows need large weights",
    "softmax.prop_3_2": "entropy falls with the temperature",
    "softmax.streaming_entropy": "entropy in one pass",
    "softmax.thm_2_2": "every head disperses",
}
# the module in `figures` that makes each figure or table, in the papers' order. The softmax paper is numbered as in its
# second version; `deltas` is a table without a number
FIGURES = {
    "rope.fig1": "own",
    "rope.fig2": "own",
    "rope.fig3": "pretrained",
    "rope.fig4": "pretrained",
    "rope.fig5": "pretrained",
    "rope.fig6": "pretrained",
    "rope.fig7": "pretrained",
    "rope.fig8": "own",
    "rope.fig9": "own",
    "rope.fig10": "pretrained",
    "rope.fig11": "pretrained",
    "rope.fig12": "pretrained",
    "rope.fig13": "pretrained",
    "rope.fig14": "pretrained",
    "rope.fig15": "pretrained",
    "rope.fig16": "pretrained",
    "rope.fig17": "pretrained",
    "rope.fig18": "pretrained",
    "rope.fig19": "pretrained",
    "rope.table1": "own",
    "rope.table2": "own",
    "rope.table3": "pretrained",
    "rope.table4": "pretrained",
    "rope.table5": "pretrained",
    "softmax.fig1": "own",
    "softmax.fig2": "own",
    "softmax.fig3": "pretrained",
    "softmax.fig4": "own",
    "softmax.fig5": "own",
    "softmax.fig6": "own",
    "softmax.fig7": "own",
    "softmax.table1": "own",
    "softmax.deltas": "pretrained",
}


def statement_names() -> list[str]:
    """All statements, such as rope.thm_6_1."""
    return list(CLAIMS)


def item_names() -> list[str]:
    """The names that `reproduce` accepts."""
    return [*FIGURES, "all"]
