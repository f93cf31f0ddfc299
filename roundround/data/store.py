"""Where prepared corpora lie: in a folder, or behind an address that fsspec knows (s3://, gs://, hf://, memory://).

A file appears under its name when it is whole: a rename in a folder, one upload elsewhere. Credentials come from the
usual variables and files of each service; an address that holds one is refused, because addresses are recorded.

Tested by tests/data/test_shards.py.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout

from roundround.data.corpora import fingerprint, first_line
from roundround.support.errors import UserError, check_no_credentials
from roundround.support.files import (
    ADDRESS,
    check_is_file,
    flush_folder,
    home_expanded,
    is_full,
    read_text,
    write_atomically,
)

log = logging.getLogger(__name__)

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # protocol: the extra of this package that reads it
VARIABLES = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, or a profile of the service"
MOVE = "ROUNDROUND_CACHE=FOLDER moves the cache"


def default_cache_dir() -> Path:
    """$ROUNDROUND_CACHE, or roundround/ in $XDG_CACHE_HOME, or else in ~/.cache. UserError without a home folder."""
    own, shared = os.environ.get("ROUNDROUND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return home_expanded(own, "ROUNDROUND_CACHE")
    return (Path(shared) if shared else home_expanded("~/.cache", "ROUNDROUND_CACHE is not set")) / "roundround"


@contextmanager
def writing(folder: Path | str, way_out: str) -> Iterator[None]:
    """Turns an OSError of writing tokens into a UserError that names the folder and what the user can do.

    What cannot be read has to be a UserError already (`corpora.reading`).
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise UserError(f"no space left for tokens in {folder}: free some, or {way_out}") from error
        reason = error.strerror or first_line(error)
        raise UserError(f"tokens cannot be written in {folder} ({reason}): {way_out}") from error


@final
class Folder:
    """A local folder of files with plain names, made when something is written.

    address: as messages and records name it. disk, way_out: what an error of writing names, and what helps.
    """

    def __init__(self, path: Path, *, disk: Path | None = None, way_out: str = "give another to=DIR") -> None:
        self.path, self.address, self.disk, self.way_out = path, str(path), str(disk or path), way_out

    def read_text(self, name: str) -> str:
        """A small file. FileNotFoundError where there is none."""
        return read_text(self.path / name)

    def write_text(self, name: str, text: str) -> None:
        """A small file, whole or not at all."""
        write_atomically(self.path / name, text)

    def put(self, file: Path, name: str) -> None:
        """A finished local file, which is gone afterwards, under this name: whole or not at all."""
        os.replace(file, self.path / name)
        flush_folder(self.path)

    def size(self, name: str) -> int | None:
        """Bytes of a file, None where there is none."""
        try:
            return check_is_file(self.path / name).st_size
        except OSError:
            return None

    def names(self) -> list[str]:
        """The files in it; nothing where there is no such folder yet."""
        try:
            return sorted(os.listdir(self.path))
        except OSError:  # reported where something is written
            return []

    def remove(self, name: str) -> None:
        """Remove a file, where there is one."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def below(self, name: str) -> Folder:
        """The folder of this name in it."""
        return Folder(self.path / name, way_out=self.way_out)

    def scratch(self, cache_dir: Path) -> Path:
        """A local folder for files that `put` takes."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path


