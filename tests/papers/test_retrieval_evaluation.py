"""Evaluation in a stream, and the paper's fit of the temperature."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor
from torch.nn.functional import gelu, one_hot

from roundround.papers.max_retrieval.model import (
    TEST,
    InBfloat16,
    MaxRetrieval,
    Sets,
    at_one_temperature,
    attention_by_priority,
    best_beta,
    evaluate,
    fit_points,
    fit_quartic,
    head_shape,
    sets_of_size,
)
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature
from roundround.softmax.hard import Hard
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature

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


def test_bfloat16_is_the_definition_to_eight_bits(model: MaxRetrieval) -> None:
    (sets,) = blocks(40, 200)
    rounded, softmax = InBfloat16(model), Softmax(SHAPE)
    e_SBN, v_SBND = rounded.attended(sets)
    with torch.no_grad():
        exact_e_SBN, exact_v_SBND = model.logits_and_values(sets)
    for found, exact in ((e_SBN, exact_e_SBN), (v_SBND, exact_v_SBND)):
        assert found.dtype == torch.bfloat16
        error = float((found.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt())
        assert 2**-12 < error < 2**-6
    found, _ = evaluate(rounded, {"softmax": softmax}, [sets])
    exact_means, _ = evaluate(model, {"softmax": softmax}, [sets])
    assert found["softmax"]["accuracy"] == pytest.approx(exact_means["softmax"]["accuracy"], abs=0.05)
    assert model.item_in.weight.dtype == torch.float32, "the model itself is left as it was"


def test_rounded_factors_are_the_definition_with_every_operand_rounded(model: MaxRetrieval) -> None:
    (sets,) = blocks(40, 200)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def half(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).double()

    def layer(name: str, x: Tensor) -> Tensor:
        return half(x) @ half(weights[f"{name}.weight"][0]) + weights[f"{name}.bias"][0].double()

    def encoded(name: str, x: Tensor) -> Tensor:
        return layer(f"{name}_out", gelu(layer(f"{name}_in", x)))

    class_BNK = one_hot(sets.classes_SBN[0], model.n_classes)
    h_BND = encoded("item", torch.cat([sets.priorities_SBN[0, ..., None], class_BNK], -1).double())
    g_BD = layer("to_query", encoded("query", sets.queries_SB[0, :, None].double()))
    e_BN = (half(layer("to_key", h_BND)) @ half(g_BD)[..., None])[..., 0] * model.scale
    z_BD = (half(e_BN.softmax(-1))[:, None] @ half(layer("to_value", h_BND)))[:, 0]
    rounded = copy.deepcopy(model)
    rounded.round_products()
    found, _ = evaluate(rounded, {"softmax": Softmax(SHAPE)}, [sets])
    is_right_B = encoded("answer", z_BD).argmax(-1) == sets.answers_SB[0]
    assert found["softmax"]["accuracy"] == pytest.approx(float(is_right_B.double().mean()), abs=0.01)
    error, error_of_float32 = (
        float((m.attended(sets)[0][0].double() - e_BN).square().mean().sqrt()) for m in (rounded, model)
    )
    assert error < 0.1 * error_of_float32, "sums in another order may round a factor to its neighbour, and rarely do"


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


def adaptive() -> AdaptiveTemperature:
    options = {"min_entropy": 0.5, "min_beta": 1.0, "in_training": False, "gradient_through_beta": True}
    made = AdaptiveTemperature(SHAPE, coefficients=PUBLISHED, entropy_range=None, **options)  # type: ignore[arg-type]
    return made.eval()


def test_one_temperature_is_the_one_of_the_mean_entropy(model: MaxRetrieval) -> None:
    parts = blocks(600, 90)
    plain, _ = evaluate(model, {"softmax": Softmax(SHAPE)}, parts)
    beta = np.polyval(PUBLISHED, plain["softmax"]["entropy"])
    assert beta > 1.2
    softmaxes = {"adaptive_temperature": adaptive(), "hard": Hard(SHAPE)}
    found, _ = evaluate(model, at_one_temperature(softmaxes, plain["softmax"]["entropy"]), parts)
    own, _ = evaluate(model, {**softmaxes, "fixed": Temperature(SHAPE, temperature=1 / beta)}, parts)
    assert found["adaptive_temperature"] == pytest.approx(own["fixed"], rel=1e-6)
    assert found["adaptive_temperature"]["entropy"] != pytest.approx(own["adaptive_temperature"]["entropy"], rel=1e-3)
    assert found["hard"] == own["hard"]


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
