"""Figures and tables that need no published weights: they illustrate statements, RoPE itself, or models trained here.

- Figures 1, 2, 8 and 9 of arXiv:2410.06205 show RoPE without a model. They use this program's own rotation. The paper
  prints no width, so figures 2, 8 and 9 use the width at which our curve is nearest to the paper's Figure 2(a).
- Table 1 and figures 2, 5 and 6 of arXiv:2410.01104 show models of max retrieval.
- Table 2 of arXiv:2410.06205 compares the perplexities of seven encodings, here at a small size and with several seeds.
  The runs of a seed share their initial weights and their batches. So differences are taken within a seed, where the
  shared noise cancels.

Shapes: N positions, distances or sizes, C channels, D draws, S seeds.

Tested by tests/papers/test_figure.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor

from roundround.analysis.intervals import (
    error_from_p,
    error_widths,
    half_width,
    p_of_mean,
    standard_error,
    welch_width,
)
from roundround.config.options import as_value
from roundround.papers import max_retrieval
from roundround.papers.claim import (
    DIFFERS,
    CheckedNumber,
    Figure,
    Finding,
    RunVerb,
    at_least,
    at_most,
    checks_of,
    count_verdicts,
    near,
    shown,
)
from roundround.papers.constructions import (
    aligned,
    causal_weights,
    frequencies,
    logits,
    random_vector,
    rotated,
    turned,
)
from roundround.pe.rope_random import drawn_positions
from roundround.softmax.adaptive_temperature import PUBLISHED
from roundround.support.panels import Curve, HeatMap, Panel

# -- RoPE alone

N_DISTANCES = 5001  # the number of distances, from 0
SHOWN_AT = torch.arange(0, N_DISTANCES, 10)  # the distances at which curves are drawn
WIDTH = 1024  # the width of the vectors: the best guess, by the shape of Figure 2(a)
READ_OFF = {1000: 0.185, 2000: 0.111, 3000: 0.069, 4000: 0.040, 5000: 0.014}  # values in Figure 2(a), by distance
AROUND = 50  # tokens to either side over which a value is averaged
SPACINGS = 100  # draws of positions, and draws behind a band in a picture
DRAWS = 10 * SPACINGS  # draws of vectors, for the absence of a decay
ENDS = torch.cat([torch.arange(1, 1001, 100), torch.arange(4001, 5001, 100)])  # distances at either end, nearest first
LONGEST = (10_000, 20_000, 50_000)  # ranges of Random RoPE's positions
X, Y = "relative distance (tokens)", "q . k, as a share of its largest value"


def gaussian(distances_DN: Tensor, seed: int) -> Tensor:
    """Logits [D, N] of Gaussian queries and keys at these distances, in units of a logit's standard deviation.

    For every logit a new query and a new key are drawn.
    """
    pos = -distances_DN.flatten().double()
    q_NC, k_NC = random_vector(2, len(pos), WIDTH, seed=seed)
    logits_N: Tensor = (q_NC * rotated(k_NC, pos, frequencies(WIDTH))).sum(-1) / math.sqrt(WIDTH)
    return logits_N.view(distances_DN.shape)


def one_pair(distances_N: Tensor, theta: float, n_draws: int) -> Tensor:
    """Logits [D, N] of D = n_draws pairs of a Gaussian query and a Gaussian key, each pair at all distances."""
    ladder_P = frequencies(WIDTH, theta)
    pairs = (random_vector(2, WIDTH, seed=seed) for seed in range(n_draws))
    return torch.stack([logits(q_C, k_C, distances_N, ladder_P) for q_C, k_C in pairs]) / math.sqrt(WIDTH)


def fresh(distances_DN: Tensor) -> Tensor:
    """The logits of `gaussian`, with new queries and keys in each of D = DRAWS draws: [D, N].

    distances_DN: one row for all draws, or SPACINGS rows, each for an equal number of draws.
    """
    distances_DN = distances_DN.expand(SPACINGS, -1)
    return torch.cat([gaussian(distances_DN, seed) for seed in range(DRAWS // SPACINGS)])


def around(f_N: Tensor, distance: int) -> float:
    """The mean of a curve over all distances within AROUND tokens of `distance`."""
    return float(f_N[max(0, distance - AROUND) : distance + AROUND + 1].mean())


def without_decay(what: str, curves_DN: Tensor) -> CheckedNumber:
    """Judge whether the mean square of the curves is the same at near and at far distances, the two halves of ENDS.

    The judged number is the change from near to far, divided by the mean square at near distances. It must be close
    to 0.
    """
    near_D, far_D = (half_DN.square().mean(1) for half_DN in curves_DN.chunk(2, 1))
    change_D = (far_D - near_D) / near_D.mean()
    what, error = f"{what}: change of the mean square from near to far", float(half_width(change_D.numpy()))
    return near(what, float(change_D.mean()), 0, 0.1, error=error)


def band(curves_DN: Tensor) -> list[Curve]:
    """Three curves at the distances SHOWN_AT: the first draw, and the 2.5 % and 97.5 % quantiles of all draws."""
    low, high = np.quantile(curves_DN.numpy(), [0.025, 0.975], axis=0)
    return [
        Curve("one draw", SHOWN_AT, curves_DN[0]),
        Curve(f"2.5 % of {len(curves_DN)} draws", SHOWN_AT, low),
        Curve("97.5 %", SHOWN_AT, high),
    ]


def previous_token(run: RunVerb) -> Finding:
    """Figure 1: five tokens, one frequency. The first token attends to itself, each later one to the one before it."""
    psi_C, one = torch.tensor([30.0, 0.0], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    q_5C, k_5C = (rotated(x, torch.arange(5), one) for x in (psi_C, turned(psi_C, one)))
    alpha_55 = causal_weights(q_5C, k_5C)
    wanted = [float(alpha_55[i, max(0, i - 1)]) for i in range(5)]
    comparisons = [at_least(f"weight of row {i} on token {max(0, i - 1)}", w, 0.99) for i, w in enumerate(wanted)]
    return Finding(
        ours=f"{min(wanted):.3f} of every row's weight",
        comparisons=comparisons,
        panels={"ours": HeatMap(alpha_55, "key", "query", most=1.0, label="weight")},
        remark="The queries are psi, the keys R psi. The paper's caption rotates the queries instead, which under "
        "its equation 3 would attend one token ahead. The paper's figure is a sketch.",
        drawn=True,
    )


def decay(run: RunVerb) -> Finding:
    """Figure 2: the logit of aligned vectors decays with distance; the logit of Gaussian vectors does not."""
    best = aligned(torch.arange(N_DISTANCES + AROUND), frequencies(WIDTH))
    comparisons = [
        at_least("(a) fall from 1,000 to 5,000", around(best, 1000) - around(best, 5000), 0.0),
        without_decay("(b)", fresh(ENDS)),
        # read off a picture whose axis goes from -1 to 1
        *[
            near(f"(a) around {r:,}, d = {WIDTH:,}", around(best, r), value, 0.02, published=value)
            for r, value in READ_OFF.items()
        ],
    ]
    published = Curve("read off the paper", list(READ_OFF), list(READ_OFF.values()), points=True)
    return Finding(
        ours=f"{around(best, 1000):.3f} at 1,000, {around(best, 5000):.3f} at 5,000",
        comparisons=comparisons,
        panels={
            "(a) all ones": Panel(X, Y, [Curve(f"d = {WIDTH:,}", SHOWN_AT, best[SHOWN_AT]), published]),
            "(b) Gaussian": Panel(X, "q . k / sqrt(d)", [Curve("one draw", SHOWN_AT, gaussian(SHOWN_AT, 0))]),
        },
        remark=f"Only five values of the paper's curve are compared, each averaged over {AROUND} distances to either "
        f"side: no more of them are stored. The paper does not state d; d = {WIDTH:,} was chosen by its picture. Five "
        "values do not decide d, and a smooth curve without RoPE would fit them too. In (b) the paper's normalisation "
        f"is not known, so only the absence of decay is compared, over {DRAWS:,} draws.",
    )


def random_positions(run: RunVerb) -> Finding:
    """Figure 8: random gaps in the positions make aligned vectors decay faster; Gaussian vectors still do not decay."""
    curve_N = aligned(torch.arange(LONGEST[-1]), frequencies(WIDTH))
    spaced = {most: torch.stack([spacing(most, seed) for seed in range(SPACINGS)]) for most in LONGEST}
    curves = {"RoPE": curve_N[None, :N_DISTANCES]} | {f"L = {n:,}": curve_N[d_DN] for n, d_DN in spaced.items()}
    reach = {name: int((f_DN.mean(0) < 0.25).nonzero()[0]) for name, f_DN in curves.items()}
    comparisons = [
        at_most(f"(a) {b} falls to 0.25 sooner than {a}: share of its distance", reach[b] / reach[a], 0.9)
        for a, b in zip(list(reach), list(reach)[1:], strict=False)
    ]
    comparisons += [without_decay(f"(b) L = {n:,}", fresh(d_DN[:, ENDS])) for n, d_DN in spaced.items()]
    lines = [Curve(name, SHOWN_AT, f_DN.mean(0)[SHOWN_AT]) for name, f_DN in curves.items()]
    farthest_DN = spaced[LONGEST[-1]][:, SHOWN_AT]
    wandering = band(torch.cat([gaussian(d_N[None], seed) for seed, d_N in enumerate(farthest_DN)]))
    return Finding(
        ours="falls to 0.25 at " + ", ".join(f"{distance:,} ({name})" for name, distance in reach.items()),
        comparisons=comparisons,
        panels={
            "(a) all ones": Panel(X, Y, lines),
            f"(b) Gaussian, L = {LONGEST[-1]:,}": Panel(X, "q . k / sqrt(d)", wandering),
        },
        remark=f"Only the statements are compared, (a) over {SPACINGS} draws of the positions, (b) over {DRAWS:,} "
        "draws of the vectors: the paper gives no d and no normalisation, so its curves cannot be compared number by "
        "number. The width is that of figure 2.",
    )


def one_query_one_key(run: RunVerb) -> Finding:
    """Figure 9: the logit of one Gaussian query and one Gaussian key does not decay with distance either."""
    comparisons: list[CheckedNumber] = []
    panels: dict[str, HeatMap | Panel] = {}
    spreads = []
    for name, theta in (("theta = 10,000", 1e4), ("theta = 500,000", 5e5)):
        ends_DN = one_pair(ENDS, theta, DRAWS)
        comparisons.append(without_decay(name, ends_DN))
        spreads.append(float(ends_DN.std()))
        panels[name] = Panel(X, "q . k / sqrt(d)", band(one_pair(SHOWN_AT, theta, SPACINGS)))
    return Finding(
        ours=f"a standard deviation of {spreads[0]:.2f} and {spreads[1]:.2f} sqrt(d) at any distance",
        comparisons=comparisons,
        panels=panels,
        remark=f"Only the statement is compared, over {DRAWS:,} draws: the paper's d, draw and normalisation are not "
        "known, so its two curves cannot be compared number by number. The width is that of figure 2.",
    )


def spacing(most: int, seed: int) -> Tensor:
    """Draw 5,001 positions below `most`, and return the distances of all of them from the last one, ascending: [N]."""
    drawn_N = drawn_positions(seed, 0, most, N_DISTANCES)
    return drawn_N[-1] - drawn_N.flip(0)


# -- statements


def statements(run: RunVerb, claims: Mapping[str, str], remark: str = "", drawn: bool = False) -> Finding:
    """The finding of a figure that illustrates statements. Its numbers are those of the statements' checks.

    claims: for each statement's name, a text that says what the statement means in the figure. drawn: the field
    `drawn` of `Finding`.
    """
    found = {name: checks_of(name)[0]() for name in claims}
    parts = [
        f"{meaning}: {sum(c.verdict != DIFFERS for c in found[name].comparisons)} of {len(found[name].comparisons)}"
        for name, meaning in claims.items()
    ]
    comparisons = [comparison for finding in found.values() for comparison in finding.comparisons]
    panels = {name: panel for finding in found.values() for name, panel in finding.panels.items()}
    return Finding(comparisons, panels, remark, "; ".join(parts), drawn=drawn)


# -- max retrieval

MEASURE = ("max-retrieval", "evaluate=[softmax,adaptive_temperature]")
COMMAND = "roundround max-retrieval --temp adaptive"
DRAWN = (16, 256, 4096)  # the numbers of items whose heat maps are drawn
# the published polynomial: the entropy from which beta exceeds 1, and beta by entropy in nats
START, SHAPE_AT = 0.849, {1.0: 1.27, 1.5: 1.85, 2.0: 2.10, 2.5: 2.20, 3.0: 2.25}


def table(directory: Path, softmax: str) -> dict[int, NDArray[np.float64]]:
    """For each number of items, the accuracy of every seed in per cent: [S]."""
    found: dict[int, list[float]] = {}
    for record in json.loads((directory / "results.json").read_text(encoding="utf-8")):
        if record["metric"] == "accuracy" and record["softmax"] == softmax:
            found.setdefault(record["n"], []).append(100 * record["value"])
    return {n: np.array(values) for n, values in found.items()}


def accuracy(run: RunVerb) -> Finding:
    """Table 1: accuracy of the plain softmax and gain of the adaptive temperature, at eleven sizes."""
    directory = run(*MEASURE)
    plain, adaptive = table(directory, "softmax"), table(directory, "adaptive_temperature")
    sizes = list(max_retrieval.PAPER)
    comparisons = [number for n in sizes for number in compare_size(n, plain[n], adaptive[n] - plain[n])]
    curves = [
        Curve("softmax, ours", sizes, [plain[n].mean() for n in sizes]),
        Curve("adaptive temperature, ours", sizes, [adaptive[n].mean() for n in sizes]),
        Curve("softmax, paper", sizes, [max_retrieval.PAPER[n][0] for n in sizes], points=True),
        Curve("adaptive temperature, paper", sizes, [max_retrieval.PAPER[n][1] for n in sizes], points=True),
    ]
    found = [count_verdicts(c.verdict for c in comparisons[part::3]) for part in (0, 1)]
    return Finding(
        ours=f"{plain[1024].mean():.1f} and {adaptive[1024].mean():.1f} % at 1,024; accuracies: {found[0]}; "
        f"gains: {found[1]}",
        comparisons=comparisons,
        panels={"table 1": Panel("items", "accuracy (%)", curves, log="x")},
        remark="The interval is over the seeds; that of a gain includes the paper's own error if the paper's p is "
        f"known, from which it follows for {max_retrieval.SEEDS} seeds (a recalled number). The margin is one point "
        "for accuracies; for gains it is half the published gain, or the rounding of two printed numbers if that is "
        "larger. All sizes are measured on the same heads: one curve, not independent confirmations. The rows of 32 "
        "and 8,192 items are only known second-hand.",
    )


def compare_size(n: int, plain_S: NDArray[np.float64], gain_S: NDArray[np.float64]) -> list[CheckedNumber]:
    """Judge the plain softmax's accuracy and the adaptive temperature's gain at n items, both in per cent.

    The p-value of the gain is shown without a verdict.
    """
    published, adaptive = max_retrieval.PAPER[n]
    published_gain, p = adaptive - published, max_retrieval.P.get(n)
    items = f"{n:,} items{' (second-hand)' if n in max_retrieval.SECOND_HAND else ''}"
    gain, n_seeds, width, error, wide = float(gain_S.mean()), len(gain_S), math.inf, math.inf, math.inf
    if n_seeds > 1:
        theirs = 0.0 if p is None else error_from_p(published_gain, p, max_retrieval.SEEDS)
        width, error = error_widths(n_seeds) * float(standard_error(plain_S)), float(standard_error(gain_S))
        wide = welch_width(error, n_seeds, theirs, max_retrieval.SEEDS)
    margin = max(0.1, 0.5 * published_gain)  # per cent: the rounding of two numbers printed with one decimal
    return [
        near(f"softmax, {items}", float(plain_S.mean()), published, 1.0, published, width),
        near(f"gain, {items}", gain, published_gain, margin, published_gain, wide, signed=True),
        shown(f"p of the gain, {items}", p_of_mean(gain, error, n_seeds), p),
    ]


def heat_maps(run: RunVerb, softmax: str) -> Finding:
    """Figures 2 and 6: the head's weights on the 16 items of highest priority in each of 32 sets.

    The item of the highest priority is on the right.
    """
    weights = load_file(run(*MEASURE) / "attention.safetensors")
    on_largest = {n: weights[f"{softmax}.{n}"][:, -1].astype(np.float64) for n in max_retrieval.PAPER}
    sharpness = {n: float(found.mean()) for n, found in on_largest.items()}
    comparisons = [
        at_least("mean weight on the largest of 16 items", sharpness[16], 0.6, math.inf),
        at_most("mean weight on the largest of 16,384 items", sharpness[16_384], 0.25, math.inf),
    ]
    if softmax != "softmax":
        for n in (64, 128, 256, 512, 1024, 2048):  # with more items, most entropies exceed the polynomial's range
            gain = on_largest[n] - weights[f"softmax.{n}"][:, -1]
            comparisons.append(at_least(f"gain over the plain softmax, {n:,} items", float(gain.mean()), 0.0, math.inf))
    return Finding(
        ours=", ".join(f"{sharpness[n]:.2f} at {n:,}" for n in DRAWN),
        comparisons=comparisons,
        panels={
            f"{n:,} items": HeatMap(weights[f"{softmax}.{n}"], "item, by priority", "set", most=1.0, label="weight")
            for n in DRAWN
        },
        remark="The paper prints colours and no numbers, so only its statement is compared. One head was measured, "
        f"the first seed's, on {len(on_largest[16])} sets: no number has an interval over heads.",
    )


def fit_of_beta(run: RunVerb) -> Finding:
    """Figure 5: the polynomial that gives the inverse temperature beta as a function of the entropy of a row."""
    directory = run(*MEASURE, f"run={as_value(run(*MEASURE))}", "fit=true")
    fit = json.loads((directory / "run.json").read_text(encoding="utf-8"))["fit"]
    ours, by_seed, (low, high) = fit["coefficients"], fit["by_seed"], fit["entropy_range"]

    def error(numbers: list[float]) -> float:
        """Half the width of a quantity's interval over the seeds; infinite if a seed had too few points to fit.

        numbers: the quantity's value in each seed's fit.
        """
        return float(half_width(np.array(numbers))) if by_seed else math.inf

    unseen: list[CheckedNumber] = []  # accuracy at sizes beside those of the fit: mean, worst and best head
    for softmax in ("fitted", "adaptive_temperature", "softmax"):
        values = [values_S for n, values_S in table(directory, softmax).items() if n not in fit["sizes"]]
        if values:
            each_S = np.mean(values, axis=0)
            unseen += [
                shown(f"accuracy beyond the fitted sizes, {softmax}, mean of {len(each_S)} heads", each_S.mean()),
                shown("the same, worst head", each_S.min()),
                shown("the same, best head", each_S.max()),
            ]
    comparisons = [
        near("entropy from which it sharpens", begins(ours), START, 0.15, START, error([*map(begins, by_seed)])),
        *[
            near(f"beta at {h:g} nats", float(np.polyval(ours, h)), beta, 0.1 * beta, beta,
                 error([float(np.polyval(own, h)) for own in by_seed]))
            for h, beta in SHAPE_AT.items()
        ],
        *[
            shown(f"{what} at {h:g} nats", float(np.polyval(ours, at)), float(np.polyval(PUBLISHED, h)))
            for h in (4.0, 5.0, 6.0)
            for what, at in (("beta, held at the ends of the fit,", min(max(h, low), high)), ("the quartic", h))
        ],
        *unseen,
        *[
            shown(f"coefficient of H^{power}", own, published)
            for power, (own, published) in enumerate(zip(ours[::-1], PUBLISHED[::-1], strict=True))
        ],
    ]  # fmt: skip
    over = f"the interval is over the fits to each of {len(by_seed)} seeds" if by_seed else "it has no interval"
    taken = f" of {low:.2f} to {high:.2f} nats" if by_seed else ""
    curves = [
        Curve(name, ENTROPIES, np.polyval(c, ENTROPIES)) for name, c in (("ours", ours), ("published", PUBLISHED))
    ]
    return Finding(
        ours=f"from {begins(ours):.2f} nats, beta {np.polyval(ours, 2.0):.2f} at 2",
        comparisons=comparisons,
        panels={"fit": Panel("entropy (nats)", "inverse temperature beta", curves)},
        remark=f"Fitted to {fit['inputs']:,} inputs{taken} in which the largest logit is a wrong one, as in the "
        f"paper, whose sizes and numbers of inputs are not known; {over}. Another way of training gives other "
        "coefficients. The margin is 0.15 nats for an entropy, and a tenth of beta for a beta.",
    )


ENTROPIES = np.linspace(0.5, 3.5, 301)  # nats


def begins(coefficients: Sequence[float]) -> float:
    """The least entropy from 0.5 to 3.5 nats at which the polynomial's beta exceeds 1; NaN if beta never does."""
    above = ENTROPIES[np.polyval(coefficients, ENTROPIES) > 1]
    return float(above[0]) if len(above) else math.nan


