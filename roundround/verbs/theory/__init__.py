"""`roundround theory`: the statements of the papers, checked.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from roundround.config.verb import ARCHITECTURES, PAIRS, PAPERS, TASKS, Verb
from roundround.support.errors import UserError
from roundround.verbs.probe import SubjectConfig


@dataclass(kw_only=True, repr=False, eq=False)
class TheoryConfig(SubjectConfig):
    """The config of `roundround theory`.

    If neither `run` nor `model` is given, statements are checked only on the examples that the code constructs.
    """

    claim: list[str]

    def check(self) -> None:
        super().check()
        if self.run is None and self.model is None:
            for name in ("pe", "softmax", "data", "texts"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name}= needs a trained model; give model= or run= too")


VERB = Verb(
    name="theory",
    run="roundround.verbs.theory.run:theory",
    order=8,
    purpose=PAPERS,
    help="Check every statement of the papers by computation.",
    config=TheoryConfig,
    refuses={"model": ARCHITECTURES, "data": (*TASKS, *PAIRS)},
    words="claim",
    names=True,
    repeats=True,
    title="Statements checked",
)
