"""What a person has removed, with who wanted it as a fact, beside a training that lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.catalog import facts, noted, plans, tasks
from mementum.catalog.sql import open_sqlite
from mementum.clearing import Cleared, bytes_over, clear_leftovers, forget_now, free, shared_out
from mementum.cli.pinning import pin
from mementum.clock import ManualClock
from mementum.decide.retain import Retention
from mementum.errors import NotReadableHere, StoreError
from mementum.execute.holdings import holdings, size_of
from mementum.format import manifest as manifests
from mementum.records import Entry
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Told

FROZEN_SIZE = 9 << 20  # a file of its own from 8 MiB on


class Home:
    """A task's home, and its catalog."""

    def __init__(self, root: Path) -> None:
        disk = PosixDisk()
        found = tasks.find(LocalStore(disk, str(root)), "t")
        assert found is not None
        self.root, self.home, self.store = root, found, LocalStore(disk, f"{root}/{found}")
        self.catalog, self.told = open_sqlite(None), Told()
        self.clock = ManualClock(now_s=1_796_000_000.0)

    def how(self, **given: Any) -> dict[str, Any]:
        return {"clock": self.clock, "emit": self.told, "dry_run": False, **given}

    def forget(self, retention: Retention, **given: Any) -> Cleared:
        return forget_now(self.store, self.home, self.catalog, retention, **self.how(**given))

    def free(self, need: int, **given: Any) -> Cleared:
        return free(self.store, self.home, self.catalog, need=need, **self.how(**given))

    def leftovers(self, **given: Any) -> Cleared:
        return clear_leftovers(self.root, "t", self.store, **self.how(**given))

    def entries(self) -> list[Entry]:
        return list(self.catalog.entries(self.home))

    def names(self) -> set[str]:
        return {stat.key for stat in self.store.list()}


def run_of(root: Path, *, frozen: bool = False) -> mementum.Run:
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(4, 4)})
    if frozen:
        model["body"] = torch.nn.Embedding(FROZEN_SIZE // 4 // 64, 64)
        model["body"].requires_grad_(False)
    optimizer = torch.optim.AdamW(model["head"].parameters())
    return mementum.open_run(root, task="t", model=model, optimizer=optimizer, every_steps=1, keep_last=None, slots=0)


def saved(run: mementum.Run, steps: int) -> None:
    for _ in range(steps):
        run.record(loss=1.0)
        run.wait()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Home]:
    with run_of(tmp_path) as run:
        saved(run, 5)
    found = Home(tmp_path)
    yield found
    found.catalog.close()


def steps(entries: list[Entry]) -> list[int]:
    return [entry.manifest.step for entry in entries]


def test_a_dry_run_tells_and_touches_nothing(task: Home) -> None:
    before = task.names()
    found = task.forget(Retention(last=2), dry_run=True)
    assert [verdict.keep for verdict in found.verdicts] == [True, True, False, False, False]
    assert found.freed == sum(entry.manifest.size for entry in found.entries[:3])
    assert task.names() == before
    assert task.told == []
    assert task.free(1, dry_run=True).freed > 0
    assert task.names() == before


def test_who_removed_it_is_a_fact_before_it_goes(task: Home) -> None:
    done = task.forget(Retention(last=2), by="me@here")
    assert steps(task.entries()) == [4, 5]
    (stat,) = task.store.list("facts/")
    told = facts.parse(task.store.get(stat.key))
    assert [(fact.kind, fact.checkpoint, dict(fact.values)) for fact in told] == [
        ("removed", verdict.id, {"reason": "older than the newest 2", "by": "me@here"})
        for verdict in done.verdicts
        if not verdict.keep
    ]
    assert all(verify(task.store, entry.folder, entry.manifest, deep=True) == () for entry in task.entries())
    again = task.forget(Retention(last=2))
    assert (again.freed, [verdict.keep for verdict in again.verdicts]) == (0, [True, True])
    assert len(list(task.store.list("facts/"))) == 1  # nothing was done, and nothing is said


