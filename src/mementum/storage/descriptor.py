"""Open descriptors that a forked child does not keep alive."""

from __future__ import annotations

import contextlib
import os


class Descriptor:
    """An open descriptor that a forked child must not keep alive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        open_here.add(self)

    @property
    def descriptor(self) -> int:
        assert self._descriptor is not None, "used after it was closed"
        return self._descriptor

    def close(self) -> None:
        open_here.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


# A flock belongs to the open file, which a forked child shares: a data worker that outlives its killed parent would
# hold the parent's locks for it. Only a hook of the whole process can close them in the child, hence this one piece of
# module state. It is a strong set, since a lock whose owner forgot it is held all the same.
open_here: set[Descriptor] = set()


def _close_in_child() -> None:
    for each in tuple(open_here):
        with contextlib.suppress(OSError):
            each.close()


os.register_at_fork(after_in_child=_close_in_child)
