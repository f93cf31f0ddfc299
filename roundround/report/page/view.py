"""The page of a run: its parts, and how it is written from the files of the run directory. Does not import torch.

The page is one file that contains the styles and the scripts of the package. The template engine escapes everything
that comes from a run. The page's security policy has the hash of the package's scripts, so that the browser runs no
other script; the policy also forbids all network requests. A run's SVG files are shown as images, so that no script in
them runs.

A panel is an inline SVG drawn by matplotlib. Its words stay text, and its colours are variables of the page's style
sheet. The panel's title, legend and note are HTML around the SVG. A marker shows its numbers under the mouse.

Tested by tests/report/test_page.py and tests/report/test_pictures.py.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.config.recorded import flat
from roundround.distributed.interruption import signals_held
from roundround.records.directories import PAGE, RESULTS
from roundround.report.drawing.figures import (
    DASHES,
    GREY,
    INK,
    LINE,
    MOST_MARKERS,
    PALETTE,
    PLACE_COLOURS,
    SCREEN,
    SHADE,
    SOFT,
    draw_panel,
    look_of,
    slanted,
    styled,
)
from roundround.report.drawing.tables import (
    Record,
    Table,
    common_fields,
    exact,
    in_words,
    shown,
    tables_of,
    text,
    text_of,
)
from roundround.report.lab_book import origin_of
from roundround.support.errors import escaped, one_line
from roundround.support.files import parse_json, read_text, write_atomically
from roundround.support.panels import Curve, HeatMap, Panel
from roundround.verbs import verb_named

HERE = Path(__file__).parent
MARK = '<p class="kind">roundround</p>'  # a line of the template: a file that contains it is a page of this project
STEPS = 999  # the integer that stands for the largest value
MOST_ROWS = 1000  # of a table; a cell is fifty bytes
WIDTH, HEIGHT, LEFT, BOTTOM = 440, 290, 76, 46
VARIABLES = {
    **{INK: "ink", SOFT: "soft", LINE: "line", GREY: "reference", SHADE: "shade"},
    **{colour: f"c{number}" for number, colour in enumerate(PALETTE)},
}
SVG, LINKED = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
NUMBER = re.compile(r"-?\d+\.\d{3,}")


@dataclass
class RunFiles:
    """A run and its files. remarks: the lines at the beginning of the run's page."""

    run: PastRun
    remarks: list[str] = field(default_factory=list)

    def json(self, name: str) -> Any:
        """The content of a json file; None if the file does not exist."""
        path = self.run.directory / name
        return parse_json(read_text(path)) if path.exists() else None

    def arrays(self, name: str, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, NDArray[Any]]:
        """{key: array} for the wanted keys of a safetensors file; empty if the file does not exist."""
        if not (self.run.directory / name).exists():
            return {}
        from safetensors import safe_open

        with safe_open(self.run.directory / name, framework="numpy") as file:
            keys: list[str] = file.keys()
            return {key: file.get_tensor(key) for key in keys if wanted(key)}

    def about(self, name: str) -> dict[str, str]:
        """The metadata of a safetensors file."""
        from safetensors import safe_open

        with safe_open(self.run.directory / name, framework="numpy") as file:
            return dict(file.metadata() or {})


# -- what is shown


@dataclass
class Section:
    """A heading and the content below it.

    Panels without a point are left out. figures: for each image its name, its address (a data URI that contains the
    whole image) and the text shown if it cannot be displayed. part: the name of the section's own template, which is
    filled with `values`. anchor: the id of the section, for links to it.
    """

    title: str
    panels: Sequence[Panel | HeatMap] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)
    note: str = ""
    part: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    anchor: str = ""

    @property
    def drawn(self) -> list[Panel | HeatMap]:
        return [panel for panel in self.panels if isinstance(panel, HeatMap) or panel.drawn]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.drawn or self.tables or self.figures or self.part)


@dataclass
class View:
    """The body of a page. scope: sentences that say on what the numbers were measured.

    data: JSON that `scripts` read. findings: the results in sentences, with which the page begins.
    """

    sections: list[Section]
    scope: list[str] = field(default_factory=list)
    data: dict[str, Any] | None = None
    scripts: tuple[str, ...] = ()
    findings: list[str] = field(default_factory=list)


