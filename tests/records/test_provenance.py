"""What code.patch takes along: enough to make the code again, and nothing else that git does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_git import git

from roundround.records import provenance
from roundround.records.provenance import git_state

ODD_SETTINGS = {
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.context": "0",
    "diff.relative": "true",
    "color.ui": "always",
    "diff.external": "/bin/false",
    "diff.renames": "copies",
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository like ours, from which `provenance` believes to run."""
    root = tmp_path / "checkout"
    for name in ("roundround/pe/rope.py", "roundround/gone.py", "roundround/old name.py", "conf/pe/rope.yaml"):
        write(root / name, "".join(f"{name} {n}\n" for n in range(20)))
    git(tmp_path, "init", "--quiet", "checkout")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(provenance, "PACKAGE", root / "roundround")
    return root


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def code_of(root: Path) -> dict[str, bytes]:
    files = [path for folder in ("roundround", "conf") for path in (root / folder).rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("settings", [{}, ODD_SETTINGS], ids=["plain", "odd settings of git"])
def test_the_commit_and_the_patch_give_the_code_again(checkout: Path, tmp_path: Path, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        git(checkout, "config", name, value)
    write(checkout / "roundround/pe/rope.py", (checkout / "roundround/pe/rope.py").read_text() + "no line end")
    (checkout / "roundround/gone.py").unlink()
    (checkout / "roundround/old name.py").rename(checkout / "roundround/new name.py")
    write(checkout / "roundround/pe/n[e]w é.py", "my idea\n")
    write(checkout / "conf/tokenizer/tokens.py", "")
    write(checkout / "conf/pe/rope.yaml", b"\x00\x01binary\xff")
    write(checkout / "roundround/staged.py", "added\r\n")
    write(checkout / "roundround/latin.py", b"# caf\xe9\n")
    git(checkout, "add", "roundround/staged.py")
    state, patch = git_state()
    assert state is not None
    assert patch is not None
    assert state["dirty"] is True
    git(tmp_path, "clone", "--quiet", "checkout", "again")
    (tmp_path / "code.patch").write_bytes(patch)
    git(tmp_path / "again", "checkout", "--quiet", state["commit"])
    git(tmp_path / "again", "apply", str(tmp_path / "code.patch"))
    assert code_of(tmp_path / "again") == code_of(checkout)


def test_new_modules_and_yamls_are_taken_and_nothing_else_that_is_new(checkout: Path) -> None:
    write(checkout / ".gitignore", "ignored*\n")
    for name in ("notes.md", "conf/key.txt", "roundround/data.bin", "roundround/ignored.py", "tests/test_mine.py"):
        write(checkout / name, f"canary of {name}\n")
    assert git_state() == ({"commit": git(checkout, "rev-parse", "HEAD").strip(), "dirty": False}, None)
    (checkout / "conf/link.yaml").symlink_to(checkout / "notes.md")
    for name in ("roundround/pe/mine.py", "conf/pe/mine.yaml"):
        write(checkout / name, "taken\n")
    state, patch = git_state()
    assert state == {"commit": git(checkout, "rev-parse", "HEAD").strip(), "dirty": True}
    assert patch is not None
    assert patch.count(b"+taken") == 2
    assert patch.count(b"diff --git") == 3
    assert b"canary" not in patch, "of a link the name that it leads to"
