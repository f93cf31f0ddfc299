"""Documents that do not see each other: one pass over windows of several is a pass over each by itself.

For each yaml of conf/pe and conf/softmax; a new variant is tested by being there.
Shapes: B batch, T tokens, N documents.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import beside
from helpers_attention import D_MODEL, ENCODINGS, NAMES, REPLACED, SCALE, build, covering, made
from helpers_pe import noise
from torch import Tensor

from roundround.kernels import choose
from roundround.kernels.documents import documents_of, grouped
from roundround.kernels.keys import Keys
from roundround.kernels.sdpa import Kernel
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder

END, N_VOCAB = 0, 40
# documents of 4, 1 and 9 tokens, and of 6 and 3 with a beginning of 5 behind them; no other token twice in a window
TOKENS = torch.cat([torch.randperm(N_VOCAB - 1, generator=torch.Generator().manual_seed(i))[None, :15] for i in (0, 1)])
TOKENS = (TOKENS + 1).index_put([torch.tensor([0, 0, 0, 1, 1]), torch.tensor([3, 4, 13, 5, 8])], torch.tensor(END))
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
BY_ORDER = [name for name in NAMES if beside(name) == "nope"]
DOCUMENTS = [(0, 0, 4), (0, 4, 5), (0, 5, 14), (1, 0, 6), (1, 6, 9), (1, 9, 14)]  # window, first and last + 1


def decoder_of(encoding: str, normaliser: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        n_vocab=N_VOCAB,
        kinds=[
            LayerKind(
                make_encoding=lambda shape: made("pe", encoding, shape, {}, 0.3),
                make_softmax=lambda shape: made("softmax", normaliser, shape, REPLACED.get(normaliser, {}), 0.3),
            )
        ],
        d_model=16,
        n_layers=1,
        n_heads=4,
        n_key_heads=2,
        head_dim=None,
        d_mlp=0,
        train_length=16,
        tied_embeddings=True,
        geglu=False,
        scaled_embeddings=False,
        norm_eps=1e-5,
        initializer_range=0.4,
    ).double()


def in_documents(x_BT: Tensor) -> list[Tensor]:
    return [x_BT[window, a:b] for window, a, b in DOCUMENTS]


@covering(
    "encoding,normaliser",
    ENCODINGS,
    [name for name in NAMES if name not in BY_ORDER],
    also=[("nope", name) for name in BY_ORDER],
)
def test_logits_are_those_of_a_pass_over_each_document(encoding: str, normaliser: str) -> None:
    decoder, step = decoder_of(encoding, normaliser), 3  # positions may be drawn
    with torch.no_grad():
        found = in_documents(decoder(INPUTS, ends_BT=INPUTS == END, step=step))
        for ours, tokens_N in zip(found, in_documents(INPUTS), strict=True):
            torch.testing.assert_close(ours, decoder(tokens_N[None], step=step)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("encoding", "normaliser"),
    [
        *[("rope", "softmax"), ("fox", "ssmax"), ("t5_bias", "entmax15"), ("learned", "adaptive_temperature_trained")],
        *[("alibi", "sink"), ("rope_random", "log_n"), ("fire", "as_entmax")],
    ],
)
def test_losses_and_gradients_are_those_of_each_document(encoding: str, normaliser: str) -> None:
    """A document's last token, its end, predicts the first token of the next one, whichever pass it is in."""
    decoder, weights_BT = decoder_of(encoding, normaliser), noise(*INPUTS.shape).abs()
    loss_BT = decoder(INPUTS, targets_BT=TARGETS, ends_BT=INPUTS == END, step=3)
    apart = [
        decoder(tokens_N[None], targets_BT=targets_N[None], step=3)[0]
        for tokens_N, targets_N in zip(in_documents(INPUTS), in_documents(TARGETS), strict=True)
    ]
    torch.testing.assert_close(in_documents(loss_BT), apart, rtol=0, atol=1e-10)
    expected_sum = torch.stack([(loss * w).sum() for loss, w in zip(apart, in_documents(weights_BT), strict=True)])
    parameters = list(decoder.parameters())
    ours, expected = (torch.autograd.grad(loss.sum(), parameters) for loss in (loss_BT * weights_BT, expected_sum))
    assert all(grad.count_nonzero() for grad in expected)
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)


