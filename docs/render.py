"""The API pages, made from the docstrings alone by pdoc: `make docs`, or python docs/render.py FOLDER.

A warning is an error, such as that a module cannot be imported.
"""

from __future__ import annotations

import pkgutil
import sys
import warnings
from pathlib import Path

import matplotlib.font_manager  # noqa: F401  its first import runs a program, which pdoc would forbid
import pdoc

import roundround


def render(folder: Path) -> list[Path]:
    """Write a page for each public module of roundround below `folder`; the pages."""
    for name in roundround.__all__:
        setattr(roundround, name, getattr(roundround, name))  # pdoc does not ask a module's __getattr__
    rooms = [module.name for module in pkgutil.iter_modules(roundround.__path__) if not module.name.startswith("_")]
    roundround.__all__ = [*roundround.__all__, *rooms]  # pdoc shows no submodule that is not among these
    pdoc.render.configure(footer_text=f"roundround {roundround.__version__}", search=True)
    pdoc.pdoc("roundround", output_directory=folder)
    return [page_of(module, folder) for module in public_modules()]


def public_modules() -> list[str]:
    """Every module's name, such as `roundround.pe.rope`."""
    found = pkgutil.walk_packages(roundround.__path__, "roundround.")
    return [module.name for module in found if not module.name.rpartition(".")[2].startswith("_")]


def page_of(module: str, folder: Path) -> Path:
    return (folder / module.replace(".", "/")).with_suffix(".html")


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    # pdoc resolves neither the fields of a NamedTuple nor those inherited from a dataclass; they are shown as written
    warnings.filterwarnings("ignore", "Error parsing type annotation")
    folder = Path(sys.argv[1])
    pages = render(folder)
    missing = [str(page) for page in pages if not page.exists()]
    if missing:
        sys.exit(f"no page for: {', '.join(missing)}")
    print(f"{len(pages)} pages; open {folder / 'index.html'}")
