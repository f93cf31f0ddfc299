"""The claims of docs/results/patterns.md and docs/results/rope_plane.md, from the values of each seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import tunables
from helpers_pe import attention_shape, build
from helpers_stored import check_claim, check_listed, text_of
from results.patterns import (
    BASELINE,
    COMMON,
    LENGTHS,
    NORM_NAMES,
    PATTERN_NAMES,
    PE_NAMES,
    RATES,
    Setting,
    contrasts,
    interval,
    of,
    p_of_differences,
    rated,
    settings,
)
from results.rope_plane import (
    POINTS,
    measured_points,
    on_plane,
    p_of_plane,
    table_of_plane,
    table_of_plane_rates,
)
from results.stored import Array, family

from roundround.analysis.intervals import paired_p

MARGIN = 0.02  # nats per byte, written in conf/experiment/rope before the runs


def rises() -> dict[Setting, Array]:
    """What each seed loses from the trained length to eight times it."""
    return {one: of(one, LENGTHS[-1]) - of(one, LENGTHS[0]) for one in settings()}


def apart(name: str, *lengths: int) -> list[tuple[float, float, float]]:
    one, other = contrasts()[name]
    return [interval(of(one, length), of(other, length)) for length in lengths or LENGTHS]


def signed(found: tuple[float, float, float]) -> str:
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(*found)


def size(found: tuple[float, float, float]) -> str:
    """Of a difference above 0."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*found)


NOTHING = np.zeros(3)


def rise(*setting: str) -> tuple[float, float, float]:
    pattern, pe, norm = setting
    return interval(rises()[pattern, pe, norm], NOTHING)


def test_models_are_better_than_unigrams() -> None:
    """3.09 and 2.29 nats are of counts in the training text, on the held-out bytes that are scored."""
    assert max(of(one, length).max() for one in settings() for length in LENGTHS) < 3.09 - 0.7
    assert min(of(one, length).min() for one in settings() for length in LENGTHS) > 1.75
    assert all(of(("uniform", "nope", norm), LENGTHS[0]).min() > 2.29 for norm in NORM_NAMES)
    assert all(of(one, LENGTHS[0]).max() < 2.29 for one in settings() if one[:2] != ("uniform", "nope"))
    check_claim("patterns", "every model here is far better", ["3.09 nats per byte", "bytes 2.29, of triples 1.75"])


def test_what_is_told_after_holm() -> None:
    told = {place for place, p in p_of_differences().items() if p < 0.05}
    assert told == {(("uniform", "nope", "rms"), n) for n in (256, 512)}
    assert len(p_of_differences()) == 44


def test_windows_take_away_the_rise() -> None:
    windowed = [rise(*one)[0] for one in settings() if one[0] == "local_global"]
    plain, normalised = (apart(f"windows - uniform, RoPE{name}", 1024)[0] for name in NORM_NAMES.values())
    assert len(windowed) == 6
    assert plain[2] < 0
    assert normalised[2] < 0
    check_claim(
        "patterns",
        "Windows seem to take away",
        [
            "p {:.3f} after Holm with p-RoPE, {:.3f} with RoPE".format(
                *(p_of_differences()[("local_global", pe, "none"), 1024] for pe in ("p_rope_25", "rope"))
            ),
            f"loses {size(rise('uniform', 'rope', 'none')).replace(' (', ' nats (')}",
            f"and {size(rise('uniform', 'rope', 'rms'))} with normalised",
            f"by {min(windowed):+.3f} to {max(windowed):+.3f} nats",
            f"without by {-plain[0]:.3f} nats, and by {-normalised[0]:.3f}",
        ],
    )


def test_windows_within_the_trained_length() -> None:
    found = [apart(f"windows - uniform, RoPE{name}", 128)[0] for name in NORM_NAMES.values()]
    assert all(low < -MARGIN < MARGIN < high for _, low, high in found)
    numbers = [f"{signed(found[0])} with RoPE", f"{signed(found[1])} normalised"]
    check_claim("patterns", "Within the trained length the windows show no clear cost", numbers)


