"""Optimizers and schedules of the learning rate. An optimizer's settings are read before the model is built.

The learning rate depends only on the step. In torch's `SequentialLR` of `LinearLR` and `CosineAnnealingLR`, each rate
is the last rate times a ratio. So a resumed run would have to compute all earlier rates again. In a test, only 60
of the 600 rates computed in that way were bit-equal to the rates here.

Tested by tests/training/test_recipe.py and tests/training/test_muon.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from roundround.model.decoder import belongs_to_a_variant
from roundround.support.errors import UserError


class OptimizerFactory:
    """Base: holds the settings of an Adam-like optimizer, and makes the torch optimizer once the module exists."""

    def __init__(
        self, *, lr: float, betas: list[float], eps: float, weight_decay: float, decay_biases: bool = False
    ) -> None:
        self.lr, self.betas, self.eps, self.weight_decay = lr, (betas[0], betas[1]), eps, weight_decay
        torch.optim.AdamW([torch.zeros(1)], lr, self.betas, eps, weight_decay)  # ValueError for a wrong number
        self.decay_biases = decay_biases

    def check(self, module: nn.Module, *, sharded: bool) -> None:
        """Raises UserError if the optimizer cannot train this module. By default every module is accepted.

        The module may be on the meta device. sharded: whether its parameters are divided among processes.
        """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the module's parameters."""
        raise NotImplementedError

    def groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """The groups of parameters, with and without weight decay.

        Gains, biases and other vectors are without weight decay unless `decay_biases` is true.
        """
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        without_decay = [] if self.decay_biases else parameters
        vectors = {name for name, p in without_decay if p.ndim < 2 or name.endswith("bias")}
        groups = [
            {"params": [p for name, p in parameters if name not in vectors], "weight_decay": self.weight_decay},
            {"params": [p for name, p in parameters if name in vectors], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]


@final
class AdamW(OptimizerFactory):
    """Adam with decoupled weight decay.

    w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)

    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.groups(module), lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


@final
class Adam(OptimizerFactory):
    """Adam on the sum of the loss and an L2 penalty. Adam scales the penalty's gradient, unlike decoupled weight decay.

    loss + weight_decay / 2 sum w^2

    Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.groups(module), lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


@final
class Muon(OptimizerFactory):
    """Steps along the orthogonal matrix nearest to the momentum, so that all directions of a matrix move equally far.

    m <- mu m + (1 - mu) g; W <- (1 - lr weight_decay) W - lr f U V^T, where U S V^T = (1 - mu) g + mu m

    Jordan et al. 2024, kellerjordan.github.io/posts/muon; the f of `match_rms_adamw`: Liu et al. 2025,
    arXiv:2502.16982, section 2.2.

    torch.optim.Muon takes the weights of the layers' `nn.Linear`. AdamW, with `betas` and `eps`, takes the embeddings,
    the output matrix, vectors (without decay, unless `decay_biases`) and the parameters of encodings and normalisers.

    adjust_lr_fn: `match_rms_adamw` (f = 0.2 sqrt(max(rows, columns)), which suits learning rates chosen for AdamW) or
    `original` (f = sqrt(max(1, rows / columns))). nesterov: True for U S V^T = (1 - mu) g + mu m, False for
    U S V^T = m. ns_steps: the number of steps of the Newton-Schulz iteration that approximates U V^T. ns_coefficients:
    the coefficients of this iteration.
    embedding_lr, head_lr, vector_lr: the rates of AdamW for the embeddings, the output matrix and vectors (null: `lr`).
    adamw_weight_decay: the decay of AdamW (null: `weight_decay`).
    """

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        ns_coefficients: list[float],
        adjust_lr_fn: str,
        embedding_lr: float | None,
        head_lr: float | None,
        vector_lr: float | None,
        adamw_weight_decay: float | None,
        betas: list[float],
        eps: float,
        decay_biases: bool = False,
    ) -> None:
        decay = weight_decay if adamw_weight_decay is None else adamw_weight_decay
        super().__init__(lr=lr, betas=betas, eps=eps, weight_decay=decay, decay_biases=decay_biases)
        self.rates = {"embeddings": embedding_lr, "head": head_lr, "vectors": vector_lr, "of_variants": None}
        self.of_muon: dict[str, Any] = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "ns_coefficients": tuple(ns_coefficients),
            "adjust_lr_fn": adjust_lr_fn,
        }

    def check(self, module: nn.Module, *, sharded: bool) -> None:
        if sharded:
            raise UserError(
                "optim=muon needs whole matrices to make them orthogonal, but trainer.strategy=fsdp2 divides their "
                "rows among the processes; give trainer.strategy=ddp, or optim=adamw"
            )
        if self.rates["head"] is not None and not self.sorted_parameters(module)["head"]:
            raise UserError(
                "optim.head_lr has no effect, because the output matrix is the embedding matrix; give "
                "optim.embedding_lr instead"
            )

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        found = self.sorted_parameters(module)
        groups = [
            {
                "params": parameters,
                "lr": self.lr if self.rates[kind] is None else self.rates[kind],
                "weight_decay": self.weight_decay if kind != "vectors" or self.decay_biases else 0.0,
            }
            for kind, parameters in found.items()
            if parameters and kind != "matrices"
        ]
        muon = torch.optim.Muon(found["matrices"], **self.of_muon)
        return Together([muon, torch.optim.AdamW(groups, betas=self.betas, eps=self.eps, fused=True)])

    def sorted_parameters(self, module: nn.Module) -> dict[str, list[Tensor]]:
        """The trainable parameters by kind. Muon takes the kind "matrices"; AdamW takes the other kinds."""
        matrices = {
            f"{name}.weight"
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear) and name.startswith("layers.") and not belongs_to_a_variant(name)
        }
        kinds: dict[str, list[Tensor]] = {
            kind: [] for kind in ("matrices", "embeddings", "head", "vectors", "of_variants")
        }
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if name in matrices:
                kind = "matrices"
            elif parameter.ndim < 2 or name.endswith("bias"):
                kind = "vectors"
            else:
                kind = {"embed_tokens.weight": "embeddings", "lm_head.weight": "head"}.get(name, "of_variants")
            kinds[kind].append(parameter)
        return kinds


