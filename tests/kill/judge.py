"""Judges what a dead or finished training has left on the disk, with the product's own reading side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import trainer

from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.catalog.tasks import find
from mementum.execute.remove import orphans
from mementum.records import Entry
from mementum.recover.load import Loaded, load
from mementum.recover.verify import CONTEXT, verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def listed(root: Path) -> tuple[Entry, ...]:
    """All checkpoints that a catalog made anew lists, oldest first; each was read whole and has no damage."""
    store, home = _home(root)
    if store is None:
        return ()
    catalog = open_sqlite(None)
    try:
        unreadable = refresh(catalog, home, store)
        assert not unreadable, f"manifests that cannot be read: {unreadable}"
        entries = tuple(catalog.entries(home))
    finally:
        catalog.close()
    for entry in entries:
        assert entry.damaged is None, f"{entry.manifest.id} was marked as damaged: {entry.damaged}"
        damage = verify(store, entry.folder, entry.manifest, deep=True)
        assert not damage, f"{entry.manifest.id} is listed and damaged: {damage}"
    return entries


def check_death(root: Path, acknowledged: Iterable[str]) -> tuple[Entry, ...]:
    """What is listed after a kill, of which nothing is damaged and in which nothing acknowledged is missing."""
    entries = listed(root)
    missing = set(acknowledged) - {entry.manifest.id for entry in entries}
    assert not missing, f"acknowledged and not listed any more: {sorted(missing)}"
    return entries


def check_end(root: Path, straight: Path) -> None:
    """The last checkpoint is bit for bit that of the straight run, and nothing lies about that should not."""
    entries = listed(root)
    steps = [entry.manifest.step for entry in entries]
    assert steps[-1:] == [trainer.STEPS], f"the last checkpoints are of steps {steps}"
    assert len(steps) == trainer.KEEP_LAST, f"{trainer.KEEP_LAST} are to be kept, there are those of steps {steps}"
    leftovers = [str(path) for path in root.rglob("*.tmp")]
    assert not leftovers, f"unfinished files are left: {leftovers}"
    store, _ = _home(root)
    assert store is not None
    parts = orphans(store)
    assert not parts, f"parts that no manifest names are left: {parts}"
    folders = {stat.key.partition("/")[0] for stat in store.list("step_")}
    assert folders == {entry.folder for entry in entries}, f"there are folders {sorted(folders)}"
    _compare(_last(root, entries), _last(straight, listed(straight)))


def _compare(ours: tuple[Loaded, bytes], theirs: tuple[Loaded, bytes]) -> None:
    (loaded, context), (expected, expected_context) = ours, theirs
    assert loaded.tensors.keys() == expected.tensors.keys(), f"there are {sorted(loaded.tensors)}"
    for component, tensors in expected.tensors.items():
        assert loaded.tensors[component].keys() == tensors.keys(), f"{component} has other tensors"
        for name, tensor in tensors.items():
            mine = loaded.tensors[component][name]
            assert mine.dtype == tensor.dtype, f"{component}/{name} is {mine.dtype}"
            assert torch.equal(mine, tensor), f"{component}/{name} differs"
    for name in ("step", "epoch", "feed", "values"):
        assert loaded.context[name] == expected.context[name], f"{name} differs: {loaded.context[name]}"
    for name in ("python", "torch"):
        assert loaded.context["rng"][name] == expected.context["rng"][name], f"the generator of {name} differs"
    # numpy's generator, schedulers and the scaler too; how long steps took is remembered, and is another time each time
    assert _without_times(context) == _without_times(expected_context), "the context differs"


def _without_times(context: bytes) -> dict[str, Any]:
    return {name: value for name, value in json.loads(context).items() if name != "perceived"}


def _last(root: Path, entries: tuple[Entry, ...]) -> tuple[Loaded, bytes]:
    """The newest checkpoint, read, and the bytes of its context."""
    store, _ = _home(root)
    assert store is not None
    newest = entries[-1]
    loaded = load(store, newest.folder, newest.manifest)
    assert isinstance(loaded, Loaded), f"{newest.folder} is damaged: {loaded}"
    name = next(file.name for file in newest.manifest.files if CONTEXT.fullmatch(file.name))
    return loaded, bytes(store.get(f"{newest.folder}/{name}"))


def _home(root: Path) -> tuple[LocalStore | None, str]:
    disk = PosixDisk()
    home = find(LocalStore(disk, str(root)), trainer.TASK)
    return (LocalStore(disk, f"{root}/{home}"), home) if home is not None else (None, "")
