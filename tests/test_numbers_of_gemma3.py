"""The intervals of docs/results/gemma3.md and of the lists that link to it are those of its values: row, column, sign.

And every stored interval is computed again from the values of its texts, which stand in its row.

gemma3_intervals.csv names the stored number behind every interval of the pages. `place` is where the interval stands:
the page, the heading, the row and the column of a table, or the first words of a paragraph or bullet and the number of
the interval in it. `sign` is -1 where the page says that a head loses 0.6 and a change of -0.6 is stored.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers_stored import DOCS
from scipy import stats

from roundround.model.scoring import AnswerScores
from roundround.report.evaluation import token_interval

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(rf"(?<![\d.])({NUMBER}) \(({NUMBER}) to ({NUMBER})\)")
Three = tuple[float, float, float]


def intervals_of(page: str, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each interval of a page as it is printed, behind its place."""
    heading = ""
    for block in re.split(r"\n\n|\n(?=- |#)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        lines = block.strip().splitlines()
        if block.lstrip().startswith("#"):
            heading = lines[0].lstrip("# ")
        if lines and lines[0].startswith("|"):
            columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
            for row in rows:
                for k, cell in enumerate(row):
                    name = " ".join(row[: 1 + (columns[1] == "layers")])
                    for n, found in enumerate(INTERVAL.findall(cell)):
                        yield f"{page}: {heading}, {len(columns)} columns: {name}: {k} {columns[k]} {n}", found
        else:
            joined = " ".join(" ".join(lines).split())
            for n, found in enumerate(INTERVAL.findall(joined)):
                yield f"{page}: {heading}: {joined[:40]}: {n}", found


def of_heads() -> Iterator[tuple[str, Three]]:
    """The intervals of heads.txt, by the line, the one before that begins a list, and the number in the line."""
    part = ""
    for line in (DOCS / "gemma3" / "heads.txt").read_text().splitlines():
        if not line.startswith(" "):
            part = line
        for n, found in enumerate(INTERVAL.findall(line)):
            label = INTERVAL.split(line)[0].strip()
            yield f"heads.txt, {part}, {label}, {n}", tuple(map(float, found))  # type: ignore[misc]


def stored() -> dict[str, Three]:
    """Every stored number and its ends, by its file and what stands in its row beside them."""
    found = dict(of_heads())
    for path in (DOCS / "gemma3").glob("*.csv"):
        with path.open() as file:
            for row in csv.DictReader(file):
                ends = (float(row.pop("value")), float(row.pop("low") or 0), float(row.pop("high") or 0))
                settings = [value for key, value in row.items() if key not in ("interval", "n", "label", "texts")]
                found[", ".join([path.name, *settings])] = ends
    return found


def as_printed(three: Three, sign: int, like: tuple[str, ...]) -> tuple[str, ...]:
    """A stored number and its ends with the digits and the signs with which the page has them."""
    digits = len(like[0].partition(".")[2])
    value, low, high = three if sign > 0 else (-three[0], -three[2], -three[1])
    return tuple(f"{x:.{digits}f}" for x in (value, low, high))


def plain(like: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(number.replace(",", "").lstrip("+") for number in like)


def wrong(pages: dict[str, str]) -> list[str]:
    """Places whose interval is not that of the stored number that is named for them."""
    with (Path(__file__).parent / "gemma3_intervals.csv").open() as file:
        named = {row["place"]: row for row in csv.DictReader(file) if row["place"].partition(":")[0] in pages}
    numbers, found = stored(), []
    for page, text in pages.items():
        for place, like in intervals_of(page, text):
            row = named.pop(place, None)
            if row is None or as_printed(numbers[row["stored"]], int(row["sign"]), like) != plain(like):
                found.append(place)
    return found + [f"not on the page: {place}" for place in named]


def texts() -> dict[str, str]:
    """The page, and what the lists of findings and of questions say with a link to it."""
    findings = re.split(r"\n(?=\d+\. )|\n\n", (DOCS.parent / "results.md").read_text())
    header, line, *rows = [row for row in (DOCS / "questions.md").read_text().splitlines() if row.startswith("|")]
    return {
        "gemma3": (DOCS / "gemma3.md").read_text(),
        "results": "\n\n".join(item for item in findings if "gemma3.md" in item and not item.startswith("|")),
        "questions": "\n".join([header, line, *(row for row in rows if "gemma3.md" in row)]),
    }


def test_every_interval_is_of_the_stored_number_of_its_place() -> None:
    assert wrong(texts()) == []
    assert sum(1 for page, text in texts().items() for _ in intervals_of(page, text)) > 65


def test_a_wrong_row_and_a_wrong_sign_are_found() -> None:
    sign = "-0.022 (-0.031 to -0.013)"
    page = texts()["gemma3"]
    rows = [line for line in page.splitlines() if line.startswith(("| 32,768 | 4 |", "| 49,152 | 4 |"))]
    cells = [line.split("|")[3:] for line in rows]
    swapped = page.replace("|".join(cells[0]), "\0").replace("|".join(cells[1]), "|".join(cells[0]))
    swapped = swapped.replace("\0", "|".join(cells[1]))
    assert len(wrong({"gemma3": swapped})) == 6
    assert page.count(sign) == 1
    assert len(wrong({"gemma3": page.replace(sign, "+0.022 (+0.013 to +0.031)")})) == 1


def again(row: dict[str, str]) -> Three:
    """A row's number and its ends from the values of its texts."""
    of_texts, value = np.array(row["texts"].split(), dtype=float), float(row["value"])
    if row["interval"] == "one text less":  # a count: what it is without each text
        return value, of_texts.min(), of_texts.max()
    if row["interval"] == "Wilson":  # shares of an answer's seven tokens
        scores, hits = AnswerScores(), torch.tensor(of_texts * 7).round()
        ones = torch.ones(len(hits))
        scores.add(ones, exact=ones, output=ones, with_output=ones, hits=hits, targets=7 * ones, nats=ones)
        return scores.values()["token_accuracy"], *token_interval(scores)
    half = stats.t.ppf(0.975, len(of_texts) - 1) * stats.sem(of_texts)
    middle = value if row["interval"] == "jackknife" else of_texts.mean()
    return middle, middle - half, middle + half


@pytest.mark.parametrize("file", [path.name for path in sorted((DOCS / "gemma3").glob("*.csv"))])
def test_every_stored_interval_follows_from_the_values_of_its_texts(file: str) -> None:
    with (DOCS / "gemma3" / file).open() as stored_rows:
        rows = [row for row in csv.DictReader(stored_rows) if row["low"]]
    for row in rows:
        n, largest = int(row["n"]), max(abs(float(x)) for x in row["texts"].split())
        assert len(row["texts"].split()) == n
        printed = tuple(float(row[name]) for name in ("value", "low", "high"))
        assert again(row) == pytest.approx(printed, abs=4 * 5e-5 * largest, rel=0), row  # five digits are stored
    assert len(rows) >= 4


def test_the_text_of_the_heads_has_the_numbers_of_their_values() -> None:
    with (DOCS / "gemma3" / "heads.csv").open() as file:
        rows = [tuple(float(row[name]) for name in ("value", "low", "high")) for row in csv.DictReader(file)]
    text = (DOCS / "gemma3" / "heads.txt").read_text()
    for row, like in zip(rows, INTERVAL.findall(text), strict=True):
        assert [float(x) for x in like] == pytest.approx(row, abs=0.501 * 10.0 ** -len(like[0].partition(".")[2]))


def test_the_verdicts_of_the_claims_are_counted() -> None:
    table = texts()["gemma3"].partition("## Claim by claim")[2].split("\n\n")[1].splitlines()[2:]
    n = Counter(re.split(r"\W", row.split("|")[4].strip())[0] for row in table)
    assert n == {"yes": 8, "half": 1, "no": 2, "wider": 1}
    said = f"Of {len(table)} claims {n['yes']} hold (three of them elsewhere or in part), {n['half']} half, {n['no']}"
    assert all(said in " ".join(text.split()) for text in (texts()["gemma3"], (DOCS / "questions.md").read_text()))


def of_distance(measure: str, at_rest: str = "none") -> dict[int, float]:
    places = [f"distance.csv, {d}, {at_rest}, {measure}" for d in (64, 16_384, 32_768, 49_152)]
    return {int(place.split(", ")[1]): stored()[place][0] for place in places}


def test_what_rest_gives_back_and_what_it_does_not() -> None:
    left, kept, logit = of_distance("target"), of_distance("target", "lowest:0.375"), of_distance("logit over the mean")
    shares = [100 * (kept[d] - left[d]) / (left[64] - left[d]) for d in (32_768, 49_152)]
    text = " ".join(texts()["gemma3"].split())
    assert "gives back {:.0f} % and {:.0f} % of what is lost".format(*shares) in text
    near, *far = logit.values()
    assert min(far) > near  # it never falls to its value near by
    assert "never falls to its near value" in text
