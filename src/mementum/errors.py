"""The tree of exceptions. Each names the thing, says what was kept, and gives the next command.

MementumError
├── UsageError                  the caller's arguments are wrong (a ValueError too)
│   ├── UnsupportedState        a value in the state has no typed form; `path` names it
│   └── NoSuchAddress           nothing has the name, step or id that was asked for
├── StoreError                  a store could not do what it was asked
│   ├── KeyTaken                the key exists; nothing was overwritten
│   ├── KeyMissing              the key does not exist
│   ├── Unreachable             the place does not answer, or not now: trying again may help
│   └── AccessRefused           the place does not know us, or does not let us: trying again does not help
├── CheckpointError
│   ├── CheckpointDamaged       bytes are missing or differ from their digests; `damage` lists them
│   ├── UnknownFormat           not what mementum writes
│   ├── NotReadableHere         as it was written, but not for this process: a newer format, a missing class or codec
│   │   └── NewerFormat         written by a newer mementum
│   ├── NothingToResume         there is no checkpoint that can be restored
│   └── StateMismatch           the live objects do not fit what was stored; `differences` lists them
├── TaskInUse                   another living process trains the same task
├── Superseded                  a later attempt has taken the task over; this one saves and removes nothing more
├── TrainingDiverged            the training has diverged, and going on would train a wreck
└── SaveFailed                  a background save failed and `on_error="raise"` was asked for
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from shlex import quote
from typing import ClassVar

PAGE = "docs/errors.md"


class MementumError(Exception):
    """Any error that mementum raises on purpose.

    `kept` says what is still safe; `next_command` is what a person may run or change next. Where whoever raises says
    neither, what holds for the whole class is told: `default_kept` and `default_next`.
    """

    default_kept: ClassVar[str | None] = None
    default_next: ClassVar[str | None] = None

    def __init__(self, message: str, *, kept: str | None = None, next_command: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if kept is None and next_command is None:
            kept, next_command = self.default_kept, self.default_next
        self.kept = kept
        self.next_command = next_command

    @property
    def page(self) -> str:
        """Where more is said about errors of this class."""
        return f"{PAGE}#{type(self).__name__.lower()}"

    def __str__(self) -> str:
        lines = [self.message]
        if self.kept is not None:
            lines.append(f"kept: {self.kept}")
        if self.next_command is not None:
            lines.append(f"next: {self.next_command}")
        return "\n".join(lines)


class UsageError(MementumError, ValueError):
    """The arguments of a call, or the words of a command, are wrong."""

    default_kept = "everything: nothing was changed"


class UnsupportedState(UsageError):
    """A value in the training state has no typed form and would have needed a pickle."""

    def __init__(self, path: str, value: object, *, why: str = "has no typed form") -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        super().__init__(
            f"{path}: a value of type {kind} {why}",
            kept="nothing was written",
            next_command="give it state_dict() and load_state_dict(), or leave it out of the state",
        )
        self.path = path
        self.kind = kind


class NoSuchAddress(UsageError):
    """No task or checkpoint has the given address."""


class StoreError(MementumError):
    """A store could not do what it was asked; the cause is attached."""

    def __init__(self, key: str, message: str, *, kept: str | None = None, next_command: str | None = None) -> None:
        super().__init__(message, kept=kept, next_command=next_command)
        self.key = key


class KeyTaken(StoreError):
    """The key exists already. Stores never overwrite."""

    def __init__(self, key: str) -> None:
        super().__init__(key, f"{key} exists already; nothing is ever overwritten", kept="the existing object")


class KeyMissing(StoreError):
    """The key does not exist."""

    default_next = "mementum doctor ROOT"

    def __init__(self, key: str) -> None:
        super().__init__(key, f"{key} does not exist")


class Unreachable(StoreError):
    """The place does not answer, is overloaded, or broke off: the same call may succeed later."""

    default_kept = "all that is there, and what lies in the root"
    default_next = "look whether the place can be reached from here, and try again"


class AccessRefused(StoreError):
    """The place refuses our credentials, or does not let them do this."""

    default_kept = "all that is there, and what lies in the root"
    default_next = "look at the credentials of this user, and at what they may do there"


class CheckpointError(MementumError):
    """Something about stored checkpoints."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint's bytes are missing or are not the ones that were written."""

    default_kept = "its other files, and all other checkpoints"
    default_next = "mementum verify ROOT --deep"

    def __init__(
        self, id: str, damage: Sequence[tuple[str, str]], *, kept: str | None = None, next_command: str | None = None
    ) -> None:
        key, what = damage[0]
        more = f" ({len(damage)} findings in all)" if len(damage) > 1 else ""
        super().__init__(f"checkpoint {id} is damaged: {key}: {what}{more}", kept=kept, next_command=next_command)
        self.id = id
        self.damage = tuple(damage)


