"""What is used of torch beyond its public interface is there in the version that is pinned."""

from __future__ import annotations

import re
from typing import Any

import torch
from conftest import ROOT
from torch import _dynamo, nn
from torch.overrides import TorchFunctionMode

from roundround.kernels import torch_internals

NAMES = r"torch\._C|overrides\._|torch\.ops\.aten\._|_dynamo|_compiled_call_impl"


class Passing(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_the_pinned_version_has_them() -> None:
    assert torch.__version__.split("+")[0] == "2.13.0", (
        "read torch_internals.py against the new version, then raise this"
    )
    for name in ("flash_on_cpu", "flash", "efficient"):
        for call in (getattr(torch_internals, name), getattr(torch_internals, f"{name}_backward")):
            assert call.default._schema.name.startswith("aten::_scaled_dot_product_")
    with Passing() as mode:
        assert torch_internals.function_modes() == [mode]
    assert torch_internals.once_per_compilation(lambda: 0)._dynamo_marked_constant
    assert nn.Linear(1, 1)._compiled_call_impl is None
    assert {"specialize_float", "recompile_limit", "accumulated_recompile_limit"} <= set(_dynamo.config._config)


def test_no_other_module_names_them() -> None:
    files = [path for path in (ROOT / "roundround").rglob("*.py") if re.search(NAMES, path.read_text())]
    assert [path.stem for path in files] == ["torch_internals"]
