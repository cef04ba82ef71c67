"""Feeds: each tells its place and goes on from there; one that cannot says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

import mementum
from mementum.data import ElasticSampler
from mementum.errors import StateMismatch, UsageError
from mementum.live import feeds


class Stream(IterableDataset[int]):
    """Ten samples whose number nobody tells beforehand."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Buckets(Sampler[list[int]]):
    """Batches of a size that it does not tell."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from BatchSampler(self.sampler, 3, drop_last=False)


def elastic(length: int = 10, **wishes: Any) -> DataLoader[int]:
    sampler = ElasticSampler(length, seed=4)
    if wishes.pop("own_batches", False):
        return DataLoader(range(length), batch_sampler=BatchSampler(sampler, **wishes))  # type: ignore[arg-type]
    return DataLoader(range(length), sampler=sampler, **wishes)  # type: ignore[arg-type]


def shuffled() -> Any:
    torch.manual_seed(6)
    return StatefulDataLoader(range(10), batch_size=3, shuffle=True)


def walk(root: Path, loader: Any, epochs: int, *, stop: int | None = None, every_steps: int = 1) -> list[Any]:
    """The batches from where the run stands. It dies after step `stop`, which was saved."""
    seen: list[Any] = []
    try:
        with mementum.open_run(root, task="f", state={"s": {}}, data=loader, every_steps=every_steps) as run:
            for number, batch in run.steps(loader, epochs=epochs):
                if stop is not None and number > stop:
                    run.wait()
                    raise InterruptedError
                seen.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
                run.record()
    except InterruptedError:
        pass
    return seen


MAKERS = {
    "short last batch": lambda: elastic(batch_size=3),
    "last batch dropped": lambda: elastic(batch_size=3, drop_last=True),
    "even batches": lambda: elastic(batch_size=5),
    "one batch": lambda: elastic(batch_size=20),
    "no batches": lambda: elastic(batch_size=None),
    "a sampler of batches": lambda: elastic(batch_size=3, drop_last=False, own_batches=True),
    "a sampler of batches that drops": lambda: elastic(batch_size=3, drop_last=True, own_batches=True),
    "stateful": lambda: StatefulDataLoader(range(10), batch_size=3),
    "stateful, shuffled": lambda: shuffled(),
    "stateful over elastic": lambda: StatefulDataLoader(range(10), batch_size=3, sampler=ElasticSampler(10)),
    "list": lambda: ["a", "b", "c"],
    "tuple": lambda: (1, 2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_place_is_kept_after_every_step(tmp_path: Path, name: str) -> None:
    straight = walk(tmp_path / "straight", MAKERS[name](), 3)
    assert len(straight) == 3 * len(MAKERS[name]())
    an_epoch = len(straight) // 3
    for stop in sorted({1, an_epoch, an_epoch + 1, len(straight) - 1}):
        root = tmp_path / str(stop)
        assert walk(root, MAKERS[name](), 3, stop=stop) == straight[:stop]
        assert walk(root, MAKERS[name](), 3) == straight[stop:], stop


@pytest.mark.parametrize("name", MAKERS)
def test_the_last_batch_of_an_epoch_is_known(name: str) -> None:
    loader = MAKERS[name]()
    feed = feeds.feed_for(loader)
    assert feed.exactness.exact
    for epoch in range(2):
        assert feed.epoch == epoch
        ends = []
        for _ in feed.begin():
            feed.delivered()
            ends.append(feed.ends_epoch())
        assert ends == [False] * (len(loader) - 1) + [True]
        feed.end_epoch()


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_that_ended_with_its_epoch_goes_on_with_the_next(tmp_path: Path, name: str) -> None:
    straight = walk(tmp_path / "straight", MAKERS[name](), 3)
    parts = [walk(tmp_path / "parts", MAKERS[name](), epochs, every_steps=1000) for epochs in (1, 2, 2, 3)]
    assert [batch for part in parts for batch in part] == straight
    assert [len(part) for part in parts] == [len(straight) // 3] * 2 + [0, len(straight) // 3]


@pytest.mark.parametrize("name", MAKERS)
def test_a_save_before_the_first_batch_keeps_the_place(tmp_path: Path, name: str) -> None:
    """Killed while it started, after it had saved: the place is the one that was put back."""
    straight = walk(tmp_path / "straight", MAKERS[name](), 2)
    seen = walk(tmp_path / "cut", MAKERS[name](), 2, stop=1)
    for _ in range(2):
        with mementum.open_run(tmp_path / "cut", task="f", state={"s": {}}, data=MAKERS[name]()) as run:
            run.save()
    assert seen + walk(tmp_path / "cut", MAKERS[name](), 2) == straight


def test_a_stateful_loader_with_workers(tmp_path: Path) -> None:
    def loader() -> Any:
        return StatefulDataLoader(range(10), batch_size=3, num_workers=2, persistent_workers=True)

    straight = walk(tmp_path / "straight", loader(), 2)
    assert walk(tmp_path / "cut", loader(), 2, stop=6) == straight[:6]
    assert walk(tmp_path / "cut", loader(), 2) == straight[6:]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_the_generators_after_an_epoch_that_ended_an_attempt(tmp_path: Path, kind: Any, persistent: bool) -> None:
    """Making an iterator draws a number, and persistent workers are one iterator for all epochs."""

    def draws(root: Path, epochs: int) -> list[float]:
        torch.manual_seed(8)
        loader = kind(
            range(8),
            batch_size=2,
            sampler=ElasticSampler(8),
            num_workers=1,
            persistent_workers=persistent,
            multiprocessing_context="fork",
        )
        seen = []
        with mementum.open_run(root, task="g", state={"s": {}}, data=loader, every_steps=1000) as run:
            for _ in run.steps(loader, epochs=epochs):
                seen.append(torch.rand(()).item())
                run.record()
        return seen

    parts = [draws(tmp_path / "parts", epochs) for epochs in (1, 3)]
    assert [len(part) for part in parts] == [4, 8]
    assert [*parts[0], *parts[1]] == draws(tmp_path / "straight", 3)


def test_a_stream_that_nobody_can_measure(tmp_path: Path) -> None:
    """Its loader has a `len` that raises."""
    loader = DataLoader(Stream(), batch_size=4)
    feed = feeds.feed_for(loader)
    assert (feed.kind, feed.ends_epoch(), feed.exactness.exact) == ("plain", None, False)
    assert walk(tmp_path, loader, 1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    stateful = StatefulDataLoader(Stream(), batch_size=4)
    assert feeds.feed_for(stateful).ends_epoch() is None
    assert len(walk(tmp_path / "stateful", stateful, 1)) == 3


def test_batches_of_an_unknown_size_are_not_called_exact() -> None:
    feed = feeds.feed_for(DataLoader(range(10), batch_sampler=Buckets(ElasticSampler(10))))  # type: ignore[arg-type]
    assert (feed.kind, feed.exactness.exact) == ("plain", False)


def test_a_loader_with_a_generator_of_its_own_is_not_called_exact() -> None:
    loader = StatefulDataLoader(range(10), batch_size=3, shuffle=True, generator=torch.Generator())
    assert "generator of its own" in str(feeds.feed_for(loader).exactness)


def test_what_cannot_tell_its_place_begins_its_epoch_again(tmp_path: Path) -> None:
    loader = DataLoader(range(10), batch_size=4)  # type: ignore[arg-type]
    straight = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert walk(tmp_path, loader, 3, stop=4) == [*straight, straight[0]]
    assert walk(tmp_path, loader, 3) == straight * 2


def test_an_iterator_lasts_for_one_epoch(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="i", state={"s": {}}) as run:
        source = iter([1, 2, 3])
        seen = []
        steps = run.steps(source, 10)
        for _ in range(3):
            seen.append(next(steps)[1])
            run.record()
        with pytest.raises(UsageError, match="yields no batches"):
            next(steps)
        assert seen == [1, 2, 3]
        assert not run.exactness.exact


@pytest.mark.parametrize(("source", "told"), [(None, "no data to step over"), (3, "type int cannot be iterated")])
def test_what_is_no_data_is_refused(source: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        feeds.feed_for(source)


@pytest.mark.parametrize(
    ("stored", "given", "told"),
    [
        ("list", ["a"], "the data had 3 batches and has 1"),
        ("list", elastic(batch_size=3), "stored as sequence and is elastic"),
        ("short last batch", elastic(11, batch_size=3), "the data had 10 samples and has 11"),
        ("short last batch", DataLoader(range(10)), "stored as elastic and is plain"),  # type: ignore[arg-type]
        ("stateful", elastic(batch_size=3), "stored as stateful and is elastic"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["to open_run", "to steps"])
def test_other_data_is_refused(tmp_path: Path, stored: str, given: Any, told: str, late: bool) -> None:
    walk(tmp_path, MAKERS[stored](), 2, stop=2)

    def use() -> None:
        with mementum.open_run(tmp_path, task="f", state={"s": {}}, data=None if late else given) as run:
            run.steps(given, 5)

    with pytest.raises(StateMismatch, match=told):
        use()


def test_another_batch_size_goes_on_at_the_same_sample(tmp_path: Path) -> None:
    order = [sample for batch in walk(tmp_path / "straight", elastic(batch_size=5), 1) for sample in batch]
    assert walk(tmp_path / "cut", elastic(batch_size=3), 1, stop=2) == [order[:3], order[3:6]]
    assert walk(tmp_path / "cut", elastic(batch_size=4), 1) == [order[6:]]
