"""What attention does in somebody else's training loop, seen at each call of `scaled_dot_product_attention`.

Nothing of the model is edited. On a measured step, a `TorchFunctionMode` sees the calls, and the stack of Python says
which module made a call; a hook of all optimizers says when a step has ended. On all other steps only that hook runs.
The numbers are those of a few rows of one text of the batch, drawn by the seed; the rows are the same on every step.
Shapes: H heads, G key heads, R drawn rows, K keys, T tokens, C head channels, P channel pairs.

Tested by tests/probing/test_watch.py.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from traceback import walk_stack
from typing import Any, ClassVar, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from roundround.kernels.calls import calling_modules
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import entropy_of_weights, extreme_logits
from roundround.kernels.torch_internals import COMPILED_CALL, nothing_compiled, without_dispatch_modes
from roundround.probing.layout import PAIRINGS, Layout
from roundround.support.console import print_status
from roundround.support.errors import UserError

# the rows drawn on a measured step; of the self-test: the tokens it reads, and the relative change that counts as none
ROWS, LONGEST, KEPT = 32, 512, 0.02
Place = tuple[str, tuple[int, ...]]  # a module's name, and instructions of its code
SDPA = F.scaled_dot_product_attention
WRAPPERS = re.compile(r"\b(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(\.|$)")  # in names
CALLBACKS = {  # of libraries that are imported already; none is imported for this
    "lightning.pytorch.callbacks": "Callback",
    "pytorch_lightning.callbacks": "Callback",
    "transformers.trainer_callback": "TrainerCallback",
}


class Watch:
    """The attention of a training loop on every n-th step; `rr.watch` makes one and describes it.

    records: a dictionary for each measured step. layers: the name of the module of each layer, by the layer's number.
    """

    entered: ClassVar[Watch | None] = None

    def __init__(
        self, every: int, to: Any, seed: int, draw: Callable[[list[dict[str, Any]], list[str], Path], None]
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise UserError(f"every={every} must be a whole number of steps, 1 or more")
        is_file = isinstance(to, str | Path) and Path(to).suffix == ".jsonl" and Path(to).parent.is_dir()
        if not (is_file or to is None or callable(to) or hasattr(to, "add_scalar") or hasattr(to, "log")):
            raise UserError(
                f"to={to} must be a path that ends in .jsonl, in a folder that exists, a function of the step and the "
                "numbers, a run of wandb or a SummaryWriter"
            )
        self.every, self.to, self.seed, self.draw = every, to, seed, draw
        self.records, self.layers, self.layouts = list[dict[str, Any]](), list[str](), dict[str, Layout]()
        self.numbers = dict[Place, int]()  # of the layers
        self.steps = self.counted = self.n_measured = 0  # the number of the last step; how many were counted, measured
        self.explicit = self.callback = False  # whether step() counts, and whether a trainer of a library calls
        self.due, self.optimizers = ExitStack(), list[Any]()  # the first optimizer that makes a step counts them

    def __enter__(self) -> Self:
        if (other := Watch.entered) is not None:
            if not other.callback:
                raise UserError(
                    "a watch is active already, and each would see the other's steps; leave one of them out"
                )
            other.__exit__(RuntimeError)  # transformers does not say that its training has failed
        Watch.entered = self
        self.hook = register_optimizer_step_post_hook(self.after_optimizer)
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *rest: Any) -> None:
        self.due.close()
        self.hook.remove()
        Watch.entered = None
        if kind is None and self.first and not self.n_measured:
            warnings.warn(
                f"watch: {self.counted} steps were counted and every={self.every}, so none was measured; give a "
                "smaller every, or call step() of the watch after each step if no optimizer of torch makes them",
                stacklevel=2,
            )

    def step(self, number: int | None = None) -> None:
        """End a step. From the first such call on, optimizers no longer count. number: that of the step, if given."""
        counted = self.counted and not self.explicit  # an optimizer has counted this one
        self.explicit = True
        if number is not None or not counted:
            self.end_step(number)

    def after_optimizer(self, optimizer: Any, *rest: Any) -> None:
        self.optimizers = self.optimizers or [optimizer]
        if optimizer is self.optimizers[0] and not self.explicit:
            self.end_step()

    def end_step(self, number: int | None = None) -> None:
        self.steps, self.counted = self.steps + 1 if number is None else number, self.counted + 1
        self.due.close()
        if self.measures:
            self.write()
        self.begin()

    def begin(self) -> None:
        self.first = not (
            torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank()
        )
        self.measures = self.first and (self.steps + 1) % self.every == 0
        self.found, self.training = dict[Place, dict[str, Tensor]](), False
        if self.measures:
            self.due.enter_context(nothing_compiled())
            self.due.enter_context(Calls(self.take_in))

    # -- what Lightning and transformers call

    def on_train_start(self, trainer: Any, *rest: Any) -> None:
        self.steps, self.callback = trainer.global_step, True
        self.__enter__()

    def on_train_begin(self, args: Any, state: Any, *rest: Any, **options: Any) -> None:
        self.on_train_start(state)

    def on_train_end(self, *rest: Any, **options: Any) -> None:
        self.__exit__()

    def on_exception(self, *rest: Any) -> None:
        if Watch.entered is self:
            self.__exit__(RuntimeError)

    # -- what is seen

    @torch.no_grad()
    def take_in(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Measure a call if it is the first from its place in its module.

        No mode sees into a backward pass, so what checkpointing computes again there is not counted.
        """
        name, place, training, compiled = caller()
        if training < self.training or ((name, place) in self.found and training == self.training):
            return
        if any(
            x is not None and (type(x) not in (Tensor, nn.Parameter) or x.is_nested)
            for x in (query, key, value, attn_mask)
        ):
            return warnings.warn(f"watch: {name} gives nested tensors or a subclass, which are not read", stacklevel=2)
        if compiled:
            warnings.warn(
                "watch: a compiled model runs uncompiled on measured steps, and rounds otherwise", stacklevel=2
            )
        if training > self.training:  # what was seen is of a validation
            self.found, self.training = {}, True
        lead, generator = query.shape[:-3], torch.Generator().manual_seed(self.seed)
        with without_dispatch_modes(), torch.autocast(query.device.type, enabled=False):
            text = tuple(int(torch.randint(n, (), generator=generator)) for n in lead)
            rows_R = torch.randperm(query.shape[-2], generator=generator)[:ROWS].sort().values.to(query.device)
            q_HTC, k_GKC, v_GKC = (at_least_float32(x.expand(*lead, *x.shape[-3:])[text]) for x in (query, key, value))
            mask = torch.ones((), dtype=torch.bool, device=query.device) if attn_mask is None else attn_mask
            mask_HRK = mask.expand(*query.shape[:-1], key.shape[-2])[text][:, rows_R]
            q_scaled = q_HTC * (query.shape[-1] ** -0.5 if scale is None else scale)
            numbers, seen_K = row_numbers(q_scaled, k_GKC, rows_R, mask_HRK, is_causal)
            if (not self.found and "" not in self.layouts) or any(
                one.n_pairs != query.shape[-1] // 2 for one in self.layouts.values()
            ):
                self.layouts = layouts_of(q_HTC, v_GKC)
            numbers |= {
                f"{kind}_{measure}{suffix}": number
                for suffix, layout in self.layouts.items()
                for kind, x in (("query", q_HTC[:, rows_R]), ("key", k_GKC[:, seen_K]))
                for measure, number in norms(layout.norms(x)).items()
            }
        self.found[name, place] = numbers

    def write(self) -> None:
        self.n_measured += 1
        if not self.found:
            return warnings.warn(
                f"watch: no call of scaled_dot_product_attention was seen on step {self.steps}; flash_attn, "
                "FlexAttention, attention written out and a compiled step are not seen: give the model "
                'attn_implementation="sdpa" or its like, and compile the model, not the step',
                stacklevel=2,
            )
        numbers: dict[str, Any] = {
            f"{measure}_layer_{self.numbers.setdefault(call, len(self.numbers))}": value.tolist()
            for call, measured in self.found.items()
            for measure, value in measured.items()
            if value.isfinite().all()
        }
        self.layers = [name for name, _ in self.numbers]
        if not self.records:
            print_status(f"watch: {len(self.layers)} layers seen on step {self.steps}: {', '.join(self.layers)}")
        self.records.append({"step": self.steps, **numbers})
        single = {name: value for name, value in numbers.items() if isinstance(value, float)}
        if isinstance(self.to, str | Path):
            with Path(self.to).open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.records[-1]) + "\n")
        elif hasattr(self.to, "add_scalar"):
            for name, value in single.items():
                self.to.add_scalar(name, value, self.steps)
        elif hasattr(self.to, "log"):  # joins the next line that the user logs, on the user's axis
            self.to.log({**single, "attention_step": self.steps}, commit=False)
        elif self.to is not None:
            self.to(self.steps, numbers)

    def page(self, path: str | Path) -> Path:
        """Write one HTML file with the curves over the steps; returns its path. Raises UserError without a record."""
        if not self.records:
            raise UserError("there is nothing to draw: the watch has measured no step yet")
        self.draw(self.records, self.layers, Path(path))
        return Path(path)


