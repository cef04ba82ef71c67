"""Where the list of an object store has to begin, so that it need not tell all that a folder holds."""

from __future__ import annotations

import re

PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
PLAIN = re.compile(rf"(?:{PART}/)*{PART}")  # a path that the client hands on as it is
LAST = "~"  # sorted behind every sign that PART has


def before(path: str) -> str | None:
    """A name that is sorted before all those that begin with `path`, and behind most others that are. None where the
    client may change it on its way.

    Behind `step_0000000011~` follow those of step 12: between two neighbours there is nothing else of ours."""
    if not PLAIN.fullmatch(path):
        return None
    if path[-1] in "123456789":
        return path[:-1] + chr(ord(path[-1]) - 1) + LAST
    return path[:-1].rstrip("/") or None
