"""What trained models of max retrieval are asked: every size by every normaliser, and two numbers of each head.

The two are how steep its logits are in the priority and how far apart its classes lie. A head that is not trained at
all has the paper's accuracies with SLOPE and SPREAD; a trained one also loses some in the layers that read its answer.

Shapes: S seeds, B sets, N items, D width, K classes, M normalisers.

Tested by tests/papers/test_retrieval_evaluation.py and test_retrieval_heads.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundround.kernels.row_measures import entropy_bound, largest_weight_bound, shannon_entropy
from roundround.papers.max_retrieval.model import MaxRetrieval, weights_of
from roundround.papers.max_retrieval.sets import Sets
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.temperature import Temperature

# of the priorities of `slope_and_spread`: from here to 1, where the largest of many lie
FROM, POINTS = 0.9, 101


@final
class InBfloat16:
    """A copy of a model that computes in bfloat16, but for its softmax.

    Weights, items and every result in between are rounded; sums inside a product have float32, as on TPUs and GPUs. It
    goes by the model's definition, because the fast form, equal in exact numbers, is rounded at other places. Near 1
    bfloat16 keeps 8 bits: from some hundred items on, several share the largest priority.
    """

    def __init__(self, model: MaxRetrieval) -> None:
        self.model, self.n_classes = copy.deepcopy(model).bfloat16(), model.n_classes

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N], and the values [S, B, N, D]."""
        priorities_SBN, queries_SB = sets.priorities_SBN.bfloat16(), sets.queries_SB.bfloat16()
        return self.model.logits_and_values(replace(sets, priorities_SBN=priorities_SBN, queries_SB=queries_SB))

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes from the weighted sum of the values: [S, B, K]; `total_SB` is in it already."""
        return self.model.answer(mean_SBD)


OF_LOGITS = ("logit_spread", "entropy_bound", "largest_weight_bound", "largest_logit_is_right")
Means = dict[str, float]


@torch.no_grad()
def evaluate(
    model: MaxRetrieval | InBfloat16, softmaxes: Mapping[str, AttentionSoftmax], blocks: Iterable[Sets]
) -> tuple[dict[str, Means], Means]:
    """Means over the sets of one seed, for each normaliser and of the logits themselves.

    For each normaliser: `accuracy`, `entropy` in nats, `largest_weight`, and `heaviest_class_is_right`, how often the
    class with the most weight is the right one, whatever the layers that read the answer make of it. For the logits:
    `logit_spread` delta, largest minus smallest of a set; what Lemma 2.1 of arXiv:2410.01104 makes of it for the plain
    softmax, `entropy_bound` max(ln n - delta, 0) and `largest_weight_bound` min(exp(delta) / n, 1); and
    `largest_logit_is_right`, how often the largest is that of the item of the largest priority.
    """
    totals: dict[str, Tensor] = {}
    n_sets = 0
    for block in blocks:
        sets = block.to(model.device)
        e_SBN, a_SBND = model.attended(sets)
        alpha_SBMN = torch.stack([weights_of(softmax, e_SBN, None) for softmax in softmaxes.values()], 2)
        mean_SBMD, total_SBM = alpha_SBMN.to(a_SBND.dtype) @ a_SBND, alpha_SBMN.sum(-1)
        logits = model.answer_from(mean_SBMD.flatten(1, 2), total_SBM.flatten(1, 2)).view(*total_SBM.shape, -1)
        classes_SBMN = sets.classes_SBN[:, :, None].expand_as(alpha_SBMN)
        of_class_SBMK = alpha_SBMN.new_zeros(logits.shape).scatter_add_(-1, classes_SBMN, alpha_SBMN)
        answers_SB1 = sets.answers_SB[..., None]
        spread_SB = e_SBN.amax(-1) - e_SBN.amin(-1)
        ln_n = math.log(e_SBN.shape[-1])
        measured = {
            "accuracy": logits.argmax(-1) == answers_SB1,
            "heaviest_class_is_right": of_class_SBMK.argmax(-1) == answers_SB1,
            "entropy": shannon_entropy(alpha_SBMN),
            "largest_weight": alpha_SBMN.amax(-1),
            "logit_spread": spread_SB,
            "entropy_bound": entropy_bound(ln_n, spread_SB),
            "largest_weight_bound": largest_weight_bound(ln_n, spread_SB),
            "largest_logit_is_right": e_SBN.argmax(-1) == sets.largest_SB,
        }
        for metric, value in measured.items():
            totals[metric] = totals.get(metric, torch.zeros((), device=model.device)) + value.double().sum((0, 1))
        n_sets += sets.queries_SB.numel()
    means: dict[str, Any] = {metric: (total / n_sets).tolist() for metric, total in totals.items()}
    of_logits = {metric: means.pop(metric) for metric in OF_LOGITS}
    return {name: {metric: means[metric][m] for metric in means} for m, name in enumerate(softmaxes)}, of_logits


@torch.no_grad()
def attention_by_priority(
    model: MaxRetrieval | InBfloat16,
    softmaxes: Mapping[str, AttentionSoftmax],
    blocks: Iterable[Sets],
    *,
    n_sets: int,
    n_items: int,
) -> dict[str, Tensor]:
    """Weights [n_sets, n_items] of the items of highest priority, the highest last, of one seed's first sets."""
    found: dict[str, list[Tensor]] = {name: [] for name in softmaxes}
    n_found = 0
    for block in blocks:
        sets = block.to(model.device)
        e_SBN, _ = model.attended(sets)
        order = sets.priorities_SBN.argsort(-1)[..., -n_items:]
        for name, softmax in softmaxes.items():
            found[name].append(weights_of(softmax, e_SBN, None).gather(-1, order)[0].cpu())
        n_found += sets.queries_SB.numel()
        if n_found >= n_sets:
            break
    return {name: torch.cat(rows)[:n_sets] for name, rows in found.items()}