# -- table 2

BASELINE = "rope"
SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (256, 512, 1024, 2048)  # the first is that of training

# option of `pe`: (the paper's name, validation perplexity on Wikipedia, on FLAN v2)
# Barbero et al. 2024, arXiv:2410.06205v3, table 2: Gemma 2B from scratch, one run each, context 8,192
PAPER = {
    "nope": ("NoPE", 4.8594, 6.6429),
    "rope": ("RoPE, theta 10,000", 4.4627, 6.4429),
    "rope_500k": ("RoPE, theta 500,000", 4.4485, 6.4593),
    "p_rope_reversed": ("0.75-RoPE reversed", 4.4592, 6.4683),
    "partial_rope": ("0.75-RoPE partial", 4.4537, 6.4562),
    "p_rope_25": ("0.25-RoPE", 4.5302, 6.5111),
    "p_rope": ("0.75-RoPE", 4.4414, 6.4422),
}

# does the cut matter, or the number of frequencies? Three encodings rotate three quarters of the pairs: 0.75-RoPE cuts
# the slow pairs, reversed cuts the fast ones, and the fewer frequencies of partial span the whole ladder
CONTROLS = (
    ("p_rope", BASELINE),
    ("p_rope_reversed", BASELINE),
    ("partial_rope", BASELINE),
    ("p_rope", "p_rope_reversed"),
    ("p_rope", "partial_rope"),
)


