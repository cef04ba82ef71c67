"""What leaves a tier, or gets lighter there, goes by what is known at that moment, and facts say what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from mementum import Run
from mementum.catalog import facts
from mementum.clock import ManualClock, SystemClock
from mementum.errors import Superseded
from mementum.events import Displaced, Failed, Withered
from mementum.execute.attempts import numbers
from mementum.execute.claim import claim, let_go, withdraw
from mementum.mirroring import mirror, require_newest_there
from mementum.records import Fact
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk
from tiered import Training, entries, home_of

FULL, LIGHT = (0, 1, 2), (0, 2)
DAYS_S = 86_400.0
WEEK = {"level_1": 7.0}


class Ahead(SystemClock):
    """The machine's clocks, and days that have passed on both."""

    days = 0.0

    def now(self) -> float:
        return super().now() + self.days * DAYS_S

    def monotonic(self) -> float:
        return super().monotonic() + self.days * DAYS_S


def go(training: Training, run: Run, step: int) -> None:
    while run.step < step:
        training.step(run)
        run.wait()
        assert run._background._forwarding.drain(10)


def tier(root: Path, **wishes: Any) -> dict[str, Any]:
    return {"url": str(root.parent / "far"), "name": "far", **wishes}


def pin(root: Path, step: int) -> None:
    """As another process does: a fact in the root."""
    id = entries(root)[step].manifest.id
    fact = Fact(kind="pin", time="2099-01-01T00:00:00.000000Z", checkpoint=id, values={"why": "mine"})
    home_of(root).put("facts/pin.json", [facts.render(fact)])


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path, str, Callable[[], None]], None]:
    """Let something happen once, right before a call on a key of a store below a folder."""

    def begin(call: str, folder: Path, key: str, happens: Callable[[], None]) -> None:
        real, left = getattr(LocalStore, call), [happens]

        def called(self: LocalStore, at: str, *given: Any) -> Any:
            if at == key and self.folder.startswith(str(folder)) and left:
                left.pop()()
            return real(self, at, *given)

        monkeypatch.setattr(LocalStore, call, called)

    return begin


def left_on(far: Path) -> dict[int, tuple[int, ...]]:
    return {step: entry.manifest.levels for step, entry in entries(far).items()}


@pytest.mark.parametrize(("pinned", "left", "gone"), [(2, [2, 4], [1, 3]), (1, [1, 4], [2, 3])])
def test_a_pin_that_comes_during_a_removal_on_a_tier_holds(
    tmp_path: Path, when: Any, pinned: int, left: list[int], gone: list[int]
) -> None:
    """The first one's manifest is put back, when it is that one's pin."""
    root, far = tmp_path / "root", tmp_path / "far"
    before, training = Training(), Training()
    with before.open(root, tier(root, keep_last=10), keep_last=20) as run:
        go(before, run, 3)
    when("delete", far, "step_0000000001/meta.json", lambda: pin(root, pinned))
    with training.open(root, tier(root, keep_last=1), keep_last=20) as run:
        go(training, run, 4)
    assert sorted(entries(far)) == left
    assert [event.step for event in training.told.of(Displaced)] == gone
    near = entries(root)
    assert near[pinned].pinned == "mine"
    assert [step for step, entry in near.items() if entry.places] == left


def test_a_pin_that_comes_while_a_copy_is_aged_holds(tmp_path: Path, when: Any) -> None:
    """The next generation is there by then, and is taken back."""
    root, far, clock = tmp_path / "root", tmp_path / "far", Ahead()
    training = Training()
    when("put", far, "step_0000000001/meta-2.json", lambda: pin(root, 1))
    with training.open(root, tier(root, retention_days=WEEK), keep_last=20, clock=clock) as run:
        go(training, run, 2)
        clock.days = 8.0
        go(training, run, 3)
        assert left_on(far) == {1: FULL, 2: LIGHT, 3: FULL}
        go(training, run, 4)
    assert left_on(far) == {1: FULL, 2: LIGHT, 3: FULL, 4: FULL}
    assert entries(far)[1].manifest.generation == 1
    assert training.told.of(Failed) == []
    assert entries(root)[1].places[0].levels == FULL


def test_facts_say_what_a_tier_has_dropped_of_an_old_copy(tmp_path: Path) -> None:
    root, far, clock = tmp_path / "root", tmp_path / "far", Ahead()
    training = Training()
    with training.open(root, tier(root, retention_days=WEEK), keep_last=20, clock=clock) as run:
        go(training, run, 2)
        clock.days = 8.0
        go(training, run, 3)
    there, near = entries(far), entries(root)
    assert left_on(far) == {1: LIGHT, 2: LIGHT, 3: FULL}
    assert {step: entry.places[0].levels for step, entry in near.items()} == left_on(far)
    for step, entry in near.items():
        (place,) = entry.places
        assert (place.generation, place.size) == (there[step].manifest.generation, there[step].manifest.size)
    assert [entry.manifest.levels for entry in near.values()] == [FULL] * 3
    assert training.told.of(Withered) == []  # which says that of the root's own


def test_copies_that_somebody_took_away_do_not_count_in_a_tiers_retention(tmp_path: Path) -> None:
    root, far = tmp_path / "root", tmp_path / "far"
    training = Training()
    with training.open(root, tier(root, keep_last=3), keep_last=20) as run:
        go(training, run, 3)
        for step in (2, 3):
            (folder,) = far.glob(f"*/*/step_{step:010d}")
            rmtree(folder)
        go(training, run, 4)
        assert sorted(entries(far)) == [1, 4]
        go(training, run, 6)
    assert sorted(entries(far)) == [4, 5, 6]
    (told,) = training.told.of(Failed)
    assert told.error == "copies that were there are gone, which nobody was told of: 2 (of step 2, 3)"
    assert [event.step for event in training.told.of(Displaced)] == [1]
    assert [step for step, entry in entries(root).items() if entry.places] == [4, 5, 6]


def test_who_only_clears_the_task_takes_no_tier() -> None:
    """His claim passes, and would stay on the tier for good: nothing would go there, or leave it, any more."""
    near, far = LocalStore(SimDisk(), "near"), LocalStore(SimDisk(), "far")
    first = claim(near, task="t", facts={}, clock=ManualClock())
    let_go(first)
    mirror(near, far)
    passing = claim(near, task="t", facts={}, clock=ManualClock(), clears=True)
    assert mirror(near, far) == 0
    withdraw(near, passing)
    require_newest_there(far, first.number, task="t")
    assert list(numbers(far)) == [first.number]
    later = claim(near, task="t", facts={}, clock=ManualClock())
    assert mirror(near, far) == 1
    let_go(later)
    with pytest.raises(Superseded):
        require_newest_there(far, first.number, task="t")
