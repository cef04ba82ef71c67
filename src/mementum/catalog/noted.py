"""Noted: facts that say who took something away, the same whoever it was."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from mementum.catalog import facts
from mementum.catalog.plans import FOLDER
from mementum.records import Fact
from mementum.storage.store import Store

REMOVED, STAYED, AGED = "removed", "stayed", "aged"  # kinds of facts
POLICY = "policy"  # by which the retention of a run's settings is meant
AGE = "ageing"
ROOM = "room"  # the search for it, when a disk is nearly full


def removed(reason: str, *, by: str) -> Mapping[str, Any]:
    """The values of the fact that a checkpoint was removed, for this reason and by whom: POLICY, AGE, ROOM, or a person
    as `person` names them."""
    return {"reason": reason, "by": by}


def stayed(why: str) -> Mapping[str, Any]:
    """The values of the fact that a checkpoint of which it was said that it is removed is still there, and why."""
    return {"why": why}


def aged(reason: str, levels: Sequence[int], *, by: str) -> Mapping[str, Any]:
    """The values of the fact that of a checkpoint only `levels` are left."""
    return {"reason": reason, "levels": list(levels), "by": by}


def person() -> str:
    """Who runs this process, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = "somebody"
    return f"{user}@{platform.node() or 'localhost'}"


def from_outside(store: Store, id: str, found: Sequence[Fact]) -> None:
    """Make facts durable that no journal takes: a journal has one writer. `id`: new, sorts by time; the file's name.

    StoreError if the place refuses them."""
    store.put(f"{FOLDER}{id}.json", [facts.render(fact) for fact in found])
