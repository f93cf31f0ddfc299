"""The callback that runs between optimizer steps: it records, validates, saves, and stops on a signal.

Tested by tests/training/test_train.py.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from roundround.distributed.interruption import STOP_SIGNALS, interrupt, on_signals, put_back
from roundround.probing.rows import attention_statistics
from roundround.records import checkpoints
from roundround.records.checkpoints import Checkpoint
from roundround.records.run import Run
from roundround.support.console import print_status
from roundround.support.errors import Interrupted
from roundround.training.bookkeeping import Bookkeeping, Meter
from roundround.training.material import Material
from roundround.training.module import LanguageModel, gathered, loss_scaler
from roundround.verbs.train import TrainConfig

LOW_UTILISATION = 0.1  # share of a CPU's peak below which other programs probably keep it busy
STEPS_BETWEEN_AGREEMENTS = 10  # several processes agree on whether to stop at least once in so many steps
SMALLEST_LOSS_SCALE = 1.0  # below it the gradients themselves overflow float16


class TrainingCallback(lightning.Callback):
    """Everything between two optimizer steps, in the order of `on_train_batch_end`.

    Intervals are in optimizer steps counted from the start of the run, so a resumed run does the same at the same
    steps. SIGINT and SIGTERM only set a flag. The run then saves its state and stops between two steps, on all ranks at
    the same step: at once if there is one process, otherwise at most STEPS_BETWEEN_AGREEMENTS steps later. If a
    validation is due at that step, the resumed run does it. A single process also stops during a validation.
    """

    def __init__(
        self,
        run: Run,
        config: TrainConfig,
        material: Material,
        meter: Meter,
        *,
        first_step: int,
        past: Checkpoint | None,
    ) -> None:
        self.run, self.config, self.material, self.meter, self.past = run, config, material, meter, past
        self.bookkeeping = Bookkeeping(run, first_step=first_step, n_steps=config.trainer.max_steps)
        state = past.state if past else {}
        self.best: dict[str, Any] = state.get("best", {"step": None, "nats_per_token": math.inf})
        self.validated: dict[str, Any] = state.get("validated", {"step": None, "nats_per_token": math.inf})
        due = first_step % config.validate_every == 0 or first_step == config.trainer.max_steps
        # the checkpoint, if it was saved before the validation that was due
        self.owed = past if due and self.validated["step"] != first_step else None
        self.said_slow = False
        self.skipped_steps: int = state.get("skipped_steps", 0)
        self.micro_losses: list[Tensor] = []  # in the current step
        self.losses: list[Tensor] = []
        self.n_averaged = 0  # the number of losses that are already averaged over the ranks
        self.norms: list[Tensor] = []
        self.training_seconds = 0.0

    # -- the start and the end

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        module = as_module(pl_module)
        self.sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        if self.past is not None:
            if self.sharded:
                from roundround.records.sharded_checkpoints import load_shards_of_optimizer

                load_shards_of_optimizer(trainer.optimizers[0], self.past)
            else:
                trainer.strategy.load_optimizer_state_dict({"optimizer_states": [self.past.optimizer]})
            if "loss_scaler" in self.past.state:
                trainer.precision_plugin.load_state_dict(self.past.state["loss_scaler"])
        self.run.directory = Path(trainer.strategy.broadcast(str(self.run.directory)))  # the first rank's
        self.seen_step = module.step
        self.bookkeeping.start(sharded=self.sharded)
        if self.owed is not None:
            self.validate(trainer, module, module.step)
            if trainer.is_global_zero:
                checkpoints.amend(self.owed.folder, best=self.best, validated=self.validated)
            self.bookkeeping.skip()
        trainer.should_stop = module.step == module.n_steps  # if the run had no step left

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.bookkeeping.wait_until_saved()

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        self.bookkeeping.close()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning calls `teardown` only after a fit without an error

    # -- between two steps

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = as_module(pl_module)
        self.micro_losses.append(outputs["micro_loss"])
        if module.step == self.seen_step:  # a micro-batch; its step is not complete
            return
        step = self.seen_step = module.step
        self.losses.append(torch.stack(self.micro_losses).mean())
        self.norms.append(module.grad_norm)
        self.micro_losses.clear()
        last = step == module.n_steps
        validate = step % self.config.validate_every == 0 or last
        save = step % self.config.checkpoint_every == 0 or last
        record = step % self.config.trainer.log_every_n_steps == 0 or validate or save
        stop = None
        if record or trainer.world_size == 1 or step % STEPS_BETWEEN_AGREEMENTS == 0:
            stop = self.averaged_over_ranks(trainer)
        if record or stop is not None:
            self.record(trainer, step)
            save = save or stop is not None
        self.bookkeeping.display.advance(step)
        if self.config.attention_stats_every and step % self.config.attention_stats_every == 0:
            # in all processes, because a sharded model runs only if all run it
            compiled = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()  # for hooks
            with compiled, trainer.precision_plugin.val_step_context(), gathered(module.decoder):
                text_1T = self.material.text(batch)
                self.run.log(step, **attention_statistics(module.decoder, text_1T, step=step))
        try:
            if validate and stop is None and self.validate(trainer, module, step):
                save = True
        except Interrupted as stopped:
            stop, save = stopped.signum, True
        if save:
            self.save(trainer, module, step)
        if validate or save:
            self.bookkeeping.skip()
        if stop is not None:
            self.bookkeeping.wait_until_saved()
            raise Interrupted(stop)

    def averaged_over_ranks(self, trainer: lightning.Trainer) -> int | None:
        """Average the new losses over the ranks. Returns the stop signal that any rank received, or None.

        All ranks return the same signal, because all must stop together: a rank that went on would wait for the rank
        that stopped. One reduction carries the losses and the signals.
        """
        asked = self.bookkeeping.stop_signal.asked
        if trainer.world_size == 1:
            return asked
        flags = torch.tensor([float(asked == signum) for signum in STOP_SIGNALS])
        here = torch.cat([torch.stack(self.losses[self.n_averaged :]), flags.to(trainer.strategy.root_device)])
        everywhere = trainer.strategy.reduce(here, reduce_op="mean")
        self.losses[self.n_averaged :] = everywhere[: -len(flags)].unbind()
        self.n_averaged = len(self.losses)
        asking = everywhere[-len(flags) :].tolist()
        return next((signum for signum, share in zip(STOP_SIGNALS, asking, strict=True) if share > 0), None)

    def record(self, trainer: lightning.Trainer, step: int) -> None:
        """Log the numbers of the steps since the last record. Raises NotFinite as `skipped` does."""
        numbers_2S = torch.stack([torch.stack(self.losses), torch.stack(self.norms)]).cpu()
        seconds = self.bookkeeping.lap()
        self.training_seconds += seconds
        n_steps = len(self.losses)
        self.losses.clear()
        self.n_averaged = 0
        self.norms.clear()
        finite_S = numbers_2S.isfinite().all(dim=0)
        skipped = self.skipped(trainer, numbers_2S, step)
        kept_2S = numbers_2S[:, finite_S] if finite_S.any() else numbers_2S
        loss, speed = float(kept_2S[0].mean()), n_steps * self.material.tokens_per_step / seconds
        used = self.meter.numbers(n_steps, seconds)
        self.run.log(
            step,
            loss=loss,
            grad_norm=float(kept_2S[1, -1]),
            lr=as_module(trainer.lightning_module).rate,
            tokens=step * self.material.tokens_per_step,
            tokens_per_second=speed,
            **used,
            **skipped,
        )
        mfu, on_cpu = used.get("mfu"), trainer.strategy.root_device.type == "cpu"
        if mfu is not None and mfu < LOW_UTILISATION and on_cpu and not self.said_slow and torch.get_num_threads() > 1:
            self.said_slow = True
            print_status(f"{mfu:.0%} of the processor is used; if others keep it busy, OMP_NUM_THREADS=1 is faster")
        share = "" if mfu is None else f"  mfu {mfu:.0%}"
        self.bookkeeping.display.metrics(step, f"loss {loss:.3f}  {speed:,.0f} tokens/s{share}")

    def skipped(self, trainer: lightning.Trainer, numbers_2S: Tensor, step: int) -> dict[str, float]:
        """{"skipped_steps": the number of steps that the loss scaler of 16-mixed has skipped}; {} without a scaler.

        numbers_2S: loss and gradient norm of each step since the last record. Raises NotFinite if one of the numbers is
        not finite and there is no scaler to skip the step, or if the loss scale has fallen below SMALLEST_LOSS_SCALE.
        """
        wrong = (~numbers_2S.isfinite().all(dim=0)).nonzero().flatten().tolist()
        scaler = loss_scaler(trainer)
        if wrong and scaler is None:
            loss, norm = numbers_2S[:, wrong[0]].tolist()
            at = step - numbers_2S.shape[1] + 1 + wrong[0]
            raise self.bookkeeping.not_finite(f"the loss is {loss:g} and the gradient norm {norm:g}", at)
        if scaler is None:
            return {}
        self.skipped_steps += len(wrong)
        if wrong:
            scale = scaler.get_scale()
            if scale < SMALLEST_LOSS_SCALE:
                what = f"the loss scale of float16 fell to {scale:g} (trainer.precision=bf16-mixed needs no loss scale)"
                raise self.bookkeeping.not_finite(what, step)
            self.bookkeeping.display.say(
                f"step {step}: gradients overflowed float16; {len(wrong)} steps skipped, {self.skipped_steps} so far; "
                f"the loss scale is now {scale:g}"
            )
        return {"skipped_steps": self.skipped_steps}

    def validate(self, trainer: lightning.Trainer, module: LanguageModel, step: int) -> bool:
        """Measure the held-out data, a share on each rank. Returns whether this checkpoint is the best so far."""
        handlers = on_signals(interrupt) if trainer.world_size == 1 else {}  # several processes measure to the end
        try:
            with trainer.precision_plugin.val_step_context(), gathered(module.decoder):
                sums = self.material.measure(
                    module.decoder, rank=trainer.global_rank, world_size=trainer.world_size, device=module.device
                )
        finally:
            put_back(handlers)
        measured = self.material.measured(trainer.strategy.reduce(sums.to(module.device), reduce_op="sum"))
        self.validated = {"step": step, **measured}
        self.run.log(step, **{f"held_out_{name}": value for name, value in measured.items()})
        self.bookkeeping.display.say(f"step {step}/{module.n_steps}  {self.material.describe(measured)}")
        if self.material.is_better(self.validated, self.best):
            self.best = self.validated
            return True
        return False

    def save(self, trainer: lightning.Trainer, module: LanguageModel, step: int) -> None:
        """Write the checkpoint, with the best and the newest measurement and the state of the loss scaler."""
        state: dict[str, Any] = {"best": self.best, "validated": self.validated}
        if (scaler := loss_scaler(trainer)) is not None:
            state |= {"skipped_steps": self.skipped_steps, "loss_scaler": scaler.state_dict()}
        if self.sharded:
            weights, optimizer = module.decoder.state_dict(), trainer.optimizers[0].state_dict()
        else:
            weights = trainer.strategy.lightning_module_state_dict()
            optimizer = trainer.strategy.optimizer_state(trainer.optimizers[0])
        if self.sharded or trainer.is_global_zero:
            self.bookkeeping.save(
                step,
                weights={name.removeprefix("decoder."): value for name, value in weights.items()},
                optimizer=optimizer,
                state=state,
            )
        trainer.strategy.barrier()


def as_module(module: lightning.LightningModule) -> LanguageModel:
    assert isinstance(module, LanguageModel)
    return module
