"""A watch that notices when no step has ended for far too long; it only tells, and never touches the training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from mementum.clock import Clock
from mementum.records import Alarm, Trouble

FACTOR = 20.0  # median steps: an evaluation or a slow batch of data takes that long, and is no hang
FLOOR_S = 300.0  # and no less: an evaluation of five minutes is common, and nobody is helped sooner
STOOD_STILL_S = 60.0  # a wake-up this late means that the whole process was stopped (Ctrl-Z, a frozen container)
CLOSE_S = 5.0  # for a `tell_alarm` in flight; the thread is a daemon and ends with the process
CHANCE = 0.5  # assumed: a silence this long is a hang, which is ended from outside, or an evaluation, which is not
HORIZON_S = 1800.0  # torch ends a collective that hangs after 10 (NCCL) or 30 minutes (gloo) by default

Waiter = Callable[[threading.Event, float], bool]


class Watch:
    """Told of each step by `beat`; calls `tell_alarm` from a thread of its own once an episode, when the silence is
    longer than `max(factor x median step, floor_s)`. The next beat ends the episode.

    `waiter` waits for an event or so many seconds, whichever is first, and says whether it was the event. In a fork
    it does nothing: the thread stays with the parent."""

    def __init__(
        self,
        tell_alarm: Callable[[Alarm], None],
        *,
        clock: Clock,
        waiter: Waiter = threading.Event.wait,
        factor: float = FACTOR,
        floor_s: float = FLOOR_S,
    ) -> None:
        self._tell_alarm, self._clock, self._waiter = tell_alarm, clock, waiter
        self._factor, self._floor_s = factor, floor_s
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._beat: tuple[int, float, float] | None = None  # step, when, limit: one reference, so it needs no lock
        self._told: tuple[int, float, float] | None = None  # the beat whose silence was told
        self._due_s: float | None = None  # when the thread was to wake up

    def beat(self, step: int, step_s: float | None) -> None:
        """A step has ended. `step_s`: the median duration of a step in seconds, None if not known. The first beat
        starts the thread."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        limit_s = self._floor_s if step_s is None else max(self._factor * step_s, self._floor_s)
        self._beat = (step, self._clock.monotonic(), limit_s)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mementum-watch", daemon=True)
            self._thread.start()

    def check(self) -> float:
        """Look once, and tell if there is something to tell. How many seconds until the next look."""
        now_s, beat, due_s = self._clock.monotonic(), self._beat, self._due_s
        wait_s = self._floor_s
        if beat is not None and beat is not self._told:
            step, began_s, limit_s = beat
            if due_s is not None and now_s - due_s > STOOD_STILL_S:
                began_s = now_s  # the training was stopped as we were: what was silent before does not count
                self._keep(beat, (step, now_s, limit_s))
            silence_s = now_s - began_s
            if silence_s >= limit_s:
                self._told = beat
                self._tell_alarm(_alarm(step, silence_s, limit_s))
            else:
                wait_s = limit_s - silence_s
        self._due_s = now_s + wait_s
        return wait_s

    def close(self) -> None:
        """End the thread. Twice is once."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._waiter(self._stop, self.check()):
            pass

    def _keep(self, seen: tuple[int, float, float], instead: tuple[int, float, float]) -> None:
        if self._beat is seen:  # a beat that comes between is lost: the next one is a step away
            self._beat = instead


def _alarm(step: int, silence_s: float, limit_s: float) -> Alarm:
    return Alarm(
        trouble=Trouble.HANG,
        step=step,
        value=silence_s,
        limit=limit_s,
        text=f"no step has ended for {silence_s:.0f} s since step {step}: a hang, or a long evaluation",
        chance=CHANCE,
        horizon_s=HORIZON_S,
    )
