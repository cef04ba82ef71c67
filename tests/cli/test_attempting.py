"""`mementum tree`: starts, rollbacks and branches stand under the checkpoints from which they went on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import facts, plans
from mementum.catalog.plans import Plan
from mementum.execute import attempts
from mementum.format import manifest as manifests
from mementum.records import Detour, Fact, Manifest
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


class Recorder:
    """Writes the files of a task's history into a copy of a real root, whose first checkpoint is the pattern of all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (self.home,) = root.glob("*/byte-gpt_*")
        self.store = LocalStore(PosixDisk(), str(self.home))
        first = self.home / "step_0000000002"
        self.pattern = manifests.parse((first / "meta.json").read_bytes())
        for path in sorted(self.home.glob("step_*/*")) + sorted(self.home.glob("journal/*")):
            path.unlink()
        for path in self.home.glob("attempts/*"):
            path.unlink()
        for cache in root.glob("catalog.db*"):
            cache.unlink()
        self.count = 0

    def time(self) -> str:
        self.count += 1
        return f"2026-11-30T06:{self.count // 60:02d}:{self.count % 60:02d}.000000Z"

    def attempt(self, number: int) -> None:
        words = {"task": "byte-gpt", "attempt": number, "time": self.time()}
        self.store.put(attempts.key_of(number), [json.dumps(words).encode()])

    def save(self, attempt: int, step: int, parent: Manifest | None) -> Manifest:
        time = self.time()
        made = replace(
            self.pattern,
            id=f"c{self.count:09d}0000000",
            seq=self.count,
            attempt=attempt,
            step=step,
            parent=None if parent is None else parent.id,
            time=time,
        )
        self.store.put(f"step_{step:010d}-{self.count}/meta.json", [manifests.render(made)])
        return made

    def tell(
        self, attempt: int, kind: str, step: int | None, checkpoint: Manifest | None = None, **values: Any
    ) -> None:
        id = None if checkpoint is None else checkpoint.id
        fact = Fact(kind=kind, time=self.time(), step=step, checkpoint=id, values=values)
        with (self.home / facts.journal_key(attempt)).open("ab") as journal:
            journal.write(facts.render(fact))

    def plan(self, target: Manifest, *, attempt: int, **more: Any) -> Plan:
        given = {"why": "by hand", "by_hand": True, "after_seq": self.count, **more}
        made = Plan(target=target.id, step=target.step, attempt=attempt, time=self.time(), **given)
        plans.write(self.store, f"c{self.count:09d}", made)
        return made


@pytest.fixture
def recorder(root: Path) -> Recorder:
    return Recorder(root)