def at_one_temperature(softmaxes: Mapping[str, AttentionSoftmax], entropy: float) -> dict[str, AttentionSoftmax]:
    """The normalisers with every adaptive temperature held at the one that it gives for this entropy in nats."""
    of_all = torch.tensor(entropy, dtype=torch.float64)
    return {
        name: Temperature(softmax.shape, temperature=1 / float(softmax.beta_at(of_all)))
        if isinstance(softmax, AdaptiveTemperature)
        else softmax
        for name, softmax in softmaxes.items()
    }


DEGREE = 4
ILL_CONDITIONED = 1e6  # of the powers of entropies scaled to [-1, 1]; points that are spread have about 30
LARGEST_BETA = 1e6
HALVINGS = 60
MOST_ITEMS = 2**22


@torch.no_grad()
def fit_points(model: MaxRetrieval | InBfloat16, blocks: Iterable[Sets], *, n_inputs: int) -> Tensor:
    """Entropy in nats and best inverse temperature of up to `n_inputs` misordered inputs of one seed, [inputs, 2].

    Inputs are left out that have no best inverse temperature above 0: their largest item's logit is below the mean.
    """
    found: list[Tensor] = []
    for block in blocks:
        sets = block.to(model.device)
        e_BN, largest_B = model.attended(sets)[0][0].double(), sets.largest_SB[0]
        wrong_B = e_BN.argmax(-1) != largest_B
        e_BN, largest_B = e_BN[wrong_B], largest_B[wrong_B]
        beta_B = best_beta(e_BN, largest_B)
        entropy_B = shannon_entropy(e_BN.softmax(-1))
        found.append(torch.stack([entropy_B, beta_B], -1)[beta_B.isfinite()].cpu())
        if sum(map(len, found)) >= n_inputs:
            break
    return torch.cat(found)[:n_inputs] if found else torch.empty(0, 2, dtype=torch.float64)


