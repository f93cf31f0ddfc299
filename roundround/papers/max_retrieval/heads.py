"""Two numbers of a head of max retrieval: how steep its logits are in the priority, and how far apart its classes lie.

They are nearly all that its accuracies depend on: a head that is not trained at all has the paper's, with SLOPE and
SPREAD. Shapes: S seeds, B sets, N items, K classes.

Tested by tests/papers/test_retrieval_heads.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from roundround.papers.max_retrieval import PAPER
from roundround.papers.max_retrieval.model import MaxRetrieval
from roundround.papers.max_retrieval.sets import Sets
from roundround.softmax.adaptive_temperature import inverse_temperature

FROM, POINTS = 0.9, 101  # the priorities at which heads are asked: from here to 1, where the largest of many items lie
DRAWS, SETS, N_CLASSES = 10, 512, 10  # of a simulated head: of its offsets, and sets of each size for each of them


@torch.no_grad()
def slope_and_spread(model: MaxRetrieval) -> tuple[Tensor, Tensor]:
    """Slope of the logit in nats a unit of priority, and standard deviation of the classes' offsets in priority: [S].

    The slope is the mean over the classes of that of a straight line through the logits at priorities from 0.9 to 1;
    an offset is how far a class's logits lie above those of the others, divided by the slope. The query is 0.5: it
    carries no information.
    """
    s, k = len(model.item_in.weight), model.n_classes
    priority_N = torch.linspace(FROM, 1, POINTS)
    classes_SKN = torch.arange(k)[:, None].expand(s, k, POINTS)
    sets = Sets(priority_N.expand(s, k, -1), classes_SKN, torch.full((s, k), 0.5))
    e_SKN = model.attended(sets.to(model.device))[0].double().cpu()
    centred_N = priority_N.double() - priority_N.double().mean()
    slope_S = ((e_SKN * centred_N).sum(-1) / centred_N.square().sum()).mean(1)
    return slope_S, e_SKN.mean(-1).std(1) / slope_S


def simulated(slope: float, spread: float, sizes: Iterable[int] = tuple(PAPER)) -> dict[int, tuple[float, float]]:
    """Accuracy in per cent, plain and with the published adaptive temperature, of heads e = slope (priority + offset).

    By items, as PAPER. Offsets are drawn from a normal distribution, one a class; the answer is the class with the most
    weight. Each is the mean over 10 draws of the offsets, of 512 sets each.
    """
    found = {}
    for n in sizes:
        right = np.empty((DRAWS, 2))
        for draw in range(DRAWS):
            rng = np.random.default_rng([draw, n])
            classes_BN, priority_BN = rng.integers(N_CLASSES, size=(SETS, n)), rng.random((SETS, n))
            offsets_K = spread * np.random.default_rng(draw).normal(size=N_CLASSES)
            e_BN = torch.from_numpy(slope * (priority_BN + offsets_K[classes_BN]))
            beta_B1 = inverse_temperature(torch.special.entr(e_BN.softmax(-1)).sum(-1, keepdim=True))
            answer_B = np.take_along_axis(classes_BN, priority_BN.argmax(-1)[:, None], -1)[:, 0]
            for place, weights_BN in enumerate((e_BN.softmax(-1), (beta_B1 * e_BN).softmax(-1))):
                of_class_BK = torch.zeros(SETS, N_CLASSES, dtype=torch.float64)
                of_class_BK.scatter_add_(1, torch.from_numpy(classes_BN), weights_BN)
                right[draw, place] = (of_class_BK.argmax(-1).numpy() == answer_B).mean()
        plain, adaptive = 100 * right.mean(0)
        found[n] = float(plain), float(adaptive)
    return found
