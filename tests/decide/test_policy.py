"""The first policy with an opinion decides, and its reason travels with it."""

from __future__ import annotations

import pytest

from mementum.decide.policy import First
from mementum.records import Decision, Save, Situation, Skip, record

NOW = Situation(step=5, epoch=0, since_save_steps=5, since_save_s=1.0)


@record
class Says:
    """A policy with one opinion."""

    decision: Decision | None

    def decide(self, situation: Situation) -> Decision | None:
        assert situation is NOW
        return self.decision


class Unreached:
    def decide(self, situation: Situation) -> Decision | None:
        raise AssertionError("a later policy was asked")


SAVE, SKIP, SILENT = Says(decision=Save(reason="s")), Says(decision=Skip(reason="no")), Says(decision=None)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ((), Skip(reason="no policy asked for a save")),
        ((SILENT, SILENT), Skip(reason="no policy asked for a save")),
        ((SAVE, Unreached()), Save(reason="s")),
        ((SKIP, Unreached()), Skip(reason="no")),
        ((SILENT, SAVE, Unreached()), Save(reason="s")),
        ((First(policies=(SILENT, SAVE)), Unreached()), Save(reason="s")),
    ],
)
def test_the_first_opinion_wins(policies: tuple[object, ...], expected: Decision) -> None:
    assert First(policies=policies).decide(NOW) == expected