def test_a_row_counts_the_keys_of_its_own_document() -> None:
    keys = keys_of_documents()
    first, second = [1, 2, 3, 4, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2, 3, 4, 5]
    assert keys.counts(0, 14)[:, 0, :, 0].tolist() == [first, second]
    assert keys.counts(3, 8)[:, 0, :, 0].tolist() == [first[3:8], second[3:8]]
    assert keys.q_pos_BQ.tolist() == [[n - 1 for n in row] for row in (first, second)]
    marked = torch.zeros(2, 1, 14, dtype=torch.bool)
    marked[0, 0, [0, 5, 6]] = True
    assert keys.counts(0, 14, marked)[0, 0, :, 0].tolist() == [1, 1, 1, 1, 0, 1, *[2] * 8]


@pytest.mark.parametrize("name", NAMES)
def test_a_document_of_numbers_that_are_not_finite_spoils_no_other(name: str) -> None:
    q, k, v = noise(2, 4, 14, 8), noise(2, 2, 14, 8, seed=1), noise(2, 2, 14, 8, seed=2)
    softmax, keys = build(name).double(), keys_of_documents()
    rows = softmax.row_parameters(noise(2, 14, D_MODEL, seed=3))
    whole = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows=rows)
    k[0, :, 2] = torch.nan
    broken = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows=rows)
    assert broken[0, :, 2:4].isnan().all()
    assert torch.equal(broken[0, :, 4:], whole[0, :, 4:])
    assert torch.equal(broken[1], whole[1])


@pytest.mark.parametrize("name", ["softmax", "ssmax", "log_n", "sink", "adaptive_temperature", "entmax15"])
def test_one_call_for_rows_of_unequal_length_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels themselves are CUDA's: here each row of the nested tensor goes through the CPU's."""
    q, k, v = (noise(2, n, 14, 8, seed=n).requires_grad_() for n in (4, 2, 2))
    softmax, calls, kernel = build(name).double(), [], F.scaled_dot_product_attention

    def of_each_row(*tensors: Tensor, **options: Any) -> Tensor:
        if not tensors[0].is_nested:
            return kernel(*tensors, **options)
        calls.append([len(row) for row in tensors[0].transpose(1, 2).unbind()])
        rows = zip(*(x.transpose(1, 2).unbind() for x in tensors), strict=True)
        outs = [kernel(*(x.transpose(0, 1)[None] for x in row), **options)[0].transpose(0, 1) for row in rows]
        return torch.nested.as_nested_tensor(outs, layout=torch.jagged).transpose(1, 2)

    def found() -> tuple[Tensor, ...]:
        out = softmax(q, k, v, scale=SCALE, keys=keys_of_documents(), bias=None, rows={})
        return out, *torch.autograd.grad(out.square().sum(), [q, k, v])

    expected = found()
    monkeypatch.setattr(choose, "varlen_kernel_for", lambda q_BHQC: Kernel.FLASH)
    monkeypatch.setattr(F, "scaled_dot_product_attention", of_each_row)
    torch.testing.assert_close(found(), expected)
    assert calls == ([[4, 1, 9, 6, 3, 5]] if name in ("softmax", "ssmax", "log_n") else [])


@pytest.mark.parametrize("options", [{"causal": False}, {"valid_BK": torch.ones(2, 14).bool()}], ids=str)
def test_documents_go_with_causal_attention_alone(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="documents="):
        keys_of_documents(**options)


def test_groups_have_documents_of_about_one_length() -> None:
    lengths = torch.tensor([3, 500, 90, 80, 410, 64, 3])
    assert [group.tolist() for group in grouped(lengths)] == [[1, 4], [2, 3], [5], [0, 6]]


def keys_of_documents(**options: object) -> Keys:
    documents = documents_of(INPUTS == END, lambda pos_1T: pos_1T)
    return Keys(q_pos_BQ=documents.pos_BT, k_pos_BK=documents.pos_BT, documents=documents, **options)
