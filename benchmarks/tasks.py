"""Steps a second on tasks, against a plain Llama of transformers on the same batches, and what drawing examples costs.

    python benchmarks/tasks.py                    # copy and the smallest cell of Zoology's associative recall
    python benchmarks/tasks.py --tasks mqar --rounds 9
    python benchmarks/tasks.py --stack            # seeds stacked with torch.func against one after another

Same architecture, batches, loss of scored targets, clipping and optimiser for both; a round times a few steps of each
in turn. transformers makes the logits of every token, as its users get them; its loss leaves out what is not scored.
`drawing` is the time that one batch takes to draw, over that of a step; a run draws the next batch while it computes,
and `waiting` is the share of its time that it then still waits for one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from roundround.config.build import build
from roundround.data.batches import Shares
from roundround.data.tasks.base import Task
from roundround.data.tasks.batches import TaskBatch, TrainingExamples
from roundround.distributed.device import describe_device
from roundround.model.decoder import Decoder
from roundround.trained.models import build_decoder
from roundround.training.optim import AdamW

CONF = Path(__file__).resolve().parent.parent / "conf"
BATCH = {"copy": 64, "mqar": 512}
STEPS = 4
SIZES = {  # of experiment=length/copy and experiment=length/mqar; transformers has no layer without an MLP
    "copy": {"d_model": 64, "n_layers": 3, "n_heads": 4, "n_key_heads": 4, "d_mlp": 172},
    "mqar": {"d_model": 64, "n_layers": 2, "n_heads": 1, "n_key_heads": 1, "d_mlp": 64},
}
Step = Callable[[TaskBatch], None]


def node(group: str, name: str) -> DictConfig:
    config = OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config


def sizes_of(name: str, task: Task) -> DictConfig:
    sizes = {**SIZES[name], "train_length": task.context(task.train_lengths[1])}
    return OmegaConf.merge(node("model", "tiny"), sizes)  # type: ignore[return-value]


def ours(name: str, task: Task) -> Decoder:
    n_vocab = task.vocabulary().size
    return build_decoder(sizes_of(name, task), node("pe", "rope"), node("softmax", "softmax"), n_vocab)


def hugging_face(name: str, task: Task) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = sizes_of(name, task)
    config = LlamaConfig(
        vocab_size=task.vocabulary().size,
        hidden_size=sizes.d_model,
        intermediate_size=sizes.d_mlp,
        num_hidden_layers=sizes.n_layers,
        num_attention_heads=sizes.n_heads,
        num_key_value_heads=sizes.n_key_heads,
        max_position_embeddings=sizes.train_length,
        tie_word_embeddings=sizes.tied_embeddings,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def mean_loss(module: nn.Module, batch: TaskBatch) -> Tensor:
    if isinstance(module, Decoder):
        loss_BT = module(batch.tokens, targets_BT=batch.targets, scored_BT=batch.scored)
        return loss_BT.sum() / batch.scored.sum()
    logits = module(input_ids=batch.tokens).logits
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.masked_fill(~batch.scored, -100).flatten())


def stepper(module: nn.Module) -> Step:
    """One optimiser step of the module on a batch."""
    adam = AdamW(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1).create(module)

    def step(batch: TaskBatch) -> None:
        mean_loss(module, batch).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def compare(name: str, rounds: int, device: torch.device) -> None:
    task = build(node("data", name), Task)  # type: ignore[type-abstract]
    drawn = of_task(task, name, seed=0)
    began = time.perf_counter()
    batches = [drawn.micro_batch(i) for i in range(STEPS)]
    drawing = (time.perf_counter() - began) / STEPS
    batches = [TaskBatch(*(tensor.to(device) for tensor in batch)) for batch in batches]
    modules = {"roundround": ours(name, task).to(device), "transformers": hugging_face(name, task).to(device)}
    steps = {label: stepper(module) for label, module in modules.items()}
    for step in steps.values():
        step(batches[0])
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(rounds):
        for label, step in steps.items():
            seconds[label].append(timed(step, batches, device))
    medians = {label: statistics.median(found) / STEPS for label, found in seconds.items()}
    ratios = [theirs / own for own, theirs in zip(seconds["roundround"], seconds["transformers"], strict=True)]
    waiting = share_of_waiting(drawn, steps["roundround"], device)
    between = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(
        f"| {name} | {BATCH[name]} x {batches[0].tokens.shape[1]} | {1 / medians['roundround']:.1f} | "
        f"{1 / medians['transformers']:.1f} | {between} | {drawing / medians['roundround']:.1%} | "
        f"{waiting:.1%} |"
    )


def share_of_waiting(drawn: TrainingExamples, step: Step, device: torch.device) -> float:
    """Of the time of a few steps, as a run takes them, the part that passes before each has its batch."""
    waited = 0.0
    drawn[STEPS]  # from here on the next one is drawn ahead
    began = time.perf_counter()
    for i in range(STEPS + 1, 6 * STEPS):
        before = time.perf_counter()
        batch = drawn[i]
        waited += time.perf_counter() - before
        timed(step, [TaskBatch(*(tensor.to(device) for tensor in batch))], device)
    return waited / (time.perf_counter() - began)


def of_task(task: Task, name: str, *, seed: int) -> TrainingExamples:
    return TrainingExamples(task, Shares(batch_size=BATCH[name], n_steps=10**6), seed=seed)


def timed(step: Step, batches: Sequence[TaskBatch], device: torch.device) -> float:
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def stack(n_seeds: int, rounds: int, device: torch.device) -> None:
    """Gradients of several seeds at once, by torch.func over a leading axis of the parameters, against one by one.

    Of transformers' Llama: the attention here looks at its numbers to choose a kernel, which torch.func cannot follow.
    """
    task = build(node("data", "copy"), Task)  # type: ignore[type-abstract]
    modules = [hugging_face("copy", task).to(device) for _ in range(n_seeds)]
    parameters, buffers = torch.func.stack_module_state(modules)
    batches = [of_task(task, "copy", seed=seed).micro_batch(0) for seed in range(n_seeds)]
    width = max(batch.tokens.shape[1] for batch in batches)
    tokens, targets = (
        torch.stack([F.pad(part, (0, width - part.shape[1]), value=fill) for part in parts]).to(device)
        for parts, fill in (
            ([batch.tokens for batch in batches], 0),
            ([batch.targets.masked_fill(~batch.scored, -100) for batch in batches], -100),
        )
    )

    def loss(own: dict[str, Tensor], buffers: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        logits = torch.func.functional_call(modules[0], (own, buffers), (tokens,)).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    together = torch.func.vmap(torch.func.grad(loss))

    def apart() -> None:
        for module, own_tokens, own_targets in zip(modules, tokens, targets, strict=True):
            logits = module(input_ids=own_tokens).logits
            F.cross_entropy(logits.flatten(0, 1), own_targets.flatten()).backward()
            module.zero_grad()

    ratios = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        together(parameters, buffers, tokens, targets)
        middle = time.perf_counter()
        apart()
        ratios.append((time.perf_counter() - middle) / (middle - began))
    print(f"{n_seeds} seeds stacked: {statistics.median(ratios[1:]):.2f} times the speed of one after another")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(BATCH), default=list(BATCH))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stack", action="store_true")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{describe_device(device)}, {torch.get_num_threads()} threads of {os.cpu_count()} cores\n")
    if given.stack:
        for n_seeds in (2, 4, 8):
            stack(n_seeds, given.rounds, device)
        return
    print("| task | batch | steps a second | transformers | ratio (range) | drawing a batch, of a step | waiting |")
    print("|---|---|---|---|---|---|---|")
    for name in given.tasks:
        compare(name, given.rounds, device)


if __name__ == "__main__":
    main()
