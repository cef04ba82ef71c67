"""A writer that was superseded saves and removes nothing more, and whatever it did last, the new holder's saves win."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mementum
from mementum.background import SEQ_LEAP, Background
from mementum.clock import ManualClock
from mementum.errors import KeyTaken, SaveFailed, Superseded, TaskInUse
from mementum.events import Committed, Failed, Note, Removed, SaveSkipped, Swept
from mementum.execute.identity import Identity
from mementum.run import Run
from mementum.tidying import SWEEP_AFTER_S
from trips import Told, files


def opened(root: Path, told: Told, **wishes: Any) -> Run:
    wishes = {"every_steps": 1, "clock": ManualClock(), "on_event": told, "state": {"s": {}}, **wishes}
    return mementum.open_run(root, task="t", **wishes)


def save(run: Run) -> None:
    run.record()
    assert run.wait()


def home_of(root: Path) -> Path:
    (attempts,) = root.rglob("attempts")
    return attempts.parent


def later_attempt(root: Path, number: int = 2) -> Path:
    """Another host's start, as it appears in the folder."""
    path = home_of(root) / "attempts" / f"{number:04d}.json"
    path.write_text(json.dumps({"format": 1, "task": "t", "host": "there", "pid": 22, "boot": "x"}))
    return path


def manifests_in(root: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in root.rglob("meta.json")]
    return sorted(found, key=lambda manifest: (manifest["seq"], manifest["attempt"]))


def saved(root: Path) -> list[tuple[int, int]]:
    """Attempt and step of every checkpoint, oldest first."""
    return [(manifest["attempt"], manifest["step"]) for manifest in manifests_in(root)]


