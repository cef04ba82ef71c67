"""How much memory there is: every place that can limit it is read, none that is missing or garbled raises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.execute.room import EXTRA, MARGIN_MIN, Room, choose, look, margin

GIB = 1 << 30
MIB = 1 << 20
NO_V1_LIMIT = 9223372036854771712
NO_LIMITS = "Max address space         unlimited            unlimited            bytes\n"
NO_LIMITS += "Max data size             unlimited            unlimited            bytes\n"


class Machine:
    """Files as a kernel would show them, under a folder of the test."""

    def __init__(self, root: Path) -> None:
        self.root, self.shm = root, root / "shm"
        self.shm.mkdir()
        self.write("proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable:   {32 << 20} kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/self/limits", NO_LIMITS)
        self.write("proc/self/status", "VmSize:\t 2048 kB\nVmData:\t 1024 kB\n")
        self.write("proc/self/mounts", f"root / ext4 rw 0 0\nshm {self.shm} tmpfs rw 0 0\n")

    def write(self, name: str, text: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))

    def group(self, name: str, **files: object) -> None:
        for file, text in files.items():
            self.write(f"cgroup/{name}/memory.{file}", text)

    def look(self) -> Room:
        return look(shm=str(self.shm), proc=str(self.root / "proc"), cgroup=str(self.root / "cgroup"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_limits(machine: Machine) -> None:
    room = machine.look()
    assert (room.host_available, room.limit, room.used, room.headroom) == (32 * GIB, None, None, 32 * GIB)
    assert (room.shm_usable, room.notes) == (True, ())
    assert room.shm_size is not None
    assert room.shm_free is not None
    assert 0 < room.shm_free <= room.shm_size


def test_a_container_of_cgroup_2_with_its_own_view(machine: Machine) -> None:
    machine.group(".", max=8 * GIB, high="max", current=6 * GIB, stat=f"anon 5\ninactive_file {2 * GIB}\n")
    room = machine.look()
    assert (room.limit, room.used, room.headroom) == (8 * GIB, 4 * GIB, 4 * GIB)
    assert room.limited_by.endswith("memory.max")


def test_the_group_above_may_leave_less(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/pod/box\n")
    machine.group("pod/box", max=8 * GIB, current=1 * GIB, stat="inactive_file 0\n")
    machine.group("pod", max=10 * GIB, high=9 * GIB, current=8 * GIB, stat="inactive_file 0\n")
    room = machine.look()
    assert (room.limit, room.headroom) == (9 * GIB, 1 * GIB)
    assert room.limited_by == str(machine.root / "cgroup/pod/memory.high")


def test_a_path_as_the_host_sees_it(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/docker/abc/inner\n")
    machine.group(".", max=8 * GIB, current=GIB, stat="inactive_file 0\n")
    machine.group("inner", max=2 * GIB, current=GIB, stat="inactive_file 0\n")
    assert machine.look().headroom == 1 * GIB


def test_cgroup_1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "9:cpu,cpuacct:/box\n4:memory:/box\n0::/\n")
    files = {"usage_in_bytes": 3 * GIB, "stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n"}
    machine.group("memory/box", limit_in_bytes=4 * GIB, **files)
    machine.group("memory", limit_in_bytes=NO_V1_LIMIT, **files)
    room = machine.look()
    assert (room.limit, room.used, room.notes) == (4 * GIB, 2 * GIB, ())


@pytest.mark.parametrize(("title", "left"), [("Max address space", 98 * MIB), ("Max data size    ", 99 * MIB)])
def test_limits_of_the_process(machine: Machine, title: str, left: int) -> None:
    machine.write("proc/self/limits", f"Limit  Soft Limit  Hard Limit  Units\n{title}  {100 * MIB}  unlimited  bytes\n")
    room = machine.look()
    assert room.headroom == left
    assert title.strip() in room.limited_by


def test_shared_memory_that_cannot_be_used(machine: Machine, tmp_path: Path) -> None:
    machine.write("proc/self/mounts", "root / ext4 rw 0 0\n")
    room = machine.look()
    assert (room.shm_usable, room.notes) == (False, (f"{machine.shm} is no tmpfs but ext4",))
    machine.shm.rmdir()
    room = machine.look()
    assert (room.shm_usable, room.shm_size, room.shm_free) == (False, None, None)
    assert "No such file" in room.notes[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_shared_memory_that_cannot_be_written(machine: Machine) -> None:
    machine.shm.chmod(0o500)
    assert not machine.look().shm_usable


def test_nothing_is_there() -> None:
    room = look(shm="/nowhere/shm", proc="/nowhere/proc", cgroup="/nowhere/cgroup")
    assert (room.host_available, room.limit, room.headroom, room.shm_usable) == (None, None, None, False)
    assert len(room.notes) >= 4
    assert choose(room, MIB).kind == "none"
    assert "not known" in choose(room, MIB).why


@pytest.mark.parametrize(
    "garbage", ["", "\0\xff", "-5", "9" * 5000, "12 13", "nan", "MemAvailable: x kB", "::::", "0::"]
)
def test_garbled_files_never_raise(machine: Machine, garbage: str) -> None:
    for name in ("meminfo", "self/cgroup", "self/limits", "self/status", "self/mounts"):
        machine.write(f"proc/{name}", garbage)
    machine.look()
    machine.write("proc/self/cgroup", "0::/box\n1:memory:/box\n")
    machine.write("proc/self/limits", f"Max data size {garbage}\n")
    machine.group("box", max=garbage, high=garbage, current=garbage, stat=garbage)
    machine.group("memory/box", limit_in_bytes=garbage, usage_in_bytes=garbage, stat=garbage)
    room = machine.look()
    assert room.limit is None
    assert room.notes


def test_this_machine() -> None:
    room = look()
    assert room.host_available is not None
    assert room.host_available > 0
    assert room.headroom is not None


def room(headroom: int | None, shm_free: int | None = 100 * GIB, *, usable: bool = True) -> Room:
    return Room(host_available=headroom, shm_folder="/dev/shm", shm_free=shm_free, shm_usable=usable)


@pytest.mark.parametrize(
    ("where", "kind", "slots"),
    [
        (room(32 * GIB), "shm", 3),
        (room(32 * GIB, None), "shm", 3),
        (room(32 * GIB, 5 * GIB), "shm", 2),  # half of it is for others
        (room(32 * GIB, 3 * GIB), "memory", 3),
        (room(3 * GIB), "shm", 2),
        (room(32 * GIB, 64 * MIB), "memory", 3),
        (room(32 * GIB, usable=False), "memory", 3),
        (room(3 * GIB, 64 * MIB), "memory", 2),
        (room(2 * GIB), "none", 0),
        (room(None), "none", 0),
    ],
)
def test_the_choice(where: Room, kind: str, slots: int) -> None:
    choice = choose(where, GIB)
    assert (choice.kind, choice.slots) == (kind, slots)
    assert choice.slot_bytes == GIB + EXTRA


def test_a_small_state_fits_into_a_container_s_small_shared_memory() -> None:
    assert choose(room(4 * GIB, 64 * MIB), 2 * MIB).kind == "shm"


def test_the_reason_has_the_numbers() -> None:
    assert choose(room(32 * GIB), GIB).why == (
        "3 slots of 1.0 GiB in shared memory: /dev/shm has 100.0 GiB free; "
        "32.0 GiB of memory may be taken, 4.0 GiB of it stay free"
    )
    tight = Room(host_available=32 * GIB, limit=8 * GIB, used=7 * GIB, limited_by="memory.max", shm_folder="/dev/shm")
    assert choose(tight, GIB).why == (
        "no slots, since 2 of 1.0 GiB do not fit: 1.0 GiB of memory may be taken (limited by memory.max), "
        "128.0 MiB of it stay free"
    )


@given(st.integers(0, 1 << 45), st.integers(0, 1 << 45) | st.none(), st.integers(0, 1 << 42), st.integers(2, 6))
def test_the_margin_always_stays_free(headroom: int, shm_free: int | None, state: int, wanted: int) -> None:
    choice = choose(room(headroom, shm_free), state, wanted=wanted)
    taken = choice.slots * choice.slot_bytes
    assert choice.slots == 0 or headroom - taken >= margin(headroom) >= MARGIN_MIN
    assert choice.kind != "shm" or shm_free is None or taken <= shm_free
    assert (choice.slots == 0) == (choice.kind == "none")
