"""The compiler is asked once; what it leaves is whole, belongs to the user, and is not missed where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roundround.kernels import whole_rows

USE = """
import torch
from roundround.kernels import whole_rows
print(whole_rows.library() is not None)
"""


def use(cache: Path, **environment: str) -> subprocess.Popen[str]:
    """A process, as safe as a child of a run is, that wants the library."""
    words = [sys.executable, "-P", "-c", USE]
    settings = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    return subprocess.Popen(words, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(whole_rows.library() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("compiler", ["a copy", "a compiler"])
@pytest.mark.slow  # three processes
def test_processes_that_compile_at_once_leave_one_library(tmp_path: Path, compiler: str) -> None:
    """With a compiler that copies what this process has, or with the real one, which takes ten seconds."""
    copy = tmp_path / "copy"
    copy.write_text(f'#!/bin/sh\nfor made; do :; done\nexec cp {whole_rows.library()._name} "$made"\n')
    copy.chmod(0o755)
    words = {"CXX": str(copy)} if compiler == "a copy" else {}
    processes = [use(tmp_path, **words) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["True\n"] * 2
    (left,) = (tmp_path / "roundround").iterdir()
    assert left.suffix == ".so"
    assert (tmp_path / "roundround").stat().st_mode & 0o077 == 0
    made = left.stat().st_mtime_ns
    assert use(tmp_path, CXX="false").communicate()[0] == "True\n"
    assert left.stat().st_mtime_ns == made


@pytest.mark.parametrize("compiler", ["false", pytest.param("/no/such/compiler", marks=pytest.mark.slow)])
def test_without_a_compiler_one_line_names_the_log(tmp_path: Path, compiler: str) -> None:
    out, said = use(tmp_path, CXX=compiler).communicate()
    assert out == "False\n"
    (log,) = (tmp_path / "roundround").iterdir()
    assert log.suffix == ".log"
    assert said.count("NotCompiled") == 1
    assert str(log) in said
    assert compiler in log.read_text()


def odd(folder: Path, script: str) -> str:
    """A compiler that does what the script says; $made is the file that it is asked for."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\nfor made; do :; done\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "script", ["printf '\\374berall' >&2; exit 1", "exec sleep 100", 'printf x > "$made"'], ids=repr
)
def test_an_odd_compiler_gives_the_slow_form_and_one_line(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", odd(tmp_path, script))
    monkeypatch.setattr(whole_rows, "LONGEST", 1)
    with pytest.warns(whole_rows.NotCompiled) as said:
        assert whole_rows.library.__wrapped__() is None
    (log,) = (tmp_path / "roundround").iterdir()
    assert [str(log) in str(line.message) for line in said] == [True]


@pytest.mark.skipif(whole_rows.library() is None, reason="no C++ compiler on this machine")
def test_a_damaged_library_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path(whole_rows.library()._name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    kept, content = whole_rows.own_cache() / whole.name, whole.read_bytes()
    kept.write_bytes(content)
    assert whole_rows.library.__wrapped__() is not None
    kept.unlink()  # what is loaded stays
    half = content[: len(content) // 2]
    for damaged in (b"", half):
        kept.write_bytes(damaged)
        with pytest.warns(whole_rows.NotCompiled):
            assert whole_rows.library.__wrapped__() is None
    zeros_at_its_end = half.ljust(len(content), b"\0")
    kept.write_bytes(zeros_at_its_end)
    kept.with_name(kept.name.rpartition("-")[0] + ".so").write_bytes(zeros_at_its_end)
    assert use(tmp_path).communicate()[0] == "False\n", "a process of its own, which loading it would end"


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert whole_rows.own_cache() == tmp_path / "roundround"
    (tmp_path / "roundround").chmod(0o777)
    elsewhere = whole_rows.own_cache()
    assert elsewhere == tmp_path / f"roundround-{os.getuid()}" == whole_rows.own_cache(), "one for all processes"
    assert elsewhere.stat().st_mode & 0o077 == 0
    elsewhere.chmod(0o777)
    last = whole_rows.own_cache()
    assert last not in (tmp_path / "roundround", elsewhere)
    assert last.stat().st_mode & 0o077 == 0
    last.rmdir()
