"""The notebooks of docs run from their first cell to their last, and a cell that trains can be stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT

import roundround as rr

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 300_000  # bytes of a notebook with its figures, so that it is read on the web
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of Jupyter's own


def text_of(cells: list[Any]) -> str:
    """What cells have printed."""
    return "\n".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def shares(text: str) -> list[int]:
    return [int(percent) for percent in re.findall(r"(\d+)% on the token before", text)]


def check(notebook: Any) -> None:
    """The outputs say what the text between them says."""
    found, *changed = shares(text_of(notebook.cells))
    assert changed[0] == found
    assert changed[1] < found / 2 < changed[2]  # without the fastest half, and without the slowest
    (plain, without), (_, adaptive) = re.findall(r"perplexity ([\d.]+) with .*, ([\d.]+) with", text_of(notebook.cells))
    assert float(plain) < float(adaptive) < float(without)
    flat, sharp = map(float, re.findall(r"entropy ([\d.]+) nats", text_of(notebook.cells)))
    assert sharp < flat


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert path.stat().st_size < LARGEST
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text())
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    check(notebook)


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path: Path, here: Path) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(here)}})
    try:
        client.execute()
    except CellExecutionError as error:
        number = next(
            n for n, cell in enumerate(notebook.cells) if any(o.output_type == "error" for o in cell.get("outputs", []))
        )
        pytest.fail(f"cell {number} of {path.name} fails: {error}")
    check(notebook)


@pytest.fixture
def kernel(here: Path) -> Iterator[tuple[Any, Any]]:
    """A kernel in an empty folder, and its client."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(here))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def reply_to(client: Any, asked: str) -> dict[str, Any]:
    """How the cell ended that was asked for under this id."""
    while True:
        message = client.get_shell_msg(timeout=120)
        if message["parent_header"].get("msg_id") == asked:
            return message["content"]


@QUIET
@pytest.mark.slow
def test_stopping_a_cell_saves_the_run(kernel: tuple[Any, Any], here: Path, fast: list[str]) -> None:
    manager, client = kernel
    words = [*fast, "trainer.max_steps=100000", "checkpoint_every=100000", "validate_every=100000"]
    asked = client.execute(f"import roundround as rr\nrun = rr.train(*{words!r})")
    shown, deadline = "", time.monotonic() + 120
    while "left" not in shown:
        assert time.monotonic() < deadline, shown
        content = client.get_iopub_msg(timeout=120)["content"]
        shown = content.get("text", "")
    manager.interrupt_kernel()
    reply = reply_to(client, asked)
    assert reply["ename"] == "KeyboardInterrupt"
    assert 'rr.train("resume=' in reply["evalue"]
    run = rr.run("last", outputs=str(here / "outputs"))
    assert run.status == "interrupted"
    assert reply_to(client, client.execute("rr.runs()"))["status"] == "ok"  # the kernel lives
