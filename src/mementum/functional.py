"""The functional door: save and load a dict of objects in a folder, with the same bytes and checks as a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from mementum.assemble import checked_names, fit_of, plain_fields, retention_of, step_number
from mementum.background import Background, Lasting
from mementum.catalog import address, tasks
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, SystemClock, timestamp
from mementum.decide.retain import Retention
from mementum.errors import CheckpointDamaged, MementumError, NothingToResume, SaveFailed, TaskInUse
from mementum.events import Emitter, Note
from mementum.execute import origin
from mementum.execute.capture import BlockingCapture
from mementum.execute.commit import new_id
from mementum.execute.finite import Finite
from mementum.execute.snapshot import Snapshot
from mementum.format import codec as codecs
from mementum.format import context as contexts
from mementum.format.levels import WEIGHTS
from mementum.live.component import Component
from mementum.live.stateful import ValueState, components_in
from mementum.opening import open_task, root_folder
from mementum.records import NON_FINITE, Entry, Granularity, Save, record
from mementum.recover.load import Loaded
from mementum.resuming import newest_whole, put_back, read_entry
from mementum.soundness import Soundness
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

TASK = "state"  # the one task of a folder that `save` has made
KEEP_LAST = 2  # the newest, and the one before it in case a disk loses the newest
WAIT_S = 600.0  # for a disk that a save is handed to; then the save counts as failed
BUSY_S = 30.0  # for another process that is saving into the same folder
PAUSE_S = 0.05

# The one piece of state of this module: saves into one folder become checkpoints in the order of their calls, though
# each has a thread of its own. An entry goes with its save.
_newest: WeakValueDictionary[Path, Saving] = WeakValueDictionary()


@record
class Wanted:
    """What a save is to make besides the state itself."""

    task: str
    step: int
    epoch: int
    reason: str
    granularity: Granularity
    retention: Retention
    codec: str
    user: Mapping[str, Any]


class Saving:
    """A save on its way. The state was copied before `async_save` returned."""

    def __init__(self, folder: Path, snapshot: Snapshot, wanted: Wanted, finite: Finite, clock: Clock) -> None:
        self._folder, self._snapshot, self._wanted, self._finite, self._clock = folder, snapshot, wanted, finite, clock
        self._finished = threading.Event()
        self._error: Exception | None = None
        self._before = _newest.get(folder)
        _newest[folder] = self
        threading.Thread(target=self._run, name="mementum-save", daemon=False).start()

    def done(self) -> bool:
        """Whether it is durable or has failed."""
        return self._finished.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is durable or has failed; False if that takes longer."""
        return self._finished.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> str:
        """The id of the checkpoint, once it is durable. SaveFailed, with the cause, if there is none."""
        if not self.wait(timeout_s):
            raise SaveFailed(
                f"the save into {self._folder} is not durable after {timeout_s} s", kept="older checkpoints"
            )
        if self._error is not None:
            told = self._error.message if isinstance(self._error, MementumError) else repr(self._error)
            raise SaveFailed(f"the save into {self._folder} failed: {told}", kept="older checkpoints") from self._error
        return self._snapshot.id

    def _run(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.wait()
        try:
            _write(self._folder, self._snapshot, self._wanted, self._finite, self._clock)
        except Exception as error:  # a thread's end: kept, and raised by `result`
            self._error = error
        finally:
            self._finished.set()


def async_save(
    folder: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    step: int = 0,
    keep_last: int | None = KEEP_LAST,
    codec: str = "raw",
    user: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Saving:
    """Copy `state` now, and make it a checkpoint in the background; `result()` waits for its id.

    state: names to models, optimizers, anything with `state_dict()` and `load_state_dict()`, generators, containers,
        tensors and plain values. `per_rank(thing)` marks what each rank has of its own.
    folder: made if it is missing. Saving again commits a newer checkpoint; the newest `keep_last` stay (None: all).

    A parameter, or a tensor of an optimizer, that is not finite is logged as a warning, and the checkpoint is marked as
    diverged: it is loaded as the latest all the same, and `clean` passes it by.

    Raises UsageError or UnsupportedState before anything is written. What goes wrong later is raised by `result()`."""
    components = components_in(checked_names(state), values=True)
    wanted = Wanted(
        task=TASK,
        step=step_number(step),
        epoch=0,
        reason="asked by the program",
        granularity=Granularity.FULL,
        retention=retention_of(keep_last, None),
        codec=codecs.check(codec),
        user=plain_fields(user),
    )
    return save_components(root_folder(folder), components, wanted, clock=clock)


def save(folder: str | os.PathLike[str], state: Mapping[str, Any], **wishes: Any) -> str:
    """`async_save`, waited for: the id of the checkpoint, which is durable on return."""
    return async_save(folder, state, **wishes).result()


def save_components(
    root: Path, components: Sequence[Component], wanted: Wanted, *, clock: Clock | None = None
) -> Saving:
    """The same for components that are made already: what imports of other formats use."""
    clock = clock or SystemClock()
    began_s = clock.monotonic()
    captured = BlockingCapture(codec=wanted.codec).take(components)
    assert captured is not None  # a capture of its own has its memory free
    context = {
        "step": wanted.step,
        "epoch": wanted.epoch,
        "components": dict(captured.components),
        "rng": None,
        "iterating": False,
        "feed": None,
        "values": {},
    }
    snapshot = Snapshot(
        id=new_id(clock.now()),
        seq=0,  # it is given its number when the folder is ours
        step=wanted.step,
        epoch=wanted.epoch,
        time=timestamp(clock.now()),
        save=Save(reason=wanted.reason, granularity=wanted.granularity),
        images=captured.images,
        context=partial(contexts.render, context),
        debug_info=(),
        metrics={},
        exactness=(),
        blocked_s=clock.monotonic() - began_s,
        release=captured.release,
        began_s=began_s,
    )
    return Saving(root, snapshot, wanted, Finite(components), clock)


def _write(root: Path, snapshot: Snapshot, wanted: Wanted, finite: Finite, clock: Clock) -> None:
    emit = Emitter()
    lasting = Lasting(versions=origin.versions(), code=origin.code(), user=wanted.user)
    about = {"versions": lasting.versions, "code": lasting.code}
    until_s = clock.monotonic() + BUSY_S
    while True:
        try:
            opened = open_task(root, wanted.task, about=about, clock=clock, emit=emit)
            break
        except TaskInUse:
            if clock.monotonic() >= until_s:
                raise
            clock.sleep(PAUSE_S)
    try:
        entries = opened.catalog.entries(opened.home)
        seq = max((entry.manifest.seq for entry in entries), default=0)
        background = Background(
            opened=opened,
            retention=wanted.retention,
            lasting=lasting,
            seq=seq,
            saved_seq=seq,
            parent=entries[-1].manifest.id if entries else None,
            saved_step=None,
            clock=clock,
            emit=emit,
        )
        background.soundness = Soundness(finite, step=snapshot.step, tell=background.tell, emit=emit)
        background.submit(replace(snapshot, seq=background.next_seq()))
        late = not background.close(WAIT_S)
        failure = background.take_failure()
        if late or failure is not None:
            raise SaveFailed(f"the disk did not take it: {failure or 'it is still writing'}") from failure
        _forget_attempts(opened.store, opened.attempt.number)
    finally:
        opened.close()


def _forget_attempts(store: LocalStore, now: int) -> None:
    """Every call is an attempt of its own; those before this one are over, and would only pile up."""
    for prefix in ("attempts/", "journal/"):
        for stat in tuple(store.list(prefix)):
            number = stat.key.removeprefix(prefix).partition(".")[0]
            if number.isdigit() and int(number) < now:
                store.delete(stat.key)


def load(
    folder: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    checkpoint: str | int = address.LATEST,
    fit: Literal["strict", "partial"] = "strict",
    rename: Mapping[str, str] | None = None,
    lr_wins: Literal["stored", "new"] = "stored",
) -> dict[str, Any]:
    """Put back what `state` names, in place, from the newest whole checkpoint in `folder`, exactly, all or nothing.

    checkpoint: `latest` (falls back over damaged ones), `clean`, `best:METRIC`, a step, or the beginning of an id;
        with the task before it (`byte-gpt@1200`) where the folder holds several, such as a root of `open_run`.
        The latest that `save` has made is loaded even if it is not finite, which is logged as a warning; of a run's
        checkpoints clean ones go first.
    fit, rename, lr_wins: as for `open_run`. The checkpoint may hold more than `state` asks for.

    Returns `state` as a dict with plain values as they were stored; a mutable `state` is updated with them too.
    Raises NothingToResume, CheckpointDamaged, StateMismatch or NoSuchAddress; then nothing was changed."""
    components = components_in(checked_names(state), values=True)
    how = fit_of(fit, rename, lr_wins)
    loaded = _read(root_folder(folder), str(checkpoint))
    if NON_FINITE in loaded.manifest.decision:
        name, id = loaded.manifest.decision[NON_FINITE], loaded.manifest.id
        Emitter()(Note(text=f'{name} of checkpoint {id} is not finite; checkpoint="clean" loads the newest that is'))
    put_back(loaded, components, fit=how, subset=True)
    given = dict(state)
    given.update({component.name: component.value for component in components if isinstance(component, ValueState)})
    if isinstance(state, MutableMapping):
        state.update({component.name: component.value for component in components if isinstance(component, ValueState)})
    return given


def _read(root: Path, checkpoint: str) -> Loaded:
    disk, catalog = PosixDisk(), open_sqlite(None)
    homes = {task.task: task.home for task in tasks.tasks(LocalStore(disk, str(root)))} if root.is_dir() else {}
    try:
        entries: list[Entry] = []
        for home in homes.values():
            refresh(catalog, home, LocalStore(disk, f"{root}/{home}"), strict=True)
            entries += catalog.entries(home)
        if not entries:
            raise NothingToResume(f"{root} holds no checkpoint", next_command="look at the path: `mementum ls ROOT`")
        text = checkpoint if checkpoint in homes or "@" in checkpoint else f"@{checkpoint}"
        wanted = address.parse(text, tasks=homes)
        chosen = address.select(entries, wanted)
        store = LocalStore(disk, f"{root}/{homes[chosen.manifest.task]}")
        if wanted.selector not in (None, address.LATEST):
            return _one(chosen, store)
        of_task = [entry for entry in entries if entry.manifest.task == chosen.manifest.task]
        if chosen.manifest.task == TASK:  # somebody has saved it on purpose, whatever it holds
            newest = read_entry(chosen, store)
            if isinstance(newest, Loaded):
                return newest
        found = newest_whole(of_task, store, emit=Emitter(), mark=lambda id, what: None, inexact=True)
        if found is None:
            raise NothingToResume(f"{root} holds no checkpoint that can be loaded")
        return found.loaded
    finally:
        catalog.close()


def _one(entry: Entry, store: LocalStore) -> Loaded:
    result = read_entry(entry, store)
    if isinstance(result, Loaded):
        if WEIGHTS not in result.manifest.levels:
            gone = "its weights were dropped when it was old, and only a record of it is left"
            raise NothingToResume(f"checkpoint {entry.manifest.id}: {gone}", next_command="mementum ls ROOT")
        return result
    raise CheckpointDamaged(
        entry.manifest.id,
        [(damage.key, damage.what) for damage in result],
        kept="all live objects, and the other checkpoints",
        next_command="load another one: `mementum ls ROOT` lists them",
    )
