"""A checkpoint in two places, and its repair in one from the other, for tests."""

from __future__ import annotations

from dataclasses import replace

from mementum.execute.transfer import Owners
from mementum.placing import AS_IT_IS, Copied, Form, place
from mementum.records import Entry
from mementum.recover.donors import Donor
from mementum.repairing import Intact, Repaired, Unrepairable, repair
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.testing.simdisk import SimDisk


def nobody() -> None:
    """No later attempt comes, and nothing stops it."""


def copy(entry: Entry, source: Store, target: Store, *, form: Form = AS_IT_IS, owners: Owners | None = None) -> Entry:
    done = place(
        entry, source=source, target=target, form=form, owners=owners, require_newest=nobody, pause=lambda: None
    )
    assert isinstance(done, Copied), done
    return replace(entry, manifest=done.manifest, folder=done.folder)


def mend(entry: Entry, store: Store, *donors: Store, dry_run: bool = False) -> Intact | Repaired | Unrepairable:
    return repair(
        entry,
        store=store,
        donors=[Donor(name=f"donor {number}", store=donor) for number, donor in enumerate(donors)],
        require_newest=nobody,
        pause=lambda: None,
        dry_run=dry_run,
    )


def flip(store: Store, key: str, at: int = -5) -> None:
    data = bytearray(store.get(key))
    data[at] ^= 1
    store.replace(key, [bytes(data)])


def two() -> tuple[LocalStore, LocalStore]:
    return LocalStore(SimDisk(), "near"), LocalStore(SimDisk(), "far")
