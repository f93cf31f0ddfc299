"""Splits the windows of a batch into documents that do not see each other, and lays them out for attention.

Documents of similar length form a group: they become the rows of one batch, and shorter documents are padded at the
end. A causal row sees nothing to its right, so no token sees the padding, and the causal mask is enough. The number n
of visible keys, which some normalisers use, is counted within each document.

Shapes: B batch, T tokens, H heads, C channels, N = B T tokens of the batch, P slots in the rows of all groups,
M documents of a group, L tokens of the longest document of a group.

Tested by tests/softmax/test_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.kernels.torch_internals import outside_compilation

LONGEST_TO_SHORTEST = 1.25  # lengths in a group: padding then at most multiplies the logits by 1.6, and groups are few

Positions = Callable[[Tensor], Tensor]  # maps 0 .. n - 1 to the positions of a document of n tokens, [1, n]


@dataclass(frozen=True, eq=False, kw_only=True)
class Documents:
    """The documents in a batch of windows. The first and last document of a window may be parts of longer documents.

    pos_BT: the position that the encoding gives each token within its document.
    first_BT: the index in the window of the first token of each token's document.
    offsets: the index of each document's first token in the flattened batch, then the number of tokens [documents + 1].
    shortest, longest: the number of tokens in the shortest and in the longest document.
    pos_of_groups: for each group, the positions in its rows: [M, L], or [1, L] if all its rows have the same positions.
    n_in_groups: for each group, the number of its documents.
    order_P: for each slot of the groups' rows, the index of its token; padding repeats the document's last token.
    place_N: for each token, the index of its slot.
    """

    pos_BT: Tensor
    first_BT: Tensor
    offsets: Tensor
    shortest: int
    longest: int
    pos_of_groups: list[Tensor]
    n_in_groups: list[int]
    order_P: Tensor
    place_N: Tensor

    def split(self, x_BHTC: Tensor) -> list[Tensor]:
        """Lay out one vector per token and head, [B, heads, T, C], as the rows of each group, [M, heads, L, C]."""
        x_PHC = x_BHTC.transpose(1, 2).flatten(0, 1)[self.order_P]
        lengths = [pos.shape[1] for pos in self.pos_of_groups]
        parts = torch.split(x_PHC, [n * length for n, length in zip(self.n_in_groups, lengths, strict=True)])
        return [x.view(-1, n, *x.shape[1:]).transpose(1, 2) for x, n in zip(parts, lengths, strict=True)]

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Undo `split`: drop the padding of the groups' rows and return the vectors as [B, heads, T, C]."""
        x_PHC = torch.cat([x.transpose(1, 2).flatten(0, 1) for x in parts])
        return x_PHC[self.place_N].view(*self.pos_BT.shape, *x_PHC.shape[1:]).transpose(1, 2)


@outside_compilation  # the number of documents depends on the tokens
def documents_of(ends_BT: Tensor, positions: Positions) -> Documents:
    """The documents of a batch. `ends_BT`, [B, T] bool, is True at the last token of each document."""
    n_batch, n_tokens = ends_BT.shape
    begins_BT = torch.ones(n_batch, n_tokens, dtype=torch.bool)
    begins_BT[:, 1:] = ends_BT[:, :-1].cpu()
    offsets = torch.cat([begins_BT.flatten().nonzero()[:, 0], torch.tensor([n_batch * n_tokens])])
    lengths = offsets.diff()
    own = {n: positions(torch.arange(n)[None])[0] for n in set(lengths.tolist())}
    groups = grouped(lengths)
    order_P, is_token_P, pos_P, pos_of_groups = [], [], [], []
    for group in groups:
        lengths_M1, n_longest = lengths[group, None], int(lengths[group[0]])
        column_ML = torch.arange(n_longest).expand(len(group), -1)
        order_P.append((offsets[group, None] + column_ML.minimum(lengths_M1 - 1)).flatten())
        is_token_P.append((column_ML < lengths_M1).flatten())
        pos_of_groups.append(positions_of_group([own[n] for n in lengths[group].tolist()]))
        pos_P.append(pos_of_groups[-1].expand(len(group), -1).flatten())
    order, is_token = torch.cat(order_P), torch.cat(is_token_P)
    place_N = torch.empty(n_batch * n_tokens, dtype=torch.int64)
    place_N[order[is_token]] = is_token.nonzero()[:, 0]

    def there(x: Tensor) -> Tensor:
        return x.to(ends_BT.device, non_blocking=True)

    return Documents(
        pos_BT=there(torch.cat(pos_P)[place_N].view(n_batch, n_tokens)),
        first_BT=there(offsets[:-1].repeat_interleave(lengths).view(n_batch, n_tokens) % n_tokens),
        offsets=there(offsets),
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        pos_of_groups=[there(pos_ML) for pos_ML in pos_of_groups],
        n_in_groups=[len(group) for group in groups],
        order_P=there(order),
        place_N=there(place_N),
    )


def grouped(lengths: Tensor) -> list[Tensor]:
    """The indices of the documents, in groups of similar length; in each group the longest comes first."""
    sorted_lengths, longest_first = lengths.sort(descending=True, stable=True)
    firsts, longest = [0], int(sorted_lengths[0])
    for i, length in enumerate(sorted_lengths.tolist()):
        if length * LONGEST_TO_SHORTEST < longest:
            firsts.append(i)
            longest = length
    return list(longest_first.tensor_split(firsts[1:]))


def positions_of_group(of_documents: list[Tensor]) -> Tensor:
    """The positions of a group's documents, one row per document, [M, L]; the first document must be the longest.

    Shorter rows are padded. If every row is a prefix of the first, only the first row is returned, [1, L].
    """
    longest = of_documents[0]
    if all(torch.equal(pos, longest[: len(pos)]) for pos in of_documents):
        return longest[None]
    return torch.stack([torch.cat([pos, pos[-1:].expand(len(longest) - len(pos))]) for pos in of_documents])
