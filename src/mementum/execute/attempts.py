"""The files of attempts: how they are named, and which there are."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from mementum.storage.store import Store

FOLDER = "attempts/"
KEY = re.compile(r"attempts/(\d{4,})\.json")
LEASE = re.compile(r"attempts/(\d{4,})\.lease-(\d{1,18})")
PASSING = re.compile(r"attempts/(\d{4,})\.(?:lease|look)-[^/]+")  # what only a living attempt, or its watcher, needs


def key_of(number: int) -> str:
    """Of the file that says who an attempt is."""
    return f"{FOLDER}{number:04d}.json"


def lease_key(number: int, count: int) -> str:
    """Of the file by which an attempt says for the `count`th time that it lives."""
    return f"{FOLDER}{number:04d}.lease-{count}"


def look_key(number: int) -> str:
    """Of a file that a watcher makes and takes away again."""
    return f"{FOLDER}{number:04d}.look-{secrets.token_hex(4)}"


def numbers(store: Store) -> list[int]:
    """Of all attempts so far, the newest first."""
    matches = (KEY.fullmatch(stat.key) for stat in store.list(FOLDER))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def newest_leases(store: Store) -> dict[int, int]:
    """Attempts that have a lease, and the count of its newest file."""
    newest: dict[int, int] = {}
    for number, count in leases(store):
        newest[number] = max(count, newest.get(number, 0))
    return newest


def leases(store: Store) -> Iterator[tuple[int, int]]:
    """Attempt and count of every lease file."""
    for stat in store.list(FOLDER):
        match = LEASE.fullmatch(stat.key)
        if match:
            yield int(match[1]), int(match[2])


def clear_before(store: Store, number: int) -> None:
    """Take away what attempts before `number` left that nobody waits for any more. Their claims stay."""
    for stat in tuple(store.list(FOLDER)):
        match = PASSING.fullmatch(stat.key)
        if match and int(match[1]) < number:
            store.delete(stat.key)
