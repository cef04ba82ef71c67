"""Starts with tiers that know more than the root, hold what cannot be read, or die: what is told, and what goes on."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mementum.places
from mementum.catalog.sql import open_sqlite
from mementum.cli.main import app
from mementum.clock import ManualClock, SystemClock
from mementum.config.tiers import Tier
from mementum.errors import NothingToResume, TaskInUse, Unreachable
from mementum.events import Committed, Failed, Fetched, PassedOver, Placed, Withered
from mementum.execute.attempts import numbers
from mementum.format import manifest as manifests
from mementum.mirroring import bring_attempts
from mementum.places import START_PATIENCE_S, Site
from mementum.records import Manifest, Reach, Save, Situation
from mementum.storage.around import Around
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.pace import BURST_S
from mementum.testing.simdisk import SimDisk
from mementum.withering import wither
from mendings import flip, nobody
from tiered import Training, entries, home_of

WAIT_S = 20.0  # for a copy that is on its way; only a broken test waits so long
NEWEST = "step_0000000003"


def far(tmp_path: Path) -> dict[str, Any]:
    return {"url": str(tmp_path / "far"), "name": "far"}


def step(training: Training, run: mementum.Run) -> None:
    training.step(run)
    run.wait()
    assert run._background._forwarding.drain(WAIT_S)


def trained(tmp_path: Path, total: int, **wishes: Any) -> Training:
    """A root and a tier with the same checkpoints, one of each step."""
    training = Training()
    with training.open(tmp_path / "root", far(tmp_path), **wishes) as run:
        while run.step < total:
            step(training, run)
    return training


def folder_of(place: Path, step: int) -> Path:
    return Path(home_of(place).folder) / f"step_{step:010d}"


class Far(Around):
    """A folder behind a network, whose every call `trouble` hears of first."""

    def __init__(self, folder: Path, trouble: Callable[[str], None]) -> None:
        super().__init__(LocalStore(PosixDisk(), str(folder)))
        self.trouble = trouble

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self.trouble(key)
        return super().get(key, start, size)

    def list(self, prefix: str = "") -> Any:
        self.trouble(prefix)
        return super().list(prefix)


def by_a_start(tmp_path: Path) -> None:
    with pytest.raises(TaskInUse, match="is being trained by process"):
        Training().open(tmp_path / "one", far(tmp_path))


def by_a_fetch(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["place", str(tmp_path / "one"), "--from", str(tmp_path / "far")])
    assert (done.exit_code, "is being trained by process" in done.output) == (1, True)


@pytest.mark.parametrize("refused", [by_a_start, by_a_fetch])
def test_a_refused_start_ends_nobodys_saves(tmp_path: Path, refused: Callable[[Path], None]) -> None:
    first, second, third = Training(), Training(), Training()
    with first.open(tmp_path / "one", far(tmp_path)) as one:
        step(first, one)
        with second.open(tmp_path / "two", far(tmp_path)) as two:  # another machine takes the tier: it knows attempt 2
            step(second, two)
        step(first, one)
        refused(tmp_path)
        assert list(numbers(home_of(tmp_path / "one"))) == [1]
        step(first, one)
        step(first, one)
    assert [event.step for event in first.told.of(Committed)] == [1, 2, 3, 4]
    assert [event.what for event in first.told.of(Failed)] == ["holding the tier far"]
    with third.open(tmp_path / "one", far(tmp_path)) as run:  # now it may: above all, and with what the tier knows
        assert run._opened.attempt.number == 3
        assert sorted(numbers(home_of(tmp_path / "one"))) == [1, 2, 3]


def test_only_attempts_before_ours_are_brought() -> None:
    """One that takes the tier while we start is a later one there; here it would end our saves."""
    disk = SimDisk()
    near, there = LocalStore(disk, "near"), LocalStore(disk, "far")
    for number in (1, 2, 3, 4):
        there.put(f"attempts/{number:04d}.json", [b'{"format": 1, "time": "t", "host": "h", "pid": 7}'])
    bring_attempts(there, near, 3)
    assert sorted(numbers(near)) == [1, 2]


def damage(tmp_path: Path, step: int) -> None:
    path = folder_of(tmp_path / "far", step) / "meta.json"
    path.write_bytes(path.read_bytes()[:-9])


def test_a_damaged_manifest_on_a_tier_is_told_and_the_next_one_is_fetched(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    shutil.rmtree(tmp_path / "root")
    damage(tmp_path, 3)
    again = Training()
    with again.open(tmp_path / "root", far(tmp_path)) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (2, "far")
    (passed,) = again.told.of(PassedOver)
    assert (passed.id, "is not JSON" in passed.what) == (f"{NEWEST}/meta.json on far", True)


def test_nothing_is_begun_where_all_manifests_of_the_tiers_are_damaged(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    shutil.rmtree(tmp_path / "root")
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    again = Training()
    with pytest.raises(NothingToResume, match=r"(?s)none can be read .*:\n  far: step_0000000001/meta.json: ") as told:
        again.open(tmp_path / "root", far(tmp_path))
    assert "kept: all checkpoints" in str(told.value)
    assert [event.id for event in again.told.of(PassedOver)] == [
        f"step_{step:010d}/meta.json on far" for step in (1, 2)
    ]
    with again.open(tmp_path / "root", far(tmp_path), resume="never") as run:  # as it says
        assert run.resumed is None


def test_damaged_manifests_of_a_tier_keep_no_start_from_what_the_root_has(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    damage(tmp_path, 1)
    again = Training()
    with again.open(tmp_path / "root", far(tmp_path)) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (1, "ssd")
    assert [event.id for event in again.told.of(PassedOver)] == ["step_0000000001/meta.json on far"]


def answers_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trouble(key: str) -> None:
        if f"{NEWEST}/meta" in key:
            raise Unreachable(key, "it answers 503")

    monkeypatch.setattr(mementum.places, "_open_behind", lambda url, options: Far(tmp_path / "far", trouble))


def is_of_a_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder_of(tmp_path / "far", 3) / "meta.json"
    data = path.read_bytes()
    head, _, tail = data.replace(b'"format": 1', b'"format": 99').rpartition(json.loads(data)["digest"].encode())
    path.write_bytes(head + manifests.digest(head + manifests.ZEROS.encode() + tail).encode() + tail)


@pytest.mark.parametrize(
    ("spoil", "error"), [(answers_503, "it answers 503"), (is_of_a_newer_format, "has format 99, this mementum reads")]
)
def test_a_manifest_on_a_tier_that_cannot_be_read_now_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None], error: str
) -> None:
    trained(tmp_path, 3)
    shutil.rmtree(folder_of(tmp_path / "root", 3))
    spoil(tmp_path, monkeypatch)
    again = Training()
    with again.open(tmp_path / "root", far(tmp_path)) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (2, "ssd")
    told = again.told.of(Failed)[0]
    assert (told.what, error in told.error) == ("asking the tier far", True)


@pytest.mark.parametrize("spoil", [answers_503, is_of_a_newer_format])
def test_on_a_new_machine_nothing_is_begun_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None]
) -> None:
    trained(tmp_path, 3)
    shutil.rmtree(tmp_path / "root")
    spoil(tmp_path, monkeypatch)
    with pytest.raises(NothingToResume, match="far has the task, and could not be read"):
        Training().open(tmp_path / "root", far(tmp_path))
    with Training().open(tmp_path / "root", far(tmp_path), resume="never") as run:
        assert run.resumed is None


@pytest.mark.parametrize("older", [True, False])
def test_damage_that_is_found_while_reading_asks_the_tiers_again(tmp_path: Path, older: bool) -> None:
    """The root's newest is damaged, and nobody knows; a tier has a newer one than the root's next, if it has one."""
    trained(tmp_path, 3, keep_last=9)
    shutil.rmtree(folder_of(tmp_path / "far", 3))
    shutil.rmtree(folder_of(tmp_path / "root", 2))
    if not older:
        shutil.rmtree(folder_of(tmp_path / "root", 1))
    damaged = entries(tmp_path / "root")[3].manifest.id
    flip(home_of(tmp_path / "root"), f"{NEWEST}/optimizer.blocks")
    again = Training()
    with again.open(tmp_path / "root", far(tmp_path), keep_last=9) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (2, "far")
    assert [event.step for event in again.told.of(Fetched)] == [2]
    assert [event.id for event in again.told.of(PassedOver)] == [damaged]


def test_what_has_grown_old_in_the_root_is_fetched_from_a_tier_that_has_all_of_it(tmp_path: Path) -> None:
    first = trained(tmp_path, 2, keep_last=9)
    store, dropped = home_of(tmp_path / "root"), list[Any]()
    for entry in entries(tmp_path / "root").values():
        done = wither(
            entry,
            (0, 2),
            reason="old",
            home="h",
            store=store,
            catalog=open_sqlite(None),
            emit=dropped.append,
            require_newest=nobody,
        )
        assert isinstance(done, Manifest)
    assert len([event for event in dropped if isinstance(event, Withered)]) == 2
    again = Training()
    with again.open(tmp_path / "root", far(tmp_path), keep_last=9) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier, run.resumed.rung) == (2, "far", "exact")
        assert again.state() == first.state()
    assert [event.step for event in again.told.of(Fetched)] == [2]
    assert entries(tmp_path / "root")[2].manifest.levels == (0, 1, 2)


class Skipping(SystemClock):
    """A clock whose sleeps take no time; those of the thread that made it are counted."""

    def __init__(self) -> None:
        self.slept_s, self.waited_s, self.thread = 0.0, 0.0, threading.get_ident()

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s += duration_s
        if threading.get_ident() == self.thread:
            self.waited_s += duration_s


def test_a_repair_at_a_start_asks_a_dead_tier_promptly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 2)
    flip(home_of(tmp_path / "root"), "step_0000000002/optimizer.blocks")
    dead: list[str] = []

    def dies(key: str) -> None:
        if dead or key.endswith("optimizer.blocks"):  # when the repair asks for what is good there
            dead.append(key)
            raise Unreachable(key, "no connection")

    store = Far(tmp_path / "far", dies)
    monkeypatch.setattr(mementum.places, "_open_behind", lambda url, options: store)
    again, clock = Training(), Skipping()
    with again.open(tmp_path / "root", {"url": "redis://far/0", "name": "far"}, clock=clock) as run:
        waited_s, store.trouble = clock.waited_s, lambda key: None
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (1, "ssd")
    assert dead
    assert 0 < waited_s <= START_PATIENCE_S
    failure = again.told.of(Failed)[0]
    assert (failure.what.startswith("repairing"), "far does not answer" in failure.error) == (True, True)


@pytest.mark.parametrize("size", [900, 1500, 2000])
def test_all_copies_to_a_tier_keep_its_rate_together(size: int) -> None:
    clock, copies = ManualClock(), 20
    site = Site(Tier(url="/far", rate=1000.0), LocalStore(SimDisk(), "far"), clock=clock)
    site.home = "20261130/t_000001"
    for number in range(copies):
        site.store.put(f"step_{number:010d}/model.blocks", [bytes(size // 10)] * 10)
        clock.sleep(0.1)  # what else there is to do for one
    assert clock.monotonic() >= copies * size / 1000.0 - BURST_S


class AgainstTheMachine:
    """Saves every step, the first two against the loss of the machine."""

    def decide(self, situation: Situation) -> Save:
        return Save(reason="test", reach=Reach.MACHINE if situation.step <= 2 else Reach.REBOOT)


def test_a_start_offers_a_tier_the_newest_that_is_due_there(tmp_path: Path) -> None:
    wishes = {"policy": AgainstTheMachine(), "every_steps": None}
    Training().run(tmp_path / "root", 4, **wishes)
    again = Training()
    with again.open(tmp_path / "root", {**far(tmp_path), "reach": "machine", "take": "due"}, **wishes) as run:
        assert run._background._forwarding.drain(WAIT_S)
    assert [event.step for event in again.told.of(Placed)] == [2]
    assert sorted(entries(tmp_path / "far")) == [2]