def best_beta(e_BN: Tensor, k_B: Tensor) -> Tensor:
    """The inverse temperature at which softmax(beta e) gives item k the most weight, [B]; NaN where none above 0 does.

    The weight is largest where e_k equals the mean logit under softmax(beta e), which rises with beta from the plain
    mean to the largest logit: so there is one solution where e_k lies between these two, found by bisection.
    """
    e_BN = e_BN - e_BN.amax(-1, keepdim=True)
    e_k_B = e_BN.gather(-1, k_B[:, None])[:, 0]
    low_B = torch.full_like(e_k_B, -np.log(LARGEST_BETA))
    high_B = -low_B
    for _ in range(HALVINGS):
        middle_B = (low_B + high_B) / 2
        mean_B = ((middle_B.exp()[:, None] * e_BN).softmax(-1) * e_BN).sum(-1)
        low_B, high_B = torch.where(mean_B < e_k_B, middle_B, low_B), torch.where(mean_B < e_k_B, high_B, middle_B)
    exists_B = (e_k_B > e_BN.mean(-1)) & (e_k_B < 0)
    return low_B.exp().where(exists_B, torch.nan)


def most_sets(n: int) -> int:
    """The most sets of n items in which misordered ones are searched for."""
    return max(64, MOST_ITEMS // n)


def fit_quartic(entropies: NDArray[np.float64], betas: NDArray[np.float64]) -> list[float]:
    """Coefficients of the quartic in the entropy that is nearest to the inverse temperatures, highest power first.

    Velickovic et al. 2024, arXiv:2410.01104, section 4 and figure 5: of the inputs whose item of the largest priority
    does not hold the largest logit, the inverse temperature that gives that item the most weight, fitted by a quartic.

    Raises ValueError where there are too few points for a quartic, or their entropies are too alike to tell one.
    """
    if len(np.unique(entropies)) <= DEGREE:
        raise ValueError(
            f"{len(entropies)} inputs whose largest item lacks the largest logit are too few for a polynomial of "
            f"degree {DEGREE}; give larger fit_sizes or more fit_inputs"
        )
    low, high = float(entropies.min()), float(entropies.max())
    powers = np.vander((2 * entropies - low - high) / (high - low), DEGREE + 1)
    if np.linalg.cond(powers) > ILL_CONDITIONED:
        raise ValueError(
            f"the entropies of {len(entropies)} inputs, {low:.3f} to {high:.3f} nats, are too alike for a polynomial "
            f"of degree {DEGREE}; train longer, or give more fit_sizes"
        )
    lowest_first = np.polynomial.Polynomial.fit(entropies, betas, DEGREE).convert().coef
    return [float(c) for c in np.pad(lowest_first, (0, DEGREE + 1 - len(lowest_first)))[::-1]]


@torch.no_grad()
def slope_and_spread(model: MaxRetrieval) -> tuple[Tensor, Tensor]:
    """Slope of the logit in nats a unit of priority, and standard deviation of the classes' offsets in priority: [S].

    The slope is the mean over the classes of that of a straight line through the logits at priorities from 0.9 to 1;
    an offset is how far a class's logits lie above the others' logits, divided by the slope. The query is 0.5: it
    carries no information.
    """
    s, k = len(model.item_in.weight), model.n_classes
    priority_N = torch.linspace(FROM, 1, POINTS)
    classes_SKN = torch.arange(k)[:, None].expand(s, k, POINTS)
    sets = Sets(priority_N.expand(s, k, -1), classes_SKN, torch.full((s, k), 0.5))
    e_SKN = model.attended(sets.to(model.device))[0].double().cpu()
    centred_N = priority_N.double() - priority_N.double().mean()
    slope_S = ((e_SKN * centred_N).sum(-1) / centred_N.square().sum()).mean(1)
    return slope_S, e_SKN.mean(-1).std(1) / slope_S.abs()
