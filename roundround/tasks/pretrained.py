"""A pretrained model as a command needs it: loaded, patched where asked, with its own tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from roundround.build import build, maker
from roundround.errors import UserError
from roundround.pe.base import PositionalEncoding
from roundround.probing.subject import Subject
from roundround.run import tell
from roundround.softmax.base import AttentionSoftmax

if TYPE_CHECKING:
    from roundround.hf.subject import HuggingFaceModel


@contextmanager
def opened_subject(
    model: DictConfig, pe: DictConfig | None, softmax: DictConfig | None, device: torch.device
) -> Iterator[HuggingFaceModel]:
    """The pretrained model of a node of kind `pretrained`, patched inside the block; UserError for another kind."""
    if model.get("kind") != "pretrained":
        raise UserError(
            f"model is of kind '{model.get('kind')}', which has no weights of its own; give a pretrained one, such as "
            "model=hf model.path=DIR (roundround list model), or run=DIR for one trained here"
        )
    from roundround.hf.load import Pretrained
    from roundround.hf.patch import Patch
    from roundround.hf.subject import HuggingFaceModel

    source = build(model, Pretrained)
    loaded, tokenizer = source.load(device)
    make_softmax = None if softmax is None else maker(softmax, AttentionSoftmax)
    make_encoding = None if pe is None else maker(pe, PositionalEncoding)
    patch = Patch(loaded, make_softmax, make_encoding)
    if patch.remark is not None:
        tell(patch.remark)
    with patch:
        yield HuggingFaceModel(source.path.rstrip("/").rpartition("/")[2], loaded, tokenizer)


class FromBeginning(nn.Module):
    """A subject that reads windows from the middle of a text, each after the token with which it knows texts to begin.

    As `Decoder`: nats [B, T] of the targets.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.model = subject.model
        self.subject = subject

    @property
    def n_before(self) -> int:
        """Tokens in front of each window."""
        return 0 if self.subject.first_token is None else 1

    def forward(self, tokens_BT: Tensor, *, targets_BT: Tensor) -> Tensor:
        if self.subject.first_token is None:
            return self.subject.nats(tokens_BT, targets_BT)
        first_B1 = torch.full_like(tokens_BT[:, :1], self.subject.first_token)
        with_first = torch.cat([first_B1, tokens_BT], 1)
        return self.subject.nats(with_first, torch.cat([tokens_BT[:, :1], targets_BT], 1))[:, 1:]
