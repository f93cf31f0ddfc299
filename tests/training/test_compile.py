"""`compile=true`: the compiled decoder computes what the eager one does, in one graph for most pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import ROOT, Done, beside, option
from omegaconf import OmegaConf
from torch import Tensor

from roundround.model.decoder import Decoder
from roundround.trained.models import build_decoder

CONF = ROOT / "conf"
# left to run outside the graph: attention by tiles, projections that sort as much as they need, a generator, and
# frequencies chosen by the length of the text
READS_NUMBERS = {
    "softmax": {
        "adaptive_temperature_trained", "alpha_entmax", "alpha_entmax_learned", "as_entmax", "as_entmax_nape",
        "entmax15", "input_sink", "sink", "softmax1", "sparsemax",
    },
    "pe": {"alibi", "fox", "longrope", "nape", "rope_random"},
}  # fmt: skip
PAIRS = [(beside(path.stem), path.stem) for path in sorted((CONF / "softmax").glob("*.yaml"))]
PAIRS += [(path.stem, "softmax") for path in sorted((CONF / "pe").glob("*.yaml"))]
WHOLE = [(pe, softmax) for pe, softmax in PAIRS if pe not in READS_NUMBERS["pe"]]
WHOLE = [(pe, softmax) for pe, softmax in WHOLE if softmax not in READS_NUMBERS["softmax"]]
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch's own


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    with torch._dynamo.config.patch(specialize_float=False):  # as PyTorch has it, before and after
        yield
    torch.compiler.reset()


def decoder_of(pe: str, softmax: str, **others: str) -> Decoder:
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 12}
    sizes["n_key_heads"] += others.get("attention") == "diff_v1"  # which pairs key heads
    torch.manual_seed(0)
    nodes: Any = {name: option(name, choice) for name, choice in {"pe": pe, "softmax": softmax, **others}.items()}
    model = OmegaConf.merge(OmegaConf.load(CONF / "model" / "tiny.yaml"), sizes)
    return build_decoder(model, n_vocab=31, **nodes)


def loss_and_gradients(decoder: Decoder) -> tuple[Tensor, list[Tensor]]:
    tokens_BT1 = torch.arange(26).view(2, 13) * 7 % 31
    torch.manual_seed(1)  # of encodings that draw positions
    loss_BT = decoder(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:], step=0)
    loss_BT.mean().backward()
    return loss_BT.detach(), [p.grad for p in decoder.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("pe", "softmax"),
    [
        ("rope", "softmax"),
        ("t5_bias", "softmax"),
        ("cope", "softmax"),
        ("selective_rope", "softmax"),
        ("rope", "sigmoid"),
    ],
)
def test_a_decoder_is_one_graph(pe: str, softmax: str) -> None:
    eager, compiled = decoder_of(pe, softmax), decoder_of(pe, softmax)
    compiled.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(loss_and_gradients(compiled), loss_and_gradients(eager))


@pytest.mark.parametrize(
    "others",
    [{"mix": "canon"}, *({"attention": name} for name in ("latent", "gated_deltanet", "diff", "diff_v1"))],
)
def test_a_decoder_with_other_layers_is_one_graph(others: dict[str, str]) -> None:
    eager, compiled = decoder_of("rope", "softmax", **others), decoder_of("rope", "softmax", **others)
    compiled.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(loss_and_gradients(compiled), loss_and_gradients(eager))


@pytest.mark.slow
@pytest.mark.parametrize(("pe", "softmax"), WHOLE, ids=map("-".join, WHOLE))
def test_every_decoder_that_reads_no_number_is_one_graph(pe: str, softmax: str) -> None:
    eager, compiled = decoder_of(pe, softmax), decoder_of(pe, softmax)
    compiled.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(loss_and_gradients(compiled), loss_and_gradients(eager))


@pytest.mark.parametrize(
    ("pe", "softmax"),
    [
        ("longrope", "softmax"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [("rope", "sink"), ("rope", "entmax15"), ("rope_random", "softmax")]
        ),
    ],
)
def test_a_pair_that_reads_numbers_compiles_around_them(pe: str, softmax: str) -> None:
    eager, compiled = decoder_of(pe, softmax), decoder_of(pe, softmax)
    compiled.compile(backend="aot_eager")
    torch.testing.assert_close(loss_and_gradients(compiled), loss_and_gradients(eager))


# the compiler's own warnings
quietly = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@quietly
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_compiled_run_trains_as_an_eager_one(train: Callable[..., Done], precision: str) -> None:
    eager, compiled = (train(f"compile={on}", f"trainer.precision={precision}") for on in ("false", "true"))
    assert (eager.code, compiled.code) == (0, 0), compiled.err
    close = 1e-5 if precision == "32-true" else 1e-2
    assert compiled.value("nats_per_token") == pytest.approx(eager.value("nats_per_token"), rel=close)


@quietly
@pytest.mark.slow
def test_the_experiment_that_ships_with_compile_compiles(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, plain = [], Decoder.compile
    monkeypatch.setattr(Decoder, "compile", lambda decoder: (compiled.append(decoder), plain(decoder)))
    small = ["trainer.max_steps=2", "trainer.accumulate_grad_batches=1", "model.head_dim=8"]
    done = train("experiment=rope/table2_paper", "pe=p_rope", "tokenizer=bytes", "data=text", *small)
    assert done.code == 0, done.err
    assert len(compiled) == 1