@final
class Remote:
    """A folder behind an address, with the methods of `Folder`. UserError, with the reason, where it is not reached."""

    def __init__(self, address: str) -> None:
        self.address, self.way_out = address.rstrip("/"), "give another to=DIR"
        self.disk = self.address
        with self._reaching():
            from fsspec.core import url_to_fs

            try:
                self._fs, self._root = url_to_fs(self.address)
            except FileNotFoundError as error:  # of an archive that is opened at once
                raise UserError(f"{self.address}: {self._reason(error)}") from None

    def read_text(self, name: str) -> str:
        with self._reaching():
            content: bytes = self._fs.cat_file(self._path(name))
        return content.decode()

    def write_text(self, name: str, text: str) -> None:
        with self._reaching():
            self._fs.pipe_file(self._path(name), text.encode())

    def put(self, file: Path, name: str) -> None:
        with self._reaching():
            self._fs.put_file(str(file), self._path(name))
        file.unlink()

    def fetch(self, name: str, to: Path) -> None:
        """Copy a file to this machine. FileNotFoundError where there is none."""
        with self._reaching():
            self._fs.get_file(self._path(name), str(to))

    def size(self, name: str) -> int | None:
        with self._reaching():
            self._fs.invalidate_cache()
            try:
                return int(self._fs.size(self._path(name)))
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        with self._reaching():
            self._fs.invalidate_cache()
            try:
                return sorted(path.rsplit("/", 1)[-1] for path in self._fs.ls(self._root, detail=False))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        with self._reaching(), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def below(self, name: str) -> Remote:
        return Remote(f"{self.address}/{name}")

    def scratch(self, cache_dir: Path) -> Path:
        folder = cache_dir / "uploads"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """One line for whatever goes wrong on the way: each service's library has its own errors."""
        try:
            yield
        except (FileNotFoundError, UserError):
            raise
        except Exception as error:
            raise UserError(f"{self.address}: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        name, line, protocol = type(error).__name__, first_line(error), self.address.partition("://")[0]
        if isinstance(error, ImportError):
            extra = f": pip install 'roundround[{EXTRAS[protocol]}]'" if protocol in EXTRAS else f" ({line})"
            return f"{protocol}:// needs a package that is not installed{extra}"
        if isinstance(error, PermissionError) or "redential" in name or "redential" in str(error):
            return f"not allowed there, or no credentials ({name}: {line}); they come from {VARIABLES}"
        if is_full(error):
            return "no space left on this machine for what comes from there"
        if isinstance(error, ValueError) and "rotocol" in str(error):
            return f"no such kind of address ({line}); give a folder, s3://, gs:// or another of fsspec's"
        return f"cannot be reached ({name}: {line}); check the address and the network"


Store = Folder | Remote


def open_store(address: str, option: str) -> Store:
    """What an option names. UserError for an address with credentials in it, or of an unknown kind."""
    if not address.strip():
        raise UserError(f"{option} is empty; give a folder or an address such as s3://BUCKET/FOLDER")
    if not ADDRESS.match(address):
        path = home_expanded(address.removeprefix("file://"), option)
        return Folder(Path(os.path.abspath(path)), way_out=f"give another {option}=DIR")
    if "://" not in address:
        raise UserError(f"{option}={address}: an address has // after its colon; a path of this machine begins with ./")
    check_plain(address, option)
    return Remote(address)


def check_plain(address: str, option: str) -> None:
    """UserError for credentials, a query or a fragment in any part of an address, such as simplecache::http://h/x?k=v.

    A key of s3:// may hold an @, as may a path of this machine.
    """
    check_no_credentials(address, option)
    for part in address.split("::"):
        scheme, _, rest = part.partition("://")
        if scheme != "file" and ("?" in rest or (scheme.lower() in ("http", "https") and "#" in rest)):
            raise UserError(
                f"{option}: an address of {scheme}:// with a query or a fragment in it would be recorded; "
                f"give it without them: credentials come from {VARIABLES}"
            )


@contextmanager
def claimed(store: Store, cache_dir: Path) -> Iterator[None]:
    """Inside, no other process of this machine prepares a corpus there.

    The lock is the system's: it ends with the process that holds it. It lies beside an entry of the cache, in a folder
    of the user's, and for an address in the cache.
    """
    path = cache_dir / f"{fingerprint(address=store.address)[:32]}.lock"
    if isinstance(store, Folder):
        cached = store.path.parent == cache_dir
        path = store.path.with_name(f"{store.path.name}.lock") if cached else store.path / ".lock"
    with writing(store.disk, store.way_out) if isinstance(store, Folder) else writing(cache_dir, MOVE):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("another process is tokenising this corpus; waiting for %s", store.address)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
