"""What people said while somebody judged is heard before anything goes, whoever has told the catalog."""

from __future__ import annotations

from mementum.catalog import facts, noted, plans
from mementum.catalog.lately import PLANNED, Lately
from mementum.records import Fact
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk


def store() -> LocalStore:
    return LocalStore(SimDisk(), "root")


def said(kind: str, id: str, second: int = 1, **values: str) -> Fact:
    return Fact(kind=kind, time=f"2026-11-30T06:10:{second:02d}.000000Z", checkpoint=id, values=values)


def test_what_was_said_before_it_began_is_not_news() -> None:
    home = store()
    noted.from_outside(home, "a", [said("pin", "c1", why="mine", by="me")])
    home.append("journal/0001.jsonl", facts.render(said("pin", "c2", why="yours")))
    assert Lately(home).stays() == {}


def test_pins_from_outside_and_of_journals_are_news() -> None:
    home = store()
    home.append("journal/0001.jsonl", facts.render(said("pin", "c1", why="old")))
    lately = Lately(home)
    noted.from_outside(home, "a", [said("pin", "c3", why="the paper's figure", by="me")])
    assert lately.stays() == {"c3": "pinned: the paper's figure (me)"}
    line = facts.render(said("pin", "c4", why="an alarm"))
    home.append("journal/0001.jsonl", line[:20])
    assert lately.stays().keys() == {"c3"}  # half a line says nothing yet
    home.append("journal/0001.jsonl", line[20:] + facts.render(said("health", "c5", health="diverged")))
    assert lately.stays() == {"c3": "pinned: the paper's figure (me)", "c4": "pinned: an alarm"}


def test_what_was_taken_back_does_not_stay() -> None:
    home = store()
    lately = Lately(home)
    noted.from_outside(home, "a", [said("pin", "c1", 1, why="mine", by="me"), said("pin", "c1", 2, by="you")])
    noted.from_outside(home, "b", [said("unpin", "c1", 3, by="me")])
    assert lately.stays() == {"c1": "pinned: no reason was given (you)"}
    noted.from_outside(home, "c", [said("unpin", "c1", 4, by="you")])
    assert lately.stays() == {}


def test_the_target_of_a_rollback_stays() -> None:
    home = store()
    lately = Lately(home)
    plan = plans.Plan(
        target="c7", step=7, after_seq=9, attempt=1, by_hand=True, why="a spike", time="2026-11-30T06:10:09.000000Z"
    )
    plans.write(home, "a", plan)
    assert lately.stays() == {"c7": PLANNED}


def test_a_file_of_facts_that_is_gone_again_says_nothing() -> None:
    class Fleeting(LocalStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            self.delete(key)
            return super().get(key, start, size)

    home = Fleeting(SimDisk(), "root")
    lately = Lately(home)
    noted.from_outside(home, "a", [said("pin", "c1", why="mine")])
    assert lately.stays() == {}
