"""The pretrained models in the package, a folder each, with which commands work without a network.

Tested by tests/hf/test_hf_load.py and tests/data/test_stories.py.
"""

from __future__ import annotations

from pathlib import Path

from roundround.support.errors import UserError, nearest

PRETRAINED = Path(__file__).parents[1] / "pretrained"
PREFIX = "package:"


def packaged_models() -> dict[str, Path]:
    """The folders of the models by name, each in the format of Hugging Face's `from_pretrained`."""
    return {path.name: path for path in sorted(PRETRAINED.iterdir()) if path.is_dir()}


def model_path(reference: str) -> str:
    """`package:NAME` as the folder of that model, any other reference as it is. UserError for a wrong name."""
    if not reference.startswith(PREFIX):
        return reference
    name, models = reference.removeprefix(PREFIX), packaged_models()
    if name not in models:
        raise UserError(f"no model '{name}' in the package{nearest(name, models)}")
    return str(models[name])
