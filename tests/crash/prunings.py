"""What a task does to take things away, beside `crash_workloads`: checkpoints that name files of others, and ageing."""

from __future__ import annotations

from crash_promises import folders_with_manifest, leftovers
from crash_saves import FOLDER, Process, id_of, number_of

from mementum.format.generations import key_of
from mementum.pruning import prune, sweep
from mementum.records import Entry, Manifest, Verdict
from mementum.recover.verify import read_manifest, verify
from mementum.rewriting import Unsettled
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk
from mementum.withering import wither
from references import refer


def entry_of(process: Process, number: int) -> Entry:
    (found,) = (one for one in process.catalog.entries(process.home) if number_of(one.manifest.id) == number)
    return found


def refer_to(process: Process, owner: int, number: int, *, step: int, linked: bool = False) -> None:
    held = entry_of(process, owner)
    given = {"store": process.store, "catalog": process.catalog, "home": process.home}
    refer(held, id=id_of(number), seq=number, step=step, linked=linked, **given)  # type: ignore[arg-type]
    process.told.add(f"saved {number}")


def take(process: Process, *numbers: int) -> None:
    """Remove these, whatever a retention would say."""
    entries = process.catalog.entries(process.home)
    verdicts = [
        Verdict(id=one.manifest.id, keep=number_of(one.manifest.id) not in numbers, reason="asked") for one in entries
    ]
    prune(verdicts, entries, home=process.home, store=process.store, catalog=process.catalog, emit=process._hear)


def age(process: Process, number: int, *levels: int) -> Manifest | Unsettled:
    return wither(
        entry_of(process, number),
        levels,
        reason="asked",
        home=process.home,
        store=process.store,
        catalog=process.catalog,
        emit=process._hear,
        require_newest=lambda: None,
    )


def listed(disk: SimDisk) -> dict[int, Manifest]:
    """Every checkpoint that is there, each proved to its last byte."""
    store, found = LocalStore(disk, FOLDER), dict[int, Manifest]()
    for folder in sorted(set(folders_with_manifest(store))):
        manifest = read_manifest(store, folder)
        assert isinstance(manifest, Manifest), manifest
        assert verify(store, folder, manifest, deep=True) == (), folder
        found[number_of(manifest.id)] = manifest
    return found


def swept(disk: SimDisk) -> dict[int, Manifest]:
    """The same after the next start's sweep, which leaves nothing but what manifests name, be it in another folder."""
    sweep(LocalStore(disk, FOLDER), emit=lambda event: None)
    found = listed(disk)
    named = {key_of("", file) for manifest in found.values() for file in manifest.files if file.folder is not None}
    folders = {key.partition("/")[0] + "/" for key in named}
    assert [name for name in leftovers(disk) if name not in named | folders] == []
    return found
