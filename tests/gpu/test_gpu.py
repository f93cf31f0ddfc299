"""Every normaliser on a GPU, in every precision and every way to attend, against its definition in float64.

    python -m pytest -m cuda        # on a machine with an NVIDIA GPU

Without one these tests are skipped, and a few run on the CPU instead, to show that they would run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from helpers_attention import CHOSEN, D_MODEL, NAMES, attention_shape, build, keys_of, row_counts
from helpers_pe import noise
from torch import Tensor

from roundround.kernels import flex
from roundround.kernels.bias import LinearBias
from roundround.kernels.documents import documents_of
from roundround.kernels.keys import Keys
from roundround.softmax.base import AttentionSoftmax

N_BATCH, N_HEADS, N_TOKENS = 2, 4, 70
ENDS = [[19, 20, 50], [33]]  # of documents, in each text
# error over size, as norms: of the output, and of a gradient
BOUNDS = {torch.float32: (1e-4, 3e-4), torch.float16: (5e-3, 2e-2), torch.bfloat16: (3e-2, 1e-1)}
JUMPS = {"sparsemax": 3}  # times the bound: the gradient jumps where rounding lets a key in or out
# between the logits of a key that is chosen and the next: what rounding may close
MARGINS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
ON_CPU = ("softmax", "sink", "adaptive_temperature", "entmax15", "top_k")
SLOPES_H = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])  # ALiBi's of four heads


@dataclass(frozen=True)
class Way:
    """A way to attend: the number of queries, of key heads and of channels, what is visible, and a bias or none.

    documents: whether those that end at `ENDS` do not see each other.
    """

    n_queries: int = N_TOKENS
    n_key_heads: int = N_HEADS
    head_dim: int = 64
    window: int | None = None
    padded: bool = False
    alibi: bool = False
    documents: bool = False

    def bias(self, device: str) -> LinearBias | None:
        return LinearBias(SLOPES_H[:, None, None].to(device)) if self.alibi else None

    def keys(self, device: str) -> Keys:
        if self.documents:
            ends_BT = torch.zeros(N_BATCH, N_TOKENS, dtype=torch.bool, device=device)
            for text, ends in enumerate(ENDS):
                ends_BT[text, ends] = True
            documents = documents_of(ends_BT, lambda pos_1T: pos_1T)
            return Keys(q_pos_BQ=documents.pos_BT, k_pos_BK=documents.pos_BT, documents=documents)
        keys = keys_of(self.n_queries, N_TOKENS, window=self.window)
        valid_BK = torch.ones(N_BATCH, N_TOKENS, dtype=torch.bool, device=device)
        valid_BK[0, :9] = valid_BK[1, -7:] = False
        return Keys(
            q_pos_BQ=keys.q_pos_BQ.to(device),
            k_pos_BK=keys.k_pos_BK.to(device),
            valid_BK=valid_BK if self.padded else None,
            window=self.window,
        )


WAYS = {
    "plain": Way(),
    "padded": Way(padded=True),
    "window": Way(window=20),
    "cache": Way(n_queries=3),
    "one new token": Way(n_queries=1),
    "grouped": Way(n_key_heads=2),
    "grouped, padded, window, cache": Way(n_queries=33, n_key_heads=2, window=20, padded=True),
    "grouped, 20 channels": Way(n_key_heads=2, head_dim=20),
    "ALiBi": Way(alibi=True),
    "documents": Way(documents=True, n_key_heads=2),
    "documents, 20 channels": Way(documents=True, head_dim=20),
    "documents, ALiBi": Way(documents=True, alibi=True),
}


def definition(
    softmax: AttentionSoftmax, q: Tensor, k: Tensor, v: Tensor, rows: dict[str, Tensor], way: Way
) -> tuple[Tensor, Tensor, Tensor]:
    """sum_j weights(scale q . k + bias)_j v_j over one matrix of logits, the logits, and what is visible."""
    k, v = (x.repeat_interleave(N_HEADS // x.shape[1], 1) for x in (k, v))
    # [B, 1, Q, K], True where visible, and where it would be without a window: queries are the last of the tokens
    valid_BK = None if way.documents else way.keys("cpu").valid_BK
    visible, unwindowed = torch.zeros(2, N_BATCH, 1, way.n_queries, N_TOKENS, dtype=torch.bool)
    for i in range(way.n_queries):
        token = N_TOKENS - way.n_queries + i
        for j in range(token + 1):
            unwindowed[:, 0, i, j] = True if valid_BK is None else valid_BK[:, j]
        for text, ends in enumerate(ENDS if way.documents else ()):
            unwindowed[text, 0, i, : max([end + 1 for end in ends if end < token], default=0)] = False
        visible[:, :, i] = unwindowed[:, :, i]
        visible[:, :, i, : max(0, token + 1 - (way.window or N_TOKENS))] = False
    counted = row_counts(unwindowed if softmax.count == "position" else visible)
    logits = q @ k.mT * q.shape[-1] ** -0.5
    if way.alibi:
        token_Q, token_K = torch.arange(N_TOKENS - way.n_queries, N_TOKENS), torch.arange(N_TOKENS)
        logits = logits - SLOPES_H[:, None, None] * (token_Q[:, None] - token_K)
    return softmax.weights(logits, visible, rows | counted) @ v, logits, visible


def assert_close(found: Tensor, expected: Tensor, bound: float, what: str) -> None:
    error = (found.detach().cpu().double() - expected).norm() / expected.norm().clamp(min=1e-9)
    assert error <= bound, f"{what}: off by {error:.1e} of its size"


# of PyTorch's compiler, about itself, and of its thread for gradients
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not",
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context",
)
HERE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and there is none")
CASES = [  # all on CUDA, some of them on the CPU
    pytest.param(
        device,
        name,
        dtype,
        marks=[pytest.mark.cuda, HERE] if device == "cuda" else [],
        id=f"{device}-{name}-{str(dtype).removeprefix('torch.')}",
    )
    for name in NAMES
    for dtype in BOUNDS
    for device in ("cuda", "cpu")
    if device == "cuda" or (name in ON_CPU and dtype != torch.float16)
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """PyTorch keeps so many graphs of one function and then refuses the next."""
    yield
    if torch.cuda.is_available():
        torch._dynamo.reset()
        flex.compiled_function.cache_clear()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize(("device", "name", "dtype"), CASES)
def test_attention_is_the_definition_in_float64_gradients_included(
    device: str, name: str, dtype: torch.dtype, way: Way
) -> None:
    shape = attention_shape(n_heads=N_HEADS, n_key_heads=way.n_key_heads, head_dim=way.head_dim)
    softmax = build(name, shape).to(device, dtype)  # in training some are the plain softmax
    exact = copy.deepcopy(softmax).cpu().double()
    sizes = ((N_HEADS, way.n_queries), (way.n_key_heads, N_TOKENS), (way.n_key_heads, N_TOKENS))
    values = [noise(N_BATCH, *size, way.head_dim, seed=seed).to(dtype) for seed, size in enumerate(sizes)]
    leaves = [x.to(device).requires_grad_() for x in values]
    x_BQD = noise(N_BATCH, way.n_queries, D_MODEL, seed=7).to(device, dtype)
    rows = {key: value.detach() for key, value in softmax.row_parameters(x_BQD).items()}
    options = {"scale": way.head_dim**-0.5, "keys": way.keys(device), "bias": way.bias(device), "rows": rows}
    out = softmax(*leaves, **options)
    with torch.no_grad():  # where adaptive temperatures take their entropy by another pass
        undifferentiated = softmax(*leaves, **options)
    assert (out.dtype, out.shape, out.device.type) == (dtype, leaves[0].shape, device)

    exact_leaves = [x.double().requires_grad_() for x in values]
    exact_rows = {key: value.cpu().double() for key, value in rows.items()}
    expected, logits, visible = definition(exact, *exact_leaves, exact_rows, way)
    compared = torch.ones_like(logits[..., :1], dtype=torch.bool)
    if name in CHOSEN:
        # rows [B, H, Q, 1] in which the last key that is chosen is clearly larger than the next
        n_chosen = CHOSEN[name]
        ordered = logits.detach().masked_fill(~visible, -torch.inf).sort(-1, descending=True).values
        ordered = torch.nn.functional.pad(ordered, (0, 1), value=-torch.inf)
        between = ordered[..., n_chosen - 1 : n_chosen] - ordered[..., n_chosen : n_chosen + 1]
        compared = between.nan_to_num(torch.inf) > MARGINS[dtype]
        assert compared.float().mean() > 0.6
    of_output, of_gradient = BOUNDS[dtype]
    for what, mine in (("output", out), ("output without gradients", undifferentiated)):
        assert_close(mine * compared.to(device), (expected * compared).detach(), of_output, what)
    cotangent = noise(*expected.shape, seed=9).to(dtype).double() * compared
    theirs = torch.autograd.grad((expected * cotangent).sum(), exact_leaves)
    ours = torch.autograd.grad(out, leaves, cotangent.to(device, dtype))
    for what, mine, its in zip(("dq", "dk", "dv"), ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert_close(mine, its, of_gradient * JUMPS.get(name, 1), what)
