"""What people said while somebody judged is heard before anything goes, whoever has told the catalog."""

from __future__ import annotations

from made import entry
from mementum.catalog import facts, noted, plans
from mementum.catalog.lately import OF_ALL_COPIES, PLANNED, Lately
from mementum.records import Fact, Health
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


def test_what_turns_out_worse_is_known_as_that() -> None:
    home, some = store(), [entry(1), entry(2), entry(3, verified="t"), entry(4, damaged="an old wound")]
    home.append("journal/0001.jsonl", facts.render(said("damaged", "c1", what="before it began")))
    lately = Lately(home)
    assert lately.worse(some) is None
    noted.from_outside(home, "a", [said("damaged", "c9", what="of none of these")])
    assert lately.worse(some) is None
    noted.from_outside(home, "b", [said("damaged", "c3", what="index"), said("verified", "c4")])
    home.append("journal/0001.jsonl", facts.render(said("health", "c2", health="diverged", why="a spike")))
    now = lately.worse(some)
    assert now is not None
    assert [one.damaged for one in now] == [None, None, "index", None]
    assert [one.health for one in now] == [Health.CLEAN, Health.DIVERGED, Health.CLEAN, Health.CLEAN]
    noted.from_outside(home, "c", [said("verified", "c3", 2), said("health", "c2", 2, health="clean")])
    again = lately.worse(some)
    assert [(one.damaged, one.health) for one in again or some][:3] == [(None, Health.CLEAN)] * 3


def test_damage_of_a_copy_says_nothing_of_the_roots_own_and_the_roots_nothing_of_a_copy() -> None:
    home, some = store(), [entry(1), entry(2)]
    roots, copies = Lately(home), Lately(home, kinds=OF_ALL_COPIES)
    noted.from_outside(home, "a", [said("damaged", "c1", what="index", tier="nas")])
    assert roots.worse(some) is None
    noted.from_outside(home, "b", [said("damaged", "c2", what="index")])
    assert [one.damaged for one in roots.worse(some) or ()] == [None, "index"]
    assert copies.worse(some) is None
    noted.from_outside(home, "c", [said("health", "c1", health="suspect")])
    assert [(one.damaged, one.health) for one in copies.worse(some) or ()] == [
        (None, Health.SUSPECT),
        (None, Health.CLEAN),
    ]


def test_a_file_of_facts_that_is_gone_again_says_nothing() -> None:
    class Fleeting(LocalStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            self.delete(key)
            return super().get(key, start, size)

    home = Fleeting(SimDisk(), "root")
    lately = Lately(home)
    noted.from_outside(home, "a", [said("pin", "c1", why="mine")])
    assert lately.stays() == {}
