"""NVIDIA's library, played by a small object: what it tells, and what happens when it tells nothing."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from mementum.perceive.nvml import RECOVERY_WANTED, REMAP_FAILED, UNCORRECTED, DeviceMemory, GpuHealth, Nvml

GIB = 1 << 30


class Library:
    """The functions of pynvml that are used; `fails` names those that raise."""

    NVML_SUCCESS = 0
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.used, self.ecc, self.rows, self.reasons, self.action = 3 * GIB, 0, (0, 0, 0, 0), 0x4, 0
        self.asked: list[str] = []
        self.open = 0

    def _call(self, name: str) -> None:
        self.asked.append(name)
        if name in self.fails:
            raise self.NVMLError(self.fails[name])

    def nvmlInit(self) -> None:
        self._call("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._call("handle")
        assert uuid == "GPU-7"
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self._call("memory")
        return SimpleNamespace(used=self.used, total=8 * GIB)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        self._call("ecc")
        assert (kind, counter) == (1, 0)
        return self.ecc

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        self._call("rows")
        return self.rows

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._call("reasons")
        return self.reasons

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[SimpleNamespace]:
        self._call("field")
        assert fields == [230]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.action))]


@pytest.fixture
def told() -> list[str]:
    return []


def test_a_healthy_gpu(told: list[str]) -> None:
    library = Library()
    nvml = Nvml(tell=told.append, library=library)
    assert nvml.memory("7") == nvml.memory("GPU-7") == DeviceMemory(used=3 * GIB, size=8 * GIB)
    health = nvml.health("7")
    assert health == GpuHealth(uncorrected=0, remap_pending=False, remap_failed=False, hot=False, recovery=0)
    assert (health.factor, health.text) == (1.0, "")
    assert (told, library.asked.count("init")) == ([], 1)
    nvml.close()
    nvml.close()
    assert library.open == 0


def test_signs_of_a_fault(told: list[str]) -> None:
    library = Library()
    nvml = Nvml(tell=told.append, library=library)
    library.ecc = 2
    assert (nvml.health("7").factor, nvml.health("7").text) == (UNCORRECTED, "2 uncorrected memory errors")
    library.rows, library.reasons = (0, 1, 1, 1), 0x40
    assert nvml.health("7").factor == REMAP_FAILED
    assert nvml.health("7").hot is True
    library.action = 2
    assert nvml.health("7").factor == RECOVERY_WANTED
    assert nvml.health("7").text.endswith("slowed down for heat, the driver asks for recovery action 2")
    assert told == []


def test_failing_midway_is_told_once_and_the_rest_goes_on(told: list[str]) -> None:
    library = Library()
    nvml = Nvml(tell=told.append, library=library)
    assert nvml.memory("7") is not None
    library.fails = {"memory": 999, "ecc": 999}
    for _ in range(3):
        assert nvml.memory("7") is None
        assert nvml.health("7") == GpuHealth(remap_pending=False, remap_failed=False, hot=False, recovery=0)
    assert told == [
        "memory of 7 cannot be watched and is left out: error 999",
        "ECC errors of 7 cannot be watched and is left out: error 999",
    ]
    assert library.asked.count("memory") == 2


def test_what_a_gpu_has_not_is_not_told(told: list[str]) -> None:
    library = Library()
    library.fails = {"ecc": 3, "rows": 3}
    nvml = Nvml(tell=told.append, library=library)
    assert nvml.health("7") == nvml.health("7") == GpuHealth(hot=False, recovery=0)
    assert (told, library.asked.count("ecc")) == ([], 1)


@pytest.mark.parametrize(("fails", "what"), [("init", "NVML"), ("handle", "device 7")])
def test_no_driver_or_no_such_device(told: list[str], fails: str, what: str) -> None:
    library = Library()
    library.fails = {fails: 12}
    nvml = Nvml(tell=told.append, library=library)
    assert nvml.memory("7") is None
    assert nvml.memory("7") is None
    assert nvml.health("7") == GpuHealth()
    assert told == [f"{what} cannot be watched and is left out: error 12"]
    assert library.asked.count(fails) == 1


def test_a_library_too_old_for_a_function(told: list[str]) -> None:
    class Old(Library):
        nvmlDeviceGetRemappedRows = None  # type: ignore[assignment]

    old = Old()
    del Old.nvmlDeviceGetRemappedRows
    old.fails["rows"] = 13
    assert Nvml(tell=told.append, library=old).health("7").remap_failed is None
    assert len(told) == 1


def test_the_library_is_not_installed(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    nvml = Nvml(tell=told.append)
    assert nvml.memory("7") is None
    assert nvml.memory("7") is None
    assert len(told) == 1
    assert "pip install nvidia-ml-py" in told[0]


def test_the_real_library_without_a_driver_or_with_one(told: list[str]) -> None:
    nvml = Nvml(tell=told.append)
    assert nvml.memory("no-such-device") is None
    assert len(told) == 1
    nvml.close()
