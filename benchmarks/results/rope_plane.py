"""The tables of docs/results/rope_plane.md, but for the first, which is of the encodings themselves."""

from __future__ import annotations

from results.patterns import COMMON, LENGTHS, RATES, cell
from results.stored import Array, family, stored

PLANE = stored("rope_plane/plane", "pe", "optim.lr")

POINTS = {  # option of pe -> as the page names it
    "ladder/llama_2": "Llama 2",
    "ladder/llama_3": "Llama 3",
    "ladder/p_rope_paper": "0.75-RoPE, the paper's",
    "ladder/gemma_4_global": "Gemma 4, global layers",
    "ladder/clipped_llama_3": "Llama 3, hard cut",
    "ladder/lfm3_global": "LFM3, global layers",
    "ladder/speedrun": "speedrun, half",
    "ladder/pythia": "Pythia",
    "ladder/qwen3_next": "Qwen3-Next",
    "nope": "NoPE",
}


def on_plane(pe: str, length: int, rate: float = COMMON) -> Array:
    return PLANE[pe, str(rate), "nats_per_token", length]


def measured_points() -> list[str]:
    return [pe for pe in POINTS if len(PLANE.get((pe, str(COMMON), "nats_per_token", LENGTHS[0]), ())) == 3]


def p_of_plane() -> dict[tuple[str, int], float]:
    """Of each point against the first, after Holm's correction over all points and lengths."""
    base, *others = measured_points()
    return family({(pe, n): (on_plane(pe, n), on_plane(base, n)) for pe in others for n in LENGTHS})


def table_of_plane() -> list[str]:
    base, *others = measured_points()
    p = p_of_plane()
    first = f"| {POINTS[base]}, nats | {' | '.join(f'{on_plane(base, length).mean():.3f}' for length in LENGTHS)} |"
    return [first] + [
        f"| {POINTS[pe]} | {' | '.join(cell(on_plane(pe, n), on_plane(base, n), p[pe, n]) for n in LENGTHS)} |"
        for pe in others
    ]


def table_of_plane_rates() -> list[str]:
    """The loss on the first seed at the trained length, of points that have all three rates; the best one is bold."""
    rows = []
    for pe, name in POINTS.items():
        found = [PLANE.get((pe, str(rate), "nats_per_token", LENGTHS[0])) for rate in RATES]
        losses = [values[0] for values in found if values is not None]
        if len(losses) == len(RATES):
            cells = [f"**{loss:.3f}**" if loss == min(losses) else f"{loss:.3f}" for loss in losses]
            rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


TABLES = {"plane": table_of_plane, "rates": table_of_plane_rates}
