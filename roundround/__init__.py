"""roundround: where attention looks (positional encodings) and how sharply (the softmax).

`import roundround as rr` gives `rr.load`, `rr.probe`, `rr.patch` and `rr.compare`; torch is imported when one of the
first three is used, and never for `rr.compare`.

Tested by tests/test_imports.py.
"""

from typing import TYPE_CHECKING, Any

from roundround.support import __version__ as __version__

if TYPE_CHECKING:
    from roundround.analysis.compare import compare as compare
    from roundround.api import load as load
    from roundround.api import patch as patch
    from roundround.api import probe as probe

__all__ = ["__version__", "compare", "load", "patch", "probe"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'roundround' has no attribute '{name}'")
    if name == "compare":
        from roundround.analysis.compare import compare

        return compare
    from roundround import api

    return getattr(api, name)
