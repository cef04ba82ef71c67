"""One checkpoint that cannot go, or must stay after all, keeps no other one from going."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mementum.catalog.sql import SqlCatalog
from mementum.errors import StoreError, Unreachable
from mementum.events import Event, Failed, PhaseBegan, PhaseEnded, Removed
from mementum.format import manifest as manifests
from mementum.pruning import WITHOUT_MANIFEST, prune
from mementum.records import Buffer, StoredFile, Verdict
from mementum.storage.around import Around
from mementum.storage.store import Stat, Store
from test_pruning import HOME, filled, manifest, verdicts

AT = "step_0000000002"


class Stubborn(Around):
    """Deletes nothing whose key begins with one of these."""

    def __init__(self, inner: Store, *prefixes: str, error: type[StoreError] = StoreError) -> None:
        super().__init__(inner)
        self.prefixes, self._error = prefixes, error

    def delete(self, key: str) -> None:
        if key.startswith(self.prefixes):
            raise self._error(key, f"{key}: no permission")
        super().delete(key)


class Task:
    """Three checkpoints of which the older two are to go, and what was told of it."""

    def __init__(self) -> None:
        self.store, self.catalog, self.entries = filled(1, 2, 3)
        self.events: list[Event] = []
        self.wanted = verdicts(c3=True, c2=False, c1=False)

    def prune(self, store: Store | None = None, **given: Any) -> dict[str, str]:
        how: dict[str, Any] = {"home": HOME, "catalog": self.catalog, "emit": self.events.append, **given}
        return prune(self.wanted, self.entries, store=self.store if store is None else store, **how)

    def left(self) -> list[str]:
        return sorted(stat.key.removeprefix("step_000000000") for stat in self.store.list())

    def listed(self) -> list[str]:
        return [entry.manifest.id for entry in self.catalog.entries(HOME)]

    def failed(self) -> list[Failed]:
        return [event for event in self.events if isinstance(event, Failed)]

    def removed(self) -> list[str]:
        return [event.id for event in self.events if isinstance(event, Removed)]

    def requires_phases_to_end(self) -> None:
        for kind in (PhaseBegan, PhaseEnded):
            assert sorted(str(event.id) for event in self.events if isinstance(event, kind)) == ["c1", "c2"]


def test_what_cannot_be_removed_stays_listed_and_the_others_go() -> None:
    task = Task()
    stayed = task.prune(Stubborn(task.store, "step_0000000001/"))
    assert stayed == {"c1": "step_0000000001/meta.json: no permission"}
    assert task.left() == ["1/a.blocks", "1/meta.json", "3/a.blocks", "3/meta.json"]
    assert task.listed() == ["c1", "c3"]
    assert task.removed() == ["c2"]
    assert task.failed() == [
        Failed(what="removing c1", error=stayed["c1"], kept="all that lies in its folder"),
    ]
    task.requires_phases_to_end()
    assert task.prune() == {}
    assert task.left() == ["3/a.blocks", "3/meta.json"]


def test_a_manifest_that_cannot_be_read_for_the_disk_stays() -> None:
    task = Task()

    class Torn(Around):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            if key.startswith("step_0000000001/"):
                raise StoreError(key, "input/output error")
            return super().get(key, start, size)

    assert task.prune(Torn(task.store)) == {"c1": "input/output error"}
    assert "1/meta.json" in task.left()
    assert task.listed() == ["c1", "c3"]


def test_of_two_generations_the_one_that_is_left_is_listed() -> None:
    task = Task()
    newer = replace(manifest(1), generation=2)
    task.store.put("step_0000000001/meta-2.json", [manifests.render(newer)])
    task.prune(Stubborn(task.store, "step_0000000001/meta-2"))
    assert "1/meta.json" not in task.left()
    assert [entry.manifest for entry in task.catalog.entries(HOME)] == [newer, manifest(3)]


def test_files_that_cannot_be_removed_are_left_to_a_sweep() -> None:
    task = Task()
    assert task.prune(Stubborn(task.store, "step_0000000001/a")) == {}
    assert task.left() == ["1/a.blocks", "3/a.blocks", "3/meta.json"]
    assert task.removed() == ["c1", "c2"]
    assert task.failed() == [
        Failed(what="removing files of c1", error="step_0000000001/a.blocks: no permission", kept=WITHOUT_MANIFEST)
    ]


def test_a_place_that_does_not_answer_is_not_asked_for_each() -> None:
    """What is not listed any more has lost its files by then."""
    task = Task()
    with pytest.raises(Unreachable):
        task.prune(Stubborn(task.store, "step_0000000002/", error=Unreachable))
    assert task.left() == ["2/a.blocks", "2/meta.json", "3/a.blocks", "3/meta.json"]
    assert task.listed() == ["c2", "c3"]
    assert task.removed() == ["c1"]
    task.requires_phases_to_end()


def test_a_catalog_that_refuses_stops_it_and_leaves_nothing_half_done() -> None:
    task = Task()

    class Locked(SqlCatalog):
        def __init__(self, inner: SqlCatalog) -> None:
            self._inner = inner

        def forget(self, home: str, folder: str) -> None:
            if folder.endswith("2"):
                raise StoreError("catalog.db", "the database is locked")
            self._inner.forget(home, folder)

    with pytest.raises(StoreError, match="locked"):
        task.prune(catalog=Locked(task.catalog))
    assert task.left() == ["2/a.blocks", "2/meta.json", "3/a.blocks", "3/meta.json"]


def test_what_is_pinned_before_its_turn_stays() -> None:
    task = Task()
    announced: list[str] = []

    def stays() -> Mapping[str, str]:
        return {"c2": "pinned: mine"} if announced else {}

    def about_to(verdict: Verdict) -> None:
        announced.append(verdict.id)

    assert task.prune(stays=stays, about_to=about_to) == {"c2": "pinned: mine"}
    assert announced == ["c1"]
    assert task.left() == ["2/a.blocks", "2/meta.json", "3/a.blocks", "3/meta.json"]
    assert task.failed() == []


def test_what_is_pinned_while_its_manifest_goes_comes_back() -> None:
    """Who pins looks for the manifest when his fact is there; who removes looks for facts when the manifest is gone."""
    task, pins = Task(), dict[str, str]()
    before = task.left()

    class Watched(Around):
        def delete(self, key: str) -> None:
            if key == "step_0000000002/meta.json":
                pins["c2"] = "pinned: mine"  # and the manifest is there, so that the pin is accepted
            super().delete(key)

    assert task.prune(Watched(task.store), stays=lambda: pins) == {"c2": "pinned: mine"}
    assert task.left() == [key for key in before if not key.startswith("1/")]
    assert task.listed() == ["c2", "c3"]
    assert [entry.manifest for entry in task.catalog.entries(HOME)] == [manifest(2), manifest(3)]
    assert task.removed() == ["c1"]
    task.requires_phases_to_end()


@pytest.mark.parametrize("act", ["put", "ask"])
def test_what_cannot_come_back_keeps_its_files(act: str) -> None:
    task, pins = Task(), dict[str, str]()

    class Watched(Around):
        def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
            raise StoreError(key, "the disk is full")

        def delete(self, key: str) -> None:
            pins["c2"] = "pinned: mine"
            super().delete(key)

    def stays() -> Mapping[str, str]:
        if any(stat.key.endswith("2/meta.json") for stat in task.store.list()):
            return {}
        if act == "ask":
            raise StoreError("facts/", "input/output error")
        return pins

    task.prune(Watched(task.store), stays=stays)
    assert [key for key in task.left() if key.endswith("blocks")] == ["1/a.blocks", "2/a.blocks", "3/a.blocks"]
    (failed,) = task.failed()
    assert (failed.what, failed.kept) == ("removing files", WITHOUT_MANIFEST)


class Rewritten(Around):
    """One that another process rewrites and somebody pins while its manifests go: that process's next manifest comes
    when the first is gone, and is gone itself when it has taken its part back."""

    def __init__(self, inner: Store, lost: tuple[str, ...], pins: dict[str, str]) -> None:
        super().__init__(inner)
        self._lost, self._pins = lost, pins

    def delete(self, key: str) -> None:
        super().delete(key)
        if key == f"{AT}/meta.json" and not self._pins:
            next_one = replace(manifest(2), generation=2, files=(StoredFile(name="a-2.blocks", size=1),))
            super().put(f"{AT}/a-2.blocks", [b"y"])
            super().put(f"{AT}/meta-2.json", [manifests.render(next_one)])
        if key == f"{AT}/meta-2.json" and not self._pins:
            self._pins["c2"] = "pinned: mine"
            for name in self._lost:
                super().delete(f"{AT}/{name}")


@pytest.mark.parametrize(
    ("lost", "back"), [("a-2.blocks", ["a.blocks", "meta.json"]), ("a.blocks", ["a-2.blocks", "meta-2.json"])]
)
def test_what_comes_back_is_the_generation_whose_files_are_all_there(lost: str, back: list[str]) -> None:
    task, pins = Task(), dict[str, str]()
    assert task.prune(Rewritten(task.store, (lost,), pins), stays=lambda: pins) == {"c2": "pinned: mine"}
    assert task.left() == [*(f"2/{name}" for name in back), "3/a.blocks", "3/meta.json"]
    (entry, _) = task.catalog.entries(HOME)
    assert [file.name for file in entry.manifest.files] == back[:1]
    assert task.removed() == ["c1"]


def test_what_has_no_generation_that_is_whole_does_not_come_back() -> None:
    task, pins = Task(), dict[str, str]()
    assert task.prune(Rewritten(task.store, ("a.blocks", "a-2.blocks"), pins), stays=lambda: pins) == {}
    assert task.left() == ["3/a.blocks", "3/meta.json"]
    assert task.listed() == ["c3"]
    assert task.removed() == ["c1", "c2"]


def test_what_came_back_before_one_that_cannot_counts_as_staying() -> None:
    task = Task()

    class Full(Around):
        def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
            if key.startswith(AT):
                raise StoreError(key, "the disk is full")
            return super().put(key, chunks)

    def stays() -> Mapping[str, str]:
        gone = not any("/meta" in stat.key for stat in task.store.list(AT))
        return {"c1": "pinned: mine", "c2": "pinned: mine too"} if gone else {}

    assert task.prune(Full(task.store), stays=stays) == {"c1": "pinned: mine"}
    assert task.left() == ["1/a.blocks", "1/meta.json", "2/a.blocks", "3/a.blocks", "3/meta.json"]
    assert task.listed() == ["c1", "c3"]
    assert task.removed() == ["c2"]
    (failed,) = task.failed()
    assert (failed.error, failed.kept) == ("the disk is full", WITHOUT_MANIFEST)
    task.requires_phases_to_end()
