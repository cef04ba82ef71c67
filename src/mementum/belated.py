"""Belated: metrics that are told of another moment than the present, and the branch that they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mementum.records import Reach, Resumed, Save

EARLY_MAX = 64  # metrics that wait for the save of their step: a program that tells of far steps gets them told before

Tell = Callable[..., None]  # as `Background.tell`


class Belated:
    """A fact names the newest checkpoint of the branch that it is told on, since after a rollback another one may be of
    the same step. So what is of a step that may still be saved waits until it is."""

    def __init__(self, tell: Tell, *, resumed: Resumed | None) -> None:
        self._tell = tell
        self._newest: str | None = None
        self.rewound(resumed)
        self._early: list[tuple[int, Mapping[str, Any]]] = []

    def told(self, step: int, values: Mapping[str, Any], *, done: int) -> None:
        """Metrics of `step`. `done`: the last step that can have no further save."""
        self._early.append((step, values))
        self.stepped(done)

    def taken(self, id: str, save: Save) -> None:
        """A save has begun. What stays in memory alone is no checkpoint."""
        if save.reach > Reach.PROCESS:
            self._newest = id

    def stepped(self, done: int | None = None) -> None:
        """What is of no later step than `done` waits no longer; without, nothing does."""
        early, self._early = self._early, []
        for place, (step, values) in enumerate(early):
            if done is not None and step > done and len(early) - place <= EARLY_MAX:
                self._early.append((step, values))
            else:
                self._tell("metrics", step=step, checkpoint=self._newest, values=values)

    def rewound(self, resumed: Resumed | None) -> None:
        """The run comes from this checkpoint, or from nothing."""
        self._newest = None if resumed is None else resumed.checkpoint
