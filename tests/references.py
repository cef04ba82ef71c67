"""Checkpoints that name files of another one, as deltas and frozen weights on object stores do, made by hand."""

from __future__ import annotations

from dataclasses import replace

from mementum.catalog.catalog import Catalog
from mementum.execute.commit import commit
from mementum.format import generations, index
from mementum.format.manifest import digest
from mementum.records import Entry, Index, Manifest, StoredFile
from mementum.recover.verify import INDEX
from mementum.storage.local import LocalStore


def refer(
    owner: Entry, *, id: str, seq: int, step: int, store: LocalStore, catalog: Catalog, home: str, linked: bool = False
) -> Entry:
    """A checkpoint with the tensors of `owner`. It names the owner's data files; with `linked` it has names of its own
    for them, of the same bytes."""
    folder, made = f"step_{step:010d}-{seq}", list[StoredFile]()
    for file in owner.manifest.files:
        key = generations.key_of(owner.folder, file)
        if file.digest is None:
            at = None if linked else file.folder or owner.folder
            if linked:
                assert store.link(key, f"{folder}/{file.name}")
            made.append(StoredFile(name=file.name, size=file.size, folder=at))
            continue
        data = bytes(store.get(key))
        if INDEX.fullmatch(file.name):
            data = index.render(_elsewhere(index.parse(data), None if linked else owner.folder))
        store.put(f"{folder}/{file.name}", [data])
        made.append(StoredFile(name=file.name, size=len(data), digest=digest(data)))
    named = {"id": id, "seq": seq, "step": step, "files": tuple(made)}
    # Its first generation brings what the owner's later ones brought, under the same names.
    manifest: Manifest = replace(owner.manifest, **named)
    commit(manifest, store, folder)
    catalog.add(home, manifest, folder)
    return Entry(manifest=manifest, folder=folder)


def _elsewhere(held: Index, folder: str | None) -> Index:
    """`folder`: the owner's; what it has from another one stays that one's. None: all files are its own."""
    return replace(held, files=tuple(replace(file, folder=folder and (file.folder or folder)) for file in held.files))
