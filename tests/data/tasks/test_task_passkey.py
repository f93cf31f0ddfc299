"""Passkey: a number somewhere in much filler."""

from __future__ import annotations

import re

from helpers_tasks import build, mistakes, texts

FILLER = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again ."


def solver(before: list[str]) -> str:
    """Finds the sentence that gives the number, and goes on with it where the question stops."""
    text = " ".join(before)
    key = re.search(r"the pass key is ((?:\d )+)\. remember it", text)[1].split()
    said = re.search(r"\? the pass key is((?: \d)*)$", text)[1].split()
    return key[len(said)]


def test_a_solver_gets_every_scored_target() -> None:
    assert mistakes(build("passkey"), solver, 39, 40, 64, 1024) == []
    assert mistakes(build("passkey", n_digits=1), solver, 27, 64) == []


def test_the_smallest_is_the_number_and_the_question() -> None:
    for words in texts(build("passkey", n_digits=2), 5, length=30):
        key = " ".join(words[-2:])
        assert " ".join(words) == (
            f"<bos> the pass key is {key} . remember it . {key} is the pass key . "
            f"what is the pass key ? the pass key is {key}"
        )


def test_filler_stands_before_and_after_and_begins_anew_after_the_number() -> None:
    filler = FILLER.split() * 3
    places = set()
    for words in texts(build("passkey"), 300, length=39 + 12):
        text = " ".join(words)
        before, number, behind = re.fullmatch(
            r"<bos> (.*?)(the pass key is .* is the pass key \. )(.*)what is the pass key \? the pass key is .*", text
        ).groups()
        assert len(number.split()) == 23
        assert before.split() == filler[: len(before.split())]
        assert behind.split() == filler[: len(behind.split())]
        places.add(len(before.split()))
    assert places == {*range(13)}
