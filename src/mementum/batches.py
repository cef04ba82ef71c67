"""Batches: what the steps of a loop take from its data, epoch after epoch, and where it stands in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mementum.decide.rollback import groups_before
from mementum.errors import StateMismatch, UsageError
from mementum.live import feeds, rng
from mementum.records import Detour
from mementum.restoring import Beginning


class Batches:
    """The one source of data of a run, whose place is kept. Belongs to the training's thread."""

    def __init__(self, feed: feeds.Feed | None, beginning: Beginning) -> None:
        self.feed = feed
        self._iterator: Iterator[Any] | None = None
        self._begin_at(beginning)

    def _begin_at(self, beginning: Beginning) -> None:
        self._checkpoint = beginning.resumed.checkpoint if beginning.resumed else ""
        self._partial, self._begun_at = beginning.partial, beginning.step
        self._rng, self._tree, self.iterating = beginning.rng, beginning.feed, beginning.iterating
        self._detours: tuple[Detour, ...] = beginning.course.detours
        self.thrown = beginning.course.thrown  # groups of the detour before the next step that are thrown away already
        self._gave, self._empty = False, 0  # whether this epoch has given any, and how many in a row have not

    def rewound(self, beginning: Beginning) -> None:
        """The data's place was moved. What was fetched ahead is let go of, with the workers that went on with it."""
        self._iterator = None
        loader = self.feed.source if self.feed is not None else None
        if loader is not None and getattr(loader, "persistent_workers", False):
            loader._iterator = None  # where torch keeps the one that it would begin anew: it has drawn already
        self._begin_at(beginning)

    @property
    def epoch(self) -> int:
        return self.feed.epoch if self.feed is not None else 0

    @property
    def ends_epoch(self) -> bool:
        return self.feed is not None and self.feed.ends_epoch() is True

    @property
    def cannot_skip(self) -> bool:
        """Whether batches are to be left out of data that cannot tell where they are."""
        ahead = any(one.at_step > self._begun_at for one in self._detours)
        return ahead and self.feed is not None and not feeds.tells_place(self.feed)

    def attach(self, data: Any) -> feeds.Feed | None:
        """Step over this data from now on. The feed if it is a new one, which takes the stored place over."""
        if self.feed is not None:
            if self.feed.source is not data:
                raise UsageError(
                    "run.steps was given other data than before: a run has one source of data, whose place it keeps",
                    next_command="give the same loader to open_run(data=…) and to every run.steps",
                )
            return None
        feed = feeds.feed_for(data)
        differences = feeds.check(feed, self._tree) if self._tree is not None else []
        if differences and not self._partial:
            raise StateMismatch(
                self._checkpoint,
                differences,
                kept="the checkpoint",
                next_command='give the data that was stored, or begin anew with resume="never"',
            )
        if self._tree is not None and not differences:
            feeds.apply(feed, self._tree)
        self.feed = feed
        return feed

    def take(self, step: int, *, accumulate: int, epochs: int | None) -> list[Any] | None:
        """The batches of a step: `accumulate` of them, fewer at an epoch's end. None when `epochs` are done in all."""
        while self.thrown < self._groups_before(step):
            if self._group(accumulate, epochs) is None:
                return None
            self.thrown += 1
        group = self._group(accumulate, epochs)
        if group is not None:
            self.thrown = 0
        return group

    def _groups_before(self, step: int) -> int:
        """They are counted from where the run went back to: data that cannot tell its place is not there."""
        return groups_before(self._detours, step) if self.feed is not None and feeds.tells_place(self.feed) else 0

    def _group(self, accumulate: int, epochs: int | None) -> list[Any] | None:
        feed = self.feed
        assert feed is not None
        while epochs is None or feed.epoch < epochs:
            # An iterator that an earlier loop left in the middle of its epoch goes on where it stood.
            if self._iterator is None:
                self._iterator = self._begin_epoch(feed)
            group = feeds.take(feed, self._iterator, accumulate)
            if group:
                self._gave = True
                return group
            feed.end_epoch()
            self.iterating, self._iterator = False, None
            self._empty, self._gave = 0 if self._gave else self._empty + 1, False
            if self._empty > 1:  # once is the end of the epoch in which the run was interrupted
                raise UsageError("the data yields no batches", next_command="look at the loader and its sampler")
        return None

    def _begin_epoch(self, feed: feeds.Feed) -> Iterator[Any]:
        """An iterator over the data, with the generators as they were when the state was saved.

        Making an iterator draws random numbers. Where the stored state had one already, the generators are put back
        after it is made, otherwise before."""
        stored, self._rng = self._rng, None
        # Persistent workers are one iterator for all epochs, which has drawn in the first.
        drawn = self.iterating or (feed.epoch > 0 and getattr(feed.source, "persistent_workers", False))
        if stored is not None and not drawn:
            rng.apply(dict(stored))
        batches = feed.begin()
        if stored is not None and drawn:
            rng.apply(dict(stored))
        self.iterating = True
        return batches

    def drew(self) -> None:
        """The program draws from the generators by itself: they are not put back any more."""
        self._rng = None

    def generators(self) -> Mapping[str, Any]:
        """As a save has them: those that are still to be put back, or the present ones."""
        return rng.read() if self._rng is None else dict(self._rng)

    def place(self) -> Mapping[str, Any] | None:
        """Where in the data the run is, as a save has it."""
        return feeds.tree_of(self.feed) if self.feed is not None else self._tree
