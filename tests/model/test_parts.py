"""`rr.encoding`, `rr.normaliser` and `rr.attend` in a GPT of one's own, against a `Decoder` with the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, option
from torch import Tensor, nn

import roundround as rr
from roundround.config.options import load_option
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

D_MODEL, N_HEADS, N_LAYERS, LENGTH = 32, 4, 2, 24
SIZES: dict[str, Any] = {"n_heads": N_HEADS, "head_dim": D_MODEL // N_HEADS, "train_length": LENGTH}
PAIRS = [
    ("rope", "softmax"),
    ("alibi", "ssmax"),
    ("fox", "entmax15"),
    ("xpos", "sigmoid"),
    ("t5_bias", "as_entmax"),
]


class Attention(nn.Module):
    def __init__(self, layer: int, pe: str, softmax: str) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D_MODEL, 3 * D_MODEL, bias=False), nn.Linear(D_MODEL, D_MODEL, bias=False)
        self.encoding = rr.encoding(pe, **SIZES, layer=layer)
        self.normaliser = rr.normaliser(softmax, **SIZES, d_model=D_MODEL, layer=layer)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = rr.attend(q, k, v, encoding=self.encoding, normaliser=self.normaliser, x=x)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, layer: int, pe: str, softmax: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D_MODEL, eps=1e-6), nn.RMSNorm(D_MODEL, eps=1e-6)
        self.attention = Attention(layer, pe, softmax)
        self.mlp = nn.Sequential(nn.Linear(D_MODEL, 4 * D_MODEL), nn.GELU(), nn.Linear(4 * D_MODEL, D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A GPT as people write it: attention is the only part from roundround."""

    def __init__(self, pe: str, softmax: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, D_MODEL)
        self.blocks = nn.Sequential(*(Block(layer, pe, softmax) for layer in range(N_LAYERS)))
        self.norm, self.head = nn.RMSNorm(D_MODEL), nn.Linear(D_MODEL, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("pe", "softmax"), PAIRS)
