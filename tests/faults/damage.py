"""Ways to damage files: json, safetensors, pickles that would leave a canary."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from case import CANARY

COMMAND = {"_target_": "os.system", "command": f"touch {CANARY}"}
PICKLE = b"\x80\x02cposix\nsystem\nX\x0e\x00\x00\x00touch EXECUTED\x85R."  # touches the canary when it is loaded
NESTED = "[" * 100_000
LONG_INTEGER = "9" * 5000  # digits; Python refuses to read more than 4,300
Damage = Callable[[Path], object]  # of a folder
GONE = object()  # in the place of a value: the key is removed where there is one


def in_json(path: Path, **values: Any) -> None:
    """Set values in a json file; `a__b=1` sets b inside a."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("__")
        node = content
        for parent in parents:
            node = node[parent]
        if value is GONE:
            node.pop(last, None)
        else:
            node[last] = value
    path.write_text(json.dumps(content))


def values(name: str, **changes: Any) -> Damage:
    """Of a file of json."""
    return lambda folder: in_json(folder / name, **changes)


def holding(files: Mapping[str, str | bytes]) -> Damage:
    """These files lie in the folder; one that is a link is written through."""

    def write(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return write


def put(name: str, data: str | bytes) -> Damage:
    return holding({name: data})


def changed(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


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


def all_of(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def linked(name: str, target: str) -> Damage:
    return replaced(name, lambda path: path.symlink_to(target))


def one_bit(sound: bytes) -> bytes:
    middle = len(sound) // 2
    return sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]


def safetensors(header: Mapping[str, Any] | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header; `length` says something else about its size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


_written = io.BytesIO()
with zipfile.ZipFile(_written, "w") as _file:
    _file.writestr("archive/data.pkl", PICKLE)
    _file.writestr("archive/version", "3\n")
ZIPPED_PICKLE = _written.getvalue()  # what torch.save writes, with the pickle that touches the canary

# from a sound safetensors file to a damaged one
WEIGHTS: dict[str, Callable[[bytes], bytes]] = {
    "cut in the middle": lambda sound: sound[: len(sound) // 2],
    "empty": lambda sound: b"",
    "of 7 bytes": lambda sound: sound[:7],
    "with a header of 2^63 bytes": lambda sound: safetensors({}, length=2**63),
    "with a header of 2^40 bytes": lambda sound: safetensors({}, length=2**40),
    "with a header that is not json": lambda sound: safetensors(b"abc"),
    "with a header that is nested": lambda sound: safetensors(NESTED.encode()),
    "with overlapping tensors": lambda sound: safetensors(
        {"a": tensor(0, 16, [4]), "b": tensor(8, 24, [4])}, b"\0" * 24
    ),
    "with a tensor past the end": lambda sound: safetensors({"a": tensor(0, 2**60, [4])}, b"\0" * 16),
    "with a shape that overflows": lambda sound: safetensors({"a": tensor(0, 16, [2**40, 2**40])}, b"\0" * 16),
    "with an unknown dtype": lambda sound: safetensors({"a": tensor(0, 16, [4]) | {"dtype": "X9"}}, b"\0" * 16),
    "without tensors": lambda sound: safetensors({}),
    "with other names": lambda sound: safetensors({"zzz": tensor(0, 16, [4])}, b"\0" * 16),
    "that is a pickle": lambda sound: PICKLE,
    "that is a zipped pickle": lambda sound: ZIPPED_PICKLE,
}
