"""The tables of docs/results/length.md and length_recall.md."""

from __future__ import annotations

from results.stored import Array, difference, family, seeds, share, stored

REPEAT = stored("length/repeat", "pe")
COPY = stored("length/copy", "pe", "softmax")

SOLVED = stored("length/solved", "data", "softmax", "optim.lr", "trainer.max_steps")

RANDOM = stored("length/random_positions", "data", "pe")

MQAR = stored("length/mqar_control", "data.train_examples", "optim.lr")

CLRS = stored("length/clrs_text_small", "softmax", "task")

TUNED = stored("length/clrs_text_tuned", "softmax")

ENCODINGS = ("nope", "rope", "p_rope", "alibi", "t5_bias", "learned", "nape")

NORMALISERS = ("softmax", "ssmax", "entmax15", "as_entmax")

CELLS = (("8192", "0.0001"), ("8192", "0.0022"), ("100000", "0.0001"), ("100000", "0.0022"))  # of recall


def solved(task: str, length: int, metric: str = "exact_match") -> tuple[Array, Array]:
    """Of ASEntmax and of softmax at 2e-3 and 6,000 steps, but 24,000 of ASEntmax in copying, [S] each."""
    steps = {"as_entmax_nape": "24000" if task == "copy" else "6000", "softmax": "6000"}
    mine, theirs = (SOLVED[task, softmax, "0.002", n, metric, length] for softmax, n in steps.items())
    return mine, theirs


def each(values: Array) -> str:
    """All seeds, or one number where they print alike."""
    return seeds(values) if len({*seeds(values).split()}) > 1 else f"{values[0]:.2f}"


BEYOND = (24, 30, 32, 40)  # symbols, of copying and of repetition


def p_of_copying() -> dict[tuple[str, str, int], float]:
    """Exact match of each normaliser against the softmax, over all encodings and lengths beyond the trained ones."""
    cells = [(pe, s, n) for pe, s, metric, n in COPY if s != "softmax" and metric == "exact_match" and n in BEYOND]
    return family(
        {cell: tuple(COPY[cell[0], s, "exact_match", cell[2]] for s in (cell[1], "softmax")) for cell in cells}
    )


def p_of_repetition() -> dict[tuple[str, int], float]:
    """Exact match of NoPE against each other encoding, over all lengths beyond the trained ones."""
    cells = [(pe, n) for pe, metric, n in REPEAT if pe != "nope" and metric == "exact_match" and n in BEYOND]
    return family({(pe, n): tuple(REPEAT[one, "exact_match", n] for one in ("nope", pe)) for pe, n in cells})


def row_of_solved(task: str, length: int) -> str:
    mine, theirs = solved(task, length)
    return f"| {task}, {length} | {each(theirs)} | {each(mine)} | {difference(mine, theirs, 3)} |"


def random_positions(task: str, length: int) -> tuple[Array, Array]:
    """Of rope_random and of rope, [S] each."""
    drawn, plain = (RANDOM[task, pe, "exact_match", length] for pe in ("rope_random", "rope"))
    return drawn, plain


def of_algorithms(metric: str, length: int, task: str = "all") -> tuple[Array, Array]:
    """With adaptive temperature and with the softmax, [S] each."""
    adaptive, plain = (CLRS[s, task, metric, length] for s in ("adaptive_temperature_trained", "softmax"))
    return adaptive, plain


def row_of_repetition(name: str, pe: str) -> str:
    cells = [share(REPEAT[pe, "exact_match", length]) for length in (20, 30)]
    return f"| {name} | {' | '.join(cells)} |"


def row_of_copying(pe: str) -> str:
    return f"| `{pe}` | {' | '.join(share(COPY[pe, softmax, 'exact_match', 30]) for softmax in NORMALISERS)} |"


def row_of_algorithms(length: int) -> str:
    adaptive, plain = of_algorithms("output_match", length)
    return f"| {length} | {share(plain)} | {share(adaptive)} | {difference(adaptive, plain, digits=3)} |"


def of_tuned(length: int) -> tuple[Array, Array]:
    """Final answers after fine-tuning with adaptive temperature and with the softmax, [S] each."""
    adaptive, plain = (TUNED[s, "output_match", length] for s in ("adaptive_temperature_trained", "softmax"))
    return adaptive, plain


def row_of_tuned(length: int) -> str:
    adaptive, plain = of_tuned(length)
    return f"| {length} | {seeds(plain)} | {seeds(adaptive)} | {difference(adaptive, plain, digits=3)} |"


REPEATING = {"NoPE": "nope", "ALiBi": "alibi", "T5's bias": "t5_bias"}
TABLES = {
    "repetition": lambda: [row_of_repetition(*names) for names in REPEATING.items()],
    "copying-30": lambda: [row_of_copying(pe) for pe in ("alibi", "t5_bias", "nape")],
    "solved": lambda: [row_of_solved(task, n) for task, n in (("sort", 32), ("reverse", 24), ("copy", 24))],
    "algorithms": lambda: [row_of_algorithms(n) for n in (10, 12, 16)],
    "fine-tuned": lambda: [row_of_tuned(n) for n in (4, 5, 6, 9, 12)],
}
