"""roundround: where attention looks (positional encodings) and how sharply (the softmax).

`import roundround as rr` gives the names of `roundround/api.py`; each imports what it needs when it is called, so that
torch is loaded with the first model.

Tested by tests/test_imports.py and tests/test_api.py.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from roundround.support import __version__ as __version__

if TYPE_CHECKING:
    from roundround.api import Loaded as Loaded
    from roundround.api import Run as Run
    from roundround.api import attention as attention
    from roundround.api import compare as compare
    from roundround.api import evaluate as evaluate
    from roundround.api import generate as generate
    from roundround.api import load as load
    from roundround.api import patch as patch
    from roundround.api import plot as plot
    from roundround.api import probe as probe
    from roundround.api import run as run
    from roundround.api import runs as runs
    from roundround.api import train as train

__all__ = [
    "Loaded",
    "Run",
    "__version__",
    "attention",
    "compare",
    "evaluate",
    "generate",
    "load",
    "patch",
    "plot",
    "probe",
    "run",
    "runs",
    "train",
]


class _Room(ModuleType):
    # a room that has the name of a function, as `attention` and `runs` do: it is called and described as the function

    @property
    def _function(self) -> Any:
        from roundround import api

        return getattr(api, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(*args, **options)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self._function.__doc__

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(self._function)


class _Package(ModuleType):
    """This package: importing one of its rooms, which binds the name here, takes no function away."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'roundround' has no attribute '{name}'")
    from roundround import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