def test_nope_needs_the_windows() -> None:
    bare, windowed = (of((pattern, "nope", "none"), 128).mean() for pattern in PATTERN_NAMES)
    behind = (of(("uniform", "nope", "none"), 128) - of(BASELINE, 128)).mean()
    assert all((rises()["local_global", "nope", norm] < 0).all() for norm in NORM_NAMES)
    check_claim(
        "patterns",
        "Without position in any layer",
        [
            f"stays at {bare:.3f} nats where pairs of bytes give 2.29, {behind:.3f} behind",
            f"give {windowed:.3f}",
            f"all seeds: {signed(rise('local_global', 'nope', 'none'))}",
        ],
    )


def test_encodings_of_the_global_layer() -> None:
    pairs = {name: apart(name) for name in contrasts() if "in the global layer" in name}
    assert (len(pairs), sum(len(found) for found in pairs.values())) == (6, 24)
    clear = [(name, n) for name, found in pairs.items() for n, (_, low, high) in zip(LENGTHS, found, strict=True)
             if low > 0 or high < 0]  # fmt: skip
    assert clear == [("NoPE - RoPE in the global layer", 512), ("NoPE - RoPE in the global layer", 1024)]
    both = {(name, n): tuple(of(setting, n) for setting in contrasts()[name]) for name in pairs for n in LENGTHS}
    corrected = [family(both)[place] for place in clear]
    p = [float(paired_p(*(arm[:, None] for arm in both[place]))[0][0]) for place in clear]
    ahead = [-apart(*place)[0][0] for place in clear]
    plain, normalised = (pairs[f"p-RoPE - RoPE in the global layer{norm}"][0] for norm in NORM_NAMES.values())
    numbers = [
        f"by {ahead[0]:.3f} nats at 512 bytes and by {ahead[1]:.3f} at 1,024",
        f"(p {p[0]:.3f} and {p[1]:.3f}, {corrected[0]:.2f} and {corrected[1]:.2f} after Holm",
        f"is {signed(plain)} at 128 bytes, and {signed(normalised)} normalised",
    ]
    check_claim("patterns", "The encoding of the global layer makes no clear difference", numbers)


def test_p_rope_needs_the_windows() -> None:
    bare, windowed = (rise(pattern, "p_rope_25", "none") for pattern in PATTERN_NAMES)
    behind = interval(of(("uniform", "p_rope_25", "none"), 1024), of(BASELINE, 1024))
    mean, low, high = apart("windows - uniform, p-RoPE", 1024)[0]
    assert behind[1] > 0
    assert high < 0
    check_claim(
        "patterns",
        "p-RoPE with p = 1/4 needs",
        [
            f"loses {size(bare).replace(' (', ' nats (')} from 128",
            f"behind RoPE by {size(behind)}",
            f"it loses {signed(windowed)}",
            f"without them by {size((-mean, -high, -low))}",
        ],
    )


def test_norms_of_queries_and_keys() -> None:
    uniform = apart("normalised - not, uniform, RoPE")
    windowed = [found for pe in PE_NAMES.values() for found in apart(f"normalised - not, windows, {pe}")]
    assert all(low < 0 < high for _, low, high in windowed)
    means = [mean for mean, *_ in windowed]
    check_claim(
        "patterns",
        "Norms of queries and keys",
        [
            f"cost it {size(uniform[3]).replace(' (', ' nats (')}",
            f"change it by {signed(uniform[0])}",
            f"means are {min(means):+.3f} to {max(means):+.3f}",
        ],
    )


def test_what_was_expected_of_nope_and_not_found() -> None:
    text = " ".join(text_of("patterns").split())
    change = {pe: rise("local_global", pe, "none")[0] for pe in PE_NAMES}
    assert min(change, key=lambda pe: change[pe]) == "nope"
    mine, theirs = (rises()["local_global", pe, "none"] for pe in ("nope", "rope"))
    assert f"Its mean change, {change['nope']:+.3f}, is the lowest" in text
    assert f"that of RoPE is {signed(interval(mine, theirs))}" in text
    assert f"has {4 * len(contrasts())} intervals" in text


