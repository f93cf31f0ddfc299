"""The model of max retrieval: its definition against a loop from the formulas, the fast form, the stacked seeds.

Over several processes the shares of the seeds are all of them, and come together again.
"""

from __future__ import annotations

import math

import pytest
import torch
from rounding import rounding
from scipy import stats

from roundround.papers.max_retrieval.model import (
    MaxRetrieval,
    Sets,
    TrainingSets,
    head_shape,
    joined,
    seeds_of,
    share_of,
    train,
)
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.sigmoid import Sigmoid
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError
from roundround.training.optim import Adam, AdamW, OptimizerFactory

SEEDS = [3, 14, 15]
OPTIONS = {"n_classes": 4, "width": 12, "scaled_logits": True, "tanh_gelu": False, "uniform_init": True}


def model_of(seeds: list[int] = SEEDS, **changed: object) -> MaxRetrieval:
    return MaxRetrieval(seeds, **{**OPTIONS, **changed})  # type: ignore[arg-type]


def batch(seeds: list[int] = SEEDS, *, size_of_each_set: bool = False, step: int = 5) -> Sets:
    sets = TrainingSets(seeds, batch_size=6, n_min=2, n_max=9, n_classes=4, size_of_each_set=size_of_each_set).batch(
        step
    )
    return Sets(sets.priorities_SBN.double(), sets.classes_SBN, sets.queries_SB.double(), sets.present_SBN)


def gelu(x: float, tanh: bool) -> float:
    if tanh:
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def linear(x: list[float], layer: torch.nn.Module, s: int) -> list[float]:
    weight, bias = layer.weight[s].tolist(), layer.bias[s, 0].tolist()  # type: ignore[index, operator, union-attr]
    return [sum(x[i] * weight[i][o] for i in range(len(x))) + bias[o] for o in range(len(bias))]


def loop(model: MaxRetrieval, sets: Sets, s: int, b: int, *, scale: float, tanh: bool) -> list[float]:
    """Equations 9 to 14 for one set, number by number."""

    def mlp(x: list[float], first: torch.nn.Module, second: torch.nn.Module) -> list[float]:
        return linear([gelu(value, tanh) for value in linear(x, first, s)], second, s)

    query = linear(mlp([float(sets.queries_SB[s, b])], model.query_in, model.query_out), model.to_query, s)
    n = sets.priorities_SBN.shape[-1] if sets.present_SBN is None else int(sets.present_SBN[s, b].sum())
    logits, values = [], []
    for i in range(n):
        one_hot = [float(c == int(sets.classes_SBN[s, b, i])) for c in range(4)]
        h = mlp([float(sets.priorities_SBN[s, b, i]), *one_hot], model.item_in, model.item_out)
        logits.append(scale * sum(x * y for x, y in zip(query, linear(h, model.to_key, s), strict=True)))
        values.append(linear(h, model.to_value, s))
    total = sum(math.exp(e) for e in logits)
    z = [sum(math.exp(e) / total * v[d] for e, v in zip(logits, values, strict=True)) for d in range(12)]
    return mlp(z, model.answer_in, model.answer_out)


