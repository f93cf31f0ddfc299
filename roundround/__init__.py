"""roundround: which tokens get attention (positional encodings) and how sharply it is focused (the softmax).

`import roundround as rr` gives the names of `roundround/api.py`. Each function imports its modules when it is called,
so torch is not imported before the first call that needs it.

Tested by tests/test_imports.py and tests/test_api.py.
"""

from typing import TYPE_CHECKING, Any

from roundround.support import __version__

if TYPE_CHECKING:
    from roundround.api import (
        Loaded,
        Run,
        attend,
        attention,
        compare,
        encoding,
        evaluate,
        generate,
        load,
        normaliser,
        patch,
        plot,
        probe,
        run,
        runs,
        train,
        watch,
    )

__all__ = [
    "Loaded",
    "Run",
    "__version__",
    "attend",
    "attention",
    "compare",
    "encoding",
    "evaluate",
    "generate",
    "load",
    "normaliser",
    "patch",
    "plot",
    "probe",
    "run",
    "runs",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'roundround' has no attribute '{name}'")
    from roundround import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
