"""How near this process is to each limit of memory that can end it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mementum.cgroup import COUNTED, Limit, Read, group_limit, host_limit, places, process_limit
from mementum.clock import Clock
from mementum.perceive.forecast import Forecast
from mementum.perceive.nvml import DeviceMemory, GpuHealth, Nvml
from mementum.records import record

EVERY = 5  # steps from look to look
NEAR_LOOKS = 10  # looks from the limit: every step is looked at, so that the last of them are not missed
FILE_MAX = 1 << 16  # bytes that are read of a file of the kernel's; the longest of them has some 3000
DEVICE_S = 1.0  # between questions to the driver: it may take milliseconds, and other processes grow slowly
DEVICE = "device "  # begins the names of their sources
DEVICES_MAX = 16  # that one process is watched on; no machine has more in one process

Measure = Callable[[list[str]], Limit | None]


@record
class MemoryReading:
    """The tightest limit, by the part of it that is used, in bytes; `steps_left` is until the one that will be met
    first, which `nearest` names (inf, and the tightest, where nothing grows)."""

    step: int
    at_s: float  # on the monotonic clock
    name: str
    used: int
    limit: int
    steps_left: float
    nearest: str

    @property
    def part(self) -> float:
        """0 to 1, as Vitals.memory_used; above 1 where a limit was lowered below what is used."""
        return self.used / self.limit if self.limit else 1.0


class Memory:
    """Looks at every limit at every fifth step: control groups of both versions up to the root, limits of the process,
    the machine, and every device that torch has memory on. A look takes some 0.1 ms, without any synchronisation.

    Cached pages of files do not count as used, since the kernel takes them back before it kills; nor does what torch's
    allocator holds beyond its peak, which it frees before it gives up. A limit that cannot be read any more is told
    once and left out; the others go on.

    `proc` and `cgroup` are where the kernel's files are; `nvml` is made here unless given."""

    def __init__(
        self,
        *,
        tell: Callable[[str], None],
        clock: Clock,
        every: int = EVERY,
        nvml: Nvml | None = None,
        proc: str = "/proc",
        cgroup: str = "/sys/fs/cgroup",
    ) -> None:
        self._tell, self._clock, self._every = tell, clock, every
        self._nvml = nvml if nvml is not None else Nvml(tell=tell)
        self._proc, self._cgroup = proc, cgroup
        self._files = _Files()
        self._process = os.getpid()
        self._sources: dict[str, Measure] = {}
        self._forecasts: dict[str, Forecast] = {}
        self._devices: dict[int, _Device] = {}
        self._reading: MemoryReading | None = None
        self._percents: Mapping[str, int] = {}
        self._find()

    def look(self, step: int) -> MemoryReading | None:
        """What holds after this step; the reading before it where this step is not looked at; None if nothing limits
        the process, or nothing can be read."""
        last = self._reading
        near = last is not None and last.steps_left <= NEAR_LOOKS * self._every
        if step % self._every and not near:
            return last
        if os.getpid() != self._process:  # files of /proc/self show the process that opened them
            self._files.close()
            self._process = os.getpid()
        self._find_devices()
        found, percents = [], dict[str, int]()
        for name, measure in tuple(self._sources.items()):
            limit = self._measured(name, measure)
            if limit is not None and limit.size > 0:
                forecast = self._forecasts.setdefault(name, Forecast())
                forecast.add(step, limit.used)
                found.append((limit, forecast.steps_left(limit.size)))
                kind = "gpu_mem_percent" if name.startswith(DEVICE) else "mem_percent"
                percents[kind] = max(percents.get(kind, 0), round(100 * limit.used / limit.size))
        self._reading = self._read(step, found)
        self._percents = percents
        return self._reading

    def percents(self) -> Mapping[str, int]:
        """What of memory was used at the last look, in percent, of the fullest of each kind: `gpu_mem_percent` of the
        devices, `mem_percent` of all other limits. Any thread may ask; nothing is read for it."""
        return self._percents

    def ailing(self) -> tuple[float, str]:
        """How many times likelier the loss of a device is than usual, by what its driver says of it, and what that is:
        of the worst of them. (1.0, "") where nothing is wrong, or nobody can tell. May take a millisecond a device."""
        found = [device.health() for device in self._devices.values()]
        worst = max(found, key=lambda one: one.factor, default=None)
        return (1.0, "") if worst is None else (worst.factor, worst.text)

    def close(self) -> None:
        self._files.close()
        self._nvml.close()

    def _read(self, step: int, found: list[tuple[Limit, float]]) -> MemoryReading | None:
        if not found:
            return None
        tightest = max((limit for limit, _ in found), key=lambda limit: limit.used / limit.size)
        nearest, steps_left = min(found, key=lambda pair: pair[1])
        return MemoryReading(
            step=step,
            at_s=self._clock.monotonic(),
            name=tightest.name,
            used=tightest.used,
            limit=tightest.size,
            steps_left=steps_left,
            nearest=nearest.name if steps_left < math.inf else tightest.name,
        )

    def _measured(self, name: str, measure: Measure) -> Limit | None:
        """Whoever leaves a note is not asked again."""
        notes: list[str] = []
        limit = measure(notes)
        if notes:
            del self._sources[name]
            self._tell(f"a limit of memory is not watched ({name}): {'; '.join(notes)}")
            return None
        return limit

    def _find(self) -> None:
        notes: list[str] = []
        read: Read = self._files.text
        for place in places(self._proc, self._cgroup, notes, read):
            self._sources[place.limit] = partial(group_limit, place, (place.idle, place.active), read=read)
        for title, counted in COUNTED:
            self._sources[title] = partial(process_limit, title, counted, self._proc, read=read)
        self._sources["machine"] = partial(host_limit, self._proc, read=read)
        if notes:
            self._tell(f"the memory limits of control groups are not watched: {'; '.join(notes)}")

    def _find_devices(self) -> None:
        cuda = _cuda()
        if cuda is None:
            return
        for index in range(min(cuda.device_count(), DEVICES_MAX)):
            if index not in self._devices and cuda.memory_reserved(index) > 0:
                device = _Device(index, cuda, self._nvml, self._clock)
                self._devices[index] = device
                self._sources[f"{DEVICE}{index}"] = device.measure


