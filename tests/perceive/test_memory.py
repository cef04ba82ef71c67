"""Every limit of memory is watched, the tightest is told, and one that fails is left out once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mementum.clock import ManualClock, SystemClock
from mementum.perceive import memory as watched
from mementum.perceive.memory import Memory
from mementum.perceive.nvml import DeviceMemory

MIB = 1 << 20


class Machine:
    """Files as a kernel would show them, under a folder of the test."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, ManualClock()
        self.told: list[str] = []
        self.write("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\n")
        self.write("proc/self/cgroup", "4:memory:/box\n0::/box\n")
        self.write("proc/self/limits", "Max address space  unlimited\nMax data size  unlimited\n")
        self.write("proc/self/status", "VmSize: 102400 kB\nVmData: 51200 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, used: int, *, cached: int = 0, folder: str = "box", limit: int = 100) -> None:
        self.write(f"cgroup/{folder}/memory.max", str(limit * MIB))
        self.write(f"cgroup/{folder}/memory.current", str(used * MIB))
        self.write(f"cgroup/{folder}/memory.stat", f"inactive_file {cached * MIB}\nactive_file 0\n")

    def memory(self, **other: object) -> Memory:
        proc, cgroup = str(self.root / "proc"), str(self.root / "cgroup")
        return Memory(tell=self.told.append, clock=self.clock, proc=proc, cgroup=cgroup, **other)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_tightest_limit_is_told(machine: Machine) -> None:
    machine.group(90, cached=60)
    machine.group(80, folder=".", limit=90)
    memory = machine.memory()
    reading = memory.look(0)
    assert reading is not None
    assert (reading.name, reading.used, reading.limit) == (f"{machine.root}/cgroup/memory.max", 80 * MIB, 90 * MIB)
    assert (reading.part, reading.steps_left, reading.nearest) == (80 / 90, math.inf, reading.name)
    memory.close()
    assert machine.told == []


def test_the_fullest_of_each_kind_in_percent(machine: Machine) -> None:
    machine.group(90, cached=60)
    machine.group(80, folder=".", limit=90)
    memory = machine.memory()
    assert memory.percents() == {}  # nothing was looked at
    memory.look(0)
    machine.group(0, folder=".", limit=90)
    assert memory.percents() == {"mem_percent": 89}  # as it was seen
    memory.look(5)
    assert memory.percents() == {"mem_percent": 30}
    memory.close()


def test_a_container_of_version_1(machine: Machine) -> None:
    folder = "cgroup/memory/box/memory"
    machine.write(f"{folder}.limit_in_bytes", str(100 * MIB))
    machine.write(f"{folder}.usage_in_bytes", str(95 * MIB))
    machine.write(f"{folder}.stat", f"total_inactive_file {10 * MIB}\ntotal_active_file {30 * MIB}\n")
    reading = machine.memory().look(0)
    assert reading is not None
    assert (reading.used, reading.limit, machine.told) == (55 * MIB, 100 * MIB, [])


def test_every_fifth_step_and_every_one_near_the_limit(machine: Machine) -> None:
    machine.group(20)
    memory = machine.memory()
    seen = []
    for step in range(121):
        machine.group(20 + step // 2)
        reading = memory.look(step)
        assert reading is not None
        seen.append(reading.step)
    assert seen[:12] == [0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 10]
    assert seen[-5:] == [116, 117, 118, 119, 120]
    assert reading.steps_left == pytest.approx(40, abs=4)


def test_a_limit_that_is_met_first_is_named_though_another_is_tighter(machine: Machine) -> None:
    machine.group(70)
    machine.write("proc/self/limits", f"Max data size  {100 * MIB}  unlimited  bytes\n")
    memory = machine.memory()
    for step in range(0, 50, 5):
        machine.write("proc/self/status", f"VmData: {(10 + step) * 1024} kB\n")
        reading = memory.look(step)
    assert reading is not None
    assert reading.name.endswith("memory.max")
    assert (reading.nearest, reading.steps_left) == ("the process's limit 'Max data size'", pytest.approx(45))


def test_a_limit_may_be_set_later(machine: Machine) -> None:
    machine.group(50)
    machine.write("cgroup/box/memory.max", "max\n")
    memory = machine.memory()
    reading = memory.look(0)
    assert reading is not None
    assert reading.name == "the machine's memory"
    machine.group(50)
    reading = memory.look(5)
    assert reading is not None
    assert reading.part == 0.5


def test_failing_midway_is_told_once_and_the_others_go_on(machine: Machine) -> None:
    machine.group(50)
    memory = machine.memory()
    assert memory.look(0) is not None
    machine.write("cgroup/box/memory.current", "garbage")
    for step in (5, 10, 15):
        reading = memory.look(step)
        assert reading is not None
        assert (reading.step, reading.name) == (step, "the machine's memory")
    path = f"{machine.root}/cgroup/box/memory"
    assert machine.told == [f"a limit of memory is not watched ({path}.max): {path}.current is no number: 'garbage'"]


def test_nothing_is_there() -> None:
    told: list[str] = []
    memory = Memory(tell=told.append, clock=ManualClock(), proc="/nowhere", cgroup="/nowhere")
    assert memory.look(0) is None
    count = len(told)
    assert count >= 2
    assert memory.look(5) is None
    assert len(told) == count


class Cuda:
    """The functions of torch.cuda that are used, with one device of 1000 MiB."""

    def __init__(self) -> None:
        self.reserved, self.peak, self.fraction, self.broken = 800, 300, 1.0, False

    def device_count(self) -> int:
        return 1

    def memory_reserved(self, index: int) -> int:
        return self.reserved * MIB

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=1000 * MIB, uuid="7")

    def get_per_process_memory_fraction(self, index: int) -> float:
        return self.fraction

    def memory_stats(self, index: int) -> dict[str, int]:
        if self.broken:
            raise RuntimeError("the device is lost")
        return {"reserved_bytes.all.current": self.reserved * MIB, "allocated_bytes.all.peak": self.peak * MIB}


class Driver:
    used: int | None = None

    def memory(self, uuid: str) -> DeviceMemory | None:
        return None if self.used is None else DeviceMemory(used=self.used * MIB, size=1000 * MIB)


def test_a_device_is_as_full_as_its_peak_and_the_others_make_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, driver = Cuda(), Driver()
    monkeypatch.setattr(watched, "_cuda", lambda: cuda)
    memory = machine.memory(nvml=driver)
    reading = memory.look(0)
    assert reading is not None
    assert (reading.name, reading.used, reading.limit) == ("device 0", 300 * MIB, 1000 * MIB)
    driver.used = 950
    assert memory.look(5) == replace(reading, step=5)  # the driver is asked once a second
    machine.clock.advance(1.0)
    reading = memory.look(10)
    assert reading is not None
    assert reading.used == 450 * MIB
    cuda.fraction = 0.35
    reading = memory.look(15)
    assert reading is not None
    assert (reading.name, reading.used) == ("this process's part of device 0", 300 * MIB)
    assert memory.percents() == {"gpu_mem_percent": 86, "mem_percent": 20}
    cuda.broken = True
    reading = memory.look(20)
    assert reading is not None
    assert reading.name == "the machine's memory"
    assert "gpu_mem_percent" not in memory.percents()
    assert machine.told == ["a limit of memory is not watched (device 0): device 0: the device is lost"]


def test_this_machine_is_read_without_complaint() -> None:
    told: list[str] = []
    memory = Memory(tell=told.append, clock=SystemClock())
    reading = memory.look(0)
    assert reading is not None
    assert 0 < reading.used < reading.limit
    assert 0 < reading.part < 1
    memory.close()
    assert told == []
