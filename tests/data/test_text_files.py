"""Local files: what is found, how it is cut, and what each kind of wrong input is told."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import STORIES

from roundround.data.text import TextFiles
from roundround.support.errors import UserError


def corpus(*path: Path | str, **options: Any) -> TextFiles:
    """conf/data/text.yaml's values, with changes."""
    given = {"column": ["text"], "split_regex": r"\n\s*\n", "max_chars": None, "held_out": 0.1}
    return TextFiles(path=[str(entry) for entry in path], **{**given, **options})


def texts(*path: Path | str, **options: Any) -> list[str]:
    return [text for _, text in corpus(*path, **options).documents()]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_blank_lines_separate_documents_by_default(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\nstill one\n\n \n\ntwo\r\n\r\nthree\n")
    assert texts(path) == ["one\nstill one", "two", "three\n"]
    assert texts(path, split_regex=None) == ["one\nstill one\n\n \n\ntwo\n\nthree\n"]


def test_stories_are_cut_at_their_openings() -> None:
    path, opening = STORIES / "stories.txt", r"\n\n(?=Once upon a time|One day,)"
    found = list(corpus(path, split_regex=opening, max_chars=230).texts())
    assert found == [story[:230] for story in re.split(opening, path.read_text(encoding="utf-8"))]
    assert len(found) == 22  # two of the 24 stories begin otherwise


def test_folders_globs_and_files_come_in_the_order_given_and_by_path_within(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.text", ".hidden/x.txt", "ignored.pdf", "empty.txt"):
        write(tmp_path / name, "" if "empty" in name else name)
    assert texts(tmp_path) == ["a.md", "b.txt", "sub/c.text"]
    assert texts(tmp_path / "b.txt", tmp_path) == ["b.txt", "a.md", "sub/c.text"]
    assert texts(tmp_path / "*.t*") == ["b.txt"]
    assert texts(tmp_path / "**" / "*.text") == ["sub/c.text"]


def test_json_lines_may_vary_in_the_columns_nobody_asked_for(tmp_path: Path) -> None:
    rows = [{"text": "one", "meta": 1}, {"meta": "x", "text": "two"}, {"text": None}, {"text": "th\u2028ree"}]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    assert texts(path) == ["one", "two", "th\u2028ree"]


def test_json_may_be_one_array(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([{"text": "p\n\nq"}, {"text": "r"}], indent=1))
    assert texts(path) == ["p\n\nq", "r"]  # rows stay whole: split_regex is for plain text


def test_columns_are_joined_by_a_newline_and_missing_values_left_out(tmp_path: Path) -> None:
    rows = [{"q": "why", "a": "so"}, {"q": None, "a": "alone"}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert texts(path, column=["q", "a"]) == ["why\nso", "alone"]


def test_csv_keeps_quotes_commas_line_ends_and_na(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffn,text\r\n1,"a, ""b"""\r\n2,NA\r\n3,"x\n\ny"\r\n')
    assert texts(path) == ['a, "b"', "NA", "x\n\ny"]


QUESTIONS = """Claim: "A hare is no rabbit." Is that so?\\nOptions:\\n- yes\\n- no\tyes\tHares are born with "open eyes.
"The moon is a lamp."\\nIs the above claim true?\tno\tIt shines by the sun's light, as a "mirror" does.
Is this true?\\n"Two and two are five."\tno\t"Two" and two are four.
"""  # like the chain-of-thought files of FLAN: no header, and quotes that open nothing


def test_a_tsv_without_a_header_counts_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "claims.tsv", QUESTIONS)
    found = list(corpus(path, column=["0", "1", "2"]).texts())
    assert found == [line.replace("\t", "\n") for line in QUESTIONS.splitlines()]
    assert next(corpus(path, column=["2"]).texts()) == 'Hares are born with "open eyes.'


def test_a_tsv_without_a_header_says_so_when_asked_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"claims.tsv: there is no column 'text'.*data.column \(columns: Claim: .{33},"):
        texts(write(tmp_path / "claims.tsv", QUESTIONS))


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a [1]*.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a\n\nb", None, "c"], "n": [1, 2, 3]}), path)
    assert texts(path) == ["a\n\nb", "c"]
    with pytest.raises(UserError, match=r"parquet: there is no column 'tex'.*columns: text, n\)$"):
        texts(path, column=["tex"])
    with pytest.raises(UserError, match=r"column 'n' holds int, not text"):
        texts(path, column=["n"])


def test_the_identity_follows_every_byte_and_option_but_no_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo")
    first = corpus(path).identity()
    assert corpus(path).identity() == corpus(write(tmp_path / "moved" / "b.txt", "one\n\ntwo")).identity() == first
    changed = [
        corpus(path, split_regex=None),
        corpus(path, max_chars=9),
        corpus(path, held_out=0.2),
        corpus(path, path),
        corpus(write(tmp_path / "c.txt", "one\n\ntwp")),
        corpus(write(tmp_path / "d.md", "one\n\ntwo"), path),
        corpus(write(tmp_path / "e.tsv", "one\n\ntwo")),
    ]
    others = [other.identity() for other in changed]
    assert others[3] == first  # the same file twice is read once
    assert first not in others[:3] + others[4:]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b"\n', r"a.jsonl, line 2: not valid JSON \(Expecting"),
        ("a.json", '[{"text": "a"},\n {"text" "b"}]', r"a.json, line 1: not valid JSON \(Expecting .* line 2"),
        ("a.jsonl", '{"text": "a"}\n{"tex": "b", "n": 1}\n', r"a.jsonl, line 2: there is no column 'text'.*: tex, n\)"),
        ("a.jsonl", '{"text": ["a"]}\n', r"a.jsonl, line 1: column 'text' holds list, not text"),
        ("a.jsonl", b'{"text": "caf\xe9"}\n', r"a.jsonl: not UTF-8 \(0xe9\)"),
        ("a.csv", "text,n\na,1\nb,2,3\n", r"a.csv, line 3: .*3 fields, and the first row has 2"),
        ("a.csv", "text,n,text\na,1,b\n", r"a.csv: there is no column 'text', or there are two;"),
        ("a.parquet", b"PAR1 nonsense", r"a.parquet: not a readable parquet file \(Parquet magic bytes"),
        ("a.txt", b"ok\xff", r"a.txt: not UTF-8 \(0xff\)"),
        ("a.pdf", "x", r"nothing to read in '.*a.pdf'; give files that .* end in one of .txt, .text, .md, .jsonl"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        texts(write(tmp_path / name, content))
    assert "\n" not in str(error.value)


def test_a_line_counts_what_a_folder_has_beside_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.jsonl.gz", "sub/c.jsonl.gz", "LICENSE", ".hidden.gz"):
        write(tmp_path / name, "a text")
    corpus(tmp_path).identity()
    assert f"{tmp_path}: files left out because of their endings: .gz (2), LICENSE (1); " in capsys.readouterr().err
    assert texts(tmp_path) == ["a text"]
    assert capsys.readouterr().err == ""


def test_nothing_to_read_is_told_by_where_it_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "folder" / "a.pdf", "x")
    with pytest.raises(UserError, match=r"no file, no folder and no match of a glob at '.*absent.txt'"):
        texts(tmp_path / "absent.txt")
    with pytest.raises(UserError, match=r"nothing to read in '.*folder'; give files that are not empty"):
        texts(tmp_path / "folder")


@pytest.mark.parametrize("path", [[], [""], ["a.txt", ""]])
def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", "a text that nobody named")
    with pytest.raises(ValueError, match="path, or an entry of it, is empty"):
        texts(*path)


def test_what_is_no_file_is_named_and_never_waited_for_nor_left_out(tmp_path: Path) -> None:
    write(tmp_path / "folder" / "sub" / "a.txt", "a text")
    os.mkfifo(tmp_path / "folder" / "sub" / "b.txt")
    for path in ("folder/sub/b.txt", "folder", "folder/**/*.txt"):
        with pytest.raises(UserError, match=r"sub/b.txt.*cannot be read"):
            corpus(tmp_path / path).identity()


def test_linked_folders_are_read_once_whatever_they_lead_to(tmp_path: Path) -> None:
    write(tmp_path / "corpus" / "a.txt", "a")
    write(tmp_path / "elsewhere" / "b.txt", "b")
    (tmp_path / "corpus" / "around").symlink_to(".")
    (tmp_path / "corpus" / "one").symlink_to("../elsewhere")
    (tmp_path / "corpus" / "two").symlink_to("../elsewhere")
    assert texts(tmp_path / "corpus") == ["a", "b"]


def test_a_wrong_regular_expression_is_named() -> None:
    with pytest.raises(UserError, match=r"data.split_regex '\(' is not a regular expression: missing \)"):
        corpus("a.txt", split_regex="(")
