"""Feeds: where in its data a run is, in a form that survives, and how to go on from there without reading again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mementum.data import ElasticSampler, Keyed
from mementum.errors import UsageError
from mementum.records import Exactness


class Feed(Protocol):
    """One source of batches. `begin` starts an iterator from the present place, `delivered` counts a batch that was
    handed to the loop, `end_epoch` moves to the next epoch."""

    kind: str
    source: Any  # what the caller gave
    epoch: int
    exactness: Exactness

    def begin(self) -> Iterator[Any]: ...
    def delivered(self) -> None: ...
    def end_epoch(self) -> None: ...
    def ends_epoch(self) -> bool | None:
        """Whether the batch that was delivered last was the last of its epoch; None where nobody can know."""
        ...

    def read(self) -> dict[str, Any]: ...
    def check(self, tree: dict[str, Any]) -> list[str]: ...
    def apply(self, tree: dict[str, Any]) -> None: ...


class ElasticFeed:
    """A loader over a `mementum.data.ElasticSampler`: the place is (epoch, samples), resumed by arithmetic."""

    kind = "elastic"

    def __init__(self, loader: Any, sampler: ElasticSampler) -> None:
        self.source, self._sampler = loader, sampler
        self.epoch = sampler.epoch
        self._samples = sampler.position
        batcher = loader if getattr(loader, "batch_size", None) else getattr(loader, "batch_sampler", None)
        self._batch_size: int = getattr(batcher, "batch_size", None) or 1
        self._drop_last: bool = bool(getattr(batcher, "drop_last", False))
        self.exactness = Exactness(conditions=_worker_conditions(loader))

    def begin(self) -> Iterator[Any]:
        self._sampler.seek(self.epoch, self._samples)
        return iter(self.source)

    def delivered(self) -> None:
        self._samples = min(self._samples + self._batch_size, len(self._sampler))

    def end_epoch(self) -> None:
        self.epoch, self._samples = self.epoch + 1, 0

    def ends_epoch(self) -> bool:
        left = len(self._sampler) - self._samples
        return left < self._batch_size if self._drop_last else left == 0

    def read(self) -> dict[str, Any]:
        return self._sampler.state_at(self.epoch, self._samples)

    def check(self, tree: dict[str, Any]) -> list[str]:
        if tree["length"] != len(self._sampler):
            return [f"the data had {tree['length']} samples and has {len(self._sampler)}"]
        return []

    def apply(self, tree: dict[str, Any]) -> None:
        self._sampler.load_state_dict(tree)
        self.epoch, self._samples = self._sampler.epoch, self._sampler.position


class StatefulFeed:
    """A loader that tells its own state, such as torchdata's StatefulDataLoader."""

    kind = "stateful"

    def __init__(self, loader: Any) -> None:
        self.source = loader
        self.epoch = 0
        self._batches = 0
        self._begun = False
        self._state: object = None  # what was put back, until an iterator has taken it
        self.exactness = Exactness(reasons=_own_generator(loader), conditions=_worker_conditions(loader))

    def begin(self) -> Iterator[Any]:
        self._begun = True
        return iter(self.source)

    def delivered(self) -> None:
        self._batches += 1

    def end_epoch(self) -> None:
        self.epoch, self._batches = self.epoch + 1, 0

    def ends_epoch(self) -> bool | None:
        length = _length(self.source)
        return None if length is None else self._batches >= length

    def read(self) -> dict[str, Any]:
        # Before the first iterator there is nothing to tell, and asking would make one, which draws random numbers.
        state = self.source.state_dict() if self._begun else self._state
        return {"epoch": self.epoch, "batches": self._batches, "state": state}

    def check(self, tree: dict[str, Any]) -> list[str]:
        return []

    def apply(self, tree: dict[str, Any]) -> None:
        if tree["state"] is not None:
            self.source.load_state_dict(tree["state"])
        self._state, self._begun = tree["state"], False
        self.epoch, self._batches = tree["epoch"], tree["batches"]


