"""Planning: what follows from sizes and speeds, and that measuring leaves nothing behind."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mementum import planning
from mementum.clock import ManualClock, SystemClock
from mementum.execute.room import Choice, Room
from mementum.planning import Copying, Plan, State, Unmeasured, Writing, costs, deepest, make, state_of_parameters
from mementum.records import Usage
from mementum.storage.direct import OpenFile
from mementum.storage.disk import NewFile, PosixDisk
from mementum.storage.store import Buffer

MIB = 1 << 20
ROOM = Room(host_available=8 << 30, shm_folder="/nowhere", shm_size=8 << 30, shm_free=8 << 30, shm_usable=True)
CHOICE = Choice(kind="shm", slots=3, slot_bytes=1_000_000_000, why="as a test wants it")
PLAN = Plan(
    state=State(moving=1_000_000_000, frozen=500_000_000, source="a test"),
    room=ROOM,
    choice=CHOICE,
    behind=(),
    folder="/",
    disk=Usage(used=0, size=10**10),
    copying=Copying(first=1e9, again=1e10),
    writing=Writing(rate=5e8, size=256 * MIB),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with less, so that tests are quick."""
    monkeypatch.setattr(planning, "PROBE", 32 * MIB)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "bytes_each"),
    [("adamw", "fp32", 12), ("adamw", "bf16", 6), ("sgd", "fp32", 4), ("momentum", "fp32", 8), ("rmsprop", "fp16", 4)],
)
def test_parameters_become_bytes(optimizer: str, dtype: str, bytes_each: int) -> None:
    state = state_of_parameters(1000, optimizer=optimizer, dtype=dtype, frozen=7)
    assert (state.moving, state.frozen, state.measured) == (1000 * bytes_each, 7, False)
    assert optimizer in state.source
    assert "1,000 parameters" in state.source


def test_parameters_are_what_torch_keeps() -> None:
    """The table agrees with torch itself, but for the step counts."""
    torch = pytest.importorskip("torch")
    made = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "adamax": torch.optim.Adamax,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
        "sgd": torch.optim.SGD,
    }
    assert made.keys() == planning.OPTIMIZERS.keys()
    for name, make_optimizer in made.items():
        for word, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            weight = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
            optimizer = make_optimizer([weight])
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            kept = [value for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.numel() > 1]
            held = sum(value.numel() * value.element_size() for value in (weight, *kept))
            assert state_of_parameters(1000, optimizer=name, dtype=word, frozen=0).moving == held, (name, word)


def test_costs_with_slots() -> None:
    found = costs(PLAN, interval_s=100.0, step_s=None)
    assert found.copy_s == pytest.approx(0.1)
    assert found.first_s == pytest.approx(0.9)
    assert found.durable_s == pytest.approx(2.1)
    assert found.least_s == pytest.approx(2.0)
    assert found.blocked_s == planning.BLOCKED_S
    assert found.lost_s == pytest.approx(planning.LOST_S_PER_GB)
    assert (found.first_bytes, found.bytes) == (1_500_000_000, 1_000_000_000)
    assert found.bytes_per_day == pytest.approx(864e9)
    assert found.share == pytest.approx(0.275 / 100)


def test_a_step_that_is_shorter_than_the_copy_waits() -> None:
    assert costs(PLAN, interval_s=None, step_s=0.04).blocked_s == pytest.approx(0.065)
    assert costs(PLAN, interval_s=None, step_s=0.2).blocked_s == planning.BLOCKED_S


def test_without_slots_the_loop_waits_for_the_disk() -> None:
    none = replace(PLAN, choice=replace(CHOICE, kind="none", slots=0))
    found = costs(none, interval_s=100.0, step_s=0.04)
    assert (found.copy_s, found.first_s, found.lost_s) == (None, None, 0.0)
    assert found.blocked_s == found.durable_s == found.least_s == pytest.approx(2.0)
    assert found.share == pytest.approx(0.02)


def test_what_was_not_measured_is_unknown() -> None:
    unmeasured = replace(PLAN, copying=Unmeasured(why="a test"), writing=Unmeasured(why="a test"))
    found = costs(unmeasured, interval_s=None, step_s=0.5)
    assert (found.copy_s, found.first_s, found.durable_s, found.least_s) == (None, None, None, None)
    assert (found.bytes_per_day, found.share) == (None, None)
    assert found.blocked_s == planning.BLOCKED_S
    none = replace(unmeasured, choice=replace(CHOICE, kind="none", slots=0))
    assert costs(none, interval_s=100.0, step_s=None).share is None
    assert costs(replace(PLAN, copying=Unmeasured(why="a test")), interval_s=1.0, step_s=None).durable_s is None


