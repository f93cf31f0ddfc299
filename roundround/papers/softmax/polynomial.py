"""The adaptive temperature's polynomial: where it acts at all."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention.row_measures import entropy_of_logits, entropy_of_weights
from roundround.papers.claim import Claim, Curve, Finding, Picture, Trained, as_printed, at_least, at_most, near
from roundround.papers.constructions import SHAPE, weights
from roundround.papers.trained import rows_of_model
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature, inverse_temperature

FIGURE_4 = (-0.037, 0.481, -2.3, 4.917, -1.791)  # the paper's listing, highest power first
GATE = 0.5  # nats: below it the listing leaves a row alone
POINTS = (0.4, 0.9, 1.0, 1.5, 2.0, 3.0, 4.0, 4.412, 5.0, 5.5, 5.9, 6.0)  # nats
START, END, LARGEST, AT = 0.849, 5.945, 2.421, 4.412  # where beta exceeds 1; its maximum and where that lies


def beta_by_listing(entropy: float) -> float:
    """The paper's figure 4, by numpy."""
    return max(float(np.polyval(FIGURE_4, entropy)), 1.0) if entropy > GATE else 1.0


@final
class Polynomial(Claim):
    """The published temperature sharpens rows of 0.849 to 5.945 nats alone, and an even row of up to 381 keys at most.

    beta(H) = max(-0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791, 1) where H > 0.5, else 1, H in nats

    Velickovic et al. 2024, arXiv:2410.01104, figure 4; where it exceeds 1 is measured here.
    """

    title: ClassVar[str] = "where the adaptive temperature acts"

    def check(self) -> Finding:
        entropies = torch.linspace(0, 7, 7001, dtype=torch.float64)
        beta = inverse_temperature(entropies)
        acting = entropies[beta > 1]
        comparisons = [
            as_printed(f"coefficient of H^{4 - place}", ours, published, 0.0)
            for place, (ours, published) in enumerate(zip(PUBLISHED, FIGURE_4, strict=True))
        ]
        comparisons += [
            near(
                f"beta at {h:g} nats", float(inverse_temperature(torch.tensor(h, dtype=torch.float64))), expected, 1e-9
            )
            for h, expected in ((h, beta_by_listing(h)) for h in POINTS)
        ]
        comparisons += [
            near(
                "least entropy at which beta exceeds 1", float(acting[0]), START, 0.0015
            ),  # the grid's step and rounding
            near("largest entropy at which beta exceeds 1", float(acting[-1]), END, 0.0015),
            near("largest beta", float(beta.max()), LARGEST, 0.0005),
            near("entropy of the largest beta", float(entropies[beta.argmax()]), AT, 0.0015),
            at_most("the polynomial at the gate of 0.5 nats", float(np.polyval(PUBLISHED, GATE)), 1.0),
            near("most keys of an even row that is sharpened", longest_even_row(), math.floor(math.exp(END)), 0),
        ]
        comparisons += [
            near(f"beta of an even row of {n} keys", beta_of_even_row(n), beta_by_listing(math.log(n)), 1e-9)
            for n in (4, 16, 100, 300, 400)
        ]
        curves = [
            Curve("this program", entropies, beta),
            Curve("figure 4 by numpy", POINTS, [beta_by_listing(h) for h in POINTS], points=True),
            Curve("the polynomial alone", entropies, np.polyval(FIGURE_4, entropies.numpy()).clip(0)),
        ]
        return Finding(comparisons, Picture("entropy in nats", "inverse temperature beta", curves), REMARK)

    def check_model(self, trained: Trained) -> Finding:
        published = adaptive()
        entropies, worst, rise = [], 0.0, -math.inf
        for rows in rows_of_model(trained.probed, trained.texts):
            logits, visible = rows.logits_HRK[None], rows.visible_RK
            before_HR1 = entropy_of_logits(logits, visible)[0]
            ours = published.weights(logits, visible, {"n_visible": rows.n_R[None, None, :, None]})[0]
            worst = max(worst, float((ours - by_listing(rows.logits_HRK, visible)).abs().max()))
            rise = max(rise, float((entropy_of_weights(ours) - before_HR1[..., 0]).max()))
            entropies.append(before_HR1.flatten())
        all_rows = torch.cat(entropies)
        inside = float(((all_rows > START) & (all_rows < END)).double().mean())
        beta = inverse_temperature(all_rows)
        comparisons = [
            near(
                "share of rows that are sharpened, less those in the range",
                float((beta > 1).double().mean()) - inside,
                0,
                0.01,
            ),
            at_most("largest difference of a weight from figure 4 by numpy", worst, 1e-6),
            at_most("most that the temperature raises a row's entropy, nats", rise, 1e-6),
            at_least("least beta", float(beta.min()), 1.0),
        ]
        counts, edges = np.histogram(all_rows.numpy(), 60)
        curve = Curve("rows of the model", (edges[1:] + edges[:-1]) / 2, counts / counts.max())
        scaled = Curve(
            "beta / its maximum", grid := np.linspace(0, 7, 200), [beta_by_listing(h) / LARGEST for h in grid]
        )
        below, above = (float((all_rows <= START).double().mean()), float((all_rows >= END).double().mean()))
        remark = (
            f"{inside:.1%} of {len(all_rows):,} rows lie in the active range, {below:.1%} below it and {above:.1%} "
            f"above; mean beta {float(beta.mean()):.3f}."
        )
        return Finding(
            comparisons, Picture("entropy of the plain softmax, nats", "share of the largest", [curve, scaled]), remark
        )


REMARK = "The gate at 0.5 nats never decides: the polynomial is below 1 there anyway."


def adaptive() -> AdaptiveTemperature:
    """The published one."""
    return AdaptiveTemperature(
        SHAPE,
        coefficients=PUBLISHED,
        min_entropy=GATE,
        min_beta=1.0,
        entropy_range=None,
        in_training=True,
        gradient_through_beta=False,
    )


def beta_of_even_row(n: int) -> float:
    """Of n equal logits, their entropy measured by this program."""
    return float(inverse_temperature(entropy_of_weights(weights(torch.zeros(1, n, dtype=torch.float64)))[0]))


def longest_even_row() -> int:
    """The longest row of equal logits that gets a beta above 1."""
    return max((n for n in range(300, 460) if beta_of_even_row(n) > 1), default=0)


def by_listing(logits_HRK: Tensor, visible_RK: Tensor) -> Tensor:
    """Figure 4 by numpy on rows of which not every key is visible: [H, R, K]."""
    e = np.where(visible_RK.numpy(), logits_HRK.numpy(), -np.inf)
    e = e - e.max(-1, keepdims=True)
    p = np.exp(e) / np.exp(e).sum(-1, keepdims=True)
    entropy = -(p * np.log(p + 1e-9)).sum(-1, keepdims=True)
    beta = np.where(entropy > GATE, np.maximum(np.polyval(FIGURE_4, entropy), 1.0), 1.0)
    w = np.exp(np.where(visible_RK.numpy(), e * beta, -np.inf))
    return torch.from_numpy(w / w.sum(-1, keepdims=True))
