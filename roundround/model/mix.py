"""Mixing each token with the few tokens before it: short convolutions, Canon layers, smeared tokens and offset keys.

Shapes: B batch, T tokens, N earlier tokens, W channels, K all tokens so far, G key heads, C head channels.

Tested by tests/model/test_mix.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.earlier import earlier_tokens, filtered
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import FinalVariants
from roundround.model.cache import LayerCache


@final
class Earlier:
    """Looks up the features of the tokens before each token: 0 at padding and beyond the beginning of a document.

    keys: the `Keys` of all tokens so far. cache: keeps the features that later calls need; None without a cache.
    """

    def __init__(self, keys: Keys, cache: LayerCache | None) -> None:
        self.keys, self.cache = keys, cache

    def __call__(self, x_BTW: Tensor, n: int, site: str) -> list[Tensor]:
        """The features of the token before, of the one before that, and so on: n tensors [B, T, W].

        site: the name of the features, under which the cache keeps the last n tokens.
        """
        past_BNW = None if self.cache is None else self.cache.kept.get(site)
        found, last_BNW = earlier_tokens(x_BTW, n, self.keys, past_BNW)
        if self.cache is not None:
            self.cache.keep(site, last_BNW)
        return found


def convolved(x_BTW: Tensor, weight_W1N: Tensor, earlier: Earlier, site: str) -> Tensor:
    """Causal depthwise convolution of a site with the weight of an `nn.Conv1d`, [W, 1, N]."""
    return filtered(x_BTW, earlier(x_BTW, weight_W1N.shape[-1] - 1, site), weight_W1N)


def short_filter(n_channels: int, width: int) -> nn.Parameter:
    """The weight of a depthwise convolution, [W, 1, width], drawn as `nn.Conv1d` draws it."""
    return nn.Parameter(torch.empty(n_channels, 1, width).uniform_(-(width**-0.5), width**-0.5))


class TokenMix(FinalVariants, nn.Module):
    """Base of modules that mix tokens at named sites of a layer; this class itself mixes none.

    A variant is one final class with `__init__(self, shape, widths, *, tunables)`; each layer has one instance. widths:
    the number of channels at each site. `input` is the normed input of attention; `queries`, `keys` and `values` are
    the projections before norms and rotation (`queries` and `latent` in latent attention); `mlp_input` is the normed
    input of the MLP, and `mlp_gate` and `mlp_up` are the channels that it multiplies.
    """

    def __init__(self, shape: AttentionShape, widths: Mapping[str, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x_BTW: Tensor, site: str, earlier: Earlier) -> Tensor:
        """The mixed features of a site, [B, T, W]."""
        return x_BTW


INSIDE = ("queries", "keys", "values", "latent")


@final
class ShortConvolution(TokenMix):
    """A causal depthwise convolution at some sites of a layer.

    y_t = sum_i w_i x_(t - i) for i < width; with `residual`, x_t is added

    So et al. 2021, arXiv:2109.08668 (on queries, keys and values); Allen-Zhu 2025, arXiv:2512.17351 (Canon layers A to
    D: before and inside attention, before and inside the MLP).
    """

    def __init__(
        self,
        shape: AttentionShape,
        widths: Mapping[str, int],
        *,
        before_attention: bool,
        inside_attention: bool,
        before_mlp: bool,
        inside_mlp: bool,
        width: int,
        residual: bool,
    ) -> None:
        super().__init__(shape, widths)
        if width < 2:
            raise ValueError(f"width={width} must be at least 2: a token and one before it")
        sites = {
            "input": before_attention,
            **dict.fromkeys(INSIDE, inside_attention),
            "mlp_input": before_mlp,
            **dict.fromkeys(("mlp_gate", "mlp_up"), inside_mlp),
        }
        chosen = [site for site in widths if sites[site]]
        if not chosen:
            raise ValueError("before_attention, inside_attention, before_mlp and inside_mlp leave nothing to mix")
        self.residual = residual
        self.filters = nn.ParameterDict({f"of_{site}": short_filter(widths[site], width) for site in chosen})

    def forward(self, x_BTW: Tensor, site: str, earlier: Earlier) -> Tensor:
        name = f"of_{site}"
        if name not in self.filters:
            return x_BTW
        mixed_BTW = convolved(x_BTW, self.filters[name].to(x_BTW.dtype), earlier, f"mix.{site}")
        return x_BTW + mixed_BTW if self.residual else mixed_BTW


@final
class Smear(TokenMix):
    """Adds a gated share of the token before to the input of attention.

    x_t <- x_t + a sigmoid(w . x_t) x_(t - 1)

    The smear gate of modded-nanogpt (github.com/KellerJordan/modded-nanogpt), there on the embeddings alone. a is a
    parameter that starts at 0.
    """

    def __init__(self, shape: AttentionShape, widths: Mapping[str, int]) -> None:
        super().__init__(shape, widths)
        self.gate = nn.Linear(shape.d_model, 1, bias=False)
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x_BTW: Tensor, site: str, earlier: Earlier) -> Tensor:
        if site != "input":
            return x_BTW
        [before_BTW] = earlier(x_BTW, 1, "mix.input")
        return x_BTW + self.share * torch.sigmoid(self.gate(x_BTW)) * before_BTW


@final
class KeyOffset(TokenMix):
    """Takes half of the channels of each key from the token before, so that one layer can find what followed a token.

    k_t[c] <- k_(t - 1)[c] for the channels c of the slower half of the pairs, which rotate least

    The partial key offset of modded-nanogpt (github.com/KellerJordan/modded-nanogpt).
    """

    def __init__(self, shape: AttentionShape, widths: Mapping[str, int]) -> None:
        super().__init__(shape, widths)
        if "keys" not in widths:
            raise ValueError("key_offset needs a projection of keys, and latent attention has none")
        if shape.head_dim % 4:
            raise ValueError(f"head_dim={shape.head_dim} must be a multiple of 4: key_offset takes half of the pairs")
        n_heads, half = widths["keys"] // shape.head_dim, shape.head_dim // 2
        self.slow = [channel % half >= half // 2 for channel in range(shape.head_dim)] * n_heads

    def forward(self, x_BTW: Tensor, site: str, earlier: Earlier) -> Tensor:
        if site != "keys":
            return x_BTW
        [before_BTW] = earlier(x_BTW, 1, "mix.keys")
        slow_W = torch.tensor(self.slow, device=x_BTW.device)
        return torch.where(slow_W, before_BTW, x_BTW)
