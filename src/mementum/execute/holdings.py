"""Holdings: which bytes come free with which checkpoint, as the files say."""

from __future__ import annotations

from collections.abc import Iterable

from mementum.execute.plan import FROZEN
from mementum.records import Blob, Entry
from mementum.storage.store import Store


def holdings(entries: Iterable[Entry], store: Store) -> dict[str, tuple[Blob, ...]]:
    """By folder. Files of frozen weights that are one on the disk, with a name in each checkpoint, are one blob: only
    they are ever linked, so that no others are looked at."""
    return {
        entry.folder: tuple(_told_apart(blob, store) if blob.key.endswith(FROZEN) else blob for blob in entry.blobs)
        for entry in entries
    }


def size_of(store: Store, key: str) -> int | None:
    """Bytes of an object; None where there is none."""
    return next((stat.size for stat in store.list(key) if stat.key == key), None)


def _told_apart(blob: Blob, store: Store) -> Blob:
    path = store.locate(blob.key)
    try:
        seen = None if path is None else path.stat()
    except OSError:  # it is missing: a verification's affair
        return blob
    return blob if seen is None else Blob(key=f"{seen.st_dev}:{seen.st_ino}", size=blob.size)