class Calls(TorchFunctionMode):
    """Gives the arguments of each call of `scaled_dot_product_attention` to a function, after the call."""

    def __init__(self, take_in: Callable[..., None]) -> None:
        self.take_in = take_in

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = func is F.multi_head_attention_forward  # calls the function where no mode sees it
        with patch.object(F, "scaled_dot_product_attention", self.attend) if inner else nullcontext():
            return (self.attend if func is SDPA else func)(*args, **kwargs or {})

    def attend(self, *args: Any, **options: Any) -> Any:
        out = SDPA(*args, **options)
        if not torch.compiler.is_compiling():
            self.take_in(*args, **options)
        return out


def watch_class() -> type[Watch]:
    """`Watch`, as a callback of the libraries that are imported already."""
    bases = [getattr(sys.modules[module], name) for module, name in CALLBACKS.items() if module in sys.modules]
    return type("Watch", (Watch, *bases), {"__doc__": Watch.__doc__})


def caller() -> tuple[str, tuple[int, ...], bool, bool]:
    """The name of the innermost module that calls, the place in its code, whether the model trains and is compiled.

    The name is the one in the outermost module that calls.
    """
    modules = [*calling_modules()]
    compiled = any(frame.f_code.co_name == COMPILED_CALL for frame, _ in walk_stack(None))
    if not modules:
        return "no module", (), torch.is_grad_enabled(), compiled
    inner, outer = modules[0][0], modules[-1][0]
    name = next(name for root, _ in reversed(modules) for name, module in root.named_modules() if module is inner)
    place = tuple(place for module, place in modules if module is inner)
    return WRAPPERS.sub("", name) or type(inner).__name__, place, outer.training, compiled


