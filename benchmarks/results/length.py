"""The tables of docs/results/length.md, length_asentmax.md and length_copying.md."""

from __future__ import annotations

from functools import partial

from results.stored import Array, Values, difference, family, seeds, share, stored

REPEAT = stored("length/repeat", "pe")
COPY = stored("length/copy", "pe", "softmax")

SORT = stored("length/sort", "softmax", "optim.lr")

REVERSE = stored("length/reverse", "softmax", "optim.lr")

SOLVED = stored("length/solved", "data", "softmax", "optim.lr", "trainer.max_steps")

RANDOM = stored("length/random_positions", "data", "pe")

MQAR = stored("length/mqar_control", "data.train_examples", "optim.lr")

CLRS = stored("length/clrs_text_small", "softmax", "task")

ENCODINGS = ("nope", "rope", "p_rope", "alibi", "t5_bias", "learned", "nape")

NORMALISERS = ("softmax", "ssmax", "entmax15", "as_entmax")

RATES = ("0.001", "0.002", "0.004")

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


def p_of_sorting(metric: str) -> dict[tuple[str, int], float]:
    """ASEntmax against the softmax, over all rates and lengths beyond the trained ones."""
    names = ("as_entmax_nape", "softmax")
    return family({(rate, n): tuple(SORT[s, rate, metric, n] for s in names) for rate in RATES for n in (32, 64)})


def row_of_solved(task: str, length: int) -> str:
    mine, theirs = solved(task, length)
    cells = [each(theirs), each(mine)]
    cells += ["-"] if length == 16 else [difference(mine, theirs, 3)] if (mine != theirs).any() else ["0"]
    cells += [f"{values.mean():.2f}" for values in reversed(solved(task, length, "token_accuracy"))]
    return f"| {task} | {length} | {' | '.join(cells)} |"


def random_positions(task: str, length: int, metric: str = "exact_match") -> tuple[Array, Array]:
    """Of rope_random and of rope, [S] each."""
    drawn, plain = (RANDOM[task, pe, metric, length] for pe in ("rope_random", "rope"))
    return drawn, plain


def of_algorithms(metric: str, length: int, task: str = "all") -> tuple[Array, Array]:
    """With adaptive temperature and with the softmax, [S] each."""
    adaptive, plain = (CLRS[s, task, metric, length] for s in ("adaptive_temperature_trained", "softmax"))
    return adaptive, plain


def row_of_repetition(name: str, pe: str) -> str:
    cells = [share(REPEAT[pe, "exact_match", length]) for length in (20, 24, 30, 32, 40)]
    return f"| {name} | {' | '.join(cells)} |"


def table_of_copying(length: int) -> list[str]:
    encodings = [pe for pe in ENCODINGS if length == 20 or pe != "learned"]
    return [
        f"| `{pe}` | {' | '.join(share(COPY[pe, softmax, 'exact_match', length]) for softmax in NORMALISERS)} |"
        for pe in encodings
    ]


def table_of_rates(values: Values, exact: tuple[int, ...], symbols: tuple[int, ...]) -> list[str]:
    rows = []
    for softmax in ("softmax", "as_entmax_nape"):
        for rate in RATES:
            cells = [share(values[softmax, rate, "exact_match", length]) for length in exact]
            cells += [share(values[softmax, rate, "token_accuracy", length]) for length in symbols]
            rows.append(f"| `{softmax}`, {rate[-1]}e-3 | {' | '.join(cells)} |")
    return rows


def row_of_random_positions(task: str, length: int) -> str:
    drawn, plain = random_positions(task, length)
    apart = "-" if length == 16 else difference(drawn, plain, 3) if (drawn != plain).any() else "0"
    cells = [share(plain), share(drawn), apart]
    cells += [f"{of.mean():.2f}" for of in reversed(random_positions(task, length, "token_accuracy"))]
    return f"| {task} | {length} | {' | '.join(cells)} |"


def row_of_recall(n: str, rate: str) -> str:
    typed = {"0.0001": "1e-4", "0.0022": "2.2e-3"}[rate]
    cells = [share(MQAR[n, rate, metric, 64]) for metric in ("token_accuracy", "exact_match")]
    return f"| {int(n):,}, {typed} | {' | '.join(cells)} |"


def row_of_algorithms(metric: str, name: str, length: int) -> str:
    adaptive, plain = of_algorithms(metric, length)
    apart = difference(adaptive, plain, digits=3) if (adaptive != plain).any() else "0"
    return f"| {name}, {length} | {share(plain)} | {share(adaptive)} | {apart} |"


REPEATING = {"NoPE": "nope", "ALiBi": "alibi", "T5's bias": "t5_bias", "rotary": "rope", "sinusoidal": "sinusoidal"}
METRICS = {"output_match": "final answer", "exact_match": "exact match", "token_accuracy": "tokens"}
TABLES = {
    "repetition": lambda: [row_of_repetition(*names) for names in REPEATING.items()],
    **{f"copying-{length}": partial(table_of_copying, length) for length in (20, 30, 40)},
    "sorting": lambda: table_of_rates(SORT, (16, 32, 64), (32, 64)),
    "reversal": lambda: table_of_rates(REVERSE, (16, 24, 32), (24, 32, 64)),
    "solved": lambda: [row_of_solved(task, n) for task in ("sort", "reverse", "copy") for n in (16, 24, 32, 64)],
    "random-positions": lambda: [
        row_of_random_positions(task, n) for task in ("copy", "reverse") for n in (16, 20, 24, 32)
    ],
    "recall": lambda: [row_of_recall(*cell) for cell in CELLS],
    "algorithms": lambda: [row_of_algorithms(*one, n) for one in METRICS.items() for n in (4, 8, 10, 12, 16)],
}
