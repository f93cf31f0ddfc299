"""Muon for the matrices of the layers, AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from roundround.model.decoder import belongs_to_a_variant
from roundround.support.errors import UserError
from roundround.training.optim import OptimizerFactory


@final
class Muon(OptimizerFactory):
    """Takes steps along the nearest orthogonal matrix of the momentum: all directions of a matrix move equally far.

    m <- mu m + (1 - mu) g; W <- (1 - lr weight_decay) W - lr f U V^T, where U S V^T = (1 - mu) g + mu m

    Jordan et al. 2024, kellerjordan.github.io/posts/muon; f = 0.2 sqrt(max(rows, columns)) (`match_rms_adamw`, with
    which AdamW's rates serve): Liu et al. 2025, arXiv:2502.16982, section 2.2.

    torch.optim.Muon takes the weights of the layers' `nn.Linear`. AdamW, with `betas` and `eps`, takes the embeddings,
    the output matrix, vectors (which do not decay, unless `decay_biases`) and what encodings and normalisers learn.
    `adjust_lr_fn` is `match_rms_adamw` or `original` (f = sqrt(max(1, rows / columns))). `nesterov` false: U S V^T = m.
    `ns_steps`, `ns_coefficients`: of the Newton-Schulz iteration that finds U V^T about. `embedding_lr`, `head_lr`,
    `vector_lr`, `adamw_weight_decay`: those of AdamW's parameters; null is `lr` and `weight_decay`.
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
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"torch {torch.__version__} has no Muon, which came with 2.9; give optim=adamw")
        decay = weight_decay if adamw_weight_decay is None else adamw_weight_decay
        super().__init__(lr=lr, betas=betas, eps=eps, weight_decay=decay, decay_biases=decay_biases)
        self.rates = {"embeddings": embedding_lr, "head": head_lr, "vectors": vector_lr}
        for name, value in {"embedding_lr": embedding_lr, "head_lr": head_lr, "vector_lr": vector_lr}.items():
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value} must be a finite number above 0, or null")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be a number from 0 up to, but not including, 1")
        if not 1 <= ns_steps < 100:
            raise ValueError(f"ns_steps={ns_steps} must lie between 1 and 99")
        if len(ns_coefficients) != 3:
            raise ValueError(f"ns_coefficients={ns_coefficients} must be three numbers")
        if not 0 <= weight_decay < float("inf"):
            raise ValueError(f"weight_decay={weight_decay} must be a finite number, at least 0")
        if adjust_lr_fn not in ("match_rms_adamw", "original"):
            raise ValueError(f"adjust_lr_fn={adjust_lr_fn} must be match_rms_adamw or original")
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
                "optim=muon makes whole matrices orthogonal, and trainer.strategy=fsdp2 shares out their rows; give "
                "trainer.strategy=ddp, or optim=adamw"
            )
        found = self.sorted_parameters(module)
        if not found["matrices"]:
            raise UserError("optim=muon is for the matrices of layers, and this model has none; give optim=adamw")
        if self.rates["head"] is not None and not found["head"]:
            raise UserError("optim.head_lr is read by nothing: the output matrix is the embeddings; give embedding_lr")

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        found = self.sorted_parameters(module)
        groups = [
            {
                "params": parameters,
                "lr": self.rates.get(kind) or self.lr,
                "weight_decay": self.weight_decay if kind != "vectors" or self.decay_biases else 0.0,
            }
            for kind, parameters in found.items()
            if parameters and kind != "matrices"
        ]
        muon = torch.optim.Muon(found["matrices"], **self.of_muon)
        return Together([muon, torch.optim.AdamW(groups, betas=self.betas, eps=self.eps, fused=True)])

    def sorted_parameters(self, module: nn.Module) -> dict[str, list[Tensor]]:
        """The parameters that learn: Muon's matrices, and the kinds of AdamW's that may have their own rates."""
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
    """Several optimizers of different parameters as one: their groups in one list, their states in one table."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = list(parts)
        self.share()

    def share(self) -> None:
        """Give each part its own groups of the list, and the one table, which loading makes anew."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each part; the closure, which computes gradients, is called once before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss
