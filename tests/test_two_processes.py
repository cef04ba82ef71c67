"""Two processes on one task, each with its own catalog: whatever cuts into what, what is listed is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest

from deltas import HOME, Moving, folder
from mementum.catalog.sql import open_sqlite
from mementum.events import Event
from mementum.execute.remove import Unlisted, unlist
from mementum.format import blocks
from mementum.format import manifest as manifests
from mementum.pruning import prune, sweep
from mementum.records import Buffer, Manifest, Verdict
from mementum.recover.verify import read_manifest, verify
from mementum.storage.around import Around
from mementum.storage.store import Stat, Store
from mementum.withering import wither

WAIT_S = 30.0  # for a thread that computes for milliseconds
FOLDER = folder(2)
SEEDS = 20  # without either look the first of them leave a checkpoint that is listed and broken


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


class Lockstep:
    """Lets several threads do one operation each, in an order that chance decides."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._changed = rng, threading.Condition()
        self._waiting: set[str] = set()
        self._living: set[str] = set()
        self._turn: str | None = None
        self.order: list[str] = []

    def wait(self, who: str) -> None:
        with self._changed:
            self._waiting.add(who)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._turn == who, WAIT_S)
            self._turn = None
            self._waiting.discard(who)

    def run(self, **works: Callable[[], object]) -> None:
        def work(who: str, one: Callable[[], object]) -> None:
            try:
                one()
            finally:
                with self._changed:
                    self._living.discard(who)
                    self._changed.notify_all()

        self._living = set(works)
        threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in works.items()]
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                ready = self._changed.wait_for(lambda: self._turn is None and self._waiting == self._living, WAIT_S)
                assert ready
                if not self._living:
                    break
                self._turn = self._rng.choice(sorted(self._waiting))
                self.order.append(self._turn)
                self._changed.notify_all()
        for thread in threads:
            thread.join(WAIT_S)


class Stepped(Around):
    """A store whose every operation waits for its turn."""

    def __init__(self, inner: Store, steps: Lockstep, who: str) -> None:
        super().__init__(inner)
        self._steps, self._who = steps, who

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        whole = [bytes(chunk) for chunk in chunks]
        self._steps.wait(self._who)
        return super().put(key, whole)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self._steps.wait(self._who)
        return super().get(key, start, size)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        self._steps.wait(self._who)
        return iter(tuple(super().list(prefix)))

    def delete(self, key: str) -> None:
        self._steps.wait(self._who)
        super().delete(key)


def removing(moving: Moving, store: Store) -> Callable[[], object]:
    """What `mementum forget` does with the second checkpoint."""
    catalog, entry = open_sqlite(None), moving.entry(2)
    catalog.add(HOME, entry.manifest, entry.folder)
    verdict = Verdict(id="c2", keep=False, reason="older than the newest 1")
    return lambda: prune((verdict,), (entry,), home=HOME, store=store, catalog=catalog, emit=lambda event: None)


def withering(moving: Moving, store: Store) -> Callable[[], object]:
    entry = moving.entry(2)
    given: dict[str, Any] = {"home": HOME, "catalog": moving.catalog, "emit": lambda event: None}
    return lambda: wither(entry, (0, 2), reason="old", store=store, require_newest=lambda: None, **given)


def settling(moving: Moving, store: Store) -> Callable[[], object]:
    return lambda: moving.settle(2, store=store, codec="planes+zstd:1")


@pytest.mark.parametrize("rewriting", [settling, withering])
def test_a_removal_beside_a_rewriting(rewriting: Callable[[Moving, Store], Callable[[], object]]) -> None:
    """No turn is shared: the forget of one process, and the compressing or ageing of another. What they leave is a
    checkpoint that is whole, or none."""
    ends: set[bool] = set()
    for seed in range(SEEDS):
        moving = Moving(Random(3))
        for number in (1, 2):
            moving.save(number)
        steps = Lockstep(Random(seed))
        steps.run(
            forget=removing(moving, Stepped(moving.store, steps, "forget")),
            rewrite=rewriting(moving, Stepped(moving.store, steps, "rewrite")),
        )
        found = read_manifest(moving.store, FOLDER)
        ends.add(isinstance(found, Manifest))
        if isinstance(found, Manifest):
            assert verify(moving.store, FOLDER, found, deep=True) == (), steps.order
        events: list[Event] = []
        sweep(moving.store, emit=events.append)
        named = {file.name for file in found.files} if isinstance(found, Manifest) else set()
        assert {name for name in moving.names(2) if not name.startswith("meta")} == named, steps.order
    assert ends == {False}  # whoever removes finds the next generation, or keeps it from coming


def test_a_generation_that_comes_while_the_one_before_it_goes_is_taken_too() -> None:
    moving = Moving(Random(3))
    entry = moving.save(1)
    delete, done = moving.store.delete, []

    def settled_first(key: str) -> None:
        moving.store.delete = delete  # type: ignore[method-assign]
        done.append(moving.settle(1, codec="planes+zstd:1"))
        delete(key)

    moving.store.delete = settled_first  # type: ignore[method-assign]
    unlisted = unlist(entry.manifest, moving.store, folder(1))
    assert isinstance(done[0], Manifest)
    assert isinstance(unlisted, Unlisted)
    assert unlisted.name == "meta-2.json"
    assert unlisted.text == manifests.render(done[0])
    assert {"optimizer.blocks", "optimizer-2.blocks", "index-00000-2.json"} <= set(unlisted.parts)
    assert not any(name.startswith("meta") for name in moving.names(1))


def test_what_is_replaced_again_and_again_is_not_removed() -> None:
    moving = Moving(Random(3))
    entry = moving.save(1)
    delete, text = moving.store.delete, manifests.render(entry.manifest)

    def put_again(key: str) -> None:
        delete(key)
        moving.store.put(key, [text])

    moving.store.delete = put_again  # type: ignore[method-assign]
    found = unlist(entry.manifest, moving.store, folder(1))
    assert found == "step_0000000001: its manifest is replaced faster than it can be removed"
    assert verify(moving.store, folder(1), entry.manifest, deep=True) == ()
