"""From a view to one HTML file: templates, styles and scripts of the package, all inside.

Everything that comes from a run is escaped by the template engine. The page's policy lets the browser run these scripts
alone, by their hash, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from roundround.report.page.numbers import shown
from roundround.support.errors import escaped

HERE = Path(__file__).parent
COMMON = "page.js"  # the script of every page


@cache
def environment() -> Environment:
    """Jinja's templates with escaping on, and no name that is not defined."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"shown": shown, "printable": escaped}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    return found


def html(values: dict[str, Any], scripts: Sequence[str]) -> str:
    """The page with these values for its template, and these scripts beside the common one."""
    code = "\n".join((HERE / name).read_text(encoding="utf-8") for name in (COMMON, *scripts))
    script = f"(function () {{\n{code}\n}})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = {
        "style": Markup((HERE / "page.css").read_text(encoding="utf-8")),  # a file of the package
        "script": Markup(script),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
    }
    return environment().get_template("page.html.j2").render(**own, **values)
