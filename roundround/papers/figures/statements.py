"""What is a statement in the papers, rather than a measurement: made again by `roundround theory`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from roundround.papers.claim import Comparison
from roundround.papers.figures.figure import Figure, Outcome, RunVerb, Subject
from roundround.support.panels import Curve, Panel


@final
@dataclass(frozen=True, kw_only=True)
class Statements(Figure):
    """Judged by every number of these statements. claims: what each stands for, by its name.

    drawn: whether the paper has a sketch or a listing, made again of the same formula.
    """

    claims: Mapping[str, str]
    remark: str = ""
    drawn: bool = False

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        directory = run("theory", f"claim=[{','.join(self.claims)}]")
        found: dict[str, list[Comparison]] = defaultdict(list)
        for r in json.loads((directory / "results.json").read_text(encoding="utf-8")):
            if r["metric"] == "comparison":
                value, low, high = (float(r[key]) for key in ("value", "low", "high"))
                found[r["claim"]].append(Comparison(r["what"], value, low, high, r["published"]))
        pictures: dict[str, Any] = json.loads((directory / "curves.json").read_text(encoding="utf-8"))
        panels = {
            name: Panel(p["x_label"], p["y_label"], [Curve(**curve) for curve in p["curves"]], p["log"])
            for name, p in pictures.items()
        }
        parts = [
            f"{meaning}: {sum(c.holds for c in found[name])} of {len(found[name])}"
            for name, meaning in self.claims.items()
        ]
        return Outcome(
            ours="; ".join(parts),
            comparisons=[comparison for name in self.claims for comparison in found[name]],
            panels=panels,
            remark=self.remark,
            drawn=self.drawn,
        )


FIGURES: dict[str, Figure] = {
    "rope.table1": Statements(
        shows="what NoPE, RoPE and p-RoPE can do: patterns of position, of meaning",
        published="NoPE no, yes; RoPE yes, no; p-RoPE yes, yes",
        command="roundround theory rope.prop_5_2 rope.thm_5_3 rope.thm_6_1 rope.table_1",
        claims={
            "rope.prop_5_2": "NoPE has no positions",
            "rope.thm_5_3": "RoPE has",
            "rope.thm_6_1": "its slow channels do not last",
            "rope.table_1": "each by its own ladder, p-RoPE with p = 0.75 and 0.25",
        },
        remark="The table is about single heads. What p-RoPE keeps at any distance is the order of two keys; a weight "
        "among many keys it does not guarantee (beyond.p_rope_guarantee). The paper has ticks and no numbers, so "
        "that their direction is all that can agree.",
    ),
    "softmax.fig1": Statements(
        shows="every softmax head disperses as inputs grow (a sketch in the paper)",
        published="every weight tends to 0",
        command="roundround theory softmax.thm_2_2",
        claims={"softmax.thm_2_2": "largest weight of every row below exp(delta) / n"},
        drawn=True,
    ),
    "softmax.fig4": Statements(
        shows="the adaptive temperature as code",
        published="-0.037, 0.481, -2.3, 4.917, -1.791",
        command="roundround theory softmax.polynomial",
        claims={"softmax.polynomial": "the published listing"},
        drawn=True,
    ),
}
