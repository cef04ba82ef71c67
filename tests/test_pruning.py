"""Retention never takes the newest, whatever steps and clocks say, and a resume passes over what is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.catalog.sql import open_sqlite
from mementum.errors import NothingToResume, UsageError
from mementum.events import Committed, Event, Failed, PassedOver, PhaseBegan, PhaseEnded, Removed, Swept
from mementum.format import manifest as manifests
from mementum.pruning import prune, sweep
from mementum.records import Entry, Granularity, Health, Manifest, StoredFile, Verdict
from mementum.storage.around import Around
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

HOME = "20261130/t_000001"


class Stopped(Exception):
    """Ends a run as a fault would: without a last save."""


def train(root: Path, steps: Sequence[int], *, before: Callable[[int], None] = lambda step: None, **given: Any) -> Any:
    """Save at each of `steps`, one after the other, each durable before the next; what was resumed."""
    model = torch.nn.Linear(2, 2)
    given = {"every_steps": 1, "keep_last": 3, "config": {"keep_best": 0}, **given}
    try:
        with mementum.open_run(root, task="t", model=model, **given) as run:
            for step in steps:
                before(step)
                with torch.no_grad():
                    model.bias.fill_(step)
                run.record(step=step, loss=float(step))
                assert run.wait(60)
            raise Stopped
    except Stopped:
        return run.resumed


def folders(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/*/step_*/meta.json"))


def saved(root: Path) -> list[int]:
    return sorted(manifests.parse((folder / "meta.json").read_bytes()).step for folder in folders(root))


def test_a21_the_newest_stays_whatever_its_number_is_as_text(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    events: list[Event] = []
    train(
        tmp_path, (9, 10, 11, 100), keep_last=1, on_event=events.append, before=lambda _: seen.append(saved(tmp_path))
    )
    assert seen == [[], [9], [10], [11]]
    assert saved(tmp_path) == [100]
    assert [event.step for event in events if isinstance(event, Removed)] == [9, 10, 11]
    assert train(tmp_path, ()).step == 100


@pytest.mark.parametrize("steps", [(100, 9, 10), (1000, 999, 998, 1), (11, 10, 9)])
def test_a21_the_newest_is_the_last_saved_even_at_a_lower_step(tmp_path: Path, steps: tuple[int, ...]) -> None:
    train(tmp_path, steps, keep_last=1, policy=EveryTime(), every_steps=None)
    assert saved(tmp_path) == [steps[-1]]
    assert train(tmp_path, ()).step == steps[-1]


class EveryTime:
    """A policy that always saves."""

    def decide(self, situation: object) -> mementum.records.Save:
        return mementum.records.Save(reason="always")


def test_a22_the_last_three_are_kept(tmp_path: Path) -> None:
    train(tmp_path, (8, 9, 10, 11, 12), keep_last=3)
    assert saved(tmp_path) == [10, 11, 12]


def test_a22_over_several_attempts(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11, 12):
        train(tmp_path, (step,), keep_last=3)
    assert saved(tmp_path) == [10, 11, 12]


@pytest.mark.parametrize("when", ["equal", "reversed", "future"])
def test_a23_times_of_files_do_not_matter(tmp_path: Path, when: str) -> None:
    train(tmp_path, (8, 9, 10), keep_last=3)
    for number, folder in enumerate(folders(tmp_path)):
        time_s = {"equal": 1e9, "reversed": 2e9 - 1000 * number, "future": 4e9}[when]
        for path in (*folder.iterdir(), folder):
            os.utime(path, (time_s, time_s))
    assert train(tmp_path, (11,), keep_last=3).step == 10
    assert saved(tmp_path) == [9, 10, 11]
    assert train(tmp_path, (12,), keep_last=1).step == 11
    assert saved(tmp_path) == [12]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


@pytest.mark.parametrize("harm", [remove, empty, flip])
@pytest.mark.parametrize("name", ["model.safetensors", "index-00000.json", "context-00000.json", "meta.json"])
@pytest.mark.parametrize("catalog", ["kept", "deleted"])
def test_a20_a_newer_one_that_is_damaged_is_passed_over(
    tmp_path: Path, name: str, harm: Callable[[Path], None], catalog: str
) -> None:
    train(tmp_path, (8, 9, 10))
    harm(folders(tmp_path)[-1] / name)
    if catalog == "deleted":
        for path in tmp_path.glob("catalog.db*"):
            path.unlink()
    events: list[Event] = []
    resumed = train(tmp_path, (), on_event=events.append)
    assert resumed.step == 9
    passed = [event for event in events if isinstance(event, PassedOver)]
    if (name, harm) == ("meta.json", remove):
        assert passed == []  # without its manifest it is no checkpoint
    else:
        assert passed
        assert all(name in event.what or name in event.id for event in passed)


def test_a_retention_beside_a_damaged_newest_keeps_the_older_good_one(tmp_path: Path) -> None:
    train(tmp_path, (8, 9), keep_last=2)
    flip(folders(tmp_path)[-1] / "model.safetensors")
    assert train(tmp_path, (), keep_last=1).step == 8
    assert saved(tmp_path) == [8, 9]
    assert train(tmp_path, (), keep_last=1).step == 8  # it was marked: it is not read again before the good one
    assert train(tmp_path, (10,), keep_last=1).step == 8
    assert saved(tmp_path) == [9, 10]  # the damaged one is left for a person


def test_a_damaged_one_that_comes_back_is_the_last_resort(tmp_path: Path) -> None:
    train(tmp_path, (8, 9), keep_last=2)
    newest = folders(tmp_path)[-1] / "model.safetensors"
    data = newest.read_bytes()
    flip(newest)
    assert train(tmp_path, ()).step == 8
    newest.write_bytes(data)
    flip(folders(tmp_path)[0] / "model.safetensors")
    assert train(tmp_path, ()).step == 9


def test_if_none_is_whole_nothing_begins_silently_anew(tmp_path: Path) -> None:
    train(tmp_path, (8, 9))
    for folder in folders(tmp_path):
        empty(folder / "index-00000.json")
    with pytest.raises(NothingToResume, match="there are 2 checkpoints and none is whole"):
        train(tmp_path, ())
    assert len(folders(tmp_path)) == 2
    assert train(tmp_path, (1,), resume="never") is None


def test_steps_beyond_ten_digits_are_found_again(tmp_path: Path) -> None:
    """Some count tokens."""
    train(tmp_path, (9_999_999_999, 10_000_000_000, 15_000_000_000_000))
    assert train(tmp_path, ()).step == 15_000_000_000_000
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    assert train(tmp_path, ()).step == 15_000_000_000_000


@pytest.mark.parametrize("step", [1 << 62, 10**19, -1])
def test_steps_that_no_manifest_can_hold_are_refused(tmp_path: Path, step: int) -> None:
    with pytest.raises(UsageError, match="a step is"):
        train(tmp_path, (step,))
    assert folders(tmp_path) == []


def test_a_copy_of_the_newest_folder_does_not_take_the_newest_away(tmp_path: Path) -> None:
    train(tmp_path, (8, 9))
    newest = folders(tmp_path)[-1]
    shutil.copytree(newest, newest.with_name(f"{newest.name}-2"))
    assert train(tmp_path, (10,), keep_last=2).step == 9
    assert train(tmp_path, ()).step == 10
    flip(folders(tmp_path)[-1] / "model.safetensors")
    assert train(tmp_path, ()).step == 9


# The teller alone.


def manifest(seq: int) -> Manifest:
    return Manifest(
        id=f"c{seq}",
        seq=seq,
        task="t",
        attempt=1,
        parent=None,
        step=seq,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="asked",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(StoredFile(name="a.blocks", size=1),),
    )


def filled(*seqs: int) -> tuple[LocalStore, Any, list[Entry]]:
    store, catalog = LocalStore(SimDisk(), "root"), open_sqlite(None)
    for seq in seqs:
        folder = f"step_{seq:010d}"
        store.put(f"{folder}/a.blocks", [b"x"])
        store.put(f"{folder}/meta.json", [manifests.render(manifest(seq))])
        catalog.add(HOME, manifest(seq), folder)
    return store, catalog, list(catalog.entries(HOME))


def verdicts(**kept: bool) -> list[Verdict]:
    return [Verdict(id=id, keep=keep, reason=f"{id} told") for id, keep in kept.items()]


def test_the_oldest_goes_first_and_each_is_told() -> None:
    store, catalog, entries = filled(1, 2, 3)
    events: list[Event] = []
    prune(verdicts(c3=True, c2=False, c1=False), entries, home=HOME, store=store, catalog=catalog, emit=events.append)
    assert [stat.key for stat in store.list()] == ["step_0000000003/a.blocks", "step_0000000003/meta.json"]
    assert [entry.manifest.id for entry in catalog.entries(HOME)] == ["c3"]
    assert [(type(event), event.id) for event in events if isinstance(event, PhaseBegan | PhaseEnded | Removed)] == [
        *((PhaseBegan, id) for id in ("c1", "c2")),
        *((kind, id) for id in ("c1", "c2") for kind in (PhaseEnded, Removed)),
    ]
    assert events[3] == Removed(id="c1", step=1, reason="c1 told")


class Far(Around):
    """A place that takes a request for each look; those for manifests, by the folder."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self.asked += [key.partition("/")[0]] if "/meta" in key else []
        return super().get(key, start, size)

    def locate(self, key: str) -> Path | None:
        return None


