"""Wrong input to runs that learn a task: sizes that a task does not have, options of text beside one, and typos."""

from __future__ import annotations

from case import Case, of_words
from originals import PLAIN_TEXT, TASK, TRAIN

SIZES = ["0", "-1", "1.5", "nan", "abc", "null", "''", "[2]", "9" * 400]
SHARES = ["-0.1", "1.1", "nan", "abc", "null"]
LENGTHS = [
    "[1,16777216]", "[2]", "[4,2]", "[1,2,3]", "[]", "5", "abc", "null", "[nan,4]", "[1,1.5]", "[-3,4]", "[4,1e9]",
]  # fmt: skip
YES_NO = ["maybe", "2", "null"]
# of each task: lengths that begin below its smallest, and its own parameters with values out of range
TASKS = {
    "addition": {"train_lengths": ["[0,4]"], "reverse_answer": YES_NO, "reverse_operands": YES_NO},
    "copy": {"train_lengths": ["[0,4]", *LENGTHS], "n_symbols": ["1", "2000000", *SIZES]},
    "flip_flop": {"train_lengths": ["[3,8]"], "p_write": SHARES, "p_read": ["0.95", *SHARES]},
    "induction": {"train_lengths": ["[2,8]"], "n_symbols": ["1"]},
    "local_count": {"train_lengths": ["[1,8]"], "n_symbols": ["1"], "longest_run": ["1", *SIZES]},
    "max": {"train_lengths": ["[0,4]"], "n_priorities": ["1", *SIZES], "n_classes": ["1", *SIZES]},
    "mqar": {
        "train_lengths": ["[15,64]"], "n_symbols": ["3", "8", *SIZES], "n_pairs": ["4096", "17", *SIZES],
        "power_a": SHARES, "random_filler": YES_NO,
    },
    "mqmtar": {
        "train_lengths": ["[2,8]"], "n_letters": ["1", *SIZES], "key_tokens": ["40", *SIZES],
        "value_tokens": ["40", *SIZES], "pairs_share": ["0", *SHARES], "n_queries": ["1000", *SIZES],
    },
    "n_back": {"train_lengths": ["[2,8]"], "n_symbols": ["1"], "steps": ["3", *SIZES]},
    "parity": {"train_lengths": ["[0,4]"]},
    "passkey": {"train_lengths": ["[9,20]"], "n_digits": ["40", *SIZES]},
    "repeat": {"train_lengths": ["[0,4]"], "n_symbols": ["1"]},
    "reverse": {"train_lengths": ["[0,4]"], "n_symbols": ["1"]},
    "sort": {"train_lengths": ["[0,4]"], "n_symbols": ["1"]},
}  # fmt: skip
OF_ALL = {
    "train_examples": ["100000000000", "0", "-1", "1.5", "abc"],
    "validation_examples": ["100000000000", "0", "-1", "1.5", "abc", "null"],
}
BESIDE_A_TASK = [
    "tokenizer=bytes", "tokenizer.vocab_size=300", "validation_tokens=64", "model.train_length=32", "data.path=x",
    f"data.path={PLAIN_TEXT}", "data.held_out=0.1", "text=abc", "init=stories260k",
]  # fmt: skip
TYPOS = {
    "copy": ("n_symbol=4", "train_length=[1,4]", "validation_example=8", "symbols=4", "example=3"),
    **{name: ("train_length=[1,4]", "validation_exampels=8") for name in TASKS if name != "copy"},
}
EVAL = ["eval", "run=task-run", "examples=4", "logger=none"]
OF_EVAL = {
    "length": ["16777216", "0", "-1", "abc", "1.5", "[]", "1000000000", "[2,0]", "null", "1" + "0" * 30],
    "examples": ["100000000000", "0", "-1", "abc", "1.5", "null"],
    "stride": ["4"],
    "max_tokens": ["64"],
    "bos": ["true"],
    "data": ["pydoc", "text", "stories", "mqar", "nope"],
    "text": [str(PLAIN_TEXT)],
    "checkpoint": ["nope"],
    "pe": ["learned"],
    "softmax": ["ssmax"],
}
LOOKS = [
    ("probe", "texts=shakespeare"), ("probe", "data=pydoc"), ("probe", "data=copy"), ("probe", f"text={PLAIN_TEXT}"),
    ("probe", "max_documents=2", "prompt='Once upon a time'"), ("probe", "max_documents=2", "length=0"),
    ("probe", "max_documents=2", "length=-3"), ("probe", "max_documents=null", "max_tokens=null"),
    ("theory", "texts=shakespeare"), ("theory", "data=pydoc"), ("max-retrieval",),
]  # fmt: skip

CASES = [
    *(
        case
        for task, table in TASKS.items()
        for case in of_words(
            f"parameters of {task}", [*TASK, f"data={task}"], {f"data.{name}": values for name, values in table.items()}
        )
    ),
    *of_words("parameters of tasks", TASK, {f"data.{name}": values for name, values in OF_ALL.items()}),
    *of_words("text beside a task", TASK, BESIDE_A_TASK),
    *of_words("text beside a task", TRAIN, ["data.train_lengths=[1,4]", "tokenizer=null"]),
    *(
        case
        for task, words in TYPOS.items()
        for case in of_words(f"typos in {task}", [*TASK, f"data={task}"], [f"data.{word}" for word in words])
    ),
    *of_words("eval of a task", EVAL, OF_EVAL, given=("task-run",)),
    Case(name="good eval of a task: length=2,9", args=[*EVAL, "length=2,9"], codes=(0,), given=("task-run",)),
    *of_words(
        "eval of text as a task", ["eval", "run=run", "logger=none"], ["data=copy", "examples=4"], given=("run",)
    ),
    *(
        Case(
            name=f"looks at a task: {' '.join(words)}",
            args=[words[0], "run=task-run", "logger=none", *words[1:]],
            given=("task-run",),
        )
        for words in LOOKS
    ),
]