# -- from a directory to a page


def view_of(directory: Path) -> tuple[RunFiles, list[Record], View]:
    """The run in a directory, its records, and the view that the verb's page shows.

    If a file is damaged or from another version, returns the general view with a remark. Raises UserError if the
    directory is not a run.
    """
    run = past_run(directory)
    remark = {
        "done": "",
        "running": "the run has not ended: the page shows what there is so far",
        DIED: "the run died: its process was killed before it could say how it ended",
    }.get(run.status, f"the run did not finish: {run.status}")
    files, records = RunFiles(run, [remark] if remark else []), run.results()
    if not records:
        files.remarks.append(f"there is no {RESULTS}, or it is empty: the run has no results yet")
    module, _, name = verb_named(run.manifest["verb"]).page.partition(":")
    if module:
        view: Callable[[RunFiles, list[Record]], View] = getattr(importlib.import_module(module), name)
        try:
            return files, records, view(files, records)
        except Exception as error:
            files.remarks.append(f"the run's files are not as {run.manifest['verb']} writes them ({one_line(error)})")
    figures = Section("Figures", figures=images_of(directory))
    return files, records, View([Section("Results", tables=tables_of(records)), figures])


def images_of(directory: Path, pattern: str = "*") -> list[dict[str, str]]:
    """The name, address and alternative text of each SVG file in the run's folder `figures` that fits the pattern."""
    return [
        {
            "name": path.stem,
            "address": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}",
            "alt": f"{in_words(path.stem)}: a figure of this run; its numbers are in the tables",
        }
        for path in sorted((directory / "figures").glob(f"{pattern}.svg"))
    ]


def write_page(directory: Path, to: Path | None = None) -> Path:
    """Write the page of a run into its directory, or to `to`; returns the path.

    Raises UserError if the directory is not a run.
    """
    path = directory / PAGE if to is None else to
    write_atomically(path, page_of(directory))
    return path


def page_of(directory: Path) -> str:
    """The page as text. Raises UserError if the directory is not a run or its results cannot be read."""
    files, records, view = view_of(directory)
    manifest, common = files.run.manifest, common_fields(records)
    names = {k: v for k, v in {**manifest.get("choices", {}), **common}.items() if v is not None}
    subject = [str(names["model"])] if "model" in names else []
    subject += [f"{name}={names[name]}" for name in ("pe", "softmax") if names.get(name, "its own") != "its own"]
    values = {
        "title": verb_named(manifest["verb"]).title,
        "subject": ", ".join(subject),
        "status": files.run.status.partition(":")[0],
        "findings": view.findings,
        "remarks": files.remarks,
        "headline": [(in_words(name), shown(value)) for name, value in manifest["headline"].items()],
        "scope": view.scope,
        "data": view.data,
        "config": [(key, text_of(value)) for key, value in sorted(flat(manifest["config"]).items())],
        "common": [(name, text_of(value)) for name, value in common.items() if value is not None],
        **origin_of(files.run),
    }
    sections = [section for section in view.sections if not section.empty]
    for table in [table for section in sections for table in section.tables]:
        table.cut(MOST_ROWS)
    return html(values, sections, view.scripts)