class UnknownFormat(CheckpointError):
    """The bytes are not what mementum writes."""

    default_next = "mementum doctor ROOT"


class NotReadableHere(CheckpointError):
    """The bytes may be whole, but this process cannot read them: a newer format, a codec or class that is not here."""

    default_kept = "the checkpoint, as it is"
    default_next = "mementum doctor ROOT"


class NewerFormat(NotReadableHere):
    """The bytes were written by a newer mementum."""

    default_next = "pip install --upgrade mementum"


class NothingToResume(CheckpointError):
    """No checkpoint can be restored."""

    default_kept = "all checkpoints, as they are"
    default_next = "mementum doctor ROOT"


class StateMismatch(CheckpointError):
    """What was stored does not fit the live objects; nothing was changed unless the message says so."""

    def __init__(self, id: str, differences: Sequence[str], *, kept: str, next_command: str) -> None:
        shown = "\n".join(f"  {difference}" for difference in differences[:20])
        more = f"\n  … and {len(differences) - 20} more" if len(differences) > 20 else ""
        super().__init__(
            f"checkpoint {id} does not fit the live objects:\n{shown}{more}", kept=kept, next_command=next_command
        )
        self.id = id
        self.differences = tuple(differences)


class TaskInUse(MementumError):
    """Another living process holds the task. `clears`: it is no training, but removes what others left half done."""

    def __init__(self, task: str, *, host: str, pid: int, elsewhere: bool = False, clears: bool = False) -> None:
        own = pid == os.getpid() and not elsewhere
        if clears:
            advice = "wait until it is through: it only removes what saves have left half done"
        elif own:
            advice = "close the run that has it: run.close(), or a `with` block"
        elif elsewhere:
            advice = f"wait for it, or stop it on {host}; open_run(takeover=True) if it is surely gone"
        else:
            advice = f"wait for it{f' or stop it (kill {pid})' if pid else ''}, or choose another task name"
        doing, this = "cleared" if clears else "trained", " (this one)" if own else ""
        super().__init__(
            f"task {task!r} is being {doing} by process {pid} on {host}{this}",
            kept="its checkpoints; nothing was changed",
            next_command=advice,
        )
        self.task, self.host, self.pid, self.elsewhere, self.clears = task, host, pid, elsewhere, clears


class Superseded(MementumError):
    """A later attempt has taken the task over. What this one trains from here on is not saved."""

    def __init__(self, task: str, *, attempt: int, by: int, host: str, pid: int) -> None:
        super().__init__(
            f"attempt {attempt} of task {task!r} was superseded by attempt {by}, process {pid} on {host}",
            kept="all checkpoints; nothing is saved or removed by this process any more",
            next_command=f"stop this process: attempt {by} goes on with the task",
        )
        self.task, self.attempt, self.by, self.host, self.pid = task, attempt, by, host, pid


class TrainingDiverged(MementumError):
    """The training has diverged and was stopped: `on_divergence` says `stop`, or no rollback has helped. `checkpoint`
    and `kept_step`: the newest one from before the trouble, if there is one. `kept`: what is, where nobody can say."""

    def __init__(
        self,
        task: str,
        why: str,
        *,
        step: int,
        onset: int | None,
        checkpoint: str | None,
        kept_step: int | None,
        kept: str | None = None,
    ) -> None:
        if checkpoint is None:
            kept = kept or "all checkpoints, of which none is clean and from before the trouble"
            next_command = "mementum ls ROOT"
        else:
            kept = f"checkpoint {checkpoint} of step {kept_step}, from before the trouble, and all others"
            next_command = f"mementum rollback ROOT {quote(task)} --to {checkpoint}, and start the program again"
        since = "" if onset is None else f", from step {onset} on"
        super().__init__(
            f"the training of task {task!r} has diverged{since}, and was stopped at step {step}: {why}",
            kept=kept,
            next_command=next_command,
        )
        self.task, self.step, self.onset = task, step, onset
        self.checkpoint, self.kept_step = checkpoint, kept_step


class SaveFailed(MementumError):
    """A save in the background failed; the cause is attached."""

    default_kept = "older checkpoints"
    default_next = "mementum doctor ROOT"
