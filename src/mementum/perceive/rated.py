"""Rated: what the loss was when the learning rate was last as high as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log2
from typing import Any

from mementum.perceive.level import Level

BANDS = 2  # to an octave of rates: a schedule is in each for a while, and the loss in one is of one level
RISEN = 3  # bands above what the rate was of late: 2.8 times
RECENT = 256  # looks within which the rate must have risen so: what comes later is no answer to it
MEMORY = 16  # losses that make the level of a band
LEAST = 4  # losses, before which a band has no level
WIDE = 3.0  # spreads above that level that single batches reach
BANDS_MAX = 64  # of which the level is kept: 32 octaves of rates


class Rated:
    """A schedule with warm restarts raises the rate to where it was before, and the loss with it: that is no trouble.
    The level of a band of rates counts once the rate has left it, so that what a rate set by mistake does is not
    compared with itself."""

    def __init__(self) -> None:
        self._looks = 0
        self._band: int | None = None
        self._level = Level(memory=MEMORY)  # of the band of now, and
        self._count = 0  # of how many losses that is
        self._levels: dict[int, float] = {}  # of bands that were left: what single batches reached
        self._seen: dict[int, int] = {}  # the look at which the rate was in a band last

    def look(self, lr: float | None, loss: float | None, *, learns: bool) -> None:
        """Take one step. `learns`: whether its loss is one that is trusted."""
        if lr is None or not 0.0 < lr < float("inf"):
            return
        self._looks += 1
        band = floor(BANDS * log2(lr))
        if band != self._band:
            self._leave()
            self._band = band
        self._seen[band] = self._looks
        if not learns:
            self._forget()
        elif loss is not None:
            self._level.learn(loss)
            self._count += 1

    def usual(self) -> float | None:
        """What the loss reached when the rate was as high as now; None where it has not risen of late, or was never as
        high."""
        now = self._band
        if now is None:
            return None
        low = max((seen for band, seen in self._seen.items() if band <= now - RISEN), default=None)
        if low is None or self._looks - low > RECENT:
            return None
        return next((self._levels[band] for band in sorted(self._levels) if band >= now), None)

    def state(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "looks": self._looks,
            "band": self._band,
            "level": self._level.state(),
            "count": self._count,
            "levels": [[band, level] for band, level in self._levels.items()],
            "seen": [[band, seen] for band, seen in self._seen.items()],
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._looks, self._band = int(state["looks"]), state["band"]
        self._level.apply(state["level"])
        self._count = int(state["count"])
        self._levels = {int(band): float(level) for band, level in state["levels"]}
        self._seen = {int(band): int(seen) for band, seen in state["seen"]}

    def _leave(self) -> None:
        """The rate goes to another band."""
        if self._band is not None and self._count >= LEAST:
            self._levels.pop(self._band, None)
            self._levels[self._band] = self._level.value + WIDE * self._level.spread
        self._forget()
        while len(self._seen) >= BANDS_MAX:  # a rate that jumps about: the band that was left longest ago says least
            oldest = min(self._seen, key=lambda band: self._seen[band])
            del self._seen[oldest]
            self._levels.pop(oldest, None)

    def _forget(self) -> None:
        self._level.forget()
        self._count = 0