def html(values: dict[str, Any], sections: Sequence[Section], scripts: Sequence[str] = ()) -> str:
    """The page's HTML, from the values for its template and its sections; `scripts` are added to page.js."""
    number = count()
    code = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("page.js", *scripts))
    script = f"(function () {{\n{code}\n}})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    named = [
        *((name, colour) for colour, name in VARIABLES.items()),
        *((f"p{n}", c) for n, c in enumerate(PLACE_COLOURS)),
    ]
    palette = " ".join(f"--{name}: {colour};" for name, colour in named)
    own = {
        "style": Markup(f":root {{ {palette} }}\n" + (HERE / "page.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "sections": [(one, [picture_of(panel, next(number)) for panel in one.drawn]) for one in sections],
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
    }
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": text, "exact": exact, "printable": escaped, "in_words": in_words}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    return environment.get_template("page.html.j2").render(**own, **values)


# -- numbers and words as a page carries them for its script


def shown_word(word: str) -> str:
    """A token as the page shows it: a token of spaces alone, or an empty one, is shown as underscores."""
    return escaped(word.strip()) or (escaped(word.replace(" ", "_")) or "_")


def short(value: float, digits: int = 3) -> float | int | None:
    """The value rounded to `digits` significant digits; None if it is not finite."""
    if not math.isfinite(value):
        return None
    found = float(f"{value:.{digits - 1}e}")
    return int(found) if found == int(found) and abs(found) < 1e15 else found


def scaled(values: NDArray[Any]) -> dict[str, Any]:
    """`largest`: the largest absolute value. `steps`: each value, rounded to a whole number of largest / STEPS.

    In `steps`, a value that is not finite is None.
    """
    flat = values.astype(np.float64).ravel()
    finite = np.isfinite(flat)
    largest = float(np.abs(flat[finite]).max()) if finite.any() else 0.0
    steps = np.rint(np.where(finite, flat, 0) / (largest or 1.0) * STEPS).astype(int).tolist()
    return {
        "largest": short(largest, 4),
        "steps": [step if there else None for step, there in zip(steps, finite.tolist(), strict=True)],
    }


# -- panels


def picture_of(panel: Panel | HeatMap, number: int) -> dict[str, Any]:
    """The values with which a template shows a panel: `svg` is safe, and the template escapes all others.

    number: the number of the picture on its page; it makes the ids inside the SVG unique.
    """
    from matplotlib.figure import Figure

    bottom = BOTTOM if isinstance(panel, Panel) or not slanted(panel.x_names) else 2 * BOTTOM
    height = HEIGHT if isinstance(panel, Panel) else bottom + 10 + 42 * len(panel.texts)
    left = LEFT if isinstance(panel, Panel) else min(190, 34 + 7 * max(map(len, panel.y_names)))
    with styled(SCREEN):
        figure = Figure((WIDTH / 72, height / 72))
        axis = figure.add_axes(
            (left / WIDTH, bottom / height, (WIDTH - left - 12) / WIDTH, (height - bottom - 10) / height)
        )
        draw_panel(axis, panel)
        axis.tick_params(labelsize=12.5, length=0, labelcolor=SOFT)
        axis.spines[:].set_color(LINE)
        for name in (axis.xaxis, axis.yaxis):
            name.label.set(fontsize=12.5, color=INK)
        axis.xaxis.set_label_coords((left + (WIDTH - left) / 2) / WIDTH, 15 / height, transform=figure.transFigure)
        axis.yaxis.set_label_coords(15 / WIDTH, (bottom + height) / 2 / height, transform=figure.transFigure)
        for patch in (figure.patch, axis.patch):
            patch.set_visible(False)
        for text in axis.texts if isinstance(panel, HeatMap) else ():
            text.set_fontsize(12)
        for artist in axis.findobj():
            artist.set_clip_on(False)  # everything lies inside
        svg = inline(figure, {} if isinstance(panel, HeatMap) else titles_of(panel), f"r{number}")
    curves = [] if isinstance(panel, HeatMap) else dict.fromkeys(curve.name for curve in panel.drawn)
    alt = f"{panel.y_label} against {panel.x_label}"
    if curves:
        alt += f": {', '.join(curves)}"
    return {
        "title": panel.title,
        "note": panel.note,
        "height": height,
        "alt": alt,
        "svg": svg,
        "legend": [] if isinstance(panel, HeatMap) else legend_of(panel),
    }


def inline(figure: Any, titles: dict[str, list[str]], salt: str) -> Markup:
    """The content of a figure's `svg` element. titles: {id of a line: the tooltips of its markers}."""
    import matplotlib

    drawn = io.BytesIO()
    with signals_held(), warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": salt}):
        warnings.simplefilter("ignore")  # a letter that the font lacks: the browser has another
        figure.savefig(drawn, format="svg", dpi=72, metadata={"Date": None})
    root = ElementTree.fromstring(drawn.getvalue())
    for child in [child for child in root if child.tag != f"{SVG}g"]:
        root.remove(child)  # metadata and styles
    used = {node.get(LINKED, "").removeprefix("#") for node in root.iter(f"{SVG}use")}
    for node in root.iter():
        name = node.get("id", "")
        if name in titles:
            for use, text in zip(node.iter(f"{SVG}use"), titles[name], strict=False):
                ElementTree.SubElement(use, "title").text = text
        kind = name.partition("-")[0]
        if kind in ("line", "band"):
            for path in node.findall(f"{SVG}path"):
                path.set("class", kind)
    for node in root.iter():
        node.tag = node.tag.removeprefix(SVG)
        node.attrib = {
            key: tidy(key, value)
            for key, value in node.attrib.items()
            if (key != "id" or value in used) and not value.startswith("rotate(-0 ")
        }
        if LINKED in node.attrib:
            node.attrib = {"href": node.attrib.pop(LINKED), **node.attrib}
        node.tail = None
        node.text = node.text if node.text and node.text.strip() else None
    return Markup("".join(ElementTree.tostring(child, encoding="unicode") for child in root))


def tidy(key: str, value: str) -> str:
    """The value of an SVG attribute, adapted to the page.

    Colours become the page's variables, fonts are removed, and numbers are rounded to two decimals.
    """
    if key == "style":
        value = re.sub(r"#[0-9a-f]{6}", lambda found: f"var(--{VARIABLES.get(found[0], 'ink')})", value)
        value = re.sub(r"font-family: [^;]*; ", "", value)
    return NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), " ".join(value.split()))


