"""Identity: which process of which machine an attempt is, and which start of a job in the words of its scheduler."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mementum.records import CLEARS, record

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Names that many machines have: two claims with one of them need not be of one machine.
NAMES_OF_NOBODY = frozenset({"", "localhost", "localhost.localdomain"})
LEASE_S_MAX = 600.0  # that a claim may promise: a damaged number must not make a start wait for days
NO_RUN_ID = frozenset({"", "none"})  # what torchrun calls every job that was given no id


@record
class Incarnation:
    """One start of a job. Of two with one id the one with the higher count came later, and the other is gone.

    Without a count the id itself runs in one place at a time."""

    scheduler: str
    id: str
    count: tuple[int, ...] | None = None


@record
class Identity:
    """A process. `boot` is drawn by the kernel at its start, `started` is in clock ticks after it; both are None where
    the system does not tell. `lease_s` is None for who renews no lease. `clears`: it does not train, and has the task
    only for as long as it removes what others left half done."""

    host: str
    pid: int
    boot: str | None = None
    started: int | None = None
    lease_s: float | None = None
    clears: bool = False
    incarnations: tuple[Incarnation, ...] = ()


def identify(environ: Mapping[str, str], *, lease_s: float | None, clears: bool = False) -> Identity:
    """This process."""
    pid = os.getpid()
    return Identity(
        host=platform.node(),
        pid=pid,
        boot=_boot(),
        started=started(pid),
        lease_s=lease_s,
        clears=clears,
        incarnations=incarnations(environ),
    )


def incarnations(environ: Mapping[str, str]) -> tuple[Incarnation, ...]:
    """What torchrun, Slurm and Kubernetes say of this start in its environment, which is read here only."""
    found: list[Incarnation] = []
    run, restarts = environ.get("TORCHELASTIC_RUN_ID", ""), _count(environ, "TORCHELASTIC_RESTART_COUNT")
    if run not in NO_RUN_ID and restarts is not None:
        found.append(Incarnation(scheduler="torchrun", id=run, count=(restarts,)))
    job = environ.get("SLURM_JOB_ID", "")
    if job:
        # A requeued job keeps its number and counts up; within one start of it, each srun is a step of its own.
        requeued, step = _count(environ, "SLURM_RESTART_COUNT"), _count(environ, "SLURM_STEP_ID")
        name = f"{environ.get('SLURM_CLUSTER_NAME', '')}/{job}"
        found.append(Incarnation(scheduler="slurm", id=name, count=(requeued or 0, step or 0)))
    cluster, pod = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("HOSTNAME", "")
    if cluster and pod:
        found.append(Incarnation(scheduler="kubernetes", id=f"{cluster}/{pod}"))
    return tuple(found)


def succeeds(mine: Identity, theirs: Identity) -> str | None:
    """Why the scheduler has surely ended `theirs` before it started us; None if it does not tell."""
    for later in mine.incarnations:
        for earlier in theirs.incarnations:
            if (later.scheduler, later.id) != (earlier.scheduler, earlier.id):
                continue
            if later.count is None or earlier.count is None:
                return f"{later.scheduler} runs {later.id} in one place at a time"
            if later.count > earlier.count:
                return f"{later.scheduler} has restarted {later.id}"
    return None


def one_kernel(mine: Identity, theirs: Identity) -> bool:
    """Whether both run, or ran, under one start of one kernel: then its locks and process numbers tell the truth."""
    if mine.boot is None or theirs.boot is None:
        return _one_name(mine, theirs)
    return mine.boot == theirs.boot


def rebooted(mine: Identity, theirs: Identity) -> bool:
    """Whether the machine of `theirs` is ours and was started anew since."""
    return not one_kernel(mine, theirs) and _one_name(mine, theirs)


def lives(theirs: Identity) -> bool:
    """Whether the process is there, under this kernel. Its number may have been given to another one since."""
    return theirs.started is not None and started(theirs.pid) == theirs.started


def started(pid: int) -> int | None:
    """Clock ticks from the kernel's start to the process's; None if there is none, or no such file system."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = status.rpartition(b")")[2].split()  # the program's name stands in brackets, and may hold any byte
    return int(fields[19]) if len(fields) > 19 else None


def render(identity: Identity) -> dict[str, Any]:
    """As it stands in an attempt's file. What is not known is left out."""
    fields: dict[str, Any] = {"host": identity.host, "pid": identity.pid}
    for name in ("boot", "started", "lease_s"):
        if getattr(identity, name) is not None:
            fields[name] = getattr(identity, name)
    if identity.clears:
        fields[CLEARS] = True
    if identity.incarnations:
        fields["incarnations"] = [
            {"scheduler": each.scheduler, "id": each.id, **({} if each.count is None else {"count": list(each.count)})}
            for each in identity.incarnations
        ]
    return fields


def parse(fields: Any) -> Identity | None:
    """From an attempt's file; None where that does not say who it is. Any newer or stranger field is passed over."""
    match fields:
        case {"host": str(host), "pid": int(pid)}:
            boot, ticks, lease_s = fields.get("boot"), fields.get("started"), fields.get("lease_s")
            listed = fields.get("incarnations", [])
            return Identity(
                host=host,
                pid=max(pid, 0),  # 0 stands for nobody: a damaged number must never be offered to `kill`
                boot=boot if isinstance(boot, str) and boot else None,
                started=ticks if type(ticks) is int else None,
                lease_s=float(min(lease_s, LEASE_S_MAX)) if isinstance(lease_s, int | float) and lease_s > 0 else None,
                clears=fields.get(CLEARS) is True,
                incarnations=tuple(filter(None, map(_incarnation, listed))) if isinstance(listed, list) else (),
            )
    return None


def _incarnation(fields: Any) -> Incarnation | None:
    match fields:
        case {"scheduler": str(scheduler), "id": str(id), "count": [*count]}:
            if all(type(each) is int for each in count):
                return Incarnation(scheduler=scheduler, id=id, count=tuple(count))
        case {"scheduler": str(scheduler), "id": str(id)}:
            return Incarnation(scheduler=scheduler, id=id)
    return None


def _one_name(mine: Identity, theirs: Identity) -> bool:
    return mine.host == theirs.host and mine.host not in NAMES_OF_NOBODY


def _boot() -> str | None:
    try:
        return BOOT_ID.read_text().strip() or None
    except (OSError, ValueError):
        return None


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
