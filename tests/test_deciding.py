"""What a run sees is at times no number, or cannot be seen at all: said once, and training and saves go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from loops import Parts, parts
from mementum import sensing
from mementum.events import Alarmed, Committed, Failed, Note
from mementum.perceive import memory, nvml
from mementum.perceive.situation import Perception
from mementum.perceive.vitals import VitalSigns
from mementum.records import Trouble, Vitals
from trips import Told

STEPS = 40
OF_SETTING = ("resume will be", "shared memory", "direct writes")  # notes about the machine or the loop, not the signs


def steps(made: Parts) -> Iterator[Any]:
    """Batches without end."""
    while True:
        yield from made.loader


def train(
    root: Path, metrics: Callable[[int, torch.Tensor], dict[str, Any]], *, learns: bool = True, **wishes: Any
) -> tuple[Told, mementum.Run]:
    """Train for some steps that tell what `metrics` makes of the step and its loss."""
    made, told = parts(), Told()
    wishes = {"every_steps": 10, **wishes}
    with mementum.open_run(
        root, task="t", model=made.model, optimizer=made.optimizer, on_event=told, keep_last=None, **wishes
    ) as run:
        for number, (inputs,) in zip(range(1, STEPS + 1), steps(made), strict=False):
            made.optimizer.zero_grad()
            loss = made.model(inputs).pow(2).mean()
            if learns:
                loss.backward()
            made.optimizer.step()
            run.record(**metrics(number, loss))
            if number % 10 == 0:
                run.wait()
    return told, run


def notes(told: Told) -> list[str]:
    return [event.text for event in told.of(Note) if not any(words in event.text for words in OF_SETTING)]


def saved(told: Told) -> list[int]:
    return [event.step for event in told.of(Committed)]


BAD: dict[str, Callable[[int, torch.Tensor], dict[str, Any]]] = {
    "none": lambda number, loss: {},
    "tensor": lambda number, loss: {"loss": loss.detach()},
    "tensor in the graph": lambda number, loss: {"loss": loss},
    "float": lambda number, loss: {"loss": loss.item()},
    "constant": lambda number, loss: {"loss": 1.0},
    "gaps in the loss": lambda number, loss: {"loss": loss.item()} if number % 3 else {},
    "gaps in the steps": lambda number, loss: {"loss": loss.item(), "step": 3 * number},
}


@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_is_given_in_any_way_says_nothing(tmp_path: Path, name: str) -> None:
    told, run = train(tmp_path, BAD[name])
    assert notes(told) == []
    assert told.of(Failed) == []
    assert [event for event in told.of(Alarmed) if event.alarm.trouble is not Trouble.SLOW] == []
    assert saved(told)[-1] == run.step
    assert len(saved(told)) >= 4


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor(math.nan)], ids=repr)
def test_a_loss_that_is_no_number_from_the_first_step_alarms_once(tmp_path: Path, value: Any) -> None:
    told, _ = train(tmp_path, lambda number, loss: {"loss": value})
    alarms = [event.alarm for event in told.of(Alarmed) if event.alarm.trouble is Trouble.NON_FINITE]
    assert len(alarms) == 1, alarms
    assert told.of(Failed) == []
    assert len(notes(told)) <= 1, notes(told)
    assert saved(told) == [10, 20, 30, 40]


@pytest.mark.parametrize(
    "value",
    [None, "low", b"low", [1.0], object(), torch.ones(3), {"a": 1}, 10**400],
    ids=lambda one: type(one).__name__,
)
def test_a_loss_that_is_nothing_of_the_kind_is_said_once(tmp_path: Path, value: Any) -> None:
    told, _ = train(tmp_path, lambda number, loss: {"loss": value})
    assert told.of(Failed) == []
    assert 1 <= len(notes(told)) <= 2, notes(told)
    assert len(set(notes(told))) == len(notes(told))
    assert saved(told) == [10, 20, 30, 40]


def test_a_model_without_gradients_and_a_negative_rate_say_nothing(tmp_path: Path) -> None:
    told, _ = train(tmp_path / "a", BAD["float"], learns=False)
    assert told.of(Failed) == []
    assert notes(told) == []
    made = parts()
    made.optimizer.param_groups[0]["lr"] = -1.0
    told = Told()
    with mementum.open_run(
        tmp_path / "b", task="t", model=made.model, optimizer=made.optimizer, on_event=told, every_steps=10
    ) as run:
        for number in range(1, 31):
            made.optimizer.param_groups[0]["lr"] = (-1.0, math.nan, 0.0)[number % 3]
            run.record(loss=1.0)
    assert told.of(Failed) == []
    assert len(notes(told)) <= 1, notes(told)
    assert saved(told)[-1] == 30


def test_kernel_files_that_are_missing_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = {"proc": str(tmp_path / "no proc"), "cgroup": str(tmp_path / "no cgroup")}
    monkeypatch.setattr(sensing, "Memory", lambda **wishes: memory.Memory(**wishes, **at))
    told, _ = train(tmp_path / "r", BAD["float"])
    assert told.of(Failed) == []
    said = [text for text in notes(told) if "no proc" in text]
    assert len(said) == len(set(said)) == len(notes(told)), notes(told)
    assert said
    assert saved(told) == [10, 20, 30, 40]


def test_kernel_files_that_fail_midway_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = memory._Files.text, [0]

    def failing(self: Any, path: str, found: list[str]) -> str:
        reads[0] += path.endswith("meminfo")
        if path.endswith("meminfo") and reads[0] > 3:
            found.append(f"{path}: Input/output error")
            return ""
        return read(self, path, found)

    monkeypatch.setattr(memory._Files, "text", failing)
    told, _ = train(tmp_path, BAD["float"])
    assert told.of(Failed) == []
    assert [text for text in notes(told) if "meminfo" in text] == notes(told)
    assert len(notes(told)) == 1
    assert reads[0] == 4
    assert saved(told) == [10, 20, 30, 40]


def test_a_driver_that_fails_midway_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        class NVMLError(Exception):
            pass

        asked = 0

        def nvmlInit(self) -> None: ...
        def nvmlShutdown(self) -> None: ...
        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
            return uuid

        def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
            self.asked += 1
            if self.asked > 2:
                raise self.NVMLError("GPU is lost")
            return type("Info", (), {"used": 1 << 30, "total": 8 << 30})

    class Cuda:
        """As much of torch.cuda as is asked for."""

        def device_count(self) -> int:
            return 1

        def memory_reserved(self, index: int) -> int:
            return 1 << 20

        def memory_stats(self, index: int) -> dict[str, int]:
            return {"reserved_bytes.all.current": 1 << 20, "allocated_bytes.all.peak": 1 << 19}

        def get_per_process_memory_fraction(self, index: int) -> float:
            return 1.0

        def get_device_properties(self, index: int) -> Any:
            return type("Properties", (), {"total_memory": 8 << 30, "uuid": "1234"})

    driver = Driver()
    monkeypatch.setattr(memory, "_cuda", Cuda)
    monkeypatch.setattr(memory, "DEVICE_S", 0.0)
    monkeypatch.setattr(memory, "Nvml", lambda tell: nvml.Nvml(tell=tell, library=driver))
    told, _ = train(tmp_path, BAD["float"])
    assert told.of(Failed) == []
    assert notes(told) == ["memory of 1234 cannot be watched and is left out: GPU is lost"]
    assert driver.asked == 3
    assert saved(told) == [10, 20, 30, 40]


def test_a_part_that_raises_is_off_after_three_faults_and_saves_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def broken(self: VitalSigns, step: int, **signs: Any) -> Vitals:
        asked.append(step)
        raise ZeroDivisionError("no spread")

    monkeypatch.setattr(VitalSigns, "observe", broken)
    told, _ = train(tmp_path, BAD["float"])
    assert asked == [1, 2, 3]
    assert [(event.what, event.error) for event in told.of(Failed)] == [
        ("looking at the run", "ZeroDivisionError: no spread")
    ] * 3
    assert notes(told) == ["looking at the run failed three times and is switched off"]
    assert saved(told) == [10, 20, 30, 40]


def test_the_default_policy_still_saves_when_looking_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: VitalSigns, step: int, **signs: Any) -> Vitals:
        raise ZeroDivisionError("no spread")

    monkeypatch.setattr(VitalSigns, "observe", broken)
    told, _ = train(tmp_path, BAD["float"], every_steps=None, config={"tolerance": {"max_lost": "0.02s"}})
    assert [event.reason for event in told.of(Committed) if "max_lost" in event.reason]


def test_nothing_that_is_seen_can_stand_in_the_way_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("look", "taken", "notices", "state", "take_in", "evaluated", "close"):
        monkeypatch.setattr(Perception, name, lambda *args, **wishes: 1 / 0)
    told, run = train(tmp_path, BAD["float"])
    assert saved(told) == [10, 20, 30, 40]
    assert run.step == STEPS
    assert {event.error for event in told.of(Failed)} == {"ZeroDivisionError: division by zero"}
    assert len(told.of(Failed)) <= 3 * 8