def titles_of(panel: Panel) -> dict[str, list[str]]:
    """{id of a line: the tooltips of its markers}; lines with too many points have none."""
    found = {}
    for place, curve in enumerate(panel.curves):
        x, y, _, _ = panel.visible(curve)
        if len(x) <= MOST_MARKERS:
            found[f"line-{place}"] = [
                f"{escaped(curve.name)}: {shown(float(b))} at {shown(float(a))}"
                for a, b in zip(x, y, strict=True)
                if np.isfinite(b)
            ]
    return found


def legend_of(panel: Panel) -> list[tuple[Markup, str]]:
    """(drawn sample, name) for each distinct name among the curves and the marks; empty if there is only one name."""
    found: dict[str, Markup] = {}
    for place, curve in enumerate(panel.curves):
        if curve in panel.drawn:
            found.setdefault(curve.name, sign(curve, place))
    for mark in panel.marks:
        found[mark.name] = Markup(
            '<path d="M1 5H27" style="stroke: var(--reference); stroke-width: 2; stroke-dasharray: 2 3"/>'
            if mark.low == mark.high
            else '<rect width="28" height="10" style="fill: var(--shade)"/>'
        )
    return [(drawn, name) for name, drawn in found.items()] if len(found) > 1 else []


def sign(curve: Curve, place: int) -> Markup:
    from matplotlib.markers import MarkerStyle

    look = look_of(curve, place)
    number = (place if curve.style is None else curve.style) % len(PALETTE)
    colour = f"var(--{VARIABLES[look['color']]})"
    parts = []
    if not curve.points:
        dashes = "" if curve.reference else " ".join(f"{part:g}" for part in DASHES[number])
        style = f"fill: none; stroke: {colour}; stroke-width: 2" + (f"; stroke-dasharray: {dashes}" if dashes else "")
        parts.append(f'<path d="M1 5H27" style="{style}"/>')
    if "marker" in look:
        marker = MarkerStyle(look["marker"])
        outline = np.array(marker.get_path().transformed(marker.get_transform()).to_polygons()[0])
        corners = "L".join(f"{14 + 7 * x:.1f} {5 - 7 * y:.1f}" for x, y in outline)
        fill = "none" if curve.points else colour
        parts.append(f'<path d="M{corners}Z" style="fill: {fill}; stroke: {colour}"/>')
    return Markup("".join(parts))
