"""Disks that fill up: the older checkpoint stays and loads, and with room again saving goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_runs import TASK, damage_of, folders_of, things, tiny_run, unfinished

import mementum
from disks import Quota
from mementum.errors import StoreError
from mementum.events import Committed, Failed
from mementum.records import Manifest
from mementum.recover.load import Loaded, load
from mementum.recover.verify import read_manifest
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Told, files

FLOATS = 1 << 18  # of a state that takes 1 MB


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2.5 MB of its own, where this user may mount one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2500k", "none", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system; the same is tested on a disk that counts")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(root: Path, make_room: Callable[[], object]) -> None:
    """Three states of 1 MB do not fit into 2.5 MB: the third save fails, and the older ones stay."""
    told, held = Told(), torch.zeros(FLOATS)
    wishes = {"keep_last": None, "config": {"watermarks": "off"}, "on_event": told}  # with them, an older one would go
    with mementum.open_run(root, task="full", state={"s": {"t": held}}, **wishes) as run:
        for step in (1, 2, 3):
            held.fill_(step)
            run.record()
            run.save()
            assert run.wait()
        assert [event.step for event in told.of(Committed)] == [1, 2]
        assert "the disk is full" in next(event.error for event in told.of(Failed) if "step 3" in event.what)
        assert unfinished(root) == []
        assert [damage_of(folder) for folder in folders_of(root)] == [(), ()]
        assert loaded(root) == 2.0
        make_room()
        run.save("there is room again")
        assert run.wait()
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]
    assert loaded(root) == 3.0


def loaded(root: Path) -> float:
    """The value of every float in the newest checkpoint: the root itself is in use, and full."""
    folder = folders_of(root)[-1]
    store = LocalStore(PosixDisk(), str(folder.parent))
    manifest = read_manifest(store, folder.name)
    assert isinstance(manifest, Manifest)
    result = load(store, folder.name, manifest)
    assert isinstance(result, Loaded)
    (value,) = set(result.tensors["s"]["t"].tolist())
    return float(value)


def test_a18_a_full_file_system_keeps_the_older_checkpoints(mounted: Path) -> None:
    with pytest.raises(OSError, match="No space left"):  # it is as small as it should be
        (mounted / "large").write_bytes(bytes(3 << 20))
    (mounted / "large").unlink()
    grow = ["mount", "-o", "remount,size=8m", str(mounted)]
    fill_up(mounted / "root", lambda: subprocess.run(grow, check=True))


def test_a18_a_full_disk_keeps_the_older_checkpoints(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Quota(2500 << 10)
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    fill_up(fast_path / "root", lambda: disk.grow(8 << 20))


def test_a_disk_for_one_checkpoint_only_keeps_the_old_one(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed before the newer one is whole, even where that is the only way to make room."""
    disk = Quota(1500 << 10)
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    told, held = Told(), torch.ones(FLOATS)
    with mementum.open_run(fast_path, task="full", state={"s": {"t": held}}, keep_last=1, on_event=told) as run:
        for _ in range(3):
            run.record()
            run.save()
            assert run.wait()
            held.add_(1)
    assert [event.step for event in told.of(Committed)] == [1]
    assert loaded(fast_path) == 1.0
    state = {"t": torch.zeros(FLOATS)}
    with mementum.open_run(fast_path, task="full", state={"s": state}, resume="must") as run:
        assert run.resumed is not None
        assert (run.step, run.resumed.tier) == (3, "ram")  # what no disk has taken stays in memory
        assert torch.equal(state["t"], torch.full((FLOATS,), 4.0))  # of the last try, when the run ended


def test_a_file_system_that_is_mounted_read_only_is_told_at_once(mounted: Path) -> None:
    tiny_run(mounted / "root")
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    before = files(mounted)
    for root in ("root", "another"):
        with pytest.raises(StoreError, match="read-only") as caught:
            mementum.open_run(mounted / root, task=TASK, **things(1))
        assert "findmnt" in str(caught.value.next_command)
    assert files(mounted) == before
