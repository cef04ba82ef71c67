"""Commit: puts the manifest. From that line on the checkpoint exists."""

from __future__ import annotations

import secrets

from mementum.errors import StoreError
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import Manifest
from mementum.storage.store import Store

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, small: no letter that looks like a digit


def new_id(now_s: float) -> str:
    """`c`, nine characters of milliseconds, seven of chance: sorts by time, never all digits, 17 characters."""
    return "c" + _base32(int(now_s * 1000), 9) + _base32(secrets.randbits(35), 7)


def _base32(number: int, width: int) -> str:
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(width)))


def require_owners(manifest: Manifest, store: Store) -> None:
    """StoreError if a checkpoint whose files this one names is gone, or on its way out. Who removes one takes its
    manifest away, and then looks for manifests that name its files; who names them puts his own, and then looks for
    that manifest: one of the two sees it."""
    for folder in dict.fromkeys(file.folder for file in manifest.files if file.folder is not None):
        if not generations.newest(stat.key for stat in store.list(f"{folder}/meta")):
            raise StoreError(
                folder,
                f"the checkpoint in {folder}, whose files it needs, was removed",
                kept="all other checkpoints",
                next_command="nothing: the next save does without it",
            )


def commit(manifest: Manifest, store: Store, folder: str) -> Manifest:
    """Make the checkpoint exist, or its next generation. Every file that the manifest names must be durable already."""
    store.put(f"{folder}/{generations.manifest_name(manifest.generation)}", [manifests.render(manifest)])
    return manifest