class SequenceFeed:
    """A list or tuple of batches: the place is an index."""

    kind = "sequence"

    def __init__(self, batches: Sequence[Any]) -> None:
        self.source = batches
        self.epoch = 0
        self._batches = 0
        self.exactness = Exactness()

    def begin(self) -> Iterator[Any]:
        return (self.source[number] for number in range(self._batches, len(self.source)))

    def delivered(self) -> None:
        self._batches += 1

    def end_epoch(self) -> None:
        self.epoch, self._batches = self.epoch + 1, 0

    def ends_epoch(self) -> bool:
        return self._batches >= len(self.source)

    def read(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batches": self._batches, "length": len(self.source)}

    def check(self, tree: dict[str, Any]) -> list[str]:
        if tree["length"] != len(self.source):
            return [f"the data had {tree['length']} batches and has {len(self.source)}"]
        return []

    def apply(self, tree: dict[str, Any]) -> None:
        self.epoch, self._batches = tree["epoch"], tree["batches"]


class PlainFeed:
    """Any other iterable. It cannot tell its place, so a resume begins the interrupted epoch again."""

    kind = "plain"

    def __init__(self, source: Any) -> None:
        self.source = source
        self.epoch = 0
        self._batches = 0
        self.exactness = Exactness(
            reasons=(
                f"the data ({type(source).__name__}) cannot tell its position: an epoch that was interrupted begins "
                "again; use a DataLoader over mementum.data.ElasticSampler, or torchdata's StatefulDataLoader",
            )
        )

    def begin(self) -> Iterator[Any]:
        return iter(self.source)

    def delivered(self) -> None:
        self._batches += 1

    def end_epoch(self) -> None:
        self.epoch, self._batches = self.epoch + 1, 0

    def ends_epoch(self) -> bool | None:
        length = _length(self.source)
        return None if length is None else self._batches >= length

    def read(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batches": self._batches}

    def check(self, tree: dict[str, Any]) -> list[str]:
        return []

    def apply(self, tree: dict[str, Any]) -> None:
        self.epoch, self._batches = tree["epoch"], 0


def feed_for(source: Any) -> Feed:
    """The feed that fits a source of batches."""
    if source is None:
        raise UsageError("there is no data to step over: give run.steps a loader")
    for sampler in (
        getattr(source, "sampler", None),
        getattr(getattr(source, "batch_sampler", None), "sampler", None),
    ):
        if isinstance(sampler, ElasticSampler) and _counts_samples(source):
            return ElasticFeed(source, sampler)
    if callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None)):
        return StatefulFeed(source)
    if isinstance(source, list | tuple):
        return SequenceFeed(source)
    if not hasattr(source, "__iter__"):
        raise UsageError(f"data of type {type(source).__name__} cannot be iterated")
    return PlainFeed(source)


def tells_place(feed: Feed) -> bool:
    """Whether it goes on after a load where it stood."""
    return not isinstance(feed, PlainFeed)


def tree_of(feed: Feed) -> dict[str, Any]:
    """The place of a feed, with its kind."""
    return {"kind": feed.kind, "place": feed.read()}


def check(feed: Feed, tree: Mapping[str, Any]) -> list[str]:
    """Why a feed cannot move to a stored place, in words; empty if it can. Nothing is moved."""
    if tree["kind"] != feed.kind:
        return [f"the data was stored as {tree['kind']} and is {feed.kind}, so its position cannot be taken over"]
    return feed.check(tree["place"])


def apply(feed: Feed, tree: Mapping[str, Any]) -> None:
    """Move a feed to a stored place that was checked."""
    feed.apply(tree["place"])


def remember(feed: Feed) -> Callable[[], None]:
    """A function that moves a feed back to its present place, should what comes after its move fail."""
    loader = feed.source
    batches = getattr(loader, "batch_sampler", None)
    things = (feed, loader, batches, getattr(loader, "sampler", None), getattr(batches, "sampler", None))
    kept = [(vars(thing), dict(vars(thing))) for thing in things if hasattr(thing, "__dict__")]

    def bring_back() -> None:
        for attributes, before in kept:
            attributes.clear()
            attributes.update(before)

    return bring_back


def take(feed: Feed, batches: Iterator[Any], count: int) -> list[Any]:
    """The next batches of an epoch, at most `count`; fewer, or none, at its end."""
    taken: list[Any] = []
    while len(taken) < count:
        try:
            taken.append(next(batches))
        except StopIteration:
            break
        feed.delivered()
    return taken


def _length(source: Any) -> int | None:
    """Batches an epoch. A loader over an iterable data set has a `len` that only says that there is none."""
    try:
        return len(source)
    except TypeError:
        return None


def _counts_samples(loader: Any) -> bool:
    """Whether a batch tells how many samples were drawn for it: a sampler of batches that has no size does not."""
    batches = getattr(loader, "batch_sampler", None)
    return batches is None or type(getattr(batches, "batch_size", None)) is int


def _own_generator(loader: Any) -> tuple[str, ...]:
    if getattr(loader, "generator", None) is None:
        return ()
    return (
        "the loader draws from a generator of its own, whose state it does not tell: later epochs come in another "
        "order; leave `generator` out, so that it draws from torch's global one",
    )


def _worker_conditions(loader: Any) -> tuple[str, ...]:
    workers = getattr(loader, "num_workers", 0)
    if not workers or isinstance(getattr(loader, "dataset", None), Keyed):
        return ()
    return (
        f"the dataset draws no random numbers in its {workers} loader worker{'s' if workers > 1 else ''} "
        "(if it does, wrap it in mementum.data.Keyed)",
    )
