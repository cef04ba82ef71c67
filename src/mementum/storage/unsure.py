"""Puts to a server whose outcome nobody knows: the answer was lost, and the object may be there, or come."""

from __future__ import annotations

import threading
from collections import OrderedDict

UNSURE_MAX = 1024  # keys; a tier has a few at a time, and a forgotten one costs a conflict that a later save goes round


class Unsure:
    """Which numbers of ours an object of a key may bear. Threads may share it.

    Every put leaves a number of its own with its object. A put whose answer was lost is tried again, perhaps much
    later, and finds the key taken: by itself, which is success, or by another writer, which is a conflict.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, key: str, number: str) -> None:
        """A put of `key` with this number may have succeeded."""
        with self._lock:
            self._numbers[key] = self._numbers.pop(key, frozenset()) | {number}
            if len(self._numbers) > UNSURE_MAX:
                self._numbers.popitem(last=False)

    def of(self, key: str) -> frozenset[str]:
        """The numbers of such puts; none for nearly all keys."""
        with self._lock:
            return self._numbers.get(key, frozenset())

    def forget(self, key: str) -> None:
        """It is known now what became of them."""
        with self._lock:
            self._numbers.pop(key, None)