def test_who_it_is_where_nobody_says(task: Home) -> None:
    task.free(1)
    (stat,) = task.store.list("facts/")
    (fact,) = facts.parse(task.store.get(stat.key))
    assert fact.values["by"] == noted.person()
    assert "@" in noted.person()


def test_room_is_made_and_what_is_missing_is_told(task: Home) -> None:
    found = task.free(1 << 40, dry_run=True)
    assert found.missing == (1 << 40) - found.freed
    assert [verdict.keep for verdict in found.verdicts] == [True, False, False, False, False]
    one = min(entry.manifest.size for entry in found.entries)
    done = task.free(one)
    assert (done.missing, one <= done.freed < 2 * one) == (0, True)
    assert len(task.entries()) == 4
    assert steps(task.entries())[-1] == 5


def test_beside_a_training_that_lives(tmp_path: Path) -> None:
    with run_of(tmp_path) as run:
        saved(run, 4)
        task = Home(tmp_path)
        task.forget(Retention(last=1))
        assert steps(task.entries()) == [4]
        task.store.put("step_0000000099/optimizer.blocks", [b"a save in progress"])
        held = task.leftovers()
        assert held.leftovers == ("step_0000000099/optimizer.blocks",)
        assert held.held is not None
        assert "is being trained by process" in held.held
        assert "step_0000000099/optimizer.blocks" in task.names()
        saved(run, 2)
    with run_of(tmp_path) as run:
        assert run.step == 6
    assert steps(task.forget(Retention(last=None), dry_run=True).entries and task.entries()) == [4, 5, 6]
    task.catalog.close()


def test_leftovers_of_the_dead_go(task: Home) -> None:
    key = "step_0000000099/optimizer.blocks"
    task.store.put(key, [b"half a save"])
    assert task.leftovers(dry_run=True) == Cleared(verdicts=(), entries=(), freed=11, leftovers=(key,))
    assert key in task.names()
    assert task.leftovers() == Cleared(verdicts=(), entries=(), freed=11, leftovers=(key,))
    assert key not in task.names()
    attempts = len(list(task.store.list("attempts/")))
    assert task.leftovers() == Cleared(verdicts=(), entries=(), freed=0)
    assert len(list(task.store.list("attempts/"))) == attempts  # nothing to do, and no attempt for it


def test_what_a_rollback_goes_back_to_stays(task: Home) -> None:
    found = task.forget(Retention(last=None), dry_run=True)
    first = found.entries[0].manifest
    plan = plans.Plan(target=first.id, step=1, after_seq=99, attempt=1, why="x", time="2026-11-30T00:00:00.000000Z")
    plans.write(task.store, "c1", plan)
    done = task.forget(Retention(last=1))
    assert steps(task.entries()) == [1, 5]
    assert done.verdicts[-1].reason == "a rollback that is planned goes back to it"


def test_frozen_weights_come_free_with_their_last_name(tmp_path: Path) -> None:
    with run_of(tmp_path, frozen=True) as run:
        saved(run, 3)
    task = Home(tmp_path)
    found = task.forget(Retention(last=1), dry_run=True)
    assert found.freed < FROZEN_SIZE / 10
    blobs = holdings(found.entries, task.store)
    frozen = {blob.key for entry in found.entries for blob in blobs[entry.folder] if blob.size >= FROZEN_SIZE}
    assert len(frozen) == 1
    done = task.free(FROZEN_SIZE)
    assert done.missing == FROZEN_SIZE - done.freed
    assert steps(task.entries()) == [3]
    assert size_of(task.store, f"{task.entries()[0].folder}/model.frozen.safetensors") is not None
    assert size_of(task.store, "nothing") is None
    task.catalog.close()