class Together(torch.optim.Optimizer):
    """Several optimizers of different parameters as one, with a common list of groups and a common dict of states."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = list(parts)
        self.share()

    def share(self) -> None:
        """Give each part its groups from the common list, and the common states.

        Call this after loading, which makes a new list and new states.
        """
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each part, after one call of the closure, which computes gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss


# -- schedules


class Schedule:
    """Base: a linear warm-up, then `after_warmup` of the subclass. final_fraction: the last rate / the peak rate."""

    def __init__(self, *, warmup_steps: int, final_fraction: float) -> None:
        self.warmup_steps, self.final_fraction = warmup_steps, final_fraction

    def factor(self, step: int, n_steps: int) -> float:
        """The factor on the peak rate for update number `step` (from 0) of `n_steps` updates."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        rest = max(1, n_steps - self.warmup_steps)
        return self.after_warmup(min(1.0, (step - self.warmup_steps) / rest))

    def after_warmup(self, progress: float) -> float:
        """The factor after the warm-up. progress: the share, from 0 to 1, of the remaining steps that are done."""
        raise NotImplementedError


@final
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to a fraction of the peak.

    f + (1 - f) (1 + cos(pi t)) / 2

    Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
    """

    def after_warmup(self, progress: float) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * progress)) / 2


@final
class WarmupStableDecay(Schedule):
    """Linear warm-up, a plateau at the peak, then a linear decay over the last share of the steps after the warm-up.

    1 until t = 1 - d, then linear down to f at t = 1

    Hu et al. 2024, arXiv:2404.06395, section 4.
    """

    def __init__(self, *, warmup_steps: int, decay_fraction: float, final_fraction: float) -> None:
        super().__init__(warmup_steps=warmup_steps, final_fraction=final_fraction)
        self.decay_fraction = decay_fraction

    def after_warmup(self, progress: float) -> float:
        into_decay = max(0.0, (progress - (1 - self.decay_fraction)) / self.decay_fraction)
        return 1 - (1 - self.final_fraction) * into_decay