def sharp(model: MaxRetrieval) -> MaxRetrieval:
    """Weights large enough for attention to choose."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.double()


@pytest.mark.parametrize(("scaled_logits", "tanh_gelu"), [(True, False), (False, True)])
@pytest.mark.parametrize("size_of_each_set", [False, True])
def test_the_definition_is_the_papers_equations(scaled_logits: bool, tanh_gelu: bool, size_of_each_set: bool) -> None:
    model, sets = (
        sharp(model_of(scaled_logits=scaled_logits, tanh_gelu=tanh_gelu)),
        batch(size_of_each_set=size_of_each_set),
    )
    found = model.definition(sets, Softmax(head_shape(12, 9)))
    scale = 12**-0.5 if scaled_logits else 1.0
    for s in range(3):
        for b in range(3):
            expected = torch.tensor(loop(model, sets, s, b, scale=scale, tanh=tanh_gelu), dtype=torch.float64)
            torch.testing.assert_close(found[s, b], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("softmax", [Softmax, Sigmoid])
@pytest.mark.parametrize("size_of_each_set", [False, True])
@pytest.mark.parametrize("tanh_gelu", [False, True])
def test_the_fast_form_is_the_definition_with_its_gradients(
    softmax: type[AttentionSoftmax], size_of_each_set: bool, tanh_gelu: bool
) -> None:
    """Also for weights that do not sum to one."""
    model, sets = sharp(model_of(tanh_gelu=tanh_gelu)), batch(size_of_each_set=size_of_each_set)
    normaliser = softmax(head_shape(12, 9))
    outs, parameters = [form(sets, normaliser) for form in (model.forward, model.definition)], list(model.parameters())
    cotangent = torch.randn(outs[0].shape, generator=torch.Generator().manual_seed(0), dtype=outs[0].dtype)
    fast, slow = ([out, *torch.autograd.grad((out * cotangent).sum(), parameters)] for out in outs)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.detach().abs().max().clamp(min=1)))


def trained(seeds: list[int], n_steps: int) -> MaxRetrieval:
    model = model_of(seeds, uniform_init=False)
    # a large penalty, so that a seed whose loss were divided by the number of seeds would be seen
    # and an eps above the rounding of a gradient, which Adam would blow up to whole steps
    adam = Adam(lr=1e-3, betas=[0.9, 0.999], eps=1e-3, weight_decay=0.3, decay_biases=True).create(model)
    sets = TrainingSets(seeds, batch_size=16, n_min=5, n_max=16, n_classes=4)
    steps = [step for step, _ in train(model, Softmax(head_shape(12, 9)), adam, sets, first_step=0, n_steps=n_steps)]
    assert steps[-1] == n_steps
    return model


def test_seeds_trained_at_once_are_the_seeds_trained_alone() -> None:
    together = trained(SEEDS, 30)
    for place, seed in enumerate(SEEDS):
        alone = trained([seed], 30)
        for a, b in zip(together.only(place).parameters(), alone.parameters(), strict=True):
            allowed = 30 * rounding(16, float(b.detach().abs().max().clamp(min=1)))  # 30 steps of lr / eps = 1
            torch.testing.assert_close(a, b, rtol=0, atol=allowed)


def test_the_truncated_normal_is_jaxs() -> None:
    """Standard deviation 1 / sqrt(fan in), cut at two of the untruncated ones, biases zero."""
    model = MaxRetrieval([0], n_classes=10, width=256, scaled_logits=True, tanh_gelu=False, uniform_init=False)
    weight = model.to_key.weight.detach()[0] * 16
    assert float(weight.std()) == pytest.approx(1, abs=0.01)
    assert float(weight.abs().max()) <= 2 / 0.8796256610342398 + 1e-6
    assert not model.to_key.bias.any()


def test_the_uniform_initialisation_is_torchs() -> None:
    """The bounds of torch.nn.Linear: 1 / sqrt(fan in), for weights and biases."""
    model = MaxRetrieval([0], n_classes=10, width=256, scaled_logits=True, tanh_gelu=False, uniform_init=True)
    assert float(model.to_key.weight.detach().abs().max()) == pytest.approx(1 / 16, rel=1e-3)
    assert float(model.to_key.weight.detach().std()) == pytest.approx(
        float(torch.nn.Linear(256, 256).weight.detach().std()), rel=0.02
    )
    assert 0 < float(model.to_key.bias.detach().abs().max()) <= 1 / 16


def test_haikus_initialisation_is_flaxs_without_the_stretch() -> None:
    """Cut at two of its standard deviations, which leaves 0.88 of one: scipy's truncnorm."""
    flax, haiku = (model_of([0], width=256, uniform_init=False, haiku_init=haiku) for haiku in (False, True))
    weight = haiku.to_key.weight.detach()[0] * 16
    assert float(weight.std()) == pytest.approx(stats.truncnorm(-2, 2).std(), abs=0.01)
    assert 1.9 < float(weight.abs().max()) <= 2 + 1e-6
    torch.testing.assert_close(weight / 16, 0.8796256610342398 * flax.to_key.weight.detach()[0])
    assert not haiku.to_key.bias.any()


def test_rounded_products_train_by_the_gradient_at_the_rounded_factors() -> None:
    model, exact = model_of(bfloat16_products=True).double(), model_of().double()
    sets, softmax = batch(), Softmax(head_shape(12, 9))
    loss, of_exact = model.loss(sets, softmax).sum(), exact.loss(sets, softmax).sum()
    assert 1e-6 < abs(float((loss - of_exact).detach())) < 0.05
    for made in (loss, of_exact):
        made.backward()  # type: ignore[no-untyped-call]
    last = model.answer_out
    with torch.no_grad():  # of a linear layer: its weight's gradient is its rounded input times what comes back
        e_SBN, v_SBND = model.logits_and_values(sets)
        alpha_SBN = e_SBN.softmax(-1).bfloat16().double()
        hidden_SBD = model.activation(model.answer_in((alpha_SBN[:, :, None] @ v_SBND)[:, :, 0]))
        p_SBK = last(hidden_SBD).softmax(-1)
        back_SBK = (p_SBK - torch.nn.functional.one_hot(sets.answers_SB, 4)) / p_SBK.shape[1]
    torch.testing.assert_close(last.weight.grad, hidden_SBD.bfloat16().double().mT @ back_SBK)
    for (name, rounded), plain in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert rounded.grad is not None
        assert plain.grad is not None
        if name != "to_key.bias":  # it adds the same to all logits of a row, so its gradient is 0 but for rounding
            assert 0 < float((rounded.grad - plain.grad).norm()) < 0.2 * float(plain.grad.norm()), name


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_biases_neither_decay_nor_are_penalised_unless_asked_for(optimizer: type[OptimizerFactory]) -> None:
    for decay_biases in (False, True):
        model = model_of()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        made = optimizer(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.3, decay_biases=decay_biases)
        stepping = made.create(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        stepping.step()
        for name, parameter in model.named_parameters():
            moves = decay_biases or name.endswith("weight")
            assert torch.equal(parameter, before[name]) is not moves, name


# -- seeds over several processes


def test_every_seed_belongs_to_one_process() -> None:
    seeds = list(range(10))
    assert [seeds[seeds_of(rank, 4, 10)] for rank in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_more_processes_than_seeds_are_refused() -> None:
    with pytest.raises(UserError, match="seeds=2 are fewer than the 3 processes"):
        seeds_of(0, 3, 2)


def test_shares_of_a_state_come_together_again() -> None:
    weight = torch.nn.Parameter(torch.arange(12.0).view(3, 4))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    state = {"weights": {"layer": weight.detach()}, "optimizer": optimizer.state_dict()}
    shares = [share_of(state, seeds_of(rank, 2, 3)) for rank in range(2)]
    assert shares[1]["weights"]["layer"].tolist() == weight[2:].tolist()
    again = joined(shares)
    assert torch.equal(again["weights"]["layer"], weight)
    assert again["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    before, after = (one["optimizer"]["state"][0] for one in (state, again))
    assert all(torch.equal(before[name], after[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