def test_the_common_rate_is_best() -> None:
    others = {one: rate for one, rate in rated().items() if rate != COMMON}
    assert len(rated()) == 12
    one = ("local_global", "nope", "rms")
    assert others == {one: 0.006}
    assert len(of(one, 128, 0.006)) == 3
    behind = of(one, 128, 0.006) - of(one, 128)
    numbers = [f"seed 1 by {-behind[0]:.3f} nats", f"behind by {behind[1]:.3f} and {behind[2]:.3f}"]
    pairs = {
        (other, n): (of(other, n, 0.006 if other == one else COMMON), of(BASELINE, n))
        for other in settings()[1:]
        for n in LENGTHS
    }
    told = [{place for place, p in found.items() if p < 0.05} for found in (p_of_differences(), family(pairs))]
    assert told[0] == told[1]
    check_claim("patterns", "The common rate is the best", ["eleven of the twelve", *numbers])


def test_twice_the_rate() -> None:
    pairs = [
        (("local_global", pe, norm), ("uniform", pe, norm))
        for pe, norm in (("rope", "none"), ("p_rope_25", "none"), ("p_rope_25", "rms"))
    ]
    pairs += [(("local_global", "p_rope_25", "rms"), ("local_global", "rope", "rms"))]
    found = [[of(one, 128, rate)[0] for one in pair] for pair in pairs for rate in (0.006, COMMON)]
    for (one, other), (one_common, other_common) in zip(found[::2], found[1::2], strict=True):
        assert one > other
        assert one_common < other_common
    (windows_twice, uniform_twice), (windowed, uniform) = found[:2]
    costs = {
        norm: sorted(of(one, 128, 0.006)[0] - of(one, 128)[0] for one in settings() if one[2] == norm)
        for norm in NORM_NAMES
    }
    check_claim(
        "patterns",
        "At 6e-3 many comparisons turn round",
        [
            f"has {uniform_twice:.3f} nats at 128",
            f"windows {windows_twice:.3f}, where at 3e-3 it is {uniform:.3f} and {windowed:.3f}",
            f"is behind ({found[-2][0]:.3f} and {found[-2][1]:.3f})",
            f"costs {costs['none'][0]:.3f} to {costs['none'][-1]:.3f} nats",
            f"and {costs['rms'][0]:.3f} to {costs['rms'][-1]:.3f} with them",
        ],
    )


# -- rope_plane.md


def table_of_points() -> list[str]:
    """Pairs and slowest wavelength of each point: there, and in heads of 32 channels trained on 128 tokens."""
    rows = []
    for pe, name in POINTS.items():
        if pe == "nope":
            rows.append(f"| {name} | 0 | | | |")
            continue
        numbers = tunables("pe", pe)
        here = build(pe, attention_shape(head_dim=32, train_length=LENGTHS[0])).facts()
        there = f"{numbers['slowest_wavelength']:,.0f} | {numbers['of_length']:,}"
        rows.append(f"| {name} | {here['rotated_pairs']} | {there} | {here['slowest_wavelength']:,} |")
    return rows


@pytest.mark.parametrize("table", [table_of_points, table_of_plane, table_of_plane_rates])
def test_tables_of_the_plane(table: Callable[[], list[str]]) -> None:
    rows = table()
    assert rows
    for row in rows:
        assert f"{row}\n" in text_of("rope_plane")


def beside(pe: str, other: str, length: int) -> tuple[float, float, float]:
    return interval(on_plane(f"ladder/{pe}", length), on_plane(other if other == "nope" else f"ladder/{other}", length))


def rise_of(pe: str) -> float:
    return float((on_plane(f"ladder/{pe}", 1024) - on_plane(f"ladder/{pe}", 128)).mean())


def slowest(pe: str) -> int:
    return int(build(f"ladder/{pe}", attention_shape(head_dim=32, train_length=128)).facts()["slowest_wavelength"])


LADDERS = [pe.removeprefix("ladder/") for pe in POINTS if pe != "nope"]


def test_points_within_the_trained_length() -> None:
    assert measured_points() == list(POINTS)
    nope = interval(on_plane("nope", 128), on_plane("ladder/llama_2", 128))
    found = {pe: beside(pe, "llama_2", 128) for pe in LADDERS[1:]}
    assert nope[1] > 0
    assert {pe for pe, (_, low, high) in found.items() if low > 0 or high < 0} == {"pythia", "qwen3_next"}
    assert not any(low > -MARGIN and high < MARGIN for _, low, high in found.values())
    assert nope[0] > max(mean for mean, *_ in found.values())
    numbers = [f"by {nope[0]:.3f} nats", f"by {found['pythia'][0]:.3f} and {found['qwen3_next'][0]:.3f},"]
    check_claim("rope_plane", "Within the trained length NoPE alone", numbers)