def test_a_far_place_is_not_asked_for_manifests_that_are_known() -> None:
    store, catalog, entries = filled(*range(1, 31))
    far = Far(store)
    prune(verdicts(c2=False), entries, home=HOME, store=far, catalog=catalog, emit=_nothing)
    assert set(far.asked) == {"step_0000000002"}
    assert not list(store.list("step_0000000002/"))


def test_of_a_far_place_what_others_put_there_is_read() -> None:
    """One that is not known, and one whose manifest is another by now, name files of one that goes."""
    store, catalog, entries = filled(1, 2, 3)
    owned = StoredFile(name="a.blocks", size=1, folder="step_0000000001")
    store.put("step_0000000004/meta.json", [manifests.render(replace(manifest(4), files=(owned,)))])
    store.delete("step_0000000003/meta.json")
    store.put("step_0000000003/meta.json", [manifests.render(replace(manifest(3), id="c33"))])
    far = Far(store)
    prune(verdicts(c1=False), entries, home=HOME, store=far, catalog=catalog, emit=_nothing)
    assert set(far.asked) == {f"step_000000000{seq}" for seq in (1, 3, 4)}
    assert [stat.key for stat in store.list("step_0000000001/")] == ["step_0000000001/a.blocks"]


def test_without_a_verdict_nothing_is_removed() -> None:
    store, catalog, entries = filled(1, 2)
    prune([], entries, home=HOME, store=store, catalog=catalog, emit=_nothing)
    prune(verdicts(c9=False), entries, home=HOME, store=store, catalog=catalog, emit=_nothing)
    assert len(list(store.list())) == 4