# -- what is measured


def row_numbers(
    q_HTC: Tensor, k_GKC: Tensor, rows_R: Tensor, mask_HRK: Tensor, causal: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Measures of the drawn rows, without dropout, and which keys these rows see, [K].

    A number is the mean over the heads and the rows that see a key. Positions are those of self-attention.
    """
    is_bias = mask_HRK.is_floating_point()
    logits_HRK = (q_HTC[:, rows_R].reshape(len(k_GKC), -1, len(rows_R), q_HTC.shape[-1]) @ k_GKC[:, None].mT).flatten(
        0, 1
    )
    logits_HRK = logits_HRK + at_least_float32(mask_HRK) if is_bias else logits_HRK
    distance_RK = rows_R[:, None] - torch.arange(k_GKC.shape[1], device=rows_R.device)
    visible_HRK = mask_HRK > torch.finfo(mask_HRK.dtype).min / 2 if is_bias else mask_HRK
    visible_HRK = visible_HRK & (distance_RK >= 0) if causal else visible_HRK
    n_HR, reads_HR = visible_HRK.sum(-1), visible_HRK.any(-1)
    alpha_HRK = logits_HRK.masked_fill(~visible_HRK, -torch.inf).softmax(-1).where(reads_HR[..., None], 0.0)
    largest_HR, smallest_HR = extreme_logits(logits_HRK, visible_HRK)
    entropy_HR, later_HR = entropy_of_weights(alpha_HRK), reads_HR & (rows_R > 0)
    found = {
        "largest_logit": largest_HR.where(reads_HR, -torch.inf).amax(),
        "logit_spread": mean(largest_HR - smallest_HR, reads_HR),
        "attention_entropy": mean(entropy_HR, reads_HR),
        "attention_entropy_share": mean(entropy_HR / n_HR.log(), n_HR > 1),  # of the largest possible, ln n
        "first_token_share": mean(alpha_HRK[..., 0], later_HR),
    }
    if q_HTC.shape[1] == k_GKC.shape[1]:
        found |= {
            "previous_token_share": mean((alpha_HRK * (distance_RK == 1)).sum(-1), later_HR),
            "diagonal_share": mean((alpha_HRK * (distance_RK == 0)).sum(-1), reads_HR),
            "mean_distance": mean((alpha_HRK * distance_RK.abs()).sum(-1), reads_HR),
        }
    return found, visible_HRK.flatten(0, 1).any(0)


def mean(x_HR: Tensor, counts_HR: Tensor) -> Tensor:
    return x_HR.where(counts_HR, 0.0).sum() / counts_HR.sum()


def norms(norms_HTP: Tensor) -> dict[str, Tensor]:
    square_P, n_pairs = norms_HTP.square().sum((0, 1)), norms_HTP.shape[-1]
    share = square_P[n_pairs - round(n_pairs / 4) :].sum() / square_P.sum()
    return {"norms": norms_HTP.mean((0, 1)), "share_of_slowest_quarter": share}


def layouts_of(q_HTC: Tensor, v_GTC: Tensor) -> dict[str, Layout]:
    """The layout of the pairs that rotate, under the name ""; both pairings under their names if it cannot be told.

    The self-test: if a token occurs twice in a text, its values in the first layer are equal. A rotation turns its
    queries by position and keeps the norms of the pairs; the wrong pairing does not keep them.
    """
    n, at_rest = q_HTC.shape[-1], torch.zeros(q_HTC.shape[-1] // 2)
    both = {f"_{name.replace('-', '_')}": Layout(at_rest, name, n) for name in PAIRINGS if n % 2 == 0}
    if q_HTC.shape[1] != v_GTC.shape[1] or n % 8:
        return both
    q_THC, v_TC = q_HTC[:, :LONGEST].transpose(0, 1), v_GTC[:, :LONGEST].transpose(0, 1).flatten(1)
    same_TT = torch.cdist(v_TC, v_TC, compute_mode="donot_use_mm_for_euclid_dist") <= KEPT * v_TC.norm(dim=-1)
    one, other = (q_THC[tokens] for tokens in same_TT.triu(1).nonzero()[:LONGEST].T)
    turned = (one - other).norm(dim=(1, 2)) > 2 * KEPT * one.norm(dim=(1, 2))
    layouts = [*both.values(), *(Layout(at_rest, PAIRINGS[0], n // part) for part in (2, 4))]  # some rotate a part
    pairs = [(layout.norms(one[turned]), layout.norms(other[turned])) for layout in layouts]
    changes = [float((before - after).norm() / before.norm()) for before, after in pairs]  # NaN if nothing turned
    best, second = sorted(changes)[:2]
    return {"": layouts[changes.index(best)]} if best <= KEPT and second > 2 * KEPT else both
