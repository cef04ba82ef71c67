"""A start puts right what is damaged in the root, if a tier has a good copy, before it takes anything older."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import facts
from mementum.events import Event, Failed, Note, PassedOver
from mementum.records import Fact
from mementum.recover.verify import verify
from tiered import Training, entries, home_of
from trips import Told


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def file_of(root: Path, step: int, name: str) -> Path:
    (path,) = root.glob(f"*/*/step_{step:010d}/{name}")
    return path


def told_kinds(root: Path, attempt: int, id: str) -> list[str]:
    found = facts.parse(home_of(root).get(facts.journal_key(attempt)))
    return [one.kind for one in found if one.checkpoint == id]


@pytest.fixture
def far(tmp_path: Path) -> dict[str, Any]:
    return {"url": str(tmp_path / "far"), "name": "far"}


@pytest.fixture
def root(tmp_path: Path, far: dict[str, Any]) -> Path:
    """Checkpoints 1 to 3, the newest of which the tier has too."""
    Training().run(tmp_path / "root", 3, far)
    return tmp_path / "root"


def expected(root: Path) -> dict[str, object]:
    """The state of step 3."""
    again = Training()
    with again.open(root) as run:
        assert run.resumed is not None
        assert run.resumed.step == 3
    return again.state()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.blocks", "index-00000.json", "meta.json"])
def test_the_newest_is_repaired_and_not_passed_over(root: Path, far: dict[str, Any], name: str) -> None:
    state, id = expected(root), entries(root)[3].manifest.id
    before = file_of(root, 3, name).read_bytes()
    flip(file_of(root, 3, name))
    training = Training()
    with training.open(root, far) as run:
        assert run.resumed is not None
        assert run.resumed.step == 3
        assert training.state() == state
    assert file_of(root, 3, name).read_bytes() == before
    assert training.told.of(PassedOver) == []
    assert [note.text for note in training.told.of(Note) if "put right in the root" in note.text]
    kinds = told_kinds(root, 3, id)
    assert kinds[-3:] == ["repaired", "verified", "restored"]
    assert entries(root)[3].damaged is None


def test_what_was_known_to_be_damaged_comes_first_again(root: Path, far: dict[str, Any]) -> None:
    """A scrub has found it, and nobody could mend it then."""
    store, entry = home_of(root), entries(root)[3]
    flip(file_of(root, 3, "model.safetensors"))
    fact = Fact(kind="damaged", time="2026-11-30T00:00:00Z", checkpoint=entry.manifest.id, values={"what": "x"})
    store.put("facts/c1.json", [facts.render(fact)])
    training = Training()
    with training.open(root, far) as run:
        assert run.resumed is not None
        assert run.resumed.step == 3
    assert verify(store, entry.folder, entry.manifest, deep=True) == ()


def test_without_a_good_copy_an_older_one_is_taken(root: Path, far: dict[str, Any]) -> None:
    for place in (root, Path(far["url"])):
        flip(file_of(place, 3, "model.safetensors"))
    training = Training()
    with training.open(root, far) as run:
        assert run.resumed is not None
        assert run.resumed.step == 2
    assert [event.id for event in training.told.of(PassedOver)] != []
    failed = [event for event in training.told.of(Failed) if event.what.startswith("repairing")]
    assert len(failed) == 1
    assert "no place has a good copy of it" in failed[0].error


def test_a_manifest_that_a_new_catalog_does_not_know(root: Path, far: dict[str, Any]) -> None:
    state = expected(root)
    for path in root.glob("catalog.db*"):
        path.unlink()
    flip(file_of(root, 3, "meta.json"))
    training = Training()
    with training.open(root, far) as run:
        assert run.resumed is not None
        assert run.resumed.step == 3
        assert training.state() == state
    assert sorted(path.name for path in root.glob("*/*/step_*3*")) == ["step_0000000003"]


def test_a_run_that_reads_back_mends_what_it_finds(
    tmp_path: Path, far: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it at once: the run's own thread, its budget, its facts."""
    monkeypatch.setattr("mementum.tending.FIRST_S", 0.0)
    monkeypatch.setattr("mementum.tending.LOOK_S", 0.01)
    training, root = Training(), tmp_path / "root"
    training.run(root, 2, far)
    mended = threading.Event()

    class Waiting(Told):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Note) and "put right" in event.text:
                mended.set()

    training.told = Waiting()
    flip(file_of(root, 2, "model.safetensors"))
    config = {"scrub": {"share": "100 %", "every": "7d"}, "keep_last": 9}
    with training.open(root, far, config=config, resume="never") as run:
        training.step(run)
        run.wait()
        assert mended.wait(20)
    for step, entry in entries(root).items():
        assert entry.damaged is None, step
    assert entries(root)[2].verified is not None
