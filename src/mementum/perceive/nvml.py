"""What NVIDIA's management library tells of a GPU that this process uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mementum.records import record

UNCORRECTED = 10.0  # times the usual rate of failures, once memory has lost bits in this boot: the next may be ours
REMAP_PENDING = 3.0  # a row was replaced, which takes effect at the next reset: until then it is in use
REMAP_FAILED = 30.0  # no row is left to replace it: the maker's own advice is to exchange the GPU
RECOVERY_WANTED = 100.0  # the driver asks for a reset or a reboot, after an Xid that work cannot go on with
HOT = 2.0  # a GPU that is slowed down for its heat; 6 of the 419 interruptions of Llama 3 (table 5) were thermal
# The sources give rates of such faults, none says how much likelier a failure is after one. These factors are ours:
# they shorten intervals by their square root, so that one that is wrong by 4 costs a quarter more of a small loss.
NOT_SUPPORTED = 3  # an error of the library that is none: a GPU for games has no ECC, and nobody needs to be told


@record
class DeviceMemory:
    """Bytes of a device, of all processes."""

    used: int
    size: int


@record
class GpuHealth:
    """Signs of a fault; None is what this GPU or driver does not tell.

    `uncorrected`: errors of memory since the driver was loaded that no code could correct. `recovery`: what the driver
    asks for after an Xid (0: nothing), which it tells without a listener for events."""

    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    hot: bool | None = None
    recovery: int | None = None

    @property
    def factor(self) -> float:
        """By how much a failure is likelier than of a healthy GPU: the largest that any sign says."""
        signs = (
            (bool(self.uncorrected), UNCORRECTED),
            (bool(self.remap_pending), REMAP_PENDING),
            (bool(self.remap_failed), REMAP_FAILED),
            (bool(self.hot), HOT),
            (bool(self.recovery), RECOVERY_WANTED),
        )
        return max((factor for shown, factor in signs if shown), default=1.0)

    @property
    def text(self) -> str:
        """The signs in words; empty for a healthy GPU."""
        signs = (
            (self.uncorrected, f"{self.uncorrected} uncorrected memory errors"),
            (self.remap_pending, "a memory row that is replaced at the next reset"),
            (self.remap_failed, "a memory row that could not be replaced"),
            (self.hot, "slowed down for heat"),
            (self.recovery, f"the driver asks for recovery action {self.recovery}"),
        )
        return ", ".join(words for shown, words in signs if shown)


class Nvml:
    """The library, loaded at the first question. Whatever it cannot answer is told once, and not asked again.

    `library` stands in for the module `pynvml` in tests."""

    def __init__(self, *, tell: Callable[[str], None], library: Any = None) -> None:
        self._tell, self._library = tell, library
        self._handles: dict[str, Any] = {}
        self._begun = False
        self._silent: set[str] = set()

    def memory(self, uuid: str) -> DeviceMemory | None:
        """Memory of the device with this uuid (as torch gives it, with or without "GPU-")."""
        found = self._ask("memory", uuid, lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle))
        return None if found is None else DeviceMemory(used=int(found.used), size=int(found.total))

    def health(self, uuid: str) -> GpuHealth:
        rows = self._ask("remapped rows", uuid, lambda nvml, handle: nvml.nvmlDeviceGetRemappedRows(handle))
        return GpuHealth(
            uncorrected=self._ask("ECC errors", uuid, _uncorrected),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            hot=self._ask("reasons of slowdown", uuid, _hot),
            recovery=self._ask("recovery action", uuid, _recovery),
        )

    def close(self) -> None:
        """Let go of the driver. A later question loads it again."""
        if self._begun and self._library is not None:
            self._answer("closing", lambda nvml: nvml.nvmlShutdown())
        self._begun = False
        self._handles.clear()

    def _ask(self, what: str, uuid: str, question: Callable[[Any, Any], Any]) -> Any:
        name = f"{what} of {uuid}"
        if name in self._silent or not self._load():
            return None
        if uuid not in self._handles:
            handle = self._answer(f"device {uuid}", lambda nvml: nvml.nvmlDeviceGetHandleByUUID(_full(uuid)))
            if handle is None:
                return None
            self._handles[uuid] = handle
        return self._answer(name, lambda nvml: question(nvml, self._handles[uuid]))

    def _load(self) -> bool:
        if self._begun:
            return True
        if "NVML" in self._silent:
            return False
        if self._library is None:
            try:
                self._library = importlib.import_module("pynvml")
            except ImportError:
                self._silence("NVML", "nvidia-ml-py is not installed: pip install nvidia-ml-py")
                return False
        self._begun = self._answer("NVML", lambda nvml: nvml.nvmlInit() or True) is not None
        return self._begun

    def _answer(self, name: str, question: Callable[[Any], Any]) -> Any:
        """The library raises its own error, a version without a function raises AttributeError."""
        if name in self._silent:
            return None
        assert self._library is not None, "asked before it was loaded"
        try:
            return question(self._library)
        except (self._library.NVMLError, AttributeError) as error:
            if getattr(error, "value", None) == NOT_SUPPORTED:
                self._silent.add(name)
            else:
                self._silence(name, str(error))
            return None

    def _silence(self, name: str, why: str) -> None:
        self._silent.add(name)
        self._tell(f"{name} cannot be watched and is left out: {why}")


def _full(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _uncorrected(nvml: Any, handle: Any) -> int:
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))


def _hot(nvml: Any, handle: Any) -> bool:
    reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    return bool(reasons & (nvml.nvmlClocksEventReasonHwThermalSlowdown | nvml.nvmlClocksEventReasonSwThermalSlowdown))


def _recovery(nvml: Any, handle: Any) -> int | None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None
