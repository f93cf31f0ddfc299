"""The two papers: their statements as checks; their figures and tables, made again; max retrieval.

Here are their names. Nothing is imported for them: TAB is fast.

Tested by tests/papers/test_claims.py.
"""

from __future__ import annotations

CLAIMS = {  # a statement: its class, below this package
    "rope.apostrophe": "rope.formulas.Apostrophe",
    "rope.equation_3": "rope.formulas.Equation3",
    "rope.figure_6": "rope.thm_5_3.Figure6",
    "rope.lemma_a_1": "rope.lemmas.LemmaA1",
    "rope.lemma_a_2": "rope.lemmas.LemmaA2",
    "rope.lemma_a_3": "rope.lemmas.LemmaA3",
    "rope.p_rope_listing": "rope.formulas.PRopeListing",
    "rope.prop_3_1": "rope.lemmas.Prop31",
    "rope.prop_3_2": "rope.lemmas.Prop32",
    "rope.prop_5_2": "rope.table_1.Prop52",
    "rope.side_computations": "rope.formulas.SideComputations",
    "rope.table_1": "rope.table_1.Table1",
    "rope.thm_5_3": "rope.thm_5_3.Thm53",
    "rope.thm_6_1": "rope.thm_6_1.Thm61",
    "softmax.lemma_2_1": "softmax.bounds.Lemma21",
    "softmax.polynomial": "softmax.temperature.Polynomial",
    "softmax.prop_3_1": "softmax.bounds.Prop31",
    "softmax.prop_3_2": "softmax.temperature.Prop32",
    "softmax.streaming_entropy": "softmax.temperature.StreamingEntropy",
    "softmax.thm_2_2": "softmax.thm_2_2.Thm22",
}
# a figure or table, in the papers' order: its file in `figures`. softmax: as its second version numbers them; deltas is
# a table without a number
FIGURES = {
    "rope.fig1": "synthetic",
    "rope.fig2": "synthetic",
    "rope.fig3": "pretrained",
    "rope.fig4": "pretrained",
    "rope.fig5": "pretrained",
    "rope.fig6": "pretrained",
    "rope.fig7": "pretrained",
    "rope.fig8": "synthetic",
    "rope.fig9": "synthetic",
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
    "rope.table1": "synthetic",
    "rope.table2": "table2",
    "rope.table3": "pretrained",
    "rope.table4": "pretrained",
    "rope.table5": "pretrained",
    "softmax.fig1": "synthetic",
    "softmax.fig2": "max_retrieval",
    "softmax.fig3": "pretrained",
    "softmax.fig4": "synthetic",
    "softmax.fig5": "max_retrieval",
    "softmax.fig6": "max_retrieval",
    "softmax.fig7": "max_retrieval",
    "softmax.table1": "max_retrieval",
    "softmax.deltas": "pretrained",
}


def statement_names() -> list[str]:
    """All statements, such as rope.thm_6_1."""
    return list(CLAIMS)


def figure_names() -> list[str]:
    """All figures and tables in the papers' order, such as rope.fig2."""
    return list(FIGURES)


def item_names() -> list[str]:
    """What `reproduce` can be asked for."""
    return [*figure_names(), "all"]
