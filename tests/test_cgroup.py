"""Limits of memory, as the kernel's files tell them; how they are chosen from is in execute/test_room.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from mementum.cgroup import Limit, Place, fields, group_limit, host_limit, places, process_limit

GIB = 1 << 30


@pytest.fixture
def group(tmp_path: Path) -> Place:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (folder / "memory.max").write_text(f"{8 * GIB}\n")
    (folder / "memory.current").write_text(f"{7 * GIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\nactive_file {2 * GIB}\n")
    notes: list[str] = []
    found = list(places(str(tmp_path / "proc"), str(folder), notes))
    assert (len(found), notes) == (1, [])
    return found[0]


def test_what_the_kernel_takes_back_is_not_used(group: Place) -> None:
    notes: list[str] = []
    assert group_limit(group, (), notes) == Limit(name=group.limit, size=8 * GIB, used=7 * GIB)
    assert group_limit(group, (group.idle,), notes) == Limit(name=group.limit, size=8 * GIB, used=6 * GIB)
    assert group_limit(group, (group.idle, group.active), notes) == Limit(name=group.limit, size=8 * GIB, used=4 * GIB)
    assert notes == []


def test_no_limit_is_none_and_no_note(group: Place) -> None:
    notes: list[str] = []
    for text in ("max\n", "9223372036854771712\n"):
        Path(group.limit).write_text(text)
        assert group_limit(group, (group.idle,), notes) is None
    assert notes == []


def test_a_group_that_vanishes_is_noted(group: Place) -> None:
    notes: list[str] = []
    Path(group.used).unlink()
    assert group_limit(group, (group.idle,), notes) is None
    assert notes[0] == f"{group.used}: No such file or directory"


def test_a_process_and_its_machine(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/limits").write_text("Max data size  4096  unlimited  bytes\nMax address space  unlimited\n")
    (tmp_path / "self/status").write_text("VmSize:\t 9 kB\nVmData:\t 3 kB\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\n")
    notes: list[str] = []
    own = process_limit("Max data size", "VmData", str(tmp_path), notes)
    assert own == Limit(name="the process's limit 'Max data size'", size=4096, used=3072)
    assert process_limit("Max address space", "VmSize", str(tmp_path), notes) is None
    assert host_limit(str(tmp_path), notes) == Limit(name="the machine's memory", size=102400, used=61440)
    assert notes == []


def test_fields_that_are_missing_or_no_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / "meminfo")
    Path(path).write_text("a: 1 kB\nb: x\na: 2 kB\n\n:\n")
    notes: list[str] = []
    assert fields(path, ("a", "b", "c"), notes) == {"a": 1024}
    assert notes == [f"{path} b is no number: 'x'", f"{path} has no c"]
