"""Two numbers of a head of max retrieval: how steep its logits are in the priority, and how far apart its classes lie.

They are nearly all that its accuracies depend on: a head that is not trained at all has the paper's, with SLOPE and
SPREAD. Shapes: S seeds, B sets, N items, K classes.

Tested by tests/papers/test_retrieval_heads.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roundround.papers.max_retrieval.model import MaxRetrieval
from roundround.papers.max_retrieval.sets import Sets

FROM, POINTS = 0.9, 101  # the priorities at which heads are asked: from here to 1, where the largest of many items lie


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
