"""Whether the Hugging Face hub answers, decided in seconds.

Without a network its libraries retry for 23 s (a data set) or 49 s (a tokenizer), as measured with huggingface_hub 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 5.0  # a proxy or a slow line answers a HEAD request in less


def hub_is_reachable() -> bool:
    """Whether the hub answers; proxies, HF_ENDPOINT and HF_HUB_OFFLINE are heeded."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # each version of huggingface_hub has its own client library, with its own errors
        return False
    return True


def is_cached(name: str) -> bool:
    """Whether the weights of a model on the hub lie in the local cache, in safetensors."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    return any(folder.glob("snapshots/*/*.safetensors"))


def cached_commit(name: str, revision: str | None) -> str | None:
    """The commit of a data set that the local cache knows for a branch or tag, else the newest it has; or None."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    if reference.is_file():
        return reference.read_text().strip()
    snapshots = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    return snapshots[-1].name if snapshots and revision is None else None


@contextmanager
def offline() -> Iterator[None]:
    """Inside, data sets come from the local cache at once, as under HF_HUB_OFFLINE=1."""
    from datasets import config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
