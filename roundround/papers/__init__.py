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
    "rope.fig3": "norms",
    "rope.fig4": "norms",
    "rope.fig5": "single_heads",
    "rope.fig6": "single_heads",
    "rope.fig7": "single_heads",
    "rope.fig8": "synthetic",
    "rope.fig9": "synthetic",
    "rope.fig10": "norms",
    "rope.fig11": "norms",
    "rope.fig12": "single_heads",
    "rope.fig13": "norms",
    "rope.fig14": "single_heads",
    "rope.fig15": "single_heads",
    "rope.fig16": "single_heads",
    "rope.fig17": "single_heads",
    "rope.fig18": "single_heads",
    "rope.fig19": "norms",
    "rope.table1": "synthetic",
    "rope.table2": "table2",
    "rope.table3": "logits",
    "rope.table4": "logits",
    "rope.table5": "logits",
    "softmax.fig1": "synthetic",
    "softmax.fig2": "max_retrieval",
    "softmax.fig3": "logits",
    "softmax.fig4": "synthetic",
    "softmax.fig5": "max_retrieval",
    "softmax.fig6": "max_retrieval",
    "softmax.fig7": "max_retrieval",
    "softmax.table1": "max_retrieval",
    "softmax.deltas": "logits",
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