def test_the_deepest_folder_that_is_there(tmp_path: Path) -> None:
    assert deepest(tmp_path) == str(tmp_path)
    assert deepest(tmp_path / "a" / "b") == str(tmp_path)
    (tmp_path / "file").touch()
    assert deepest(tmp_path / "file" / "b") == str(tmp_path)
    assert deepest(Path("/")) == "/"


def test_a_plan_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    state = State(moving=1 << 30, source="a test")
    room = replace(ROOM, shm_folder=str(tmp_path / "shm"))
    made = make(state, tmp_path / "new", slots=3, measure=True, room=room, disk=PosixDisk(), clock=SystemClock())
    assert (made.choice.kind, made.choice.slots, made.folder) == ("shm", 3, str(tmp_path))
    assert isinstance(made.copying, Copying)
    assert 0 < made.copying.first <= made.copying.again
    assert isinstance(made.writing, Writing)
    assert made.writing.size == 32 * MIB
    assert made.writing.rate > 0
    assert os.listdir(tmp_path) == []


def test_nothing_is_touched_if_nothing_is_to_be_measured(tmp_path: Path) -> None:
    disk = Counting()
    made = make(
        State(moving=1, source="a test"), tmp_path, slots=2, measure=False, room=ROOM, disk=disk, clock=ManualClock()
    )
    assert (made.copying, made.writing) == (Unmeasured(why="it was not asked for"),) * 2
    assert disk.made == []


class Counting(PosixDisk):
    """Keeps the paths of what it makes, and can fail or be interrupted there or at a write."""

    def __init__(self, at_create: BaseException | None = None, at_write: BaseException | None = None) -> None:
        self.made: list[str] = []
        self._at_create, self._at_write = at_create, at_write

    def create(self, path: str) -> NewFile:
        self.made.append(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if self._at_create is not None:
            os.close(descriptor)
            raise self._at_create
        return Stopped(descriptor, self._at_write)


class Stopped(OpenFile):
    def __init__(self, descriptor: int, error: BaseException | None) -> None:
        super().__init__(descriptor)
        self.error = error

    def write(self, chunk: Buffer) -> None:
        if self.error is not None:
            raise self.error
        super().write(chunk)


@pytest.mark.parametrize("where", ["at_create", "at_write"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, where: str) -> None:
    disk = Counting(**{where: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        planning.measure_disk(str(tmp_path), disk, SystemClock())
    assert len(disk.made) == 1
    assert os.listdir(tmp_path) == []


def test_the_file_has_no_name_while_it_is_written(tmp_path: Path) -> None:
    """So that nothing stays after a kill -9 either."""
    seen: list[list[str]] = []

    class Watching(Stopped):
        def write(self, chunk: Buffer) -> None:
            seen.append(os.listdir(tmp_path))
            super().write(chunk)

    disk = Counting()
    disk.create = lambda path: Watching(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), None)  # type: ignore[method-assign]
    assert isinstance(planning.measure_disk(str(tmp_path), disk, SystemClock()), Writing)
    assert seen == [[]] * 4


@pytest.mark.parametrize("where", ["at_create", "at_write"])
def test_a_disk_that_refuses_is_an_answer(tmp_path: Path, where: str) -> None:
    disk = Counting(**{where: OSError(errno.ENOSPC, "No space left on device")})
    found = planning.measure_disk(str(tmp_path), disk, SystemClock())
    assert found == Unmeasured(why=f"{tmp_path}: No space left on device")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROBE", 1 << 60)
    disk = Counting()
    found = planning.measure_disk(str(tmp_path), disk, SystemClock())
    assert isinstance(found, Unmeasured)
    assert "MiB that are free" in found.why
    assert disk.made == []


def test_a_slow_disk_is_given_up(tmp_path: Path) -> None:
    clock = ManualClock()

    class Slow(Stopped):
        def write(self, chunk: Buffer) -> None:
            clock.advance(4.0)
            super().write(chunk)

    disk = Counting()
    disk.create = lambda path: Slow(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), None)  # type: ignore[method-assign]
    assert planning.measure_disk(str(tmp_path), disk, clock) == Writing(rate=24 * MIB / 12.0, size=24 * MIB)


@pytest.mark.parametrize("available", [None, 90 * MIB])
def test_memory_that_is_not_there_is_not_taken(available: int | None) -> None:
    found = planning.measure_copy(replace(ROOM, host_available=available), "shm", SystemClock())
    assert isinstance(found, Unmeasured)
    assert "32 MiB" in found.why


def test_there_is_no_copy_without_slots() -> None:
    assert planning.measure_copy(ROOM, "none", SystemClock()) == Unmeasured(why="there are no slots to copy into")
