"""What code.patch takes along: enough to make the code again, and no secret and no bulk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from roundround.runs import provenance
from roundround.runs.provenance import LARGEST_FILE, LARGEST_PATCH, MOST_NAMED, git_state, looks_secret

SECRETS = [
    "roundround/.env",
    "conf/.env.local",
    "conf/prod.env",
    "roundround/key.pem",
    "roundround/key.pem.bak",
    "conf/githubtoken",
    "conf/server.key",
    "roundround/id_rsa",
    "roundround/id_ed25519.pub",
    "conf/secret.yaml",
    "conf/logger/my_secrets.yaml",
    "roundround/secrets.py",
    "conf/aws-credentials",
    "conf/hf_token",
    "conf/token.txt",
    "conf/.token",
    "conf/access-tokens.json",
    "roundround/token.bak~",
    "conf/api_key.yaml",
    "conf/wandb-apikey",
    "roundround/.netrc",
    "roundround/_netrc",
    "roundround/.ssh/config",
    "conf/secrets/mine.yaml",
    "conf/Password.TXT",
]
ODD_SETTINGS = {
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.context": "0",
    "diff.relative": "true",
    "color.ui": "always",
    "diff.external": "/bin/false",
    "diff.renames": "copies",
}


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], capture_output=True, check=True)


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


def left_out(state: dict[str, list[str]] | None) -> dict[str, str]:
    assert state is not None
    return dict(line.split(": ", 1) for line in state["left_out"])


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
    git(checkout, "add", "roundround/staged.py")
    state, patch = git_state()
    assert state is not None
    assert patch is not None
    assert state["dirty"] is True
    assert "left_out" not in state
    git(tmp_path, "clone", "--quiet", "checkout", "again")
    (tmp_path / "code.patch").write_text(patch, newline="")
    git(tmp_path / "again", "checkout", "--quiet", state["commit"])
    git(tmp_path / "again", "apply", str(tmp_path / "code.patch"))
    assert code_of(tmp_path / "again") == code_of(checkout)


def test_what_looks_like_a_secret_is_named_and_never_copied(checkout: Path) -> None:
    for name in SECRETS:
        write(checkout / name, f"canary of {name}\n")
    git(checkout, "add", "--force", SECRETS[0], "conf/hf_token")
    state, patch = git_state()
    assert patch is None
    assert left_out(state) == dict.fromkeys(SECRETS, "its name looks like that of a secret")


def test_a_tracked_secret_that_changes_is_left_out_too(checkout: Path) -> None:
    write(checkout / "conf/secret.yaml", "canary-before\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "second")
    write(checkout / "conf/secret.yaml", "canary-after\n")
    write(checkout / "roundround/pe/rope.py", "second\n")
    state, patch = git_state()
    assert patch is not None
    assert "canary" not in patch
    assert "+second" in patch
    assert list(left_out(state)) == ["conf/secret.yaml"]


def test_the_names_of_this_project_are_no_secrets() -> None:
    names = [
        path.relative_to(ROOT).as_posix() for folder in ("roundround", "conf") for path in (ROOT / folder).rglob("*")
    ]
    assert len(names) > 100
    assert [name for name in names if looks_secret(name)] == []
    assert not looks_secret("conf/pe/token_shift.yaml")
    assert not looks_secret("roundround/softmax/null_key.yaml")


def test_bulk_and_what_is_no_text_is_named_with_the_reason(checkout: Path) -> None:
    write(checkout / "conf/big.bin", b"\0" * (LARGEST_FILE + 1))
    write(checkout / "conf/small.py", b"\0\1")
    write(checkout / "conf/openai_key.txt", "sk-1")
    write(checkout / "roundround/latin.py", b"# caf\xe9\n")
    (checkout / "conf/link.yaml").symlink_to("/etc/hostname")
    write(checkout / "notes.md", "outside of the code, and so not even named\n")
    write(checkout / "conf/pe/rope.yaml", "x" * (LARGEST_FILE - 1) + "\n")
    state, patch = git_state()
    assert patch is None
    assert left_out(state) == {
        "conf/big.bin": "it has more than 262,144 bytes",
        "conf/small.py": "it is new and no text",
        "conf/openai_key.txt": "it is new and neither .py nor .yaml",
        "roundround/latin.py": "it is not UTF-8",
        "conf/link.yaml": "it is new and no regular file",
        "conf/pe/rope.yaml": "its change has more than 262,144 bytes",
    }


def test_a_patch_stays_small_whatever_is_new(checkout: Path) -> None:
    for n in range(10):
        write(checkout / f"roundround/table{n}.py", "0123456789abcde\n" * (LARGEST_FILE // 20))
    state, patch = git_state()
    assert patch is not None
    assert len(patch) <= LARGEST_PATCH
    assert set(left_out(state).values()) == {"the patch would have more than 2,097,152 bytes"}
    for n in range(MOST_NAMED + 5):
        write(checkout / f"conf/secret{n}", "")
    state, _ = git_state()
    assert state is not None
    assert len(state["left_out"]) == MOST_NAMED + 1
    assert state["left_out"][-1] == "and 6 more"
