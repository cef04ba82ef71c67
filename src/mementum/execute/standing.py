"""Standing capture: for machines with no memory for a copy. The loop stands still while the live state is written."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.execute.capture import Captured
from mementum.execute.gathered import Gathered
from mementum.execute.plan import RAW
from mementum.execute.snapshot import Image
from mementum.execute.structure import Reader
from mementum.live.component import Component


class StandingCapture:
    """A `Capture` that copies nothing: whoever writes fetches piece after piece, and the loop waits for it."""

    def __init__(self) -> None:
        self._reader = Reader(codec=RAW)

    def take(
        self, components: Sequence[Component], *, safe_seq: int | None = None, sure: bool = False
    ) -> Captured | None:
        reading = self._reader.read(components)
        images = tuple(
            Image(layout=layout, raw=Gathered(layout, reading, number))
            for number, layout in enumerate(reading.structure.layouts)
        )
        return Captured(images=images, components=reading.components, release=lambda: None, holds_up=True)

    size = 0  # nothing is copied

    def note(self, components: Sequence[Component]) -> None:
        """The state is read when it is written."""

    def warm(self, components: Sequence[Component]) -> None:
        """There is nothing to make."""

    def wait(self, timeout_s: float) -> bool:
        return True

    def unfreeze(self, names: Sequence[tuple[str, str]]) -> None:
        """Nothing is taken to be frozen here."""

    def close(self, *, safe_seq: int | None = None) -> None:
        """Nothing is held."""
