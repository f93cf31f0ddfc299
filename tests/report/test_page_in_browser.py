"""The page in a browser: nothing goes wrong, and a head and a token can be chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers_browser import Tab, browser, tab
from helpers_page import eval_records, write_probe, write_run

from roundround.report.page.view import write_page

pytestmark = pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome here; ROUNDROUND_BROWSER names one")


@pytest.fixture(scope="module")
def window() -> Iterator[Tab]:
    with tab() as opened:
        opened.size(1280, 900)
        yield opened


@pytest.fixture(autouse=True)
def nothing_goes_wrong(window: Tab) -> Iterator[None]:
    """No error in the console, no request but for the file."""
    yield
    assert window.errors == []
    assert [url for url in window.requests if not url.startswith("file:")] == []


def shown(window: Tab, selector: str) -> str:
    return str(window.ask(f"document.querySelector({json.dumps(selector)}).textContent"))


def test_a_chosen_head_fills_the_panel(tmp_path: Path, window: Tab) -> None:
    run = write_probe(tmp_path / "run")
    window.open(write_page(run))
    before = shown(window, "#shares")
    for head in ("0.0", "1.1"):
        window.click(f'[data-head="{head}"]')
        assert shown(window, "#head-title").startswith(f"Layer {head[0]}, head {head[2]}: ")
    assert shown(window, "#shares") != before
    records = json.loads((run / "results.json").read_text())
    (entropy,) = [r["value"] for r in records if (r["metric"], r["layer"], r["head"]) == ("entropy", 1, 1)]
    assert shown(window, "#head-numbers dd") == f"{entropy:.3g}"
    assert window.ask("document.querySelectorAll('#norms rect.high, #logits rect.high').length") > 6


def test_pointing_at_a_token_shows_its_row(tmp_path: Path, window: Tab) -> None:
    window.open(write_page(write_probe(tmp_path / "run")))
    window.click('[data-head="0.1"]')
    with np.errstate(all="ignore"):
        from safetensors.numpy import load_file

        weights = load_file(tmp_path / "run" / "prompt.safetensors")["weights"][0, 1]
    window.hover('[data-token="2"]')
    assert shown(window, "#row").startswith("w2 (2): ")
    cells = window.ask("Array.from(document.querySelectorAll('[data-token] small'), s => s.textContent.trim())")
    assert [float(cell or 0) for cell in cells] == pytest.approx([*weights[2, :3], 0], abs=0.006)
    window.hover('[data-token="1"]')
    assert shown(window, "#row").startswith("w1 (1): ")


def test_the_map_can_be_coloured_by_a_measure_and_thinned_to_a_label(tmp_path: Path, window: Tab) -> None:
    window.open(write_page(write_probe(tmp_path / "run")))
    label = window.ask("document.querySelector('[data-head]').getAttribute('aria-label').split(': ')[1].split(',')[0]")
    window.click(f'[data-place="{label}"]')
    dimmed = int(window.ask("document.querySelectorAll('[data-head].dim').length"))
    assert dimmed == 4 - int(shown(window, f'[data-place="{label}"] span'))
    window.ask("s = document.getElementById('measure'); s.value = 'entropy'; s.dispatchEvent(new Event('change'))")
    assert window.ask("document.querySelectorAll('[data-head].measured').length") == 4
    assert window.ask("document.getElementById('of-labels').hidden && !document.getElementById('scale').hidden")
    assert shown(window, "#most").endswith(" (entropy)")
    window.ask("s.value = ''; s.dispatchEvent(new Event('change'))")
    assert window.ask("!document.getElementById('of-labels').hidden && document.getElementById('scale').hidden")


def test_light_and_dark_follow_the_system_and_the_button(tmp_path: Path, window: Tab) -> None:
    page = write_page(write_run(tmp_path / "run", "eval", eval_records([(128, 9.5)])))
    window.open(page)
    background = "getComputedStyle(document.body).backgroundColor"
    light = window.ask(background)
    window.click("#theme")
    assert window.ask(background) != light
    window.size(1280, 900, dark=True)
    window.open(page)
    assert window.ask(background) != light
    window.click("#theme")
    assert window.ask(background) == light
    window.size(1280, 900)