def test_nope_alone_is_told_from_llama_2() -> None:
    assert {place for place, p in p_of_plane().items() if p < 0.05} == {("nope", 128), ("nope", 256)}
    assert len(p_of_plane()) == 36


def test_slower_pairs_in_full_ladders() -> None:
    ahead = [beside(pe, "llama_2", 1024) for pe in ("llama_3", "clipped_llama_3", "p_rope_paper")]
    assert all(high < 0 for *_, high in ahead)
    assert slowest("p_rope_paper") < 128
    check_claim(
        "rope_plane",
        "Slower pairs do not lose more",
        [
            f"from {slowest('llama_2')} to {slowest('llama_3'):,} tokens",
            f"rises by {rise_of('llama_3'):.3f} in place of {rise_of('llama_2'):.3f} nats",
            "ahead by {:.3f} nats, cut hard by {:.3f}".format(*(-mean for mean, *_ in ahead)),
            f"by {-ahead[2][0]:.3f}.",
        ],
    )


def test_a_quarter_of_the_pairs() -> None:
    rises_of_all = {pe: rise_of(pe) for pe in LADDERS}
    assert sorted(rises_of_all, key=lambda pe: rises_of_all[pe])[-2:] == ["pythia", "qwen3_next"]
    assert all(beside(pe, "nope", 1024)[0] > 0 for pe in ("pythia", "qwen3_next"))
    ahead = [beside(pe, "gemma_4_global", 1024) for pe in ("pythia", "qwen3_next")]
    assert all(low > 0 for _, low, _ in ahead)
    assert all(low < 0 < high for n in LENGTHS for _, low, high in [beside("gemma_4_global", "llama_2", n)])
    check_claim(
        "rope_plane",
        "A quarter of the pairs",
        [
            f"ladder loses {rise_of('pythia'):.3f} nats and Qwen3-Next's {rise_of('qwen3_next'):.3f},",
            f"turns in {slowest('gemma_4_global')} tokens",
            f"there by {ahead[0][0]:.3f} and {ahead[1][0]:.3f}.",
        ],
    )


def test_two_halves() -> None:
    found = beside("speedrun", "lfm3_global", 1024)
    assert found[1] > 0
    check_claim(
        "rope_plane",
        "Of two halves",
        [
            f"({slowest('speedrun')} tokens) rises by {rise_of('speedrun'):.3f} nats",
            f"({slowest('lfm3_global')} tokens) by {rise_of('lfm3_global'):.3f};",
            f"are {size(found)} apart",
        ],
    )


def test_rates_of_the_plane() -> None:
    first = {pe: {rate: on_plane(pe, 128, rate)[0] for rate in RATES} for pe in POINTS}
    assert all(min(by, key=lambda rate: by[rate]) == COMMON for by in first.values())
    check_claim("rope_plane", "The common rate is the best of the three", ["all ten points"])
    twice = {pe.removeprefix("ladder/"): by[0.006] for pe, by in first.items()}
    cost = {pe.removeprefix("ladder/"): by[0.006] - by[COMMON] for pe, by in first.items()}
    check_claim(
        "rope_plane",
        "Twice the rate leaves some models",
        [
            f"{twice['llama_2']:.3f} nats for Llama 2's ladder and {twice['llama_3']:.3f} for",
            f"{cost['p_rope_paper']:.3f} and {cost['speedrun']:.3f}.",
        ],
    )


# what was run, and sentences without a number of their own
NOT_CLAIMS = {
    "patterns": ["The model", "uniform", "At four layers", "normalised", "Lengths"],
    "rope_plane": ["For Gemma 4 and LFM3"],
}


@pytest.mark.parametrize("page", NOT_CLAIMS)
def test_every_bold_sentence_with_a_number_is_checked_here(page: str) -> None:
    check_listed(page, __file__, NOT_CLAIMS[page])
