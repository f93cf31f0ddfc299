"""How dispersed attention is: entropy, largest weight and logit spread of every layer and head, while the model runs.

The number of visible keys decides the bin of a row: 1, 2, 3-4, 5-8, ... Only sums are kept, [layer, head, bin]; their
size does not depend on the number of tokens.
Shapes: L layers, H heads, N bins, B batch, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from roundround.kernels import fused
from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.blocks import logits_of_rows, query_blocks, rows_between
from roundround.kernels.choose import gives_log_sum_exps
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import (
    entropy_bound,
    entropy_of_logits,
    entropy_of_weights,
    extreme_logits,
    gap_ratios,
    largest_weight_bound,
    ordered_logits,
    spread_of_weights,
)
from roundround.probing.probed_model import watching
from roundround.softmax.adaptive_temperature import AdaptiveTemperature, inverse_temperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.row_scale import RowScale
from roundround.support.console import print_status

MEASURES = (
    "entropy",  # nats, of the weights that the model applies, after division by their sum
    "largest_weight",
    "logit_spread",  # delta: largest minus smallest visible logit, before any temperature
    "in_active_range",  # 1 if the polynomial sharpens (beta > 1) at the entropy of the plain softmax, else 0
    "ln_n",  # nats: the entropy of a uniform row
    "entropy_bound",  # nats: the least entropy at this ratio (Lemma 2.1: ln n - delta, delta = ln (max / min weight))
    "largest_weight_bound",  # the largest weight possible at this ratio (Lemma 2.1: exp(delta) / n)
    "gap_counting",  # Lambda: 1 / mean of 1 / Lambda, of the logits before any temperature; rows of two keys or more
    "collapsed",  # 1 if Lambda of the logits behind the row's weights is below 1, else 0; rows of two keys or more
)
OF_GAPS = MEASURES[-2:]


class Dispersion:
    """Means of the measures in MEASURES over attention rows, one mean for every layer, head and bin.

    The number of visible keys decides the bin of a row. `entropy_bound` and `largest_weight_bound` come from Lemma 2.1
    of arXiv:2410.01104. The lemma needs the spread of the logits behind a row's weights. For a softmax these are the
    logits after its temperature or cap. For any other normaliser the logarithms of its weights take their place.
    `collapsed` needs the same logits, see `gap_ratios`.
    """

    def __init__(self, beta_at: Callable[[Tensor], Tensor], n_heads: Mapping[int, int], longest: int) -> None:
        """beta_at: a function from an entropy to the inverse temperature. n_heads: the number of heads of each
        attention layer, by the layer's number in the model, ascending. longest: the largest number of keys of a row.
        """
        self.beta_at, self.layers, self.n_heads = beta_at, [*n_heads], [*n_heads.values()]
        self.largest_n = [2**i for i in range((longest - 1).bit_length() + 1)]  # the largest n of each bin
        shape = (len(n_heads), max(self.n_heads), len(self.largest_n))
        self.sums_LHN = {name: torch.zeros(shape, dtype=torch.float64) for name in MEASURES}
        for sums_LHN in self.sums_LHN.values():
            for sums_HN, n in zip(sums_LHN, self.n_heads, strict=True):
                sums_HN[n:] = torch.nan  # heads that this layer lacks
        self.n_rows_LN = torch.zeros(len(n_heads), len(self.largest_n), dtype=torch.float64)

    @torch.no_grad()
    def add(
        self,
        softmax: AttentionSoftmax,
        q_BHQC: Tensor,
        k_BGKC: Tensor,
        *,
        scale: float,
        keys: Keys,
        bias: Bias | None,
        rows: Mapping[str, Tensor],
    ) -> None:
        """Add the attention rows of one call. rows: the row parameters of the normaliser, by name."""
        layer = self.layers.index(softmax.shape.layer)
        n_visible = keys.counts(0, keys.n_queries)[:, 0, :, 0].expand(q_BHQC.shape[0], -1).contiguous()
        bins_BQ = torch.bucketize(n_visible, torch.tensor(self.largest_n, device=n_visible.device))
        place_BQN = nn.functional.one_hot(bins_BQ, len(self.largest_n)).double() * (n_visible > 0)[..., None]
        values = row_measures(softmax, q_BHQC, k_BGKC, scale, keys, bias, rows)
        ln_n_BHQ = n_visible.clamp(min=1).to(values["entropy"].dtype).log()[:, None]
        plain, spread = values.pop("plain_entropy"), values.pop("spread_behind")
        values["in_active_range"] = (self.beta_at(plain) > 1).double()
        values["ln_n"] = ln_n_BHQ.expand_as(plain)
        values["entropy_bound"] = entropy_bound(ln_n_BHQ, spread)
        values["largest_weight_bound"] = largest_weight_bound(ln_n_BHQ, spread)
        for name, value_BHQ in values.items():
            if name in OF_GAPS:
                value_BHQ = value_BHQ.where(n_visible[:, None] > 1, 0.0)
            sum_HN = torch.einsum("bhq,bqn->hn", value_BHQ.double(), place_BQN).cpu()
            self.sums_LHN[name][layer, : len(sum_HN)] += sum_HN
        self.n_rows_LN[layer] += place_BQN.sum((0, 1)).cpu()

    def add_all(self, others: Iterable[tuple[dict[str, Tensor], Tensor]]) -> None:
        """Add the sums and the numbers of rows of other instances, such as the instances in other processes."""
        for sums_LHN, n_rows_LN in others:
            self.n_rows_LN += n_rows_LN
            for name, sum_LHN in sums_LHN.items():
                self.sums_LHN[name] += sum_LHN

    def means_LH(self, name: str) -> Tensor:
        """Mean of the measure `name` over all rows of each layer and head; NaN for heads that a layer lacks."""
        first = int(name in OF_GAPS)  # the first bin has the rows of one key, which have no gap
        means_LH = self.sums_LHN[name][..., first:].sum(-1) / self.n_rows_LN[:, first:].sum(-1)[:, None]
        return 1 / means_LH if name == "gap_counting" else means_LH

    def means_LHN(self, name: str) -> Tensor:
        """Mean of the measure `name` over the rows of each bin; NaN for a bin without rows."""
        means_LHN = self.sums_LHN[name] / self.n_rows_LN[:, None]
        if name in OF_GAPS:
            means_LHN[..., 0] = torch.nan
        return 1 / means_LHN if name == "gap_counting" else means_LHN

    def active_range(self) -> tuple[float, float] | None:
        """Smallest and largest entropy from 0 to 20 nats at which beta exceeds 1; None if there is no such entropy."""
        entropies = torch.linspace(0, 20, 20001, dtype=torch.float64)
        acting = entropies[self.beta_at(entropies) > 1]
        return (float(acting[0]), float(acting[-1])) if len(acting) else None


def fused_entropies(
    softmax: AttentionSoftmax, q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys, bias: Bias | None
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None]:
    """Entropies of every row, from one or two fused passes that do not store logits.

    Returns three results: the entropy in nats of the plain softmax, the pair (entropy, log-sum-exp) of the model's own
    softmax, and the inverse temperature of the model's own softmax. All tensors are [B, H, Q, 1]. The second and the
    third result are None unless the model's own softmax is row-scaled. All three are None if no fused pass can compute
    them.
    """
    if not gives_log_sum_exps(q_BHQC, bias):
        return None, None, None
    assert bias is None or isinstance(bias, LinearBias), "no other bias has a fused form"
    plain, log_sum_exp = fused.entropy_and_log_sum_exp(q_BHQC, k_BGKC, scale=scale, keys=keys, bias=bias)
    if not isinstance(softmax, RowScale):
        return plain, None, None
    own, own_beta = (plain, log_sum_exp), torch.ones_like(plain)
    beta = softmax.beta(softmax.n_counted(keys).to(plain.dtype), lambda: plain)
    if beta is not None:
        own_beta = own_beta * beta
        bias = None if bias is None else bias.times(own_beta)
        own = fused.entropy_and_log_sum_exp(q_BHQC * own_beta, k_BGKC, scale=scale, keys=keys, bias=bias)
    return plain, own, own_beta


def row_measures(
    softmax: AttentionSoftmax,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    scale: float,
    keys: Keys,
    bias: Bias | None,
    rows: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Measures of each row, [B, H, Q] each: those in MEASURES that need logits, plain_entropy and spread_behind.

    plain_entropy: the entropy of the plain softmax. spread_behind: the spread of the logits behind the weights, as
    `Dispersion` describes them. gap_counting: 1 / Lambda, which is 0 where Lambda is infinite. The entropies of the
    plain softmax and of a row-scaled softmax come from a fused pass if there is one. All other measures come from
    logits, which are computed in blocks of rows.
    """
    plain, own, own_beta = fused_entropies(softmax, q_BHQC, k_BGKC, scale, keys, bias)
    blocks: dict[str, list[Tensor]] = {}
    for a, b in reversed(query_blocks(q_BHQC, keys, bias)):  # the largest first: the others reuse its memory
        logits, visible = logits_of_rows(q_BHQC, k_BGKC, scale, keys, bias, a, b)
        logits = at_least_float32(logits)
        ordered = ordered_logits(logits, visible)
        largest, smallest = extreme_logits(logits, visible)
        plain_block = entropy_of_logits(logits, visible) if plain is None else plain[:, :, a:b]
        inverse = gap_ratios(ordered).amin(-1)
        found = {"logit_spread": largest - smallest, "plain_entropy": plain_block[..., 0], "gap_counting": inverse}
        if own is not None and own_beta is not None:
            entropy, log_sum_exp = (value[:, :, a:b, 0] for value in own)
            beta_BHQ = own_beta[:, :, a:b, 0]
            top = torch.maximum(beta_BHQ * largest, beta_BHQ * smallest)  # a learned beta may be negative
            behind = beta_BHQ.abs() * (largest - smallest)
            if bool((beta_BHQ < 0).any()):  # the smallest logit gets the largest weight
                inverse = inverse.where(beta_BHQ >= 0, gap_ratios(ordered_logits(-logits, visible)).amin(-1))
            found["collapsed"] = beta_BHQ.abs() * inverse > 1
            found |= {"entropy": entropy, "largest_weight": (top - log_sum_exp).exp(), "spread_behind": behind}
        else:
            alpha = softmax.weights(logits, visible, rows_between(rows, visible, a, b))
            behind = spread_of_weights(alpha, visible)
            found["collapsed"] = gap_ratios(ordered_logits(alpha.log(), visible)).amin(-1) > 1
            found |= {"entropy": entropy_of_weights(alpha), "largest_weight": alpha.amax(-1), "spread_behind": behind}
        for name, value in found.items():
            blocks.setdefault(name, []).append(value)
    return {name: torch.cat(values[::-1], -1) for name, values in blocks.items()}


@contextmanager
def watched(model: nn.Module, longest: int) -> Iterator[Dispersion | None]:
    """A context that yields a Dispersion, and adds to it the attention rows of every call of the model's normalisers.

    It yields None, and prints a line, if the model has no layer of attention.

    longest: the largest number of keys that a row will see. The active range uses the polynomial of the model's
    adaptive temperature, or the published polynomial if the model has no adaptive temperature.
    """
    normalisers = [module for module in model.modules() if isinstance(module, AttentionSoftmax)]
    if not normalisers:
        print_status("no layer of this model has attention; dispersion=true measures nothing")
        yield None
        return
    adaptive = [module for module in normalisers if isinstance(module, AdaptiveTemperature)]
    beta_at = adaptive[0].beta_at if adaptive else inverse_temperature
    n_heads = {module.shape.layer: module.shape.n_heads for module in normalisers}
    dispersion = Dispersion(beta_at, dict(sorted(n_heads.items())), longest)

    with watching(normalisers, lambda softmax, qkv, options: dispersion.add(softmax, qkv[0], qkv[1], **options)):
        yield dispersion
