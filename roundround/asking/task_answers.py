"""Answers to the examples of a task: of a pretrained model under teacher forcing, and of any model by what it writes.

`model/answers.py` has a decoder of this project under teacher forcing. Shapes: B examples, T targets, V vocabulary.

Tested by tests/asking/test_task_answers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from roundround.asking.generation import Writer, write
from roundround.data.tasks.base import Example, Task
from roundround.data.tasks.length_tests import LengthTest
from roundround.model.answers import AnswerScores
from roundround.model.scoring import nats_of
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel


@final
class AnsweringPretrained:
    """A Hugging Face model that answers; its head computes only columns with a scored target, some at a time."""

    def __init__(self, probed: ProbedHuggingFaceModel) -> None:
        self.probed = probed

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        return [None]

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        nats_BT, right_BT = torch.zeros(scored_BT.shape, device=scored_BT.device), torch.zeros_like(scored_BT)
        for columns, logits_BNV in self.probed.logits(tokens_BT, first=int(scored_BT.any(0).nonzero()[0])):
            right_BT[:, columns] = logits_BNV.argmax(-1) == targets_BT[:, columns]
            nats_BT[:, columns] = nats_of(logits_BNV, targets_BT[:, columns])
        return nats_BT * scored_BT, right_BT & scored_BT


def check_is_written(task: Task, example: Example) -> None:
    """UserError where the answer is not at the end of an example, after the whole question."""
    scored = example.scored
    if example.answers is not None or not scored[int(scored.argmax()) :].all():
        raise UserError(
            f"by=generation is for an answer after its question, and {type(task).__name__} asks for several in "
            "between; leave it out"
        )


@torch.inference_mode()
def score_written(writer: Writer, task: Task, examples: Iterable[tuple[Example, int]]) -> AnswerScores:
    """Scores of what the model writes after each question, greedily: one pass over it, then one step for each token.

    A length test is right as far as the text contains its references, whatever their case and order (RULER's rule for
    its tests of these kinds); writing ends where all are found, which changes no score. Any other task has one
    reference, the tokens of its answer.
    """
    scores = AnswerScores(written=True)
    for example, times in examples:
        check_is_written(task, example)
        first = int(example.scored.argmax())
        answer = example.tokens[first:].tolist()
        prompt_1T = torch.from_numpy(example.tokens[None, :first]).to(writer.device)
        if isinstance(task, LengthTest):
            left = [reference.lower() for reference in task.references(writer.decode(answer[:-1]))]  # without the end
            n_references, n_most = len(left), max(task.written, len(answer))
        else:
            n_references, n_most = 1, len(answer)
        writer.begin(first + n_most)
        logits_1V, tokens, n_found = writer.read(prompt_1T), list[int](), 0
        options: dict[str, Any] = {"temperature": 0.0, "top_k": None, "generators": []}
        for (token,) in write(writer, logits_1V, n=1, length=n_most, **options):
            assert token is not None, "one text has not ended, or there are no more steps"
            tokens.append(token)
            if isinstance(task, LengthTest):
                text = writer.decode(tokens).lower()
                left = [reference for reference in left if reference not in text]
                n_found = n_references - len(left)
            else:
                n_found = int(tokens == answer)
            if n_found == n_references:
                break
        counts = {"exact": n_found == n_references, "hits": n_found, "targets": n_references}
        none = {"nats": 0, "output": 0, "with_output": 0}
        scores.add(torch.tensor([times]), **{name: torch.tensor([float(n)]) for name, n in (counts | none).items()})
    return scores
