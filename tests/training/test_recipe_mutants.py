"""What `make mutants` changes is sound before it is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_mutants import MODULE, MUTANTS, ROOT, survives


@pytest.mark.slow
def test_the_copy_passes_unchanged(tmp_path: Path) -> None:
    assert survives("nothing changed", MODULE, "import torch\n", "import torch\n", home=tmp_path)


def test_what_a_mutant_changes_stands_there_once() -> None:
    assert [name for name, file, before, _ in MUTANTS if (ROOT / file).read_text().count(before) != 1] == []
