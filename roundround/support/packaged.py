"""The pretrained models in the package, one folder each. With them commands work without a network.

Tested by tests/hf/test_hf_load.py and tests/data/test_stories.py.
"""

from __future__ import annotations

from pathlib import Path

from roundround.support.errors import UserError, nearest

PRETRAINED = Path(__file__).parents[1] / "pretrained"
PREFIX = "package:"


def packaged_models() -> dict[str, Path]:
    """{name of a model: its folder, in the format of Hugging Face's `from_pretrained`}."""
    return {path.name: path for path in sorted(PRETRAINED.iterdir()) if path.is_dir()}


def model_path(reference: str) -> str:
    """The folder of the model for `package:NAME`; any other reference unchanged. Raises UserError for a wrong name."""
    if not reference.startswith(PREFIX):
        return reference
    name, models = reference.removeprefix(PREFIX), packaged_models()
    if name not in models:
        raise UserError(f"no model '{name}' in the package{nearest(name, models)}")
    return str(models[name])
