"""A run with further places: copies go there beside the training, and a new machine goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mementum.catalog import tasks
from mementum.errors import UsageError
from mementum.events import Committed, Displaced, Failed, Fetched, Placed, Unplaced
from mementum.records import Reach, Save, Situation
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from tiered import TASK, Training, entries, home_of


def test_copies_go_to_a_tier_and_are_known(tmp_path: Path) -> None:
    training, far = Training(), tmp_path / "far"
    training.run(tmp_path / "root", 3, {"url": str(far), "name": "far"})
    assert [event.step for event in training.told.of(Placed)][-1] == 3
    near, there = entries(tmp_path / "root"), entries(far)
    assert there[3].manifest == near[3].manifest
    (place,) = near[3].places
    assert (place.tier, place.url, place.size, place.levels) == ("far", str(far), near[3].manifest.size, (0, 1, 2))
    assert there[3].manifest.id == near[3].manifest.id
    assert home_of(far).get("attempts/0001.json") == home_of(tmp_path / "root").get("attempts/0001.json")


def test_a_new_machine_goes_on_from_a_tier(tmp_path: Path) -> None:
    first, far = Training(), {"url": str(tmp_path / "far"), "name": "far"}
    first.run(tmp_path / "root", 3, far)
    state = first.state()
    shutil.rmtree(tmp_path / "root")
    second = Training()
    with second.open(tmp_path / "root", far) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier, run.resumed.rung) == (3, "far", "exact")
        assert second.state() == state
        assert [event.step for event in second.told.of(Fetched)] == [3]
        while run.step < 5:
            second.step(run)
            run.wait()
    there = entries(tmp_path / "far")
    assert there[5].manifest.attempt == 2
    assert there[5].manifest.seq > there[3].manifest.seq
    assert there[5].manifest.step == 5
    assert tasks.find(LocalStore(PosixDisk(), str(tmp_path / "root")), TASK) == tasks.find(
        LocalStore(PosixDisk(), str(tmp_path / "far")), TASK
    )


def test_what_is_known_comes_with_it(tmp_path: Path) -> None:
    first, far = Training(), {"url": str(tmp_path / "far"), "name": "far"}
    run = first.run(tmp_path / "root", 3, far)
    (bad,) = (entry for step, entry in entries(tmp_path / "root").items() if step == 3)
    del run
    with first.open(tmp_path / "root", far) as again:
        again._background.tell("health", checkpoint=bad.manifest.id, step=3, values={"health": "diverged", "why": "x"})
        again._background.drain(10)
    shutil.rmtree(tmp_path / "root")
    second = Training()
    with second.open(tmp_path / "root", far) as run:
        assert run.resumed is not None
        assert run.resumed.step < 3


def test_nothing_is_fetched_where_the_root_has_the_best(tmp_path: Path) -> None:
    training, far = Training(), {"url": str(tmp_path / "far")}
    training.run(tmp_path / "root", 3, far)
    with training.open(tmp_path / "root", far) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (3, "ssd")
    assert training.told.of(Fetched) == []


def test_never_resuming_fetches_nothing_and_counts_on(tmp_path: Path) -> None:
    first, far = Training(), {"url": str(tmp_path / "far")}
    first.run(tmp_path / "root", 2, far)
    shutil.rmtree(tmp_path / "root")
    second = Training()
    with second.open(tmp_path / "root", far, resume="never") as run:
        assert run.resumed is None
        assert run._opened.attempt.number == 2


def test_the_tiers_own_retention(tmp_path: Path) -> None:
    training = Training()
    training.run(tmp_path / "root", 5, {"url": str(tmp_path / "far"), "name": "far", "keep_last": 2})
    placed = [event.step for event in training.told.of(Placed)]
    gone = [event.step for event in training.told.of(Displaced)]
    there = entries(tmp_path / "far")
    assert sorted(there) == sorted(set(placed) - set(gone))
    assert len(there) == min(2, len(placed))
    near = entries(tmp_path / "root")
    assert [step for step, entry in near.items() if entry.places] == sorted(there)


def test_levels_and_codec_of_a_tier(tmp_path: Path) -> None:
    training, weights, packed = Training(), tmp_path / "weights", tmp_path / "packed"
    training.run(
        tmp_path / "root",
        2,
        {"url": str(weights), "levels": [0]},
        {"url": str(packed), "codec": "planes+zstd:1"},
    )
    assert entries(weights)[2].manifest.levels == (0,)
    assert entries(packed)[2].manifest.levels == (0, 1, 2)
    shutil.rmtree(tmp_path / "root")
    second = Training()
    with second.open(tmp_path / "root", {"url": str(weights)}, {"url": str(packed)}) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier, second.state()) == (2, str(packed), training.state())


def test_steps_between_copies(tmp_path: Path) -> None:
    training = Training()
    with training.open(tmp_path / "root", {"url": str(tmp_path / "far"), "every_steps": 3}) as run:
        while run.step < 7:
            training.step(run)
            run.wait()
            run._background._forwarding.drain(10)
    assert sorted(entries(tmp_path / "far")) == [1, 4, 7]


class AgainstTheMachine:
    """Saves every step, the third one against the loss of the machine."""

    def decide(self, situation: Situation) -> Save:
        return Save(reason="test", reach=Reach.MACHINE if situation.step == 3 else Reach.REBOOT)


def test_a_tier_that_takes_what_is_due_there(tmp_path: Path) -> None:
    training = Training()
    far = {"url": str(tmp_path / "far"), "reach": "machine", "take": "due"}
    near = {"url": str(tmp_path / "near"), "take": "due"}
    with training.open(tmp_path / "root", far, near, policy=AgainstTheMachine(), every_steps=None) as run:
        while run.step < 4:
            training.step(run)
            run.wait()
            run._background._forwarding.drain(10)
    assert sorted(entries(tmp_path / "far")) == [3]
    assert sorted(entries(tmp_path / "near")) == [1, 2, 3, 4]
    assert entries(tmp_path / "root")[3].manifest.decision["reach"] == "machine"


@pytest.mark.parametrize("where", ["", "inside"])
def test_a_tier_in_the_root_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError, match="lies in the root"):
        Training().open(tmp_path / "root", {"url": str(tmp_path / "root" / where)})
    assert not (tmp_path / "root").exists()


def test_two_tiers_in_one_place_are_refused(tmp_path: Path) -> None:
    far = str(tmp_path / "far")
    with pytest.raises(UsageError, match="are the same place"):
        Training().open(tmp_path / "root", {"url": far, "name": "a"}, {"url": f"file://{far}", "name": "b"})
    with pytest.raises(UsageError, match="is called far too"):
        Training().open(tmp_path / "root", {"url": far, "name": "far"}, {"url": f"{far}2", "name": "far"})


def test_two_roots_with_one_tier_the_later_start_has_it(tmp_path: Path) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far"}
    first, second = Training(), Training()
    with first.open(tmp_path / "one", far) as one:
        while one.step < 2:
            first.step(one)
            one.wait()
            one._background._forwarding.drain(10)
        with second.open(tmp_path / "two", far) as two:
            assert two.resumed is not None
            assert two.resumed.step == 2
            while one.step < 4:
                first.step(one)
                one.wait()
                one._background._forwarding.drain(10)
            while two.step < 5:
                second.step(two)
                two.wait()
    (lost,) = first.told.of(Failed)
    assert lost.what == "holding the tier far"
    assert "was superseded by attempt 2" in lost.error
    assert [event.step for event in first.told.of(Placed)] == [1, 2]
    assert [event.step for event in first.told.of(Committed)] == [1, 2, 3, 4]
    theirs = {step for step, entry in entries(tmp_path / "far").items() if entry.manifest.attempt == 2}
    assert theirs == {event.step for event in second.told.of(Placed) if event.sent}
    assert max(theirs) == 5


def test_a_tier_that_is_no_folder_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "far").write_text("a file")
    training = Training()
    training.run(tmp_path / "root", 3, {"url": str(tmp_path / "far"), "name": "far"})
    told = [event for event in training.told.of(Failed) if "far" in event.what]
    assert 1 <= len(told) <= 2  # at the start, and at the first copy
    assert sorted(entries(tmp_path / "root"))[-1] == 3
    assert training.told.of(Unplaced)[-1].step == 3
