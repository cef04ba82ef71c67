"""Copying: one copy of a state on its way, beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mementum.clock import Clock
from mementum.execute.capture import Prepared
from mementum.execute.device import DeviceCopy
from mementum.execute.structure import Bytes, Spot, Structure
from mementum.execute.witness import Watched, Witness, hold, what_happened, witness
from mementum.records import record

CHUNK = 4 << 20  # bytes that are copied at once: in between, the interpreter may be had by the training
REPLACED = "what the state consists of has changed since it was last saved"
UNBEGUN = "the copy was not begun"

Submit = Callable[[Callable[[], None]], None]


@record
class Split:
    """Which tensors of a reading are copied beside the training, by their numbers, and which at once."""

    structure: Structure
    loose: tuple[Spot, ...]
    watched: Watched
    beside: tuple[int, ...]
    on_device: tuple[int, ...]
    at_once: tuple[int, ...]


class Copying:
    """A copy on its way. It holds the memory that it reads, whatever becomes of the tensors meanwhile."""

    def __init__(
        self, split: Split, prepared: Prepared, *, verify: bool, sure: bool, submit: Submit, clock: Clock
    ) -> None:
        """`submit` has something done on the copying thread."""
        tensors, targets = prepared.reading.tensors, prepared.targets
        self._submit, self._unbegun = submit, threading.Lock()  # which whoever begins it takes, for good
        self._split, self._clock = split, clock
        self._tensors = [tensors[number] for number in split.beside]
        self._targets = [target for number in split.beside if (target := targets[number]) is not None]
        self._witness: Witness | None = witness(split.watched, self._tensors, verify=verify)
        self._changed: Callable[[], bool] | None = prepared.reading.changed
        # Whoever wants to be sure holds the memory from here on; otherwise that is the copying thread's to do.
        self._held = hold(self._tensors) if sure else None
        self._device = (
            DeviceCopy(
                [(tensors[number], target) for number in split.on_device if (target := targets[number]) is not None]
            )
            if split.on_device
            else None
        )
        self._left = threading.Event()  # nothing of the source is needed any more, but by a device's stream
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._held_back_s: float | None = None  # when the first step came that had to wait
        self._ended_s = self._whole_s = 0.0
        self._places: frozenset[int] | None = None  # of the memory that it reads, once it knows
        self.torn: str | None = None
        self.moved = False  # whether it was given up because the structure is not what it was

    def reads(self, address: int) -> bool:
        """Whether it still reads the memory that begins at this address."""
        return not self._left.is_set() and (self._places is None or address in self._places)

    def begin(self) -> None:
        """Have it done; twice is once. Late, since the copying thread and who saves would wait for each other: the
        interpreter is one thread's at a time, for milliseconds."""
        if not self._unbegun.acquire(blocking=False):
            return
        try:
            self._submit(self.run)
        except BaseException:  # no thread can be started
            self._end(UNBEGUN)
            raise

    def give_up(self) -> None:
        """If it has not begun, it never will."""
        if self._unbegun.acquire(blocking=False):
            self._end(UNBEGUN)

    def hold_back(self) -> None:
        """Wait until nothing of the source is needed any more. On a device its stream waits, not this thread."""
        self.begin()
        if self._device is not None:
            self._device.hold_back()
        if not self._left.is_set():
            if self._held_back_s is None:
                self._held_back_s = self._clock.monotonic()
            self._left.wait()

    def wait(self) -> None:
        """Wait until the copy is whole, on a device too."""
        self.begin()
        self._ended.wait()

    @property
    def under_way(self) -> bool:
        return not self._ended.is_set()

    def outcome(self) -> str | None:
        """Wait for the end; why the copy is of no use, or None. Raises what the copy has raised."""
        self.begin()
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.torn

    @property
    def usable(self) -> bool:
        """Whether the copy has ended well."""
        return self._ended.is_set() and self._error is None and self.torn is None

    def waited_s(self) -> float:
        """Seconds for which a step was held back, once the copy has ended."""
        return 0.0 if self._held_back_s is None else max(0.0, self._ended_s - self._held_back_s)

    def copied_at_s(self) -> float:
        """When the copy was whole, by the clock."""
        return self._whole_s

    def _end(self, why: str) -> None:
        self.torn = why
        self._leave()
        self._ended.set()

    def run(self) -> None:
        """Do it, on the copying thread."""
        try:
            assert self._witness is not None
            assert self._changed is not None
            watched, held = self._split.watched, self._held or hold(self._tensors)
            self._places = frozenset(held.places)
            # An address may be read from only if what lies there is held: a tensor may have been given other memory.
            if self._held is None and not watched.lie_there(self._tensors):
                self.moved, self.torn = True, REPLACED
                return
            if self._changed():
                self.moved, self.torn = True, REPLACED
                return
            if self._device is not None:
                self._device.issue()
            for spot, source, target in zip(watched.spots, watched.sources, self._targets, strict=True):
                copy_in_chunks(spot.name, source, target)
            self.torn = what_happened(self._witness, held, watched, self._targets)
            self._leave()
            if self._device is not None:
                self._device.finish()
        except Exception as error:  # a thread's end: kept, and raised in the save
            self._error = error
        finally:
            self._leave()
            self._whole_s = self._clock.monotonic()
            self._ended.set()

    def _leave(self) -> None:
        if not self._left.is_set():
            self._tensors, self._witness, self._changed, self._held = [], None, None, None
            self._ended_s = self._clock.monotonic()
            self._left.set()


def copy_in_chunks(name: str, source: Bytes, target: Bytes) -> None:
    """With numpy, not torch: torch would take the training's threads for it."""
    for start in range(0, source.size, CHUNK):
        target[start : start + CHUNK] = source[start : start + CHUNK]