class _Device:
    """One device of this process: all memory that is used of it, without what our allocator would free."""

    def __init__(self, index: int, cuda: Any, nvml: Nvml, clock: Clock) -> None:
        self._index, self._cuda, self._nvml, self._clock = index, cuda, nvml, clock
        properties = cuda.get_device_properties(index)
        self._size = int(properties.total_memory)
        self._uuid = str(getattr(properties, "uuid", ""))
        self._asked_s = -math.inf
        self._others = 0

    def measure(self, notes: list[str]) -> Limit | None:
        try:
            statistics = self._cuda.memory_stats(self._index)
            part = float(self._cuda.get_per_process_memory_fraction(self._index))
        except (RuntimeError, AttributeError) as error:
            notes.append(f"device {self._index}: {error}")
            return None
        reserved = int(statistics.get("reserved_bytes.all.current", 0))
        needed = min(reserved, int(statistics.get("allocated_bytes.all.peak", 0)))
        whole = Limit(name=f"device {self._index}", size=self._size, used=needed + self._used_by_others(reserved))
        if part >= 1.0:
            return whole
        own = Limit(name=f"this process's part of device {self._index}", size=int(part * self._size), used=needed)
        return max(whole, own, key=lambda limit: limit.used / limit.size if limit.size else math.inf)

    def health(self) -> GpuHealth:
        return self._nvml.health(self._uuid) if self._uuid else GpuHealth()

    def _used_by_others(self, reserved: int) -> int:
        """By other processes, and by what of ours no allocator counts: the driver's context and libraries."""
        now = self._clock.monotonic()
        if self._uuid and now - self._asked_s >= DEVICE_S:
            self._asked_s = now
            found: DeviceMemory | None = self._nvml.memory(self._uuid)
            if found is not None:
                self._others, self._size = max(0, found.used - reserved), found.size
        return self._others


class _Files:
    """Files of the kernel, kept open: to read one again takes a third of the time that to open it takes."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def text(self, path: str, notes: list[str]) -> str:
        try:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY)
            return os.pread(self._open[path], FILE_MAX, 0).decode("utf-8", "replace")
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
            return ""

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def _cuda() -> Any:
    """torch's view of devices, if this program has used one: nothing is imported or initialised for it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
