"""The model of max retrieval, its sets, what trained models are asked, and the two numbers of a head.

The definition against a loop from the formulas, the fast form, the stacked seeds, several processes; evaluation in a
stream, and the fit of the temperature.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from rounding import rounding
from scipy import optimize

from roundround.papers.max_retrieval import PAPER, SLOPE, SPREAD
from roundround.papers.max_retrieval.model import (
    FITTING,
    ITEMS_AT_ONCE,
    TEST,
    InBfloat16,
    MaxRetrieval,
    Sets,
    TrainingSets,
    attention_by_priority,
    best_beta,
    evaluate,
    fit_points,
    fit_quartic,
    head_shape,
    joined,
    seeds_of,
    sets_of_size,
    share_of,
    slope_and_spread,
    train,
)
from roundround.softmax.adaptive_temperature import inverse_temperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.hard import Hard
from roundround.softmax.sigmoid import Sigmoid
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature
from roundround.support.errors import UserError
from roundround.training.optim import Adam

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


# -- seeds over several processes


def test_every_seed_belongs_to_one_process() -> None:
    seeds = list(range(10))
    assert [seeds[seeds_of(rank, 4, 10)] for rank in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_more_processes_than_seeds_are_refused() -> None:
    with pytest.raises(UserError, match="seeds=2 is less than the number of processes, 3"):
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


def training(seeds: list[int], **changed: object) -> TrainingSets:
    options = {"batch_size": 8, "n_min": 5, "n_max": 16, "n_classes": 10, **changed}
    return TrainingSets(seeds, **options)  # type: ignore[arg-type]


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    together, alone = training([4, 7]), training([7])
    for step in (200, 3, 64, 63):  # in any order, across the blocks that are drawn together
        ours, theirs = together.batch(step), alone.batch(step)
        assert torch.equal(ours.priorities_SBN[1], theirs.priorities_SBN[0])
        assert torch.equal(ours.classes_SBN[1], theirs.classes_SBN[0])
        assert torch.equal(ours.queries_SB[1], theirs.queries_SB[0])


def test_sizes_are_uniform_from_the_smallest_to_the_largest() -> None:
    sets = training([0], batch_size=1)
    sizes = torch.tensor([sets.batch(step).priorities_SBN.shape[-1] for step in range(2400)])
    counts = torch.bincount(sizes, minlength=17)
    assert not counts[:5].any()
    assert (counts[5:] - 200).abs().max() < 60  # 4 standard deviations


def test_each_set_may_draw_its_own_size() -> None:
    sets = training([0], batch_size=4000, size_of_each_set=True).batch(0)
    assert sets.present_SBN is not None
    counts = torch.bincount(sets.present_SBN.sum(-1).flatten(), minlength=17)
    assert not counts[:5].any()
    assert (counts[5:] > 250).all()


def test_the_answer_is_the_class_of_the_largest_priority_among_those_present() -> None:
    priorities = torch.tensor([[[0.1, 0.9, 0.5], [0.3, 0.2, 0.99]]])
    classes = torch.tensor([[[7, 8, 9], [1, 2, 3]]])
    assert Sets(priorities, classes, torch.zeros(1, 2)).answers_SB.tolist() == [[8, 3]]
    present = torch.tensor([[[True, True, True], [True, True, False]]])
    assert Sets(priorities, classes, torch.zeros(1, 2), present).answers_SB.tolist() == [[8, 1]]


def test_test_sets_come_in_bounded_blocks_and_more_of_them_begin_with_the_same() -> None:
    options = {"n": 100, "n_classes": 10, "stream": TEST}
    few, many = (list(sets_of_size(0, n_sets=n_sets, **options)) for n_sets in (200, 400))  # type: ignore[arg-type]
    assert all(block.priorities_SBN.numel() <= ITEMS_AT_ONCE for block in many)
    for name, shape in (("priorities_SBN", (1, 400, 100)), ("classes_SBN", (1, 400, 100)), ("queries_SB", (1, 400))):
        first, all_of_them = (
            torch.cat([getattr(block, name) for block in few], 1),
            torch.cat([getattr(block, name) for block in many], 1),
        )
        assert all_of_them.shape == shape
        assert torch.equal(first, all_of_them[:, :200])


def test_fitting_never_sees_a_test_set() -> None:
    test, fitting = (next(sets_of_size(0, n=9, n_sets=5, n_classes=10, stream=stream)) for stream in (TEST, FITTING))
    assert not torch.equal(test.priorities_SBN, fitting.priorities_SBN)


SHAPE = head_shape(16, 16)


@pytest.fixture(scope="module")
def model() -> MaxRetrieval:
    made = MaxRetrieval([5], n_classes=4, width=16, scaled_logits=False, tanh_gelu=False, uniform_init=True)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4)
    return made


def blocks(n: int, n_sets: int) -> list[Sets]:
    return list(sets_of_size(1, n=n, n_sets=n_sets, n_classes=4, stream=TEST))


def test_the_stream_gives_what_the_definition_gives_on_all_sets_at_once(model: MaxRetrieval) -> None:
    softmaxes = {"softmax": Softmax(SHAPE), "hot": Temperature(SHAPE, temperature=0.3), "hard": Hard(SHAPE)}
    parts = blocks(600, 90)
    assert len(parts) > 3
    means, of_logits = evaluate(model, softmaxes, parts)
    whole = Sets(
        *(torch.cat([getattr(p, f) for p in parts], 1) for f in ("priorities_SBN", "classes_SBN", "queries_SB"))
    )
    for name, softmax in softmaxes.items():
        right = model.definition(whole, softmax).argmax(-1) == whole.answers_SB
        assert means[name]["accuracy"] == pytest.approx(float(right.double().mean()), abs=1e-12)
    e_BN = model.attended(whole)[0][0].double()
    p_BN = e_BN.softmax(-1)
    assert means["softmax"]["entropy"] == pytest.approx(float(-(p_BN * p_BN.log()).nansum(-1).mean()), rel=1e-5)
    assert means["softmax"]["largest_weight"] == pytest.approx(float(p_BN.amax(-1).mean()), rel=1e-5)
    assert means["hard"]["entropy"] == pytest.approx(0, abs=1e-7)
    of_class_BK = torch.stack([torch.where(whole.classes_SBN[0] == k, p_BN, 0.0).sum(-1) for k in range(4)], -1)
    heaviest = of_class_BK.argmax(-1) == whole.answers_SB[0]
    assert means["softmax"]["heaviest_class_is_right"] == pytest.approx(float(heaviest.double().mean()), abs=1e-12)
    of_largest = whole.classes_SBN[0].gather(-1, e_BN.argmax(-1, keepdim=True))[:, 0] == whole.answers_SB[0]
    assert means["hard"]["heaviest_class_is_right"] == pytest.approx(float(of_largest.double().mean()), abs=1e-12)
    spread = e_BN.amax(-1) - e_BN.amin(-1)
    assert of_logits["logit_spread"] == pytest.approx(float(spread.mean()), rel=1e-6)
    assert of_logits["entropy_bound"] == pytest.approx(float((np.log(600) - spread).clamp(min=0).mean()), rel=1e-5)
    assert of_logits["largest_weight_bound"] == pytest.approx(float((spread.exp() / 600).clamp(max=1).mean()), rel=1e-5)
    assert (-(p_BN * p_BN.log()).nansum(-1) >= np.log(600) - spread - 1e-9).all(), "Lemma 2.1"
    top = e_BN.argmax(-1) == whole.priorities_SBN[0].argmax(-1)
    assert of_logits["largest_logit_is_right"] == pytest.approx(float(top.double().mean()), abs=1e-12)


def test_the_heat_map_has_the_highest_priority_on_the_right(model: MaxRetrieval) -> None:
    parts = blocks(40, 12)
    found = attention_by_priority(model, {"softmax": Softmax(SHAPE)}, parts, n_sets=7, n_items=5)["softmax"]
    assert found.shape == (7, 5)
    for b in range(7):
        alpha = model.attended(parts[0])[0][0, b].softmax(-1)
        ranked = sorted(range(40), key=lambda i: float(parts[0].priorities_SBN[0, b, i]))
        torch.testing.assert_close(found[b], alpha[ranked[-5:]])


@pytest.mark.parametrize("factors_alone", [False, True])
def test_priorities_that_bfloat16_cannot_tell_apart_are_one_item(model: MaxRetrieval, factors_alone: bool) -> None:
    priorities = torch.tensor([[[0.9985, 0.9995, 0.5]]])  # the numbers of bfloat16 are 1/256 apart here
    sets = Sets(priorities, torch.zeros(1, 1, 3, dtype=torch.long), torch.full((1, 1), 0.25))
    in_bfloat16 = InBfloat16(model)
    if factors_alone:
        in_bfloat16 = copy.deepcopy(model)
        in_bfloat16.round_products()
    exact, rounded = model.attended(sets)[0][0, 0], in_bfloat16.attended(sets)[0][0, 0]
    assert exact[0] != exact[1]
    assert rounded[0] == rounded[1] != rounded[2]


def test_the_best_temperature_is_scipys() -> None:
    rng = np.random.default_rng(0)
    e_BN = torch.from_numpy(rng.normal(size=(20, 30)) * 2)
    order = e_BN.argsort(-1)
    found = best_beta(e_BN, order[:, -4])
    for e, k, beta in zip(e_BN.numpy(), order[:, -4].tolist(), found.tolist(), strict=True):

        def negative_log_weight(log_beta: float, e: np.ndarray = e, k: int = k) -> float:
            z = np.exp(log_beta) * e
            return float(np.log(np.exp(z - z.max()).sum()) - (z[k] - z.max()))

        best = optimize.minimize_scalar(negative_log_weight, bounds=(-6, 4), method="bounded", options={"xatol": 1e-10})
        assert beta == pytest.approx(np.exp(best.x), rel=1e-4)


def test_the_fit_finds_a_polynomial_that_is_known() -> None:
    known = [-0.152, 1.719, -6.686, 12.358, -5.319]
    entropies = np.random.default_rng(0).uniform(0.5, 5.5, 500)
    assert fit_quartic(entropies, np.polyval(known, entropies)) == pytest.approx(known, rel=1e-6)


def test_points_come_from_misordered_inputs_alone(model: MaxRetrieval) -> None:
    parts = blocks(40, 400)
    points = fit_points(model, parts, n_inputs=10_000)
    n = 0
    for block in parts:
        e_BN, k_B = model.attended(block)[0][0], block.largest_SB[0]
        e_k_B = e_BN.gather(-1, k_B[:, None])[:, 0]
        n += int(((e_k_B < e_BN.amax(-1)) & (e_k_B > e_BN.mean(-1))).sum())
    assert 0 < len(points) == n
    assert len(fit_points(model, parts, n_inputs=3)) == 3
    assert ((points[:, 0] > 0) & (points[:, 0] < np.log(40))).all()
    assert (points[:, 1] > 0).all()


def test_a_fit_needs_entropies_that_differ() -> None:
    entropies = np.concatenate([3.4657 + 1e-6 * np.arange(20), 4.1588 + 1e-6 * np.arange(20)])
    with pytest.raises(ValueError, match="are too alike for a polynomial"):
        fit_quartic(entropies, np.linspace(1, 3, 40))


OFFSETS = torch.tensor([0.0, 0.004, -0.002, 0.001])
DRAWS, SETS, N_CLASSES = 10, 512, 10  # of a simulated head: of its offsets, and sets of each size for each of them


def made_head(slopes: list[float]) -> MaxRetrieval:
    """Logits slope (priority + offset of the class), by GELUs so far from 0 that they are straight."""
    options = {"n_classes": 4, "width": 8, "scaled_logits": False, "tanh_gelu": False, "uniform_init": False}
    model = MaxRetrieval(range(len(slopes)), **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.item_in.weight[:, 0, 0] = 1.0
        model.item_in.weight[:, 1:, 0] = OFFSETS
        model.item_in.bias[..., 0] = 20.0
        model.query_out.bias[..., 0] = torch.tensor(slopes)[:, None]
        for layer in (model.item_out, model.to_query, model.to_key):
            layer.weight[:] = torch.eye(8)
    return model


def test_the_numbers_of_a_made_head_are_read_off() -> None:
    slope_S, spread_S = slope_and_spread(made_head([260.0, -100.0]))
    assert slope_S.tolist() == pytest.approx([260.0, -100.0], rel=1e-4)
    assert spread_S.tolist() == pytest.approx([float(OFFSETS.std())] * 2, rel=1e-2)


def simulated(slope: float, spread: float, sizes: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Accuracy in per cent, plain and with the published adaptive temperature, of heads e = slope (priority + offset).

    By items, as PAPER. Offsets are drawn from a normal distribution, one a class; the answer is the class with the most
    weight. Each is the mean over 10 draws of the offsets, of 512 sets each.
    """
    found = {}
    for n in sizes:
        right = np.empty((DRAWS, 2))
        for draw in range(DRAWS):
            rng = np.random.default_rng([draw, n])
            classes_BN, priority_BN = rng.integers(N_CLASSES, size=(SETS, n)), rng.random((SETS, n))
            offsets_K = spread * np.random.default_rng(draw).normal(size=N_CLASSES)
            e_BN = torch.from_numpy(slope * (priority_BN + offsets_K[classes_BN]))
            beta_B1 = inverse_temperature(torch.special.entr(e_BN.softmax(-1)).sum(-1, keepdim=True))
            answer_B = np.take_along_axis(classes_BN, priority_BN.argmax(-1)[:, None], -1)[:, 0]
            for place, weights_BN in enumerate((e_BN.softmax(-1), (beta_B1 * e_BN).softmax(-1))):
                of_class_BK = torch.zeros(SETS, N_CLASSES, dtype=torch.float64)
                of_class_BK.scatter_add_(1, torch.from_numpy(classes_BN), weights_BN)
                right[draw, place] = (of_class_BK.argmax(-1).numpy() == answer_B).mean()
        plain, adaptive = 100 * right.mean(0)
        found[n] = float(plain), float(adaptive)
    return found


@pytest.mark.parametrize("largest", [1024, pytest.param(16384, marks=pytest.mark.slow)])
def test_a_head_with_these_two_numbers_has_the_papers_table(largest: int) -> None:
    paper = np.array([PAPER[n] for n in PAPER if n <= largest])
    found = np.array(list(simulated(SLOPE, SPREAD, [n for n in PAPER if n <= largest]).values()))
    gaps = np.stack([found[:, 0] - paper[:, 0], found[:, 1] - found[:, 0] - paper[:, 1] + paper[:, 0]])
    baseline, gains = np.sqrt(np.mean(gaps**2, 1))
    assert baseline < 2.0
    assert gains < 0.8
