"""Ways to damage files: json, safetensors, pickles that would leave a canary."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from case import CANARY

COMMAND = {"_target_": "os.system", "command": f"touch {CANARY}"}
PICKLE = b"\x80\x02cposix\nsystem\nX\x0e\x00\x00\x00touch EXECUTED\x85R."  # touches the canary when it is loaded
Damage = Callable[[Path], object]  # of a folder

_written = io.BytesIO()
with zipfile.ZipFile(_written, "w") as _file:
    _file.writestr("archive/data.pkl", PICKLE)
    _file.writestr("archive/version", "3\n")
ZIPPED_PICKLE = _written.getvalue()  # what torch.save writes, with the pickle that touches the canary


def in_json(name: str, **values: Any) -> Damage:
    """Set values in a file of json; `a__b=1` sets b inside a."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for key, value in values.items():
            *parents, last = key.split("__")
            node = content
            for parent in parents:
                node = node[parent]
            node[last] = value
        (folder / name).write_text(json.dumps(content))

    return change


def holding(files: Mapping[str, str | bytes]) -> Damage:
    """These files lie in the folder."""

    def write(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return write


def changed(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """Of a file, which may be a pattern."""
    return lambda folder: [path.write_bytes(change(path.read_bytes())) for path in folder.glob(name)]


def replaced(name: str, make: Callable[[Path], object] = lambda path: None) -> Damage:
    """Removes a file, a link or a folder, and makes something else of that name."""

    def change(folder: Path) -> None:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        make(path)

    return change


def one_bit(sound: bytes) -> bytes:
    middle = len(sound) // 2
    return sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