def test_of_an_id_that_is_kept_once_nothing_is_removed() -> None:
    store, catalog, entries = filled(1)
    both = [*verdicts(c1=True), *verdicts(c1=False)]
    prune(both, entries * 2, home=HOME, store=store, catalog=catalog, emit=_nothing)
    assert len(list(store.list())) == 2


def test_the_catalog_forgets_before_the_store_does() -> None:
    """A removal that dies in the middle leaves no entry of what is half gone."""

    class Watched(Around):
        def delete(self, key: str) -> None:
            listed.append([entry.manifest.id for entry in catalog.entries(HOME)])
            super().delete(key)

    store, catalog, entries = filled(1, 2)
    listed: list[list[str]] = []
    prune(verdicts(c1=False), entries, home=HOME, store=Watched(store), catalog=catalog, emit=_nothing)
    assert listed == [["c2"], ["c2"]]


def test_a_sweep_takes_leftovers_and_says_which() -> None:
    store, _, _ = filled(1)
    store.put("step_0000000002/optimizer.blocks", [b"x"])
    store.put("step_0000000002/notes.txt", [b"x"])
    events: list[Event] = []
    assert sweep(store, emit=events.append) == ("step_0000000002/optimizer.blocks",)
    assert Swept(keys=("step_0000000002/optimizer.blocks",)) in events
    assert [stat.key for stat in store.list()] == [
        "step_0000000001/a.blocks",
        "step_0000000001/meta.json",
        "step_0000000002/notes.txt",
    ]
    events.clear()
    assert sweep(store, emit=events.append) == ()
    assert events == [PhaseBegan(phase="sweep"), PhaseEnded(phase="sweep")]


