"""What a run does on its tiers besides copying: what was left there goes, and what failed is made up for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mementum import Run
from mementum.clock import SystemClock
from mementum.config.tiers import Tier
from mementum.errors import StoreError, UsageError
from mementum.events import Placed, Swept
from mementum.places import open_sites
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from tiered import Training, entries, home_of


def drained(run: Run) -> None:
    assert run._background._forwarding.drain(10)


def go(training: Training, run: Run, step: int) -> None:
    while run.step < step:
        training.step(run)
        run.wait()
        drained(run)


def folders(far: Path) -> dict[str, set[str]]:
    return {folder.name: {file.name for file in folder.iterdir()} for folder in far.glob("*/*/step_*")}


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Callable[[str], bool]], None]:
    """Let puts below a folder fail, of keys that are told."""
    real = LocalStore.put

    def begin(far: Path, refuses: Callable[[str], bool]) -> None:
        def put(self: LocalStore, key: str, chunks: Any) -> Stat:
            if self.folder.startswith(str(far)) and refuses(key):
                raise StoreError(key, f"{key}: the disk reports an input/output error")
            return real(self, key, chunks)

        monkeypatch.setattr(LocalStore, "put", put)

    return begin


def test_what_killed_processes_left_on_a_tier_goes_with_the_first_copy(tmp_path: Path) -> None:
    training, far = Training(), tmp_path / "far"
    wishes = {"url": str(far), "name": "far"}
    with training.open(tmp_path / "root", wishes, keep_last=10) as run:
        go(training, run, 3)
    there = home_of(far)
    kept = folders(far)
    there.delete("step_0000000001/meta.json")  # a removal ended here
    there.put("step_0000000002/optimizer-2.blocks", [b"begun"])  # and a rewriting
    there.put("step_0000000009/placing-cgone.json", [b"{}"])  # and a copy
    there.put("step_0000000009/model.safetensors", [b"begun"])
    (far / "left").mkdir()
    with training.open(tmp_path / "root", wishes, keep_last=10) as run:
        assert set(folders(far)) == {*kept, "step_0000000009"}  # a start does not wait for it
        go(training, run, run.step + 1)
    assert "step_0000000001" not in folders(far)
    assert folders(far)["step_0000000002"] == kept["step_0000000002"]
    assert "step_0000000009" not in folders(far)
    assert sorted(entries(far)) == [2, 3, 4]
    assert any("step_0000000001/model.safetensors" in event.keys for event in training.told.of(Swept))


def test_half_copies_that_failed_do_not_pile_up(
    tmp_path: Path, refuse: Callable[[Path, Callable[[str], bool]], None]
) -> None:
    training, far = Training(), tmp_path / "far"
    refuse(far, lambda key: any(f"step_000000000{step}/index" in key for step in (1, 3, 5)))
    with training.open(tmp_path / "root", {"url": str(far), "keep_last": 1}, keep_last=30) as run:
        go(training, run, 3)
        assert set(folders(far)) == {"step_0000000002", "step_0000000003"}
        go(training, run, 6)
    assert set(folders(far)) == {"step_0000000006"}
    assert sorted(entries(far)) == [6]


def test_a_copy_that_failed_is_made_up_for(
    tmp_path: Path, refuse: Callable[[Path, Callable[[str], bool]], None]
) -> None:
    training, far = Training(), tmp_path / "far"
    refuse(far, lambda key: key.startswith("step_0000000004/index"))
    with training.open(tmp_path / "root", {"url": str(far), "every_steps": 3}, keep_last=30) as run:
        go(training, run, 8)
    assert [event.step for event in training.told.of(Placed)] == [1, 5, 8]


def test_a_relative_tier_is_known_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    monkeypatch.chdir(tmp_path)
    training.run(tmp_path / "root", 2, {"url": "./far"})
    (place,) = entries(tmp_path / "root")[2].places
    assert (place.tier, place.url) == ("./far", str(tmp_path / "far"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with training.open(tmp_path / "root", {"url": "./far"}) as run:
        drained(run)
    assert sorted(entries(tmp_path / "elsewhere" / "far")) == [2]
    shutil.rmtree(tmp_path / "elsewhere" / "far")


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("ram://mementum-same", "ram:///mementum-same"),
        ("ram://mementum-same", "ram://mementum-same/"),
        ("redis://host:6379/0", "redis://HOST"),
        ("redis://one:secret@host/0", "redis://other:word@host/0/"),
        ("s3://bucket/p", "s3://bucket/p/"),
        ("s3://bucket/p", "s3://bucket/%70"),
    ],
)
def test_one_place_in_two_spellings_is_one(tmp_path: Path, url: str, other: str) -> None:
    wishes = [Tier(url=url, name="a"), Tier(url=other, name="b")]
    with pytest.raises(UsageError, match="tiers a and b are the same place"):
        open_sites(wishes, tmp_path, clock=SystemClock())
