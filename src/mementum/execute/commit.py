"""Commit: puts the manifest. From that line on the checkpoint exists."""

from __future__ import annotations

import secrets

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


def commit(manifest: Manifest, store: Store, folder: str) -> Manifest:
    """Make the checkpoint exist, or its next generation. Every file that the manifest names must be durable already."""
    store.put(f"{folder}/{generations.manifest_name(manifest.generation)}", [manifests.render(manifest)])
    return manifest