def test_beside_what_a_newer_mementum_wrote_nothing_is_removed(task: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = task.forget(Retention(last=None), dry_run=True).entries[0]
    with monkeypatch.context() as newer:
        newer.setattr(manifests, "PLAIN", 9)
        task.store.put("step_0000000001-2/meta.json", [manifests.render(entry.manifest)])
    before = task.names()
    with pytest.raises(NotReadableHere):
        task.forget(Retention(last=1))
    assert task.names() == before


def test_how_much_is_over(tmp_path: Path) -> None:
    assert bytes_over(tmp_path, 1.0) == 0
    assert bytes_over(tmp_path, 1e-9) > 0
    assert shared_out(100, (300, 100, 0)) == (75, 25, 0)
    assert shared_out(100, (0, 0)) == (0, 0)
    assert sum(shared_out(10, (1, 1, 1))) >= 10


def test_what_cannot_go_stays_listed_and_is_said(task: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes: in the catalog, on the disk, and in what the facts say."""
    third = task.forget(Retention(last=5), dry_run=True).entries[2]
    delete = LocalStore.delete

    def stubborn(store: LocalStore, key: str) -> None:
        if key.startswith(third.folder):
            raise StoreError(key, f"{key}: no permission")
        delete(store, key)

    monkeypatch.setattr(LocalStore, "delete", stubborn)
    before = {entry.folder for entry in task.entries()}
    done = task.forget(Retention(last=1), by="me@here")
    why = f"{third.folder}/meta.json: no permission"
    assert [(verdict.keep, verdict.reason) for verdict in done.verdicts] == [
        (True, "one of the newest 1"),
        (False, "older than the newest 1"),
        (True, why),
        (False, "older than the newest 1"),
        (False, "older than the newest 1"),
    ]
    assert done.freed == sum(entry.manifest.size for entry in done.entries if entry.manifest.step in (1, 2, 4))
    assert steps(task.entries()) == [3, 5]
    assert {key.partition("/")[0] for key in task.names()} & before == {entry.folder for entry in task.entries()}
    found = [fact for stat in task.store.list("facts/") for fact in facts.parse(task.store.get(stat.key))]
    said = [(fact.kind, fact.checkpoint) for fact in found]
    assert sorted(kind for kind, _ in said) == ["removed"] * 4 + ["stayed"]
    (stayed,) = [fact for fact in found if fact.kind == "stayed"]
    assert (stayed.checkpoint, dict(stayed.values)) == (third.manifest.id, {"why": why})


def test_where_the_catalog_refuses_what_went_is_said(task: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    forget = task.catalog.forget
    task.forget(Retention(last=5), dry_run=True)
    third = task.entries()[2]

    def refuse(home: str, folder: str) -> None:
        if folder == third.folder:
            raise StoreError("catalog.db", "the database is locked")
        forget(home, folder)

    monkeypatch.setattr(task.catalog, "forget", refuse)
    with pytest.raises(StoreError, match="locked") as caught:
        task.forget(Retention(last=1))
    assert caught.value.kept == "all that is to be kept; 2 of the 4 that are not have gone"
    assert caught.value.next_command == "mementum ls ROOT shows what is left; then the same again"
    found = [fact for stat in task.store.list("facts/") for fact in facts.parse(task.store.get(stat.key))]
    assert len([fact for fact in found if fact.kind == "stayed"]) == 2
    assert all(verify(task.store, entry.folder, entry.manifest, deep=True) == () for entry in task.entries())
    assert not any(key.startswith(("step_0000000001/", "step_0000000002/")) for key in task.names())


def test_a_pin_that_comes_while_others_go_is_heard(task: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the command, which tells the catalog of it: by that alone nobody could tell that it is new."""
    delete, said = LocalStore.delete, list[int]()

    def pinned_first(store: LocalStore, key: str) -> None:
        if key.startswith("step_") and not said:
            said.append(pin(str(task.root), "t@3", why="the paper's figure", by="me", as_json=False))
        delete(store, key)

    monkeypatch.setattr(LocalStore, "delete", pinned_first)
    done = task.forget(Retention(last=1))
    assert said == [0]
    assert steps(task.entries()) == [3, 5]
    assert [verdict.reason for verdict in done.verdicts][2] == "pinned: the paper's figure (me)"
