"""Landing: a snapshot becomes a checkpoint on the run's own disk, where there is room for it or room can be made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from shlex import quote

from mementum.clock import Clock
from mementum.config.tiers import Watermarks
from mementum.decide.protection import is_exact
from mementum.errors import MementumError, StoreError
from mementum.events import Emit, SaveSkipped
from mementum.execute.snapshot import Snapshot
from mementum.execute.stills import Stills
from mementum.opening import Opened
from mementum.records import Manifest
from mementum.saving import Describe, save_checkpoint
from mementum.storage.local import is_full
from mementum.storage.pace import Pace
from mementum.tidying import Tidying
from mementum.watermarks import URGENT, Level, marks_of

BESIDE = 256 << 10  # bytes of a checkpoint beside its tensors: manifest, index, context, and facts about it


class Landing:
    """On the worker's thread."""

    def __init__(
        self,
        opened: Opened,
        tidying: Tidying,
        stills: Stills,
        pace: Pace | None,
        require_newest: Callable[[], None],
        emit: Emit,
    ) -> None:
        self._opened, self._tidying, self._require_newest = opened, tidying, require_newest
        self._stills, self._pace, self._emit = stills, pace, emit

    def save(self, snapshot: Snapshot, describe: Describe) -> Manifest | None:
        """None if there is no room for it, and it can wait: that was told. What goes wrong is raised."""
        coming = coming_with(snapshot)
        why = self._tidying.make_room(coming, self._require_newest)
        if why is not None and snapshot.save.cause not in URGENT:
            self._emit(SaveSkipped(step=snapshot.step, reason=why))
            return None
        opened = self._opened
        save = partial(
            save_checkpoint,
            snapshot,
            home=opened.home,
            store=opened.store,
            catalog=opened.catalog,
            describe=describe,
            emit=self._emit,
            require_newest=self._require_newest,
            stills=self._stills,
            pace=self._pace,
        )
        try:
            return save()
        except StoreError as error:
            if not is_full(error) or not self._tidying.make_room_anyway(coming, self._require_newest):
                raise
        return save()


def level_of(opened: Opened, marks: Watermarks, *, clock: Clock, emit: Emit) -> Level:
    """How full the disk is on which a task's home lies."""
    root = opened.store.folder.removesuffix(f"/{opened.home}")
    try:
        entries = opened.catalog.entries(opened.home)
    except MementumError:  # the first save says how large one is
        entries = []
    return Level(
        root,
        opened.store.usage,
        marks_of(marks),
        full=max((entry.manifest.size for entry in entries if is_exact(entry)), default=0),
        next_command=f"`df -h {quote(root)}` shows the disk: give it room, or take pins back (`mementum unpin`)",
        clock=clock,
        emit=emit,
    )


def coming_with(snapshot: Snapshot) -> int:
    """Bytes that a save of it writes at most, if frozen tensors that are durable already are left out."""
    return BESIDE + sum(image.layout.raw_size for image in snapshot.images if not image.steady)