def test_a_superseded_writer_stops_saving_and_training_goes_on(tmp_path: Path) -> None:
    told = Told()
    with opened(tmp_path, told) as run:
        save(run)
        later_attempt(tmp_path)
        for _ in range(4):
            save(run)
        assert run.step == 5
    (failed,) = told.of(Failed)
    assert failed.what == "the save of step 2"
    assert "attempt 1 of task 't' was superseded by attempt 2, process 22 on there" in failed.error
    (skipped,) = told.of(SaveSkipped)
    assert (skipped.step, skipped.reason) == (3, "attempt 2 has the task; this process saves nothing more")
    assert [event.step for event in told.of(Committed)] == [1]
    assert saved(tmp_path) == [(1, 1)]
    lines = [json.loads(line) for line in (home_of(tmp_path) / "journal/0001.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["cost", "superseded", "ended"]
    assert lines[1]["values"] == {"by": 2, "host": "there"}


def test_the_next_start_sweeps_what_a_superseded_writer_left(tmp_path: Path) -> None:
    with opened(tmp_path, Told()) as run:
        save(run)
        later_attempt(tmp_path)
        save(run)
    assert [name for name in files(tmp_path) if "step_0000000002" in name]  # not its own to take away any more
    told = Told()
    with opened(tmp_path, told) as run:
        assert (run.step, run._opened.attempt.number) == (1, 3)
        assert told.of(Swept)
        assert not [name for name in files(tmp_path) if "step_0000000002" in name]
        save(run)
    assert saved(tmp_path) == [(1, 1), (3, 2)]


def test_raise_is_raised_with_its_cause(tmp_path: Path) -> None:
    run = opened(tmp_path, Told(), on_error="raise")
    save(run)
    later_attempt(tmp_path)
    save(run)
    with pytest.raises(SaveFailed) as raised:
        run.record()
    assert isinstance(raised.value.__cause__, Superseded)
    run.close()


def test_a_superseded_writer_removes_nothing(tmp_path: Path) -> None:
    """Superseded between its commit and the removal that follows it."""
    told = Told()

    def meanwhile(event: Any) -> None:
        told(event)
        if isinstance(event, Committed) and event.step == 2:
            later_attempt(tmp_path)

    with opened(tmp_path, told, on_event=meanwhile, keep_last=1) as run:
        save(run)
        save(run)
        save(run)
    assert saved(tmp_path) == [(1, 1), (1, 2)]
    assert told.of(Removed) == []
    (failed,) = told.of(Failed)
    assert (failed.what, failed.kept) == ("holding the task", "all checkpoints")
    assert [event.step for event in told.of(SaveSkipped)] == [3]


def test_a_start_that_gave_way_costs_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    sleep = clock.sleep

    def sleep_while_it_goes(duration_s: float) -> None:
        sleep(duration_s)
        path.unlink(missing_ok=True)

    told = Told()
    with opened(tmp_path, told, clock=clock) as run:
        save(run)
        path = later_attempt(tmp_path)
        clock.sleep = sleep_while_it_goes  # type: ignore[method-assign]
        save(run)
    assert saved(tmp_path) == [(1, 1), (1, 2)]
    assert told.of(Failed) == []


def test_what_a_colliding_writer_finds_in_its_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers that see no trace of each other choose the same folder."""
    told = Told()
    with opened(tmp_path, told) as run:
        save(run)
        before = [name for name in files(tmp_path) if "step_" in name]
        monkeypatch.setattr("mementum.saving.folder_for", lambda store, step: "step_0000000001")
        save(run)
        assert [name for name in files(tmp_path) if "step_" in name] == before
        monkeypatch.undo()
        save(run)
    (failed,) = told.of(Failed)
    assert KeyTaken.__name__ in failed.error
    assert saved(tmp_path) == [(1, 1), (1, 3)]


# Two hosts on one network file system, played by one process: locks say nothing between them.


class Hosts:
    """The two, and which of them the next start runs on."""

    def __init__(self) -> None:
        self.name = "a"

    def identify(self, environ: object, *, lease_s: float | None, clears: bool = False) -> Identity:
        return Identity(host=self.name, pid=1, boot=f"boot of {self.name}", lease_s=lease_s, clears=clears)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts()
    monkeypatch.setattr("mementum.opening.is_remote", lambda path: True)
    monkeypatch.setattr("mementum.execute.claim.identify", made.identify)
    return made


def leases(root: Path) -> list[str]:
    return sorted(path.name for path in (home_of(root) / "attempts").iterdir() if ".lease-" in path.name)


def test_a_network_file_system_has_a_lease_that_ends_with_the_run(tmp_path: Path, hosts: Hosts) -> None:
    with opened(tmp_path, Told()) as run:
        assert leases(tmp_path) == ["0001.lease-1"]
        claim = json.loads((home_of(tmp_path) / "attempts/0001.json").read_text())
        assert (claim["host"], claim["lease_s"]) == ("a", 60.0)
        save(run)
    assert leases(tmp_path) == []
    hosts.name = "b"
    clock = ManualClock()
    with opened(tmp_path, Told(), clock=clock) as run:
        assert (run.step, run._opened.attempt.sure, clock.monotonic()) == (1, True, 0.0)


def test_a_local_file_system_has_none(tmp_path: Path) -> None:
    with opened(tmp_path, Told()):
        assert leases(tmp_path) == []
        assert "lease_s" not in json.loads((home_of(tmp_path) / "attempts/0001.json").read_text())


def test_an_opening_that_fails_leaves_no_lease(tmp_path: Path, hosts: Hosts) -> None:
    with pytest.raises(mementum.errors.NothingToResume):
        opened(tmp_path, Told(), resume="must")
    assert leases(tmp_path) == []


def test_a_holder_elsewhere_is_waited_for_in_front_of_the_door(tmp_path: Path, hosts: Hosts) -> None:
    first = opened(tmp_path, Told())
    save(first)
    hosts.name = "b"
    clock, told = ManualClock(), Told()
    with opened(tmp_path, told, clock=clock) as second:  # its thread renews by a clock that stands still here
        assert (second.step, clock.monotonic()) == (1, 60.0)
        assert "waiting for the lease of attempt 1 on a (process 1)" in told.of(Note)[0].text
        save(first)
        save(second)
    assert saved(tmp_path) == [(1, 1), (2, 2)]
    first.close()


def test_a_superseded_holder_lets_go_and_is_not_waited_for(tmp_path: Path, hosts: Hosts) -> None:
    first = opened(tmp_path, Told())
    save(first)
    hosts.name = "b"
    second = opened(tmp_path, Told(), takeover=True)
    assert leases(tmp_path) == ["0002.lease-1"]
    save(first)
    second.close()
    hosts.name = "c"
    clock = ManualClock()
    with opened(tmp_path, Told(), clock=clock) as third:
        assert (third._opened.attempt.number, clock.monotonic()) == (3, 0.0)
    first.close()
    assert leases(tmp_path) == []


def test_takeover_does_not_break_a_lock_of_this_kernel(tmp_path: Path, hosts: Hosts) -> None:
    with opened(tmp_path, Told()), pytest.raises(TaskInUse):
        opened(tmp_path, Told(), takeover=True)


@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("first_to_save", ["old", "new"])
def test_late_commits_sort_before_all_of_the_new_holder(
    tmp_path: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, late: int, first_to_save: str
) -> None:
    """The old writer looked before the new one came, or at a list that was stale, and commits all the same."""
    look = Background._require_newest
    monkeypatch.setattr(
        Background,
        "_require_newest",
        lambda self: None if self._opened.attempt.number == 1 else look(self),
    )
    old = opened(tmp_path, Told())
    save(old)
    hosts.name = "b"
    new = opened(tmp_path, Told(), takeover=True)
    assert new.resumed is not None
    assert new.resumed.step == 1
    for _ in range(late):
        if first_to_save == "old":
            save(old)
    save(new)
    for _ in range(late):
        if first_to_save == "new":
            save(old)
    new.close()
    hosts.name = "c"
    with opened(tmp_path, Told(), takeover=True, resume="must") as after:
        assert after.resumed is not None
        assert after.resumed.checkpoint == manifests_in(tmp_path)[-1]["id"]
        assert after.step == 2
    old.close()
    assert saved(tmp_path) == [(1, 1), *((1, 2 + each) for each in range(late)), (2, 2)]
    assert manifests_in(tmp_path)[-1]["seq"] == 1 + SEQ_LEAP + 1
    assert len({path.parent for path in tmp_path.rglob("meta.json")}) == late + 2  # nobody wrote into another's folder


def test_a_late_commit_before_the_new_holder_has_saved_is_resumed(tmp_path: Path, hosts: Hosts) -> None:
    old = opened(tmp_path, Told())
    save(old)
    save(old)
    hosts.name = "b"
    with opened(tmp_path, Told(), takeover=True) as new:
        assert new.step == 2
    old.close()
    assert saved(tmp_path) == [(1, 1), (1, 2)]


def test_leftovers_of_one_that_may_live_are_swept_later(tmp_path: Path, hosts: Hosts) -> None:
    old = opened(tmp_path, Told())
    save(old)
    part = home_of(tmp_path) / "step_0000000009" / "model.safetensors"
    part.parent.mkdir()
    part.write_bytes(b"half")
    hosts.name = "b"
    told, clock = Told(), ManualClock()
    with opened(tmp_path, told, clock=clock, takeover=True) as new:
        save(new)
        clock.advance(SWEEP_AFTER_S - 1)
        save(new)
        assert part.exists()
        assert told.of(Swept) == []
        clock.advance(1)
        save(new)
        assert not part.exists()
        (swept,) = told.of(Swept)
        assert swept.keys == ("step_0000000009/model.safetensors",)
    old.close()