def test_a_gpt_of_ones_own_trains(pe: str, softmax: str) -> None:
    torch.manual_seed(0)
    model = GPT(pe, softmax)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(40):  # the second half repeats the first
        half = torch.randint(16, (16, LENGTH // 2))
        tokens = torch.cat([half, half], 1)
        logits = model(tokens[:, :-1])[:, LENGTH // 2 :]
        losses.append(F.cross_entropy(logits.flatten(0, 1), tokens[:, LENGTH // 2 + 1 :].flatten()))
        optimizer.zero_grad()
        losses[-1].backward()
        assert [name for name, p in model.named_parameters() if p.grad is None] == []
        optimizer.step()
    assert torch.stack(losses[-5:]).mean() < torch.stack(losses[:5]).mean() - 0.1


def moved(parts: nn.Module) -> None:
    """Move learned parameters away from where they start."""
    with torch.no_grad():
        for number, parameter in enumerate(parts.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


@pytest.mark.parametrize("n_key_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("pe", "softmax"), [*PAIRS, ("pope", "adaptive_temperature"), ("rope_values", "sink")])
def test_a_layer_of_parts_is_a_layer_of_the_decoder(
    pe: str, softmax: str, window: int | None, n_key_heads: int
) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": D_MODEL, "n_heads": N_HEADS, "n_key_heads": n_key_heads, "d_mlp": 8, "n_layers": 1}
    model = load_option("model", "tiny", **sizes, train_length=LENGTH, initializer_range=0.3)
    decoder = build_decoder(model, option("pe", pe), option("softmax", softmax), 16).double()
    theirs = decoder.layers[0].self_attn
    moved(decoder.encodings)
    moved(theirs.softmax)  # type: ignore[arg-type]
    encoding = rr.encoding(pe, **SIZES, n_key_heads=n_key_heads).double()
    normaliser = rr.normaliser(softmax, **SIZES, d_model=D_MODEL).double()
    encoding.load_state_dict(decoder.encoding.state_dict())
    normaliser.layers[0].load_state_dict(theirs.softmax.state_dict())  # type: ignore[union-attr]
    x = torch.randn(2, LENGTH, D_MODEL, dtype=torch.float64)
    projections = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    q, k, v = (own(x).unflatten(-1, (-1, D_MODEL // N_HEADS)).transpose(1, 2) for own in projections)  # type: ignore[operator]
    out = rr.attend(q, k, v, encoding=encoding, normaliser=normaliser, x=x, window=window)
    found = theirs.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[operator]
    keys = decoder.keys(x[..., 0], None, None, None, None)[0].within(window)
    prepared = decoder.encoding.prepare(keys.q_pos_BQ, x.dtype)
    expected = theirs(x, decoder.encoding, prepared, keys, None, lambda y, site: y)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)  # sums over 32 numbers of size 10, in float64


def tensors(n_key_heads: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    each = (4, n_key_heads, n_key_heads)
    return [torch.randn(2, n, 9, 8, generator=generator, dtype=torch.float64) for n in each]


def test_without_an_encoding_it_is_pytorchs_attention() -> None:
    q, k, v = tensors(2)
    softmax = rr.normaliser("softmax")
    for causal in (True, False):
        theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True, scale=0.2)
        found = rr.attend(q, k, v, normaliser=softmax, causal=causal, scale=0.2)
        torch.testing.assert_close(found, theirs, atol=1e-13, rtol=0)


def test_padding_is_not_seen_and_moves_no_position() -> None:
    q, k, v = tensors()
    valid = torch.ones(2, 9).bool()
    valid[0, :3] = False
    parts: dict[str, Any] = {
        "encoding": rr.encoding("xpos", n_heads=4, head_dim=8),
        "normaliser": rr.normaliser("sigmoid"),
    }
    found = rr.attend(q, k, v, **parts, valid=valid)
    alone = rr.attend(*(x[:1, :, 3:] for x in (q, k, v)), **parts)
    torch.testing.assert_close(found[:1, :, 3:], alone, atol=1e-12, rtol=0)


def test_positions_are_those_that_are_given() -> None:
    q, k, v = tensors()
    parts: dict[str, Any] = {
        "encoding": rr.encoding("alibi", n_heads=4, head_dim=8),
        "normaliser": rr.normaliser("softmax"),
    }
    pos = torch.arange(9)[None]
    usual = rr.attend(q, k, v, **parts)
    torch.testing.assert_close(rr.attend(q, k, v, **parts, pos=pos + 100), usual, atol=1e-12, rtol=0)
    assert not torch.allclose(rr.attend(q, k, v, **parts, pos=3 * pos), usual, atol=1e-3)


def test_numbers_reach_the_parts() -> None:
    assert rr.encoding("rope", n_heads=2, head_dim=8, theta=500.0).theta == 500.0
    assert rr.normaliser("top_k", k=3).layers[0].k == 3
    assert rr.normaliser("ssmax", n_heads=2, s=0.7).layers[0].s.tolist() == pytest.approx([0.7, 0.7])  # type: ignore[operator, union-attr]
    assert rr.normaliser("ssmax", n_heads=2, s=0.7, layer=5, n_layers=2).layers[1].shape.layer == 6  # type: ignore[union-attr]


def test_a_compiled_layer_is_the_layer() -> None:
    attention, x = Attention(0, "rope", "softmax").double(), torch.randn(2, 9, D_MODEL, dtype=torch.float64)
    found = torch.compile(attention, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, attention(x), atol=1e-12, rtol=0)


def attended(pe: str | None, softmax: str, n_heads: int = 4, **options: Any) -> None:
    made = None if pe is None else rr.encoding(pe, n_heads=n_heads, head_dim=8, train_length=9)
    normaliser = rr.normaliser(softmax, n_heads=n_heads, d_model=32, train_length=9).double()
    rr.attend(*tensors(), encoding=made, normaliser=normaliser, **options)


X = torch.zeros(2, 9, 32, dtype=torch.float64)
ROPE, SIGMOID = rr.encoding("rope", n_heads=4, head_dim=8), rr.normaliser("sigmoid")


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (partial(attended, "fox", "softmax"), r"FoX reads the input of the layer; give x="),
        (partial(attended, "rope", "as_entmax"), r"ASEntmax reads the input of the layer; give x="),
        (partial(attended, "alibi", "softmax", 8), "have n_heads=4; make ALiBi with n_heads=4"),
        (partial(attended, None, "ssmax", 8), "have n_heads=4; make SSMax with n_heads=4"),
        (partial(attended, "fox", "softmax", x=X[..., :8]), "have d_model=8; make FoX with d_model=8"),
        (partial(attended, "sinusoidal", "softmax"), r"Sinusoidal changes embeddings; call its embed\(x, pos\)"),
        (partial(attended, "rope_random", "softmax"), "draws positions"),
        (partial(attended, "rope", "stick_breaking"), "cannot be combined with RoPE"),
        (partial(attended, "rope", "softmax", window=0), "window=0 must be at least 1"),
        (partial(rr.attend, *tensors(2), encoding=ROPE, normaliser=SIGMOID), "make RoPE with n_key_heads=2"),
        (partial(rr.attend, tensors()[0][:, :, -1:], *tensors()[1:], normaliser=SIGMOID), "whole texts"),
        (partial(rr.attend, *tensors(), normaliser="softmax"), r"rr\.normaliser\(name"),
        (partial(rr.attend, *tensors(), encoding="rope", normaliser=SIGMOID), r"rr\.encoding\(name"),
        (partial(rr.encoding, "yarn", n_heads=4, head_dim=8, factor=2.0), "train_length is needed; give train_length="),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_one_line(wrong: Callable[[], Any], line: str) -> None:
    with pytest.raises((ValueError, UserError), match=line) as error:
        wrong()
    assert "\n" not in str(error.value)


# -- a model of parts is measured


class Letters:
    """A tokenizer as people write it for a small GPT."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 16 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + number) for number in ids)


class LastToken(GPT):
    """A GPT that gives the logits of its last token and no loss, as nanoGPT does."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)[:, -1:], None


TEXT = "the fox sang to the moon"


def sharp(gpt: GPT) -> GPT:
    """The same with weights large enough that its heads differ from uniform ones."""
    torch.manual_seed(0)
    for parameter in gpt.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 0.4)
    return gpt


def calls_of(gpt: GPT, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys [T, H, C] of each layer before their rotation, from what the projections return."""
    found: list[tuple[Tensor, Tensor]] = []
    for block in gpt.blocks:
        block.attention.qkv.register_forward_hook(
            lambda _, __, out: found.append(tuple(y[0].unflatten(-1, (N_HEADS, -1)) for y in out.chunk(3, -1)[:2]))
        )
    gpt(tokens)
    return found


def turned(x_THC: Tensor, step: int = 1) -> Tensor:
    """Su et al. 2021, arXiv:2104.09864, equation 34, with pairs of channels m and m + C/2 and base 10,000."""
    n_pairs = x_THC.shape[-1] // 2
    angle_TP = step * torch.arange(len(x_THC))[:, None, None] * 10_000.0 ** (-torch.arange(n_pairs) / n_pairs)
    first, second = x_THC[..., :n_pairs], x_THC[..., n_pairs:]
    cos, sin = angle_TP.cos(), angle_TP.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


@torch.no_grad()
def test_attention_of_a_model_of_parts_is_its_formula() -> None:
    gpt, tokens = sharp(LastToken("rope", "softmax")).double(), torch.tensor([Letters().encode(TEXT)])
    weights, future = rr.attention(gpt, Letters(), TEXT), torch.ones(len(TEXT), len(TEXT), dtype=torch.bool).triu(1)
    assert (weights.name, "".join(weights.words)) == ("LastToken", Letters().decode(tokens[0].tolist()))
    for layer, (q, k) in enumerate(calls_of(gpt, tokens)):
        logits = torch.einsum("qhc,khc->hqk", turned(q), turned(k)) / (D_MODEL // N_HEADS) ** 0.5
        expected = logits.masked_fill(future, -torch.inf).softmax(-1)
        assert torch.allclose(weights[layer].double(), expected, atol=1e-6)
        assert expected.max() > 3 / len(TEXT)


@torch.no_grad()
def test_a_probe_of_a_model_of_parts_knows_its_frequencies() -> None:
    gpt, tokens = sharp(LastToken("rope", "softmax")), torch.tensor([Letters().encode(TEXT)])
    arrays = rr.probe(gpt, Letters(), [TEXT]).arrays()
    n_pairs = D_MODEL // N_HEADS // 2
    assert torch.allclose(arrays["frequencies"][0], 10_000.0 ** (-torch.arange(n_pairs) / n_pairs))
    for layer, (q, _) in enumerate(calls_of(gpt, tokens)):
        norms_THP = (q[..., :n_pairs] ** 2 + q[..., n_pairs:] ** 2).sqrt()
        assert torch.allclose(arrays["query_norm"][layer], norms_THP.mean(0), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::roundround.softmax.base.RunsInBlocks")
@pytest.mark.parametrize(("pe", "softmax"), PAIRS)
def test_every_model_of_parts_is_probed_and_left_as_it_was(pe: str, softmax: str) -> None:
    gpt = sharp(LastToken(pe, softmax)).train()
    before = gpt(torch.tensor([Letters().encode(TEXT)]))[0]
    probe = rr.probe(gpt, Letters(), [TEXT, TEXT[:12]])
    assert probe.rotates == (pe == "rope")
    assert len(probe.labels()) == N_LAYERS
    assert torch.equal(gpt(torch.tensor([Letters().encode(TEXT)]))[0], before)
    assert gpt.training
    assert not any("prepare" in vars(module) for module in gpt.modules())


class OwnPositions(LastToken):
    """Its tokens stand three positions apart."""

    def forward(self, tokens: Tensor) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            own = rr.attend
            patch.setattr(rr, "attend", partial(own, pos=3 * torch.arange(tokens.shape[1])[None]))
            return super().forward(tokens)


@torch.no_grad()
def test_positions_of_the_model_stay_its_own() -> None:
    gpt, tokens = sharp(OwnPositions("rope", "softmax")).double(), torch.tensor([Letters().encode(TEXT)])
    weights, future = rr.attention(gpt, Letters(), TEXT), torch.ones(len(TEXT), len(TEXT), dtype=torch.bool).triu(1)
    assert rr.probe(gpt, Letters(), [TEXT]).rotates
    [(q, k), *_] = calls_of(gpt, tokens)
    q, k = (turned(x, step=3) for x in (q, k))
    logits = torch.einsum("qhc,khc->hqk", q, k) / (D_MODEL // N_HEADS) ** 0.5
    assert torch.allclose(weights[0].double(), logits.masked_fill(future, -torch.inf).softmax(-1), atol=1e-6)


def test_weights_need_no_trained_length_and_a_probe_says_that_it_does() -> None:
    gpt = GPT("rope", "softmax")
    for block in gpt.blocks:
        for part in (block.attention.encoding, block.attention.normaliser.layers[0]):
            del vars(part.shape)["train_length"]
    assert rr.attention(gpt, Letters(), TEXT)[1].shape == (N_HEADS, len(TEXT), len(TEXT))
    with pytest.raises(UserError, match="RoPE of layer 0 needs train_length= for a probe"):
        rr.probe(gpt, Letters(), [TEXT])


def shared() -> GPT:
    gpt = GPT("rope", "softmax")
    gpt.blocks[1].attention.normaliser = gpt.blocks[0].attention.normaliser
    return gpt


class Padded(LastToken):
    def forward(self, tokens: Tensor) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rr, "attend", partial(rr.attend, valid=tokens > 0))
            return super().forward(tokens)


class SeesAll(LastToken):
    def forward(self, tokens: Tensor) -> Any:
        q = self.embed(tokens).unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
        return rr.attend(q, q, q, normaliser=self.blocks[0].attention.normaliser, causal=False)


class SkipsOne(LastToken):
    def forward(self, tokens: Tensor) -> Any:
        return self.blocks[0](self.embed(tokens))


def twice() -> GPT:
    gpt = GPT("rope", "softmax")
    gpt.blocks[1] = Block(0, "rope", "softmax")
    return gpt


@pytest.mark.parametrize("ask", [partial(rr.attention, text=TEXT), partial(rr.probe, texts=[TEXT])])
@pytest.mark.parametrize(
    ("model", "tokenizer", "line"),
    [
        (GPT("rope", "softmax"), None, r"give a tokenizer that has encode\(text\) and decode\(ids\)"),
        (twice(), Letters(), r"GPT has two normalisers of one layer; number them: rr.normaliser\(..., layer=...\)"),
        (shared(), Letters(), "GPT calls the normaliser of layer 0 twice|calls an attention layer twice in one pass"),
        (SkipsOne("rope", "softmax"), Letters(), "layer 1 of SkipsOne has a normaliser that SkipsOne does not call"),
        (SeesAll("rope", "softmax"), Letters(), "layer 0 of SeesAll sees later tokens; give rr.attend causal=True"),
        (nn.Linear(2, 2), Letters(), "rr.attend.* not a Linear"),
    ],
)
def test_a_model_that_cannot_be_measured_is_one_line(
    model: nn.Module, tokenizer: Any, line: str, ask: Callable[..., Any]
) -> None:
    with pytest.raises(UserError, match=line) as error:
        ask(model, tokenizer)
    assert "\n" not in str(error.value)


def test_padding_of_a_model_is_in_its_weights_and_not_probed() -> None:
    gpt = Padded("rope", "softmax")
    assert not rr.attention(gpt, Letters(), "ab p cd")[0][:, :, 3].any()  # a p is number 0
    with pytest.raises(UserError, match="hides tokens as padding"):
        rr.probe(gpt, Letters(), ["ab p cd"])


def test_a_text_without_tokens_is_one_line() -> None:
    with pytest.raises(UserError, match="the text has no token"):
        rr.attention(GPT("rope", "softmax"), Letters(), "")


def test_far_positions_are_as_good_as_near_ones() -> None:
    q, k, v = torch.randn(3, 1, N_HEADS, 16, 8, generator=torch.Generator().manual_seed(0)).unbind()
    softmax = rr.normaliser("softmax", **SIZES)
    for pe, numbers in (("xpos", {}), ("ntk_dynamic", {"factor": 4.0})):
        encoding = rr.encoding(pe, **SIZES, **numbers)
        near, far = (
            rr.attend(q, k, v, encoding=encoding, normaliser=softmax, pos=torch.arange(16)[None] + first)
            for first in (0, 40_000)
        )
        assert far.isfinite().all()
        assert pe != "xpos" or torch.allclose(near, far, atol=1e-2)


def test_the_page_runs() -> None:
    page = (ROOT / "docs" / "howto" / "your_code.md").read_text().partition("## Replace, and the parts\n")[2]
    blocks = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["ssmax"].layers[1].s.grad is not None
    assert names["weights"][1].shape == (4, 16, 16)
    assert [len(heads) for heads in names["labels"]] == [4, 4]
