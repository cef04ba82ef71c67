"""How long steps take: by the clock, or by the events of the device that does the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from mementum.clock import Clock
from mementum.perceive.robust import RunningMedian

PENDING_MAX = 64  # events on their way: a device that is further behind is timed again when it has caught up
MS_PER_S = 1000.0


class StepTimes:
    """Durations of steps, each from one `tick` to the next; the newest that is known, and their median.

    With a CUDA device it is the time between two points of its present stream, read without waiting for the device and
    so a step late or more; else it is the time of the clock."""

    def __init__(self, clock: Clock, *, device: torch.device | None = None, window: int = 128) -> None:
        self._clock = clock
        self._device = device if device is not None and device.type == "cuda" else None
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._last_event: torch.cuda.Event | None = None
        self._last_s: float | None = None
        self._durations = RunningMedian(window)
        self._newest_s: float | None = None

    def tick(self) -> float | None:
        """A step has ended. Seconds that the newest step took whose duration is known and was not given before."""
        self._newest_s = None
        if self._device is None:
            now_s = self._clock.monotonic()
            if self._last_s is not None:
                self._note(now_s - self._last_s)
            self._last_s = now_s
        else:
            self._mark(self._device)
            self._look()
        return self._newest_s

    def median_s(self) -> float | None:
        """Median duration of the last steps in seconds; None before the first is known."""
        return self._durations.median() if len(self._durations) else None

    def state(self) -> dict[str, Any]:
        return self._durations.state()

    def apply(self, state: Mapping[str, Any]) -> None:
        self._durations.apply(state)

    def _note(self, duration_s: float) -> None:
        self._newest_s = duration_s
        self._durations.add(duration_s)

    def _mark(self, device: torch.device) -> None:
        if len(self._events) >= PENDING_MAX:
            self._last_event = None
            return
        with torch.cuda.device(device):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
        if self._last_event is not None:
            self._events.append((self._last_event, event))
        self._last_event = event

    def _look(self) -> None:
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            began, ended = self._events.popleft()
            self._note(began.elapsed_time(ended) / MS_PER_S)
