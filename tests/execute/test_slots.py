"""Slots: which one is given up, what is done to them from outside, and that nothing of them is left."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mementum.events import Note
from mementum.execute.leftovers import leftovers
from mementum.execute.shared_file import CHUNK
from mementum.execute.slots import Slot, Slots, name_of
from trips import Told

KEY = "0123abcd"
SIZES = (5, 0, 9000)
MIB = 1 << 20
PLENTY = 1 << 40
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can")


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in shared memory, which must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as folder:
        yield Path(folder)


def slots_in(folder: Path, *, count: int = 3, told: Told | None = None, headroom: int | None = PLENTY) -> Slots:
    return Slots(str(folder), KEY, count=count, emit=told if told is not None else Told(), headroom=lambda: headroom)


def get(slots: Slots, sizes: tuple[int, ...] = SIZES, **wishes: Any) -> Slot:
    slot = slots.acquire(sizes, **wishes)
    assert slot is not None, slots.why
    return slot


def fill(slot: Slot, seq: int) -> Slot:
    for array in slot.arrays:
        array[:] = seq
    slot.validate(b"head", seq=seq, attempt=1, id=f"step_{seq}", step=seq)
    return slot


def saved(slots: Slots, seq: int) -> str:
    slot = fill(get(slots), seq)
    slot.release()
    return slot.path


def texts(told: Told) -> list[str]:
    return [note.text for note in told.of(Note)]


def test_a_slot_has_an_array_for_every_file(shm: Path) -> None:
    slots = slots_in(shm)
    slot = get(slots)
    assert [array.nbytes for array in slot.arrays] == [5, 0, 9000]
    assert all(array.ctypes.data % 4096 == 0 for array in slot.arrays)
    assert slot.busy
    assert Path(slot.path).stat().st_mode & 0o7777 == 0o600
    assert os.listdir(shm) == [name_of(KEY, 0)]
    slots.close()
    assert os.listdir(shm) == []


def test_the_oldest_is_given_up_and_never_the_newest(shm: Path) -> None:
    slots = slots_in(shm)
    first, second, third = (saved(slots, seq) for seq in (1, 2, 3))
    assert len({first, second, third}) == 3
    again = get(slots)
    assert (again.path, again.stamp) == (first, None)
    assert get(slots).path == second
    assert slots.acquire(SIZES) is None
    assert slots.why == "all slots are in use"
    again.release()
    assert get(slots).path == first
    slots.close()


def test_the_newest_may_go_when_it_is_durable_elsewhere(shm: Path) -> None:
    slots = slots_in(shm, count=2)
    saved(slots, 1)
    newest = saved(slots, 2)
    get(slots)
    assert slots.acquire(SIZES) is None
    assert slots.acquire(SIZES, safe_seq=1) is None
    assert get(slots, safe_seq=2).path == newest
    slots.close()


def test_one_that_is_being_written_is_left_alone(shm: Path) -> None:
    slots = slots_in(shm, count=2)
    older = saved(slots, 1)
    written = fill(get(slots), 2)
    assert get(slots).path == older
    assert slots.acquire(SIZES, safe_seq=2) is None
    assert written.stamp is not None
    slots.close()


def test_a_discarded_snapshot_goes_first(shm: Path) -> None:
    slots = slots_in(shm)
    saved(slots, 1)
    saved(slots, 2)
    torn = fill(get(slots), 3)
    torn.discard()
    assert not torn.busy
    assert get(slots).path == torn.path
    slots.close(keep=True)
    (left,) = leftovers(str(shm), KEY)
    assert left.stamp is not None
    assert left.stamp.seq == 2
    left.remove()


def test_a_slot_grows_and_shrinks_with_the_state(shm: Path) -> None:
    slots = slots_in(shm, count=2)
    small = fill(get(slots), 1)
    kept = small.arrays
    small.release()
    saved(slots, 2)
    large = get(slots, (CHUNK + 5, 7))
    assert large.path == small.path
    assert large.size == CHUNK + 3 * 4096
    large.arrays[1][:] = 9
    assert kept[0].tolist() == [1] * 5  # what was captured before can still be read, its memory is shared
    large.discard()
    assert [array.nbytes for array in get(slots, (3,)).arrays] == [3]
    slots.close()
    assert kept[0].tolist() == [1] * 5


def test_unlinked_and_cut_off_slots_are_replaced(shm: Path) -> None:
    told = Told()
    slots = slots_in(shm, told=told)
    paths = [saved(slots, seq) for seq in (1, 2, 3)]
    os.unlink(paths[0])
    os.truncate(paths[1], 100)
    os.truncate(paths[2], 0)
    os.truncate(paths[2], 1 << 20)  # as long as before, and no memory behind it
    new = [get(slots) for _ in range(3)]
    for slot in new:
        fill(slot, 4)
    assert sorted(slot.path for slot in new) == sorted(os.path.join(shm, name_of(KEY, each)) for each in range(3))
    assert texts(told) == [
        f"the slot {path} {fault}: another one takes its place"
        for path, fault in zip(
            paths,
            (
                "was removed from outside",
                "was cut off from outside, to 100 of 20480 bytes",
                "has holes: 0 of 20480 bytes have memory",
            ),
            strict=True,
        )
    ]
    slots.close()
    assert os.listdir(shm) == []


def test_one_cut_off_while_it_is_filled_does_not_become_valid(shm: Path) -> None:
    told = Told()
    slots = slots_in(shm, told=told)
    slot = get(slots)
    os.truncate(slot.path, 0)
    slot.validate(b"", seq=1, attempt=1, id="a", step=1)
    assert slot.stamp is None
    assert texts(told) == [
        f"the slot {slot.path} was cut off from outside, to 0 of 20480 bytes: its snapshot ends with the process"
    ]
    slots.close()


def plant_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def plant_mode(path: Path) -> None:
    path.touch(mode=0o644)
    path.chmod(0o644)


def plant_owner(path: Path) -> None:
    path.touch(mode=0o600)
    os.chown(path, 12345, 12345)


def plant_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def plant_second_name(path: Path) -> None:
    path.touch(mode=0o600)
    os.link(path, path.with_name("other"))


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (plant_link, "is not a regular file"),
        (plant_pipe, "is not a regular file"),
        (plant_mode, "has mode 0644 instead of 0600"),
        (plant_second_name, "has another name too"),
        pytest.param(plant_owner, "belongs to user 12345", marks=ROOT_ONLY),
    ],
)
def test_a_planted_file_is_refused_told_once_and_stays(shm: Path, plant: Any, why: str) -> None:
    path = shm / name_of(KEY, 0)
    plant(path)
    told = Told()
    slots = slots_in(shm, told=told)
    assert [get(slots).path for _ in range(2)] == [str(shm / name_of(KEY, number)) for number in (1, 2)]
    assert texts(told) == [f"{path} {why}: it is not used, and stays as it is"]
    assert leftovers(str(shm), KEY) == ()
    slots.close()
    assert name_of(KEY, 0) in os.listdir(shm)


def test_a_full_file_system_is_told_and_what_is_there_goes_on(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    slots = slots_in(shm, told=told)
    saved(slots, 1)
    saved(slots, 2)

    def full(descriptor: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert get(slots).path == str(shm / name_of(KEY, 0))
    assert slots.acquire(SIZES) is None
    assert slots.why == f"{shm / name_of(KEY, 2)} cannot have 20480 bytes: No space left on device"
    assert len(texts(told)) == 1
    assert len(os.listdir(shm)) == 2
    monkeypatch.undo()
    assert get(slots).path == str(shm / name_of(KEY, 2))
    slots.close()


@ROOT_ONLY
def test_a_real_full_file_system(shm: Path) -> None:
    folder = shm / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("no right to mount")
    try:
        told = Told()
        slots = slots_in(folder, told=told)
        first = fill(get(slots, (600 << 10,)), 1)
        first.release()
        assert slots.acquire((600 << 10,)) is None
        assert "No space left on device" in (slots.why or "")
        assert os.listdir(folder) == [name_of(KEY, 0)]
        assert slots.acquire((2 * MIB,), safe_seq=1) is None
        assert first.stamp is not None, "a slot that cannot grow keeps what it holds"
        assert first.arrays[0][-1] == 1
        again = get(slots, (600 << 10,), safe_seq=1)
        again.validate(bytes(MIB), seq=2, attempt=1, id="a", step=2)
        assert again.stamp is None
        assert len(texts(told)) == 2
        slots.close()
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", folder], check=True)


def test_memory_that_may_not_be_taken_is_not_asked_for(shm: Path) -> None:
    told = Told()
    slots = slots_in(shm, told=told, headroom=70 * MIB)
    get(slots, (5 * MIB,))
    assert slots.acquire((7 * MIB,)) is None
    assert slots.why == f"a slot needs {7 * MIB + 4096} bytes more, and only {70 * MIB} bytes of memory may be taken"
    assert len(texts(told)) == len(os.listdir(shm)) == 1
    slots.close()


def test_a_folder_that_is_not_there(shm: Path) -> None:
    slots = slots_in(shm / "none")
    assert slots.acquire(SIZES) is None
    assert "No such file or directory" in (slots.why or "")
    slots.close()


def test_two_of_one_key_do_not_hinder_each_other(shm: Path) -> None:
    one, two = slots_in(shm, count=2), slots_in(shm, count=2)
    paths = [get(slots).path for slots in (one, two, one, two)]
    assert len(set(paths)) == 4
    assert leftovers(str(shm), KEY) == ()
    one.close()
    assert sorted(os.listdir(shm)) == sorted(os.path.basename(path) for path in paths[1::2])
    two.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(f"-{KEY}-")


def test_nothing_grows_over_many_saves(shm: Path) -> None:
    gc.collect()  # what other tests left
    slots, before, mapped = slots_in(shm), descriptors(), mappings()
    counts = set()
    for seq in range(200):
        saved(slots, seq)
        if seq >= 3:
            counts.add((descriptors() - before, mappings() - mapped, len(os.listdir(shm))))
    assert counts == {(6, 3, 3)}
    slots.close()
    gc.collect()
    assert (descriptors(), mappings(), os.listdir(shm)) == (before, mapped, [])


def test_arrays_in_use_outlive_the_close(shm: Path) -> None:
    slots = slots_in(shm)
    array = fill(get(slots), 8).arrays[2]
    slots.close()
    slots.close()
    assert int(array.sum()) == 8 * 9000
    assert slots.acquire(SIZES) is None
    assert slots.why == "the slots are closed"


def test_another_file_of_its_name_is_not_removed(shm: Path) -> None:
    slots = slots_in(shm)
    path = Path(get(slots).path)
    path.unlink()
    path.write_text("another's")
    slots.close()
    assert path.read_text() == "another's"


def test_a_forked_child_has_no_slots_and_takes_none_away(shm: Path) -> None:
    slots = slots_in(shm)
    saved(slots, 1)
    child = os.fork()
    if child == 0:
        good = slots.acquire(SIZES) is None and "forked" in (slots.why or "")
        slots.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(os.listdir(shm)) == 1
    assert get(slots).busy
    slots.close()