def drawn(answer: Any) -> Iterator[str]:
    """The lines without times, each level of the tree as two spaces."""
    assert answer.code == 0, answer.err
    for line in answer.lines:
        guide, text = re.fullmatch(r"((?:[│├└ ][─  ]{2}[  ])*)(.*)", line).groups()  # type: ignore[union-attr]
        yield "  " * (len(guide) // 4) + re.sub(r", 2026-11-30 06:\d\d:\d\d UTC", "", text)


def test_rollbacks_and_starts_stand_where_they_went_on(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    one = recorder.save(1, 10, None)
    two = recorder.save(1, 20, one)
    bad = recorder.save(1, 30, two)
    recorder.tell(1, "health", 30, bad, health="diverged", why="loss spike at step 29", onset=25)
    recorder.tell(1, "pin", None, two, why="the newest state before step 25", by="flight recorder")
    recorder.plan(
        two,
        attempt=1,
        by_hand=False,
        from_step=33,
        onset=25,
        seen=31,
        skips=(Detour(at_step=25, groups=7),),
        lr_scale=0.5,
        why="loss spike: back to step 20 (rollback 1 of 3)",
    )
    three = recorder.save(1, 30, two)
    recorder.tell(1, "ended", 34, why="RuntimeError")
    recorder.attempt(2)
    four = recorder.save(2, 40, three)
    recorder.tell(2, "cost", 41, four)
    recorder.plan(one, attempt=2)
    recorder.attempt(3)
    recorder.save(3, 20, one)
    recorder.tell(3, "ended", 20, why="finished")
    recorder.plan(four, attempt=3, skips=(Detour(at_step=41, groups=1),), why="a shard was bad")
    assert list(drawn(ask("tree", recorder.root))) == [
        "byte-gpt",
        "  attempt 1, begun anew, it went back at step 33",
        "    ✓ step 10  c000000002  clean",
        "      attempt 3, back at step 10 (by hand), finished at step 20",
        "        ✓ step 20  c000000015  clean",
        "    ✓ step 20  c000000003  clean, pinned (the newest state before step 25 (flight recorder))",
        "      attempt 1, back at step 20 (rollback 1), RuntimeError at step 34",
        "        loss spike: back to step 20 (rollback 1 of 3)",
        "        the batches of 7 steps are left out before step 25",
        "        learning rates are 0.5 of those that were stored there",
        "        ✓ step 30  c000000008  clean",
        "      attempt 2, on from step 30, last heard of at step 41",
        "        ✓ step 40  c000000011  clean",
        "          the next start goes on from step 40 (by hand)",
        "            a shard was bad",
        "            the batch of a step is left out before step 41",
        "    ✗ step 30  c000000004  diverged (loss spike at step 29)",
    ]


def test_json_tells_the_same(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    one = recorder.save(1, 10, None)
    recorder.plan(one, attempt=1, lr_scale=2.0)
    recorder.attempt(2)
    two = recorder.save(2, 12, one)
    told = json.loads(ask("tree", recorder.root, "byte-gpt", "--json").out)
    assert told["task"] == "byte-gpt"
    assert told["pending"] is None
    first, second = told["stretches"]
    assert (first["began"], first["source"], first["plan"]) == ("anew", None, None)
    assert (second["began"], second["source"], second["plan"]["lr_scale"]) == ("by hand", one.id, 2.0)
    assert second["checkpoints"] == [
        {"id": two.id, "step": 12, "health": "clean", "why": None, "pinned": None, "damaged": None}
    ]


def test_what_came_from_a_checkpoint_that_was_removed_stands_after_an_older_one(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    one = recorder.save(1, 10, None)
    gone = recorder.save(1, 20, one)
    next(recorder.home.glob("step_0000000020-*/meta.json")).unlink()
    recorder.attempt(2)
    recorder.save(2, 30, gone)
    assert list(drawn(ask("tree", recorder.root))) == [
        "byte-gpt",
        "  attempt 1, begun anew",
        "    ✓ step 10  c000000002  clean",
        "  attempt 2, on from step 10 or after it",
        "    ✓ step 30  c000000005  clean",
    ]


def test_a_start_whose_own_first_checkpoints_were_removed(recorder: Recorder, ask: Any) -> None:
    for number in (1, 2, 3):
        recorder.attempt(number)
        gone = recorder.save(number, 10 * number, None)
        recorder.tell(number, "cost", gone.step, gone)
        kept = recorder.save(number, 10 * number + 5, gone)
        recorder.tell(number, "cost", kept.step, kept)
        next(recorder.home.glob(f"step_{gone.step:010d}-*/meta.json")).unlink()
        recorder.tell(number, "health", 15, kept, health="clean", why="seen")
        if number == 2:
            recorder.plan(kept, attempt=2)
    assert list(drawn(ask("tree", recorder.root))) == [
        "byte-gpt",
        "  attempt 1, begun anew, last heard of at step 15",
        "    ✓ step 15  c000000004  clean (seen)",
        "  attempt 2, on from step 15 or after it, last heard of at step 25",
        "    ✓ step 25  c000000010  clean (seen)",
        "      attempt 3, back at step 25 (by hand), last heard of at step 35",
        "        ✓ step 35  c000000017  clean (seen)",
    ]


def test_a_crash_loop_and_a_long_row_are_folded(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    before = None
    for step in range(1, 10):
        before = recorder.save(1, step, before)
    for number in range(2, 7):
        recorder.attempt(number)
    assert list(drawn(ask("tree", recorder.root))) == [
        "byte-gpt",
        "  attempt 1, begun anew",
        "    ✓ step 1  c000000002  clean",
        "    ✓ step 2  c000000003  clean",
        "    … 5 more clean ones, steps 3 to 7",
        "    ✓ step 8  c000000009  clean",
        "    ✓ step 9  c000000010  clean",
        "  attempts 2 to 6 have saved nothing",
    ]


def test_a_start_that_saved_nothing_began_where_its_plan_says(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    one = recorder.save(1, 10, None)
    recorder.save(1, 20, one)
    recorder.plan(one, attempt=1)
    recorder.attempt(2)
    recorder.tell(2, "ended", 13, why="TrainingDiverged")
    lines = list(drawn(ask("tree", recorder.root)))
    assert lines[3:6] == [
        "      attempt 2, back at step 10 (by hand), TrainingDiverged at step 13",
        "        no checkpoint of it is there",
        "      the next start goes on from step 10 (by hand)",
    ]


def test_a_name_that_a_terminal_would_obey_is_shown_escaped(recorder: Recorder, ask: Any) -> None:
    recorder.attempt(1)
    one = recorder.save(1, 10, None)
    recorder.plan(one, attempt=1, why="[red]\x1b[31mbad")
    out = ask("tree", recorder.root).out
    assert "[red]\\x1b[31mbad" in out
    assert "\x1b" not in out


def test_a_task_without_an_attempt_is_nothing(trained: Path, ask: Any) -> None:
    answer = ask("tree", trained, "u")
    assert answer.code == 4
    assert "there is no task 'u'" in answer.err


def test_a_real_root_has_a_tree(trained: Path, ask: Any) -> None:
    lines = list(drawn(ask("tree", trained)))
    assert [line.split("  c")[0] for line in lines[:1] + lines[2:]] == [
        "byte-gpt",
        "    ✓ step 2",
        "    ✓ step 4",
        "    ✓ step 6",
    ]
    assert re.fullmatch(r"  attempt 1, .* UTC, begun anew, finished at step 6", lines[1])
