"""The contract tests on a folder of one's own: the variants of docs/howto pass, broken ones are found."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

CONTRACTS = [
    "tests/pe/test_pe_contract.py",
    "tests/softmax/test_softmax_contract.py",
    "tests/data/tasks/test_task_contract.py",
]
BROKEN = """
import numpy as np
from my_encodings import *
from my_normalisers import *
from my_tasks import *


class Skewed(SquareRootBias):
    def block(self, keys, a, b):
        return super().block(keys, 0, b - a)[..., : keys.span(a, b)[1]]  # counts its rows from the start of the block


class Crooked(PositionalEncoding):
    def __init__(self, shape, *, strength: float):
        super().__init__(shape)
        self.right = SquareRoot(shape, strength=strength)

    def bias(self, q_BHQC, k_BGKC, prepared):
        return Skewed(self.right.bias(q_BHQC, k_BGKC, prepared).strength_H11)


class Reading(Bias):
    def applied(self, logits, keys, a, b):
        return logits - logits.mean(-1, keepdim=True)  # over hidden keys too


class Curious(PositionalEncoding):
    def bias(self, q_BHQC, k_BGKC, prepared):
        return Reading()


class Longer(RotaryEncoding):
    def __init__(self, shape, *, theta: float):
        super().__init__(shape, theta=theta)
        self.gain = torch.nn.Parameter(torch.ones(()))

    def frequencies(self, dtype=torch.float32, device="cpu"):
        return ladder(self.shape.head_dim // 2, self.shape.head_dim, self.theta, dtype, device)

    def rotate_queries(self, q_BHTC, prepared):
        return super().rotate_queries(q_BHTC, prepared) * self.gain  # which starts at 1


class Leaky(AttentionSoftmax):
    cost_in_blocks = 4

    def __init__(self, shape, *, gain: float):
        super().__init__(shape)
        self.gain = gain

    def normalise(self, logits_BHQK, visible_B1QK, rows):
        return (self.gain * logits_BHQK).softmax(-1)  # over hidden keys too


class Unrepeatable(Task):
    def __init__(self, *, base: int, **numbers: object):
        super().__init__(symbols=numbered(base, name="base"), **numbers)

    def example(self, rng, length):
        digits = np.random.default_rng().integers(10, size=length)  # not from what it is given
        return asked(FIRST + digits, FIRST + digits.sum(keepdims=True) % 10, end=False)
"""


def contract(folder: Path, *args: str) -> tuple[set[str], set[str]]:
    """The tests that pass and those that fail when the contracts run on a folder."""
    options = ["-p", "no:cacheprovider", "-rpf", "--tb=no", "--config-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *CONTRACTS, *args],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
        capture_output=True,
        text=True,
    )
    passed, failed = (set(re.findall(rf"^{end} \S+::(.*?\])", done.stdout, re.M)) for end in ("PASSED", "FAILED"))
    assert passed, done.stdout + done.stderr
    return passed, failed


def howtos() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "howto").glob("*.md")))


def test_every_promise_is_named_on_the_page() -> None:
    page = " ".join(howtos().split())
    for path in CONTRACTS[:2]:
        tests = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
        asked = [
            node
            for node in tests
            if node.name.startswith("test_")
            and {"name", "encoding_name"} & {argument.arg for argument in node.args.args}
        ]
        # whether a test is about the packaged variants alone: their yamls and docstrings
        promises = {
            node.name: ast.get_docstring(node)
            for node in asked
            if not any(isinstance(mark, ast.Name) and mark.id == "every_packaged" for mark in node.decorator_list)
        }
        assert [name for name, promise in promises.items() if promise is None] == []
        assert [promise for promise in promises.values() if " ".join(str(promise).split()) not in page] == []


@pytest.mark.slow  # a suite within the suite: ten seconds
def test_the_contracts_pass_good_variants_of_ones_own_and_fail_broken_ones(tmp_path: Path) -> None:
    # the files that the pages of docs/howto show, by their place in the folder
    page = howtos()
    good = dict(re.findall(r"^```\w+\n# mine/(\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    files = {
        **good,
        "broken.py": BROKEN,
        "pe/crooked.yaml": "_target_: broken.Crooked\nstrength: 0.5\n",
        "pe/curious.yaml": "_target_: broken.Curious\n",
        "pe/longer.yaml": "_target_: broken.Longer\ntheta: 10000.0\n",
        "softmax/leaky.yaml": "_target_: broken.Leaky\ngain: 1.0\n",
        "data/unrepeatable.yaml": good["data/digit_sum.yaml"].replace("my_tasks.DigitSum", "broken.Unrepeatable"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    passed, failed = contract(
        tmp_path, "-k", "block_of_changed or hidden_ones or length_of_every or is_hidden or not_visible or example"
    )
    for good in ("square_root", "slower", "rope_with_gain", "below_the_top", "sharper", "digit_sum"):
        assert any(good in test for test in passed)
    assert not [test for test in failed if not re.search("crooked|curious|longer|leaky|unrepeatable", test)]
    assert "test_an_example_is_the_same_whatever_was_read_before_it[unrepeatable]" in failed
    assert "test_weights_do_not_depend_on_what_is_hidden[leaky]" in failed
    assert "test_changed_logits_do_not_depend_on_hidden_ones[curious]" in failed
    assert "test_a_rotation_keeps_the_length_of_every_vector[longer]" in failed
    assert any(re.match("test_a_block_of_changed_logits_is_each_row_by_itself.*crooked", test) for test in failed)
    own = re.compile(
        "square_root|slower|rope_with_gain|below_the_top|sharper|digit_sum|crooked|curious|longer|leaky|unrepeatable"
    )
    assert [test for test in passed | failed if not own.search(test)] == [], "of the packaged variants none alone"