class Difference(NamedTuple):
    """The difference between two losses in nats per token, averaged over seeds.

    low, high: the ends of the mean's 95 % t interval; NaN if there is only one seed.
    """

    nats: float
    low: float
    high: float


def sweep_of(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table of the held-out perplexities in `records`: a row for each seed, a column for each (length, encoding).

    Seeds that lack a column are left out. Raises ValueError if a seed has two values in a column, for example from runs
    on two corpora.
    """
    found = [r for r in records if r["metric"] == "perplexity" and r["verb"] == "eval"]
    frame = pd.DataFrame(found)[["seed", "length", "pe", "value"]].astype({"seed": int, "length": int, "value": float})
    return frame.drop_duplicates().pivot(index="seed", columns=["length", "pe"], values="value").dropna()


def difference(sweep: pd.DataFrame, encoding: str, baseline: str, length: int) -> Difference:
    """An encoding's loss minus the baseline's at a context length, paired by seed.

    The t distribution of the interval has S - 1 degrees of freedom.
    """
    nats_S = (np.log(sweep[length, encoding]) - np.log(sweep[length, baseline])).to_numpy()
    mean, half = float(nats_S.mean()), float(half_width(nats_S))
    return Difference(mean, mean - half, mean + half)


def paper_difference(encoding: str, baseline: str) -> tuple[float, float]:
    """The published differences in loss on Wikipedia and on FLAN v2, each between two single runs."""
    (_, wiki, flan), (_, wiki_baseline, flan_baseline) = PAPER[encoding], PAPER[baseline]
    return math.log(wiki / wiki_baseline), math.log(flan / flan_baseline)


def perplexities(run: RunVerb) -> Finding:
    """Table 2: train and evaluate every encoding with every seed, and compare its loss with RoPE's, seed by seed."""
    records: list[dict[str, Any]] = []
    for seed in SEEDS:
        for pe in PAPER:
            trained = run("train", "experiment=rope/table2", f"pe={pe}", f"seed={seed}", "hydra.mode=RUN")
            evaluated = run("eval", f"run={as_value(trained)}", f"length=[{','.join(map(str, LENGTHS))}]")
            records += json.loads((evaluated / "results.json").read_text(encoding="utf-8"))
    sweep = sweep_of(records)
    means = {pe: [sweep[length, pe].mean() for length in LENGTHS] for pe in PAPER}
    curves = [Curve(PAPER[pe][0], LENGTHS, by_length) for pe, by_length in means.items()]
    return Finding(
        ours=", ".join(f"{PAPER[pe][0]} {means[pe][0]:.1f}" for pe in ("nope", "p_rope_25", BASELINE, "p_rope")),
        comparisons=compare_encodings(sweep),
        panels={"perplexity": Panel("context (tokens)", "held-out perplexity", curves, log="xy")},
        untested="made of a model of a million parameters, not of Gemma 2B",
        remark=f"{len(SEEDS)} seeds; differences are paired by seed, in nats per token, with 95 % t intervals. The six "
        "differences from RoPE at the training context stand beside the paper's on Wikipedia; the error of its single "
        "runs is not known. docs/results/table2.md says what these seeds show, which published differences lie "
        "within their intervals, and what resting costs if the pairs turn as far as in the paper.",
    )


def compare_encodings(sweep: pd.DataFrame) -> list[CheckedNumber]:
    """Show each encoding's difference from RoPE and the differences of `CONTROLS`, at every length.

    At the training context the published difference on Wikipedia stands beside it.
    """
    comparisons = []
    pairs = list(dict.fromkeys([*((pe, BASELINE) for pe in PAPER if pe != BASELINE), *CONTROLS]))
    places = [*((pair, LENGTHS[0]) for pair in pairs), *((pair, length) for pair in pairs for length in LENGTHS[1:])]
    for (pe, baseline), length in places:
        nats, low, high = difference(sweep, pe, baseline, length)
        what, error = f"{PAPER[pe][0]} less {PAPER[baseline][0]}, {length:,} tokens", (high - low) / 2
        published = paper_difference(pe, baseline)[0] if length == LENGTHS[0] else None
        comparisons.append(shown(f"{what} ({low:+.4f} to {high:+.4f})", nats, published, error))
    return comparisons


# -- the table

FIGURES: dict[str, Figure] = {
    "rope.table1": Figure(
        shows="what NoPE, RoPE and p-RoPE can do: patterns of position, of meaning",
        published="NoPE no, yes; RoPE yes, no; p-RoPE yes, yes",
        command="roundround theory rope.prop_5_2 rope.thm_5_3 rope.thm_6_1 rope.table_1",
        measure=partial(
            statements,
            claims={
                "rope.prop_5_2": "NoPE has no positions",
                "rope.thm_5_3": "RoPE has",
                "rope.thm_6_1": "its slow channels do not last",
                "rope.table_1": "each by its own ladder, p-RoPE with p = 0.75 and 0.25",
            },
            remark="The table is about single heads. p-RoPE keeps the order of two keys at any distance, but "
            "guarantees no weight among many keys. The paper has ticks and no numbers, so only their direction can "
            "agree.",
        ),
    ),
    "softmax.fig1": Figure(
        shows="every softmax head disperses as inputs grow (a sketch in the paper)",
        published="every weight tends to 0",
        command="roundround theory softmax.thm_2_2",
        measure=partial(
            statements, claims={"softmax.thm_2_2": "largest weight of every row below exp(delta) / n"}, drawn=True
        ),
    ),
    "softmax.fig4": Figure(
        shows="the adaptive temperature as code",
        published="-0.037, 0.481, -2.3, 4.917, -1.791",
        command="roundround theory softmax.polynomial",
        measure=partial(statements, claims={"softmax.polynomial": "the published listing"}, drawn=True),
    ),
    "rope.fig1": Figure(
        shows="one frequency suffices to attend to the token before",
        published="row i on token i - 1",
        measure=previous_token,
    ),
    "rope.fig2": Figure(
        shows="aligned vectors decay with distance, Gaussian ones do not",
        published="0.185 at 1,000, 0.014 at 5,000",
        measure=decay,
    ),
    "rope.fig8": Figure(
        shows="the same over randomly spaced positions",
        published="larger L decays faster; Gaussian ones do not",
        measure=random_positions,
    ),
    "rope.fig9": Figure(
        shows="one Gaussian query and key, theta 10,000 and 500,000", published="no decay", measure=one_query_one_key
    ),
    "softmax.fig2": Figure(
        measure=partial(heat_maps, softmax="softmax"),
        shows="a head trained on up to 16 items disperses on more",
        published="sharp at 16 items, dispersed beyond",
        command=COMMAND,
        minutes=35,
    ),
    "softmax.fig5": Figure(
        measure=fit_of_beta,
        shows="the polynomial of the adaptive temperature",
        published="from 0.85 nats, beta 2.10 at 2",
        command=f"{COMMAND} run=DIR fit=true",
        minutes=40,
    ),
    "softmax.fig6": Figure(
        measure=partial(heat_maps, softmax="adaptive_temperature"),
        shows="the same head, sharpened by the adaptive temperature",
        published="sharper at the larger sizes",
        command=COMMAND,
        minutes=35,
    ),
    "softmax.fig7": Figure(
        measure=None,
        shows="CLRS-Text with Gemma 2B, with and without the adaptive temperature",
        published="better on most of 30 algorithms",
        needs="Gemma 2B, fine-tuned on accelerators",
    ),
    "softmax.table1": Figure(
        measure=accuracy,
        shows="max retrieval: accuracy by number of items",
        published="53.8 and 57.7 % at 1,024",
        command=COMMAND,
        minutes=35,
    ),
    "rope.table2": Figure(
        measure=perplexities,
        shows="perplexity of seven encodings trained from scratch, at a small size",
        published="NoPE 4.86, 0.25-RoPE 4.53, RoPE 4.46, 0.75-RoPE 4.44 (Gemma 2B, Wikipedia)",
        command="roundround train experiment=rope/table2 text=FOLDER, and roundround eval of each run",
        minutes=90,
        trains=True,
    ),
}
