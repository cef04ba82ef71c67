"""What a run on a new machine brings home from its tiers, and what keeps it from beginning at nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mementum.places
from mementum.catalog import tasks
from mementum.cli.main import app
from mementum.clock import ManualClock
from mementum.config.tiers import Tier
from mementum.errors import NothingToResume, StoreError, Unreachable
from mementum.events import Displaced, Failed, Fetched, Placed
from mementum.places import HICCUP_S, STALL_S, START_ATTEMPTS, Site
from mementum.records import Usage
from mementum.storage.around import Around
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Buffer, Stat, Store
from mementum.testing.simdisk import SimDisk
from tiered import TASK, Training, entries, home_of


class Far(Around):
    """A folder that is reached over a network, whose every `get` and look into folders `trouble` hears of first."""

    def __init__(self, folder: Path, trouble: Callable[[str], None]) -> None:
        super().__init__(LocalStore(PosixDisk(), str(folder)))
        self.trouble = trouble

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self.trouble(key)
        return super().get(key, start, size)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        self.trouble(prefix)
        return super().folders(prefix)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], dict[str, Any]]:
    """The settings of a tier that is far, and lies in the folder `far`."""

    def made(trouble: Callable[[str], None] = lambda key: None) -> dict[str, Any]:
        store = Far(tmp_path / "far", trouble)
        monkeypatch.setattr(mementum.places, "_open_behind", lambda url, options: store)
        return {"url": "redis://far/0", "name": "far"}

    return made


def step_by_step(training: Training, root: Path, until: int, *tiers: dict[str, Any], **wishes: Any) -> None:
    with training.open(root, *tiers, **wishes) as run:
        while run.step < until:
            training.step(run)
            run.wait()
            assert run._background._forwarding.drain(20)


def test_one_hiccup_at_a_start_is_only_a_hiccup(tmp_path: Path, far: Any) -> None:
    step_by_step(Training(), tmp_path / "root", 2, far())
    shutil.rmtree(tmp_path / "root")
    calls: list[str] = []

    def once(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise Unreachable("", "connection reset")

    again = Training()
    with again.open(tmp_path / "root", far(once)) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run._opened.attempt.number) == (2, 2)
    assert again.told.of(Failed) == []


def test_numbers_go_on_behind_those_of_a_tier(tmp_path: Path) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far", "keep_last": 2}
    step_by_step(Training(), tmp_path / "root", 4, far)
    shutil.rmtree(tmp_path / "root")
    second = Training()
    step_by_step(second, tmp_path / "root", 2, far, resume="never")
    assert [event.step for event in second.told.of(Displaced)] == [3, 4]
    there = entries(tmp_path / "far")
    assert {step: (entry.manifest.attempt, entry.manifest.seq) for step, entry in there.items()} == {
        1: (2, 5),
        2: (2, 6),
    }


def test_a_full_disk_at_a_fetch_begins_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far"}
    step_by_step(Training(), tmp_path / "root", 2, far)
    shutil.rmtree(tmp_path / "root")
    put = LocalStore.put

    def full(self: LocalStore, key: str, chunks: Iterable[Buffer]) -> Stat:
        if self.folder.startswith(str(tmp_path / "root")) and "model" in key:
            raise StoreError(key, f"{key}: the disk is full")
        return put(self, key, chunks)

    monkeypatch.setattr(LocalStore, "put", full)
    again = Training()
    with pytest.raises(NothingToResume, match=r"(?s)of step 2, which could not be fetched:.*the disk is full") as told:
        again.open(tmp_path / "root", far)
    assert "start again when that is mended" in str(told.value)
    monkeypatch.undo()
    with again.open(tmp_path / "root", far) as run:  # as it says
        assert run.resumed is not None
        assert run.resumed.step == 2


def test_a_disk_without_room_for_it_is_found_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far"}
    step_by_step(Training(), tmp_path / "root", 2, far)
    entry = entries(tmp_path / "far")[2]
    shutil.rmtree(tmp_path / "root")
    free = entry.manifest.size - 1
    monkeypatch.setattr(LocalStore, "usage", lambda self: Usage(used=10, size=10 + free))
    again = Training()
    with pytest.raises(NothingToResume, match=r"from far: it needs .* GB, and the disk of .*root.* has .* GB free"):
        again.open(tmp_path / "root", far)
    assert list((tmp_path / "root").rglob("step_*")) == []
    free += 1
    with again.open(tmp_path / "root", far) as run:
        assert run.resumed is not None
        assert run.resumed.step == 2


@pytest.mark.parametrize("where", ["attempts", "facts", "journal"])
def test_a_full_disk_before_the_fetch_is_not_the_tiers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far"}
    step_by_step(Training(), tmp_path / "root", 2, far)
    if where == "facts":
        home_of(tmp_path / "far").put("facts/x.json", [b"{}\n"])
    shutil.rmtree(tmp_path / "root")
    put, append = LocalStore.put, LocalStore.append

    def refuse(self: LocalStore, key: str) -> None:
        if self.folder.startswith(str(tmp_path / "root")) and key.startswith(where):
            raise StoreError(key, f"{key}: the disk is full")

    def putting(self: LocalStore, key: str, chunks: Iterable[Buffer]) -> Stat:
        refuse(self, key)
        return put(self, key, chunks)

    def appending(self: LocalStore, key: str, data: bytes) -> None:
        refuse(self, key)
        append(self, key, data)

    monkeypatch.setattr(LocalStore, "put", putting)
    monkeypatch.setattr(LocalStore, "append", appending)
    with pytest.raises(StoreError, match="the disk is full"):
        Training().open(tmp_path / "root", far)


def test_a_tier_that_dies_at_a_fetch_is_not_waited_for_long(tmp_path: Path, far: Any) -> None:
    step_by_step(Training(), tmp_path / "root", 2, far())
    shutil.rmtree(tmp_path / "root")
    calls: list[str] = []

    def dies(key: str) -> None:
        if "model" in key or calls:
            calls.append(key)
            raise Unreachable(key, "no connection to it")

    with pytest.raises(NothingToResume, match="no connection to it"):
        Training().open(tmp_path / "root", far(dies))
    assert len(calls) == START_ATTEMPTS


def test_what_the_first_tier_cannot_give_comes_from_the_next(tmp_path: Path) -> None:
    near = {"url": str(tmp_path / "near"), "name": "near"}
    step_by_step(Training(), tmp_path / "root", 2, near)
    shutil.copytree(tmp_path / "near", tmp_path / "bad")
    for path in (tmp_path / "bad").rglob("step_*2/model.safetensors"):
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    shutil.rmtree(tmp_path / "root")
    again = Training()
    with again.open(tmp_path / "root", {"url": str(tmp_path / "bad"), "name": "bad"}, near) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (2, "near")
    assert [event.tier for event in again.told.of(Fetched)] == ["near"]
    (failed,) = [event for event in again.told.of(Failed) if event.what.startswith("fetching")]
    assert failed.what.endswith("of step 2 from bad")


def test_tiers_that_have_only_damage_are_not_passed_over(tmp_path: Path) -> None:
    far = {"url": str(tmp_path / "far"), "name": "far"}
    step_by_step(Training(), tmp_path / "root", 2, far)
    for path in (tmp_path / "far").rglob("model.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(tmp_path / "root")
    with pytest.raises(NothingToResume, match="none is whole"):
        Training().open(tmp_path / "root", far)
    with Training().open(tmp_path / "root", far, resume="never") as run:
        assert run.resumed is None


def test_only_the_best_of_all_tiers_is_fetched(tmp_path: Path) -> None:
    behind, ahead = {"url": str(tmp_path / "behind"), "name": "behind"}, {"url": str(tmp_path / "ahead")}
    training = Training()
    step_by_step(training, tmp_path / "root", 1, behind)
    step_by_step(training, tmp_path / "root", 3, {**ahead, "name": "ahead"})
    shutil.rmtree(tmp_path / "root")
    again = Training()
    with again.open(tmp_path / "root", behind, {**ahead, "name": "ahead"}) as run:
        assert run.resumed is not None
        assert run.resumed.step == 3
    assert [(event.step, event.tier) for event in again.told.of(Fetched)] == [(3, "ahead")]


def test_a_rollback_to_what_a_tier_alone_has(tmp_path: Path) -> None:
    root, far = tmp_path / "root", {"url": str(tmp_path / "far"), "name": "far"}
    step_by_step(Training(), root, 3, far, keep_last=5)
    for words in (["rollback", str(root), TASK, "--to", "2"], ["place", str(root), "--to", str(tmp_path / "far")]):
        assert CliRunner().invoke(app, words).exit_code == 0
    shutil.rmtree(root)
    again = Training()
    step_by_step(again, root, 3, far)
    assert [event.step for event in again.told.of(Fetched)] == [2]
    shutil.rmtree(root)
    after = Training()
    with after.open(root, far) as run:  # the plan was followed, as the tier shows
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.checkpoint) == (3, again.told.of(Placed)[-1].id)


def test_a_start_reads_each_manifest_once_and_no_journal_twice(tmp_path: Path, far: Any) -> None:
    step_by_step(Training(), tmp_path / "root", 5, far())
    shutil.rmtree(tmp_path / "root")
    asked: list[str] = []
    with Training().open(tmp_path / "root", far(asked.append), config={"scrub": "off"}) as run:
        assert run.resumed is not None
    folder = tasks.find(LocalStore(PosixDisk(), str(tmp_path / "far")), TASK)
    for prefix in ("journal/", "step_0000000003/meta"):
        keys = [key for key in asked if key.startswith(f"{folder}/{prefix}")]
        assert len(keys) == len(set(keys)) > 0


def test_a_site_is_silent_when_it_fails_hiccups_for_long_or_stalls() -> None:
    clock = ManualClock()
    site = Site(Tier(url="redis://far/0"), LocalStore(SimDisk(), "nowhere"), clock=clock)
    gone = iter([True, False, True, True, True])

    class Moody(Around):
        def list(self, prefix: str = "") -> Any:
            if next(gone):
                assert not site.silent
                raise Unreachable("", "it answers 503")
            return iter(())

    def ask() -> list[Stat]:
        store: Store = site._around(Moody(LocalStore(SimDisk(), "nowhere")), START_ATTEMPTS, 60.0)
        return list(store.list("x"))

    assert (ask(), site.silent) == ([], False)
    with pytest.raises(Unreachable):
        ask()
    assert not site.silent  # for as long as a hiccup may take
    clock.sleep(HICCUP_S)
    assert site.silent
    site.answered()
    assert not site.silent
    site.failed()
    assert site.silent
    site.answered()
    site._motion.stir()  # a call begins
    clock.sleep(STALL_S)
    assert not site.silent
    clock.sleep(1.0)
    assert site.silent
    site._motion.rest()
    assert not site.silent


def test_at_a_start_all_tiers_are_waited_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Training().run(tmp_path / "root", 2, {"url": str(tmp_path / "far"), "name": "far"})
    both = threading.Barrier(2)

    def silent(key: str) -> None:
        both.wait(20.0)  # BrokenBarrierError where one is asked after the other
        raise Unreachable(key, "it is silent")

    monkeypatch.setattr(mementum.places, "_open_behind", lambda url, options: Far(tmp_path / "nothing", silent))
    monkeypatch.setattr(mementum.places, "START_ATTEMPTS", 1)
    training = Training()
    tiers = [{"url": f"redis://{name}/0", "name": name} for name in ("one", "other")]
    with training.open(tmp_path / "root", *tiers) as run:
        assert run.resumed is not None
        failed = [event.what for event in training.told.of(Failed)]
        assert sorted(failed) == ["asking the tier one", "asking the tier other"]
        monkeypatch.setattr(both, "wait", lambda timeout_s: None)


def test_a_hiccup_at_the_end_of_a_run_costs_no_copy(tmp_path: Path, far: Any) -> None:
    wishes = far()
    site_store = mementum.places._open_behind("", {})
    put, failures = site_store.put, [2]

    def hiccups(key: str, chunks: Iterable[Buffer]) -> Stat:
        if "step_0000000001/model" in key and failures[0]:
            failures[0] -= 1
            raise Unreachable(key, "it answers 503")
        return put(key, chunks)  # type: ignore[no-any-return]

    site_store.put = hiccups  # type: ignore[method-assign]
    training = Training()
    with training.open(tmp_path / "root", wishes) as run:
        training.step(run)
        run.wait()
    assert ([event.step for event in training.told.of(Placed)], failures) == ([1], [0])
