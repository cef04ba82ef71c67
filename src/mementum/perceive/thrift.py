"""Thrift: looks at what costs time only as often as a small part of the training's time pays for."""

from __future__ import annotations

from mementum.clock import Clock

SHARE = 0.0012  # of the time between steps, that reading gradients may take: the rest of 0.3 % is for all else
LEAST_S = 0.00015  # a step, however short it is: steps of a few milliseconds are looked at now and then
CHARGED_MAX = 8.0  # steps that one look keeps away the next, at most: what is longer was held up by something else


class Thrift:
    """Earns a part of the time of every step, and spends what a look took. On the average looks take no more than they
    may, unless each takes longer than CHARGED_MAX steps earn: then there is one in so many steps, whatever it takes.
    Those of a large model find place at every step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left_s, self._earned_s = 0.0, LEAST_S
        self._stepped_s: float | None = None
        self._began_s = 0.0

    def begin(self) -> bool:
        """A step has come. Whether to look at it."""
        now_s = self._began_s = self._clock.monotonic()
        if self._stepped_s is not None:
            self._earned_s = max(LEAST_S, SHARE * (now_s - self._stepped_s))
            self._left_s = min(self._left_s + self._earned_s, self._earned_s)
        self._stepped_s = now_s
        return self._left_s >= 0.0

    def end(self) -> None:
        """The look that was begun is over."""
        now_s = self._stepped_s = self._clock.monotonic()  # what looks take is no time of the training's
        self._left_s -= min(now_s - self._began_s, CHARGED_MAX * self._earned_s)
