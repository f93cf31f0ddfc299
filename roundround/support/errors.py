"""The errors that all packages share, each with its exit code, and functions that make any text safe to print.

Tested by tests/command_line/test_command_line.py and tests/records/test_run.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONGEST = 600  # characters: longer lines are shortened before they are printed
# control characters, bidirectional marks and overrides, line separators, lone surrogates, non-characters
OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

# the user, and perhaps a password, of an address: http://u:p@h, with one slash, with backslashes, with %40 for its @
CREDENTIALS = re.compile(
    r"""(?<![\w+.-])(?!file:)([a-z][\w+.-]{1,40}):[/\\]+
    (?:(?!arn:)[^\s'"/\\@:]{0,300}:(?!:|\d+(?:[/\\]|$))[^\s'"@]{0,300}?|[^\s'"/\\@?\#]{0,300}?)(?:@|%40)""",
    re.IGNORECASE | re.VERBOSE,
)


class UserError(Exception):
    """Wrong input. The message is one line: what is wrong, where, and what to do. The command exits with 2."""


class AlreadyReported(UserError):
    """Wrong input that another process has reported already; the command exits with 2 and prints nothing."""


def check_no_credentials(text: str, option: str) -> None:
    """Raises UserError, which names the option, if the text contains an address with a user or a password."""
    if found := CREDENTIALS.search(text):
        raise UserError(
            f"{option}: an address of {found[1]}:// with credentials in it would be recorded with the run; give the "
            "address without them"
        )


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of a message about a wrong name: the most similar valid name, if there is one, and all valid names."""
    name, names = name.lower(), sorted(choices)
    longer = sorted((choice for choice in names if len(name) > 2 and choice.startswith(name)), key=len)
    beginnings = {choice[: len(name)]: choice for choice in reversed(names)}  # adaptve -> adaptive_temperature
    begun = [beginnings[part] for part in difflib.get_close_matches(name, beginnings, n=1, cutoff=0.8)]
    near = longer or difflib.get_close_matches(name, names, n=1, cutoff=0.65) or begun
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return f"{guess} (choices: {', '.join(names)})" if names else guess


class NotFinite(Exception):
    """The loss or the gradient is no longer a number; training cannot recover from it."""


class Refuted(Exception):
    """A statement that was checked does not hold; the command names the statement and exits with 1."""


class NoVerdict(Exception):
    """A comparison could not be made; the command names the comparison and exits with 3."""


class Failed(Exception):
    """The command failed, and its message needs no traceback; the command exits with 1."""


class PeerLost(Exception):
    """Another process of the same run failed or was killed; the message names it, and the command exits with 1."""


class Interrupted(BaseException):
    """A signal asked the process to stop; the command exits with 128 plus the signal's number.

    advice: a line that says how to continue.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum, self.advice = signum, ""


class OutputError(Exception):
    """Standard output cannot be written; the command says so and exits with 1."""


def one_line(error: BaseException) -> str:
    """An error's message as a single line, never empty."""
    return printable(" ".join(str(error).split()) or type(error).__name__)


def printable(text: str, longest: int = LONGEST) -> str:
    """Any text as one bounded line: escaped, and without its middle if it is too long."""
    text = escaped(text)
    if len(text) <= longest:
        return text
    half = (longest - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def escaped(text: str) -> str:
    """The text with escapes such as \\x1b for control characters and for characters that cannot be encoded or drawn.

    The user and the password in an address are left out.
    """
    text = CREDENTIALS.sub(r"\1://***@", text)
    return OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
