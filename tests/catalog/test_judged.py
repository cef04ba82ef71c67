"""What the journals say of the health of states, whether these are checkpoints or not."""

from __future__ import annotations

from mementum.catalog import facts
from mementum.catalog.judged import judged
from mementum.records import Fact, Health
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk


def line(checkpoint: str | None, health: str, second: int, why: str = "x") -> bytes:
    time = f"2026-11-30T06:10:{second:02d}.000000Z"
    return facts.render(Fact(kind="health", time=time, checkpoint=checkpoint, values={"health": health, "why": why}))


def test_the_later_fact_holds_whichever_source_it_is_of() -> None:
    store = LocalStore(SimDisk(), "root")
    assert judged(store) == {}
    store.append("journal/0001.jsonl", line("c1", "clean", 4) + line("c2", "suspect", 3) + line("c3", "clean", 1))
    store.append("journal/0002.jsonl", line("c1", "suspect", 5) + line("c2", "diverged", 4, "y") + b'{"kind":"hea')
    store.put("facts/a.json", [line("c3", "diverged", 9, "by hand") + line(None, "clean", 9)])
    store.append("journal/0002.jsonl", b"\n" + facts.render(Fact(kind="pin", time="t", checkpoint="c9")))
    assert judged(store) == {
        "c1": (Health.SUSPECT, "x"),
        "c2": (Health.DIVERGED, "y"),
        "c3": (Health.DIVERGED, "by hand"),
    }


def test_of_one_instant_the_later_line_holds() -> None:
    store = LocalStore(SimDisk(), "root")
    store.append("journal/0001.jsonl", line("c1", "suspect", 5) + line("c1", "clean", 5, "calm"))
    assert judged(store) == {"c1": (Health.CLEAN, "calm")}


def test_a_line_that_came_later_holds_though_the_clock_went_back() -> None:
    store = LocalStore(SimDisk(), "root")
    store.append("journal/0001.jsonl", line("c1", "clean", 50) + line("c1", "diverged", 5) + line("c2", "clean", 50))
    store.append("journal/0002.jsonl", line("c2", "suspect", 5))
    assert judged(store) == {"c1": (Health.DIVERGED, "x"), "c2": (Health.SUSPECT, "x")}
