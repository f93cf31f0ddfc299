"""The kernels for CUDA on a CPU: `interpreted.py` in a process of its own, where Triton is told to interpret them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

WITHOUT = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: on a machine with a GPU torch brings it, elsewhere pip install triton (1 GB)",
)


@WITHOUT
@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_compute_the_definition_where_triton_interprets_them(marks: str) -> None:
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, str(script)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
