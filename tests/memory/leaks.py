"""Trainings that leak memory until a limit of the process, or of a control group, ends them."""

from __future__ import annotations

import random
import resource
import time
from itertools import count
from pathlib import Path
from typing import Any

import torch

import mementum
from forks import report
from mementum.events import Alarmed, Committed, SnapshotKept

MB = 1 << 20
FREE = 400 * MB  # from what is used when the leak begins to the limit; a save and a loaded library may take some of it
LEAKS_FROM = 10  # steps: by then all that training itself needs is there
LIMITS = {"address space": ("VmSize", resource.RLIMIT_AS), "data": ("VmData", resource.RLIMIT_DATA)}
GROUPS = Path("/sys/fs/cgroup/memory")


def leak(scene: dict[str, Any]) -> None:
    """Train until memory is refused, or until it is ended. Told are steps, alarms and saves, as they come."""
    draw = random.Random(scene["seed"])
    torch.manual_seed(scene["seed"])
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    a_step, pause_s = FREE // draw.randrange(60, 200), scene.get("pause_s", draw.uniform(0.002, 0.012))
    saves: list[tuple[int, str]] = []

    def hear(event: object) -> None:
        if isinstance(event, Committed | SnapshotKept):
            saves.append((event.step, event.reason))
            report(scene, saves=saves, **({"durable": event.step} if isinstance(event, Committed) else {}))
        if isinstance(event, Alarmed):
            report(scene, alarm=event.alarm.text)

    leaked: list[torch.Tensor] = []
    began_s = time.monotonic()
    with mementum.open_run(scene["root"], task="leak", model=model, optimizer=optimizer, on_event=hear) as run:
        try:
            for step in count(1):
                if step == LEAKS_FROM:
                    _limit(scene["limit"])
                    report(scene, limited=True)
                if step >= LEAKS_FROM:
                    size = a_step if scene["even"] else int(a_step * draw.uniform(0.5, 1.5))
                    leaked.append(torch.zeros(size, dtype=torch.uint8))
                    if sum(map(len, leaked)) > 1.1 * FREE:
                        return  # there is no such limit here
                loss = model(torch.randn(16, 64)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(pause_s)
                run.record(loss=loss.item())
                report(scene, step=step, step_s=(time.monotonic() - began_s) / step)
        # torch has an error of its own for memory that is refused, and another part of it one more.
        except (MemoryError, RuntimeError) as error:
            leaked.clear()
            report(scene, refused=repr(error)[:200], saves_by_then=saves)


def _limit(kind: str) -> None:
    """From here on there are FREE bytes left."""
    if kind == "control group":
        group = GROUPS / _own_group()
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + FREE))
        return
    name, limit = LIMITS[kind]
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = int(lines[name].split()[0]) * 1024
    resource.setrlimit(limit, (used + FREE, resource.RLIM_INFINITY))


def _own_group() -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return next(line.split(":", 2)[2].lstrip("/") for line in lines if ":memory:" in line)


def leak_in_a_group(scene: dict[str, Any]) -> None:
    """The same in a control group of its own, which the kernel ends by killing."""
    group = GROUPS / scene["group"]
    (group / "cgroup.procs").write_text("0")
    leak(scene)
