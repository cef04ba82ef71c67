"""Planning: `mementum plan`, what saves will take of memory, time and disk, as a person or a program reads it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mementum.catalog.address import Address
from mementum.catalog.tasks import tasks
from mementum.cli import amounts
from mementum.cli.failing import OK, warn
from mementum.cli.reading import find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, printable, size
from mementum.clock import SystemClock
from mementum.config.tiers import Watermarks
from mementum.decide.filling import needs
from mementum.errors import NoSuchAddress, UsageError
from mementum.execute import room as rooms
from mementum.execute.room import FEWEST, SHM_PART, WANTED, Room
from mementum.opening import root_folder
from mementum.planning import (
    LOST_S_PER_GB,
    OPTIMIZERS,
    WIDTHS,
    Costs,
    Plan,
    State,
    Unmeasured,
    Writing,
    costs,
    make,
    state_in,
    state_of_parameters,
)
from mementum.records import record
from mementum.rooting import part_of
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.watermarks import marks_of

PAGE = "docs/memory.md"
INDENT = "  "
HEAD = ("what", "how much", "known from")
DEFAULT_EVERY = "10m"  # what open_run does if it is told nothing
SLOTS_MAX = 16  # more than any run has use for: each holds a whole state
SHOWN_MAX = 10  # tasks that an error lists; more do not help anybody
OPTIMIZER, DTYPE = "adamw", "fp32"  # what is meant where only --params is given

Row = tuple[str, str, str]


@record
class Words:
    """The options, as they were given."""

    state: str | None
    params: str | None
    optimizer: str | None
    dtype: str | None
    frozen: str | None
    every: str | None
    step_time: str | None
    slots: int | None
    measure: bool


@record
class Rhythm:
    """How often it is saved: `text` says it, `interval_s` is None where nobody can say how long that is."""

    text: str
    interval_s: float | None
    step_s: float | None


def plan(root: str, task: str | None, words: Words, *, as_json: bool) -> int:
    """Print what was found, chosen and measured; the exit code."""
    folder = root_folder(root)
    rhythm = _rhythm(words)
    slots = WANTED if words.slots is None else words.slots
    if not FEWEST <= slots <= SLOTS_MAX:
        raise UsageError(
            f"--slots: {slots} is none of {FEWEST} to {SLOTS_MAX}",
            next_command=f"leave it out: {WANTED} serve best, and {FEWEST} are taken where memory is short",
        )
    state = _state(folder, task, words)
    made = make(
        state,
        folder,
        slots=slots,
        measure=words.measure,
        room=rooms.look(),
        disk=PosixDisk(),
        clock=SystemClock(),
    )
    following = costs(made, interval_s=rhythm.interval_s, step_s=rhythm.step_s)
    next_command = _next(folder, task, made, slots)
    if as_json:
        print(rendered(_fields(folder, made, following, rhythm, next_command)))
    else:
        print("\n".join(printable(line) for line in _lines(folder, made, following, rhythm, next_command)))
    return OK


def _rhythm(words: Words) -> Rhythm:
    step_s = None if words.step_time is None else amounts.time_s("--step-time", words.step_time)
    interval_s, steps = amounts.interval("--every", words.every or DEFAULT_EVERY)
    if steps is None:
        return Rhythm(text=f"every {_seconds(interval_s)}", interval_s=interval_s, step_s=step_s)
    text = f"every {counted(steps, 'step')}"
    if step_s is None:
        return Rhythm(text=text, interval_s=None, step_s=None)
    return Rhythm(text=f"{text} of {_seconds(step_s)}", interval_s=steps * step_s, step_s=step_s)


def _state(root: Path, task: str | None, words: Words) -> State:
    frozen = 0 if words.frozen is None else amounts.size("--frozen", words.frozen)
    if words.params is None and (words.optimizer is not None or words.dtype is not None):
        raise UsageError("--optimizer and --dtype say what --params are", next_command="give --params as well")
    if words.state is not None:
        if words.params is not None:
            raise UsageError("--state and --params both say how large the state is", next_command="give one of them")
        return State(moving=amounts.size("--state", words.state), frozen=frozen, source="--state")
    if words.params is not None:
        optimizer, dtype = words.optimizer or OPTIMIZER, words.dtype or DTYPE
        _require_known("--optimizer", optimizer, OPTIMIZERS)
        _require_known("--dtype", dtype, WIDTHS)
        count = amounts.count("--params", words.params)
        return state_of_parameters(count, optimizer=optimizer, dtype=dtype, frozen=frozen)
    if words.frozen is not None:
        raise UsageError(
            "--frozen is beside what --state or --params say", next_command="give one of them, or leave --frozen out"
        )
    return _newest(root, task)


def _require_known(option: str, word: str, known: dict[str, int]) -> None:
    if word not in known:
        raise UsageError(
            f"{option}: {word[:60]!r} is none of {', '.join(known)}", next_command="give the state's size by --state"
        )


def _newest(root: Path, task: str | None) -> State:
    """That of the newest full checkpoint."""
    disk = PosixDisk()
    if not root.is_dir() or not any(tasks(LocalStore(disk, str(root)))):
        raise NoSuchAddress(
            f"{root} has no checkpoint that would say how large the state is",
            next_command="give its size (--state 1.2GB), or the number of trained parameters (--params 124M)",
        )
    contents = look(str(root))
    for damage in contents.nameless:
        warn(f"warning: {damage.key}: {damage.what}")
    names = sorted(set(contents.tasks))
    if task is None and len(names) > 1:
        raise UsageError(
            f"{root} has {len(names)} tasks and none was named: {', '.join(map(repr, names[:SHOWN_MAX]))}",
            next_command=f"mementum plan ROOT {shlex.quote(names[0])}",
        )
    held = find(contents, Address(task=task, selector="exact"))
    require_readable(held)
    store = part_of(contents.root, held.home)
    return state_in(store, held.entry.folder, held.entry.manifest)


# What is printed.


def _lines(root: Path, made: Plan, following: Costs, rhythm: Rhythm, next_command: str) -> Iterator[str]:
    sections = (
        ("state", _state_rows(made)),
        ("memory", _memory_rows(made)),
        ("time", _time_rows(made, following)),
        ("disk", _disk_rows(made, following)),
        (f"saved {rhythm.text}", _rhythm_rows(following, rhythm)),
    )
    yield f"plan for {root}"
    every = [row for _, rows in sections for row in rows]
    table = iter(columns(HEAD, every)[1:])
    for title, rows in sections:
        yield title
        yield from (INDENT + next(table) for _ in rows)
    yield f"choice: {made.choice.why}"
    for one in made.behind:
        held = f"step {one.step} of task {one.task}" if one.why is None else f"no snapshot: {one.why}"
        yield f"left by a dead process: {one.path}, {size(one.size)}, {held}"
    yield from (f"not known: {note}" for note in made.room.notes)
    yield f"next: {next_command}"


def _state_rows(made: Plan) -> list[Row]:
    rows = [("written by every save", size(made.state.moving), made.state.source)]
    if made.state.frozen:
        rows.append(("frozen, written once", size(made.state.frozen), made.state.source))
    return rows


def _memory_rows(made: Plan) -> list[Row]:
    room, choice = made.room, made.choice
    rows = [
        ("may be taken", _size(room.headroom), binding(room)),
        (room.shm_folder, f"{_size(room.shm_size)}, {_size(room.shm_free)} free", "statvfs"),
    ]
    if choice.kind == "none":
        return [*rows, ("slots", "none", "see the choice below")]
    where = "shared memory" if choice.kind == "shm" else "private memory"
    total = f"{size(choice.slots * choice.slot_bytes)} in all"
    return [*rows, ("slots", f"{choice.slots} of {size(choice.slot_bytes)} in {where}, {total}", "the choice below")]


def binding(room: Room) -> str:
    """Which limit says how much memory may be taken."""
    if room.headroom is None:
        return "nothing tells it"
    if room.headroom == room.host_available:
        return "MemAvailable in /proc/meminfo"
    return f"{room.limited_by} ({_size(room.used)} of {_size(room.limit)} used)"


def _time_rows(made: Plan, following: Costs) -> list[Row]:
    copied = "not measured: " + made.copying.why if isinstance(made.copying, Unmeasured) else ""
    if not copied:
        copied = "a copy of up to 256 MiB, measured here, now"
    slots = made.choice.kind != "none"
    rows: list[Row] = []
    if slots:
        rows.append(("copy into a slot", _seconds(following.copy_s), copied))
        rows.append(
            (
                "more, at a slot's first use",
                _seconds(following.first_s),
                "the same, into untouched memory: it may hold up the loop",
            )
        )
    durable = "copy and disk, one after the other" if slots else "the disk, from the live state"
    rows.append(("until durable", _seconds(following.durable_s), f"{durable}: an estimate"))
    stands = "the project's measurement, and a step that ends before its copy waits for it"
    if not slots:
        stands = "as long as the disk takes: there is no memory for a copy"
    rows.append(("the loop stands still", _seconds(following.blocked_s), stands))
    if slots:
        estimate = f"an estimate: {LOST_S_PER_GB} s a GB, measured by the project beside 2 busy cores"
        rows.append(("lost by slower steps", _seconds(following.lost_s), estimate))
    return rows


def _disk_rows(made: Plan, following: Costs) -> list[Row]:
    writing = made.writing
    if isinstance(writing, Writing):
        rate = ("speed", f"{size(round(writing.rate))}/s", f"{size(writing.size)} written, measured here, now")
    else:
        rate = ("speed", "unknown", f"not measured: {writing.why}")
    disk = made.disk
    rows = [rate, ("free", _size(None if disk is None else disk.free), f"statvfs of {made.folder}")]
    if disk is not None:
        marks = Watermarks()
        limit = needs(disk, marks_of(marks), coming=1, full=following.bytes).limit
        fit = max(0, limit - disk.used) // max(1, following.bytes)
        rows.append(("used", f"{disk.share:.0%}", f"the same; from {marks.clean_from:.0%} on what is worth least goes"))
        rows.append(("room for", counted(fit, "such checkpoint"), f"up to {marks.emergency:.0%}, by bytes of a save"))
    rows.append(("first save", size(following.first_bytes), "all of the state"))
    rows.append(("every later save", size(following.bytes), "what is not frozen, before any compression"))
    rows.append(("shortest interval", _seconds(following.least_s), "at shorter ones the disk falls behind"))
    return rows


def _rhythm_rows(following: Costs, rhythm: Rhythm) -> list[Row]:
    if rhythm.interval_s is None:
        return [("a day", "unknown", "--step-time would say how long a step takes")]
    share = "unknown" if following.share is None else f"{100 * following.share:.3g} %"
    behind = following.least_s is not None and following.least_s > rhythm.interval_s
    rows = [
        ("bytes a day", _size(following.bytes_per_day), "bytes of a save by saves a day"),
        ("of the training's time", share, "(standing still + lost) by the interval: an estimate"),
    ]
    if behind:
        rows.append(("the disk is behind", "saves are left out", "a newer save takes the place of one that waits"))
    return rows


def _next(root: Path, task: str | None, made: Plan, slots: int) -> str:
    """What helps most: bring what would be lost, make room, or ask again once it is known better."""
    here = shlex.quote(str(root))
    whole = [one for one in made.behind if one.task is not None]
    if whole:
        from mementum.ram import key_of  # torch, which takes seconds: only where there is something to compare

        ours = [one.task for one in whole if one.task is not None and one.key == key_of(root, one.task)]
        if ours:
            return f"mementum drain {here} {shlex.quote(ours[0])}, or start the training again, which does it too"
    if made.choice.kind != "shm" and _short_of_shm(made, slots):
        needed = slots * made.choice.slot_bytes * SHM_PART
        mebibytes = -(-needed >> 20) + 1
        return f"give {made.room.shm_folder} {mebibytes} MiB: docker run --shm-size={mebibytes}m; for pods see {PAGE}"
    if made.choice.kind == "none":
        return f"give the process more memory, or train with the loop standing still while it saves; see {PAGE}"
    if not made.state.measured:
        of = shlex.quote(task) if task is not None else "TASK"
        return f"mementum plan {here} {of} after the first save: its checkpoint says how large the state is"
    return f"python your_program.py, with open_run({str(root)!r}, …)"


def _short_of_shm(made: Plan, slots: int) -> bool:
    """Whether shared memory is what lacks, and not memory as such."""
    room = made.room
    free = 0 if room.headroom is None else room.headroom - rooms.margin(room.headroom)
    return slots * made.choice.slot_bytes <= free


def _size(count: float | None) -> str:
    return "unknown" if count is None else size(round(count))


def _seconds(duration_s: float | None) -> str:
    if duration_s is None:
        return "unknown"
    for least, unit, name in ((86400, 86400, "days"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s")):
        if duration_s >= least:
            return f"{duration_s / unit:.3g} {name}"
    return f"{duration_s * 1000:.3g} ms"


def _fields(root: Path, made: Plan, following: Costs, rhythm: Rhythm, next_command: str) -> dict[str, Any]:
    """Bytes, seconds, and bytes a second; null is what could not be known."""
    room, choice = made.room, made.choice
    return {
        "root": str(root),
        "state": {"moving": made.state.moving, "frozen": made.state.frozen, "source": made.state.source},
        "memory": {
            "available": room.headroom,
            "limited_by": binding(room),
            "limit": room.limit,
            "used": room.used,
            "shm_folder": room.shm_folder,
            "shm_size": room.shm_size,
            "shm_free": room.shm_free,
            "notes": list(room.notes),
        },
        "choice": {
            "kind": choice.kind,
            "slots": choice.slots,
            "slot_bytes": choice.slot_bytes,
            "bytes": choice.slots * choice.slot_bytes,
            "why": choice.why,
        },
        "measured": {
            "folder": made.folder,
            "disk_free": None if made.disk is None else made.disk.free,
            "disk_used": None if made.disk is None else made.disk.used,
            "copy": _rates(made),
            "write": {"bytes_per_s": made.writing.rate, "bytes": made.writing.size}
            if isinstance(made.writing, Writing)
            else {"not_measured": made.writing.why},
        },
        "save": {name: getattr(following, name) for name in Costs.__dataclass_fields__},
        "every": {"text": rhythm.text, "interval_s": rhythm.interval_s, "step_s": rhythm.step_s},
        "left_behind": [
            {"path": one.path, "bytes": one.size, "task": one.task, "step": one.step, "id": one.id, "why": one.why}
            for one in made.behind
        ],
        "next": next_command,
    }


def _rates(made: Plan) -> dict[str, Any]:
    if isinstance(made.copying, Unmeasured):
        return {"not_measured": made.copying.why}
    return {"first_bytes_per_s": made.copying.first, "bytes_per_s": made.copying.again}
