"""Writing files that appear complete or not at all, even if the writer is killed; hashes; reading a user's files.

Tested by tests/records/test_run.py.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundround.support.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)  # a full disk, and an exhausted quota
# the beginning of an address, which no local path has: s3://, zip::http://, and the misspelt http:/
ADDRESS = re.compile(r"([a-z][\w+.-]+::)*(?!file:)[a-z][\w+.-]+:[/\\]", re.IGNORECASE)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` in one step: write a temporary file in its folder, flush it to the disk, then rename it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        usual_mode(temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def leftovers(folder: Path, names: Iterable[str]) -> list[Path]:
    """The temporary files that killed calls of `write_atomically` left for files of these names or patterns."""
    return [path for name in names for path in folder.glob(f".{name}.{'[a-z0-9_]' * 8}")]  # as tempfile does


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented json, atomically."""
    write_atomically(path, json.dumps(value, indent=2, default=str) + "\n")


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace `path` by a json list of the records, atomically; each record is one line."""
    write_atomically(path, "[\n" + ",\n".join(json.dumps(record, default=str) for record in records) + "\n]\n")


def parse_json(text: str, **hooks: Any) -> Any:
    """The value of a json text. Raises ValueError if the text is not json or is nested too deeply.

    hooks: keyword arguments of `json.loads`.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def home_expanded(path: str, option: str) -> Path:
    """The path with `~` and `~user` replaced. Raises UserError, which names the option, for an address or no name."""
    if not path or ADDRESS.match(path):
        raise UserError(f"{option} is {'an address' if path else 'empty'}; give a file or folder of this machine")
    return Path(path).expanduser()


@contextmanager
def folder_in_one_step(final: Path, temporary: Path) -> Iterator[None]:
    """Fill the folder `temporary` inside the block; it is renamed to `final` at the end, or removed on any error.

    A temporary folder that a killed writer left is removed first.
    """
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield
        flush_folder(temporary)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def flush_folder(path: Path) -> None:
    """Make renames inside a folder survive a loss of power."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def usual_mode(path: Path | str) -> None:
    """Give a file the usual permissions, which the umask determines; tempfile and safetensors make private files."""
    mask = os.umask(0o022)  # the umask can only be read by setting it
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def check_is_file(path: Path) -> os.stat_result:
    """The status of a regular file. Raises OSError for a pipe, a device or a folder, or if the path does not exist."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return status


def read_text(path: Path) -> str:
    """The text of a regular file. Raises OSError if it cannot be read, UnicodeDecodeError if it is not UTF-8."""
    check_is_file(path)
    return path.read_text(encoding="utf-8")


def is_full(error: BaseException, numbers: Sequence[int] = FULL) -> bool:
    """Whether an error means that the disk is full: by its errno, or by its message if a library hides the errno.

    numbers: the errno values to test for.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in numbers
    return any(words in str(error) for number in numbers for words in (os.strerror(number), f"(os error {number})"))


def sha256(*paths: Path) -> str:
    """sha256 (hex) of the concatenated contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