def test_another_checkpoint_in_the_folder_stays_and_is_told() -> None:
    """A later attempt has gone back, and saved where this one wants to remove."""
    store, catalog, entries = filled(1, 2, 3)
    store.delete("step_0000000001/meta.json")
    store.put("step_0000000001/meta.json", [manifests.render(replace(manifest(1), id="cother"))])
    events: list[Event] = []
    given: dict[str, Any] = {"home": HOME, "store": store, "catalog": catalog, "emit": events.append}
    prune(verdicts(c3=True, c2=False, c1=False), entries, **given)
    assert [stat.key for stat in store.list("step_0000000001")] == [
        "step_0000000001/a.blocks",
        "step_0000000001/meta.json",
    ]
    assert [event.id for event in events if isinstance(event, Removed)] == ["c2"]
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.what, failed.kept) == ("removing c1", "all that lies in its folder")
    assert failed.error == "step_0000000001/meta.json is not the manifest of c1"
    assert [entry.manifest.id for entry in catalog.entries(HOME)] == ["c1", "c3"]  # a refresh will tell


def test_a_sweep_takes_what_a_settling_left() -> None:
    store, _, _ = filled(1)
    store.put("step_0000000001/optimizer-2.blocks", [b"x"])
    store.put("step_0000000001/optimizer.blocks", [b"x"])
    events: list[Event] = []
    assert sweep(store, emit=events.append) == (
        "step_0000000001/optimizer-2.blocks",
        "step_0000000001/optimizer.blocks",
    )
    assert [stat.key for stat in store.list()] == ["step_0000000001/a.blocks", "step_0000000001/meta.json"]


def test_a_file_of_the_users_outlives_the_checkpoint_it_lies_beside(tmp_path: Path) -> None:
    train(tmp_path, (8,))
    mine = folders(tmp_path)[0] / "x.safetensors"
    mine.write_bytes(b"mine")
    train(tmp_path, (9,), keep_last=1)
    train(tmp_path, (10,), keep_last=1)
    assert saved(tmp_path) == [10]
    assert [path.name for path in mine.parent.iterdir()] == ["x.safetensors"]
    assert mine.read_bytes() == b"mine"


def test_a_checkpoint_is_told_when_it_is_durable(tmp_path: Path) -> None:
    events: list[Event] = []
    train(tmp_path, (3,), on_event=events.append)
    (committed,) = [event for event in events if isinstance(event, Committed)]
    (folder,) = folders(tmp_path)
    assert (committed.step, committed.id) == (3, manifests.parse((folder / "meta.json").read_bytes()).id)
    assert committed.size == sum(path.stat().st_size for path in folder.iterdir() if path.name != "meta.json")


def _nothing(event: Event) -> None:
    """Nobody listens."""
