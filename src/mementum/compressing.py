"""Compressing: the newest checkpoint, which landed raw, is compressed when the processor has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mementum.clock import Clock
from mementum.errors import MementumError
from mementum.events import Emit, Failed
from mementum.execute.compress import Pause
from mementum.execute.settler import SettleJob, Settler
from mementum.format.blocks import BLOCK
from mementum.opening import Opened
from mementum.settling import settle
from mementum.watermarks import Level

STOP_WAIT_S = 60.0  # for a compression that is at a block; after it, the block is the disk's to answer for


class Compressing:
    """Offers checkpoints of a task to the settler. `turn` is held by whoever removes or rewrites its checkpoints."""

    def __init__(
        self,
        opened: Opened,
        *,
        codec: str | None,
        require_newest: Callable[[], None],
        level: Level | None = None,
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`codec`: of optimizer state; None: everything stays as it landed. `level`: how full the disk is."""
        self._opened, self._codec, self._require_newest, self._level = opened, codec, require_newest, level
        self._clock, self._emit = clock, emit
        self._settler = Settler(emit=emit)
        self.turn = self._settler.turn

    def newest(self) -> None:
        """Have the newest checkpoint compressed; that costs nothing where it was done already. After `stop` nothing
        is."""
        opened, codec = self._opened, self._codec
        if codec is None:
            return
        try:
            entries = opened.catalog.entries(opened.home)
        except MementumError as error:  # nothing of a save, or of a start, depends on it
            kept = "all checkpoints, uncompressed"
            self._emit(Failed(what="looking for a checkpoint to compress", error=error.message, kept=kept))
            return
        if not entries:
            return
        work = partial(
            settle,
            entries[-1],
            home=opened.home,
            store=opened.store,
            catalog=opened.catalog,
            codec=codec,
            emit=self._emit,
            require_newest=self._require_newest,
            clock=self._clock,
            turn=self.turn,
        )
        what = f"compressing {entries[-1].manifest.id}"
        self._settler.offer(SettleJob(what=what, work=lambda pause: work(pause=self._where_room_is(pause))))

    def _where_room_is(self, pause: Pause) -> Pause:
        """Until it is done the old bytes and the new ones lie there: it ends where that is too much for the disk."""
        level = self._level
        return pause if level is None else lambda: pause() or level.short_of(BLOCK)

    def stop(self) -> None:
        """End at the next block. What is not compressed by now stays as it landed until the next start."""
        self._settler.stop(STOP_WAIT_S)
