"""Savers: ways to save a training that are compared, each doing the same work: all of model and optimizer, durable."""

from __future__ import annotations

import shutil
import time
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed.checkpoint as dcp
from _measure import size_of, sync_file
from _model import Training
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.optimizer import register_optimizer_step_pre_hook

import mementum
from mementum import events
from mementum.records import Save, Situation, record

WAIT_S = 300.0  # for a save to become durable, after which it is a failure
SETTLE_WAIT_S = 30.0  # for a first save to be compressed with both cores free: some seconds
POLL_S = 0.002

OURS = "mementum"
SETTLED = "mementum_settling"
PEERS = ("torch_save", "dcp_save", "dcp_async", "dcp_async_staged")


@record
class Saved:
    """One save, once it is durable. `told_s` is what the saver itself says that it blocked, where it says so."""

    durable_s: float
    size: int
    told_s: float | None = None


class Saver(Protocol):
    """Saves one training. `save` holds the loop as long as it must, `after_step` is what its users call each step."""

    name: str

    def save(self) -> None: ...
    def after_step(self, loss: float) -> None: ...
    def busy(self) -> bool: ...
    def saved(self) -> Saved: ...
    def tidy(self) -> None: ...
    def close(self) -> None: ...


def wait_until_idle(saver: Saver) -> None:
    """Stand still until the save in flight has ended."""
    until = time.monotonic() + WAIT_S
    while saver.busy():
        if time.monotonic() > until:
            raise TimeoutError(f"{saver.name} was still saving after {WAIT_S:.0f} s")
        time.sleep(POLL_S)


class WhenTold:
    """A policy that leaves it to the benchmark when to save, as an interval would."""

    def __init__(self) -> None:
        self.wanted = False

    def decide(self, situation: Situation) -> Save | None:
        wanted, self.wanted = self.wanted, False
        return Save(reason="the benchmark's turn") if wanted else None


class Ours:
    """`mementum.open_run`, whose policy wants a save when the benchmark does: `record` then decides and takes it."""

    def __init__(self, training: Training, folder: Path, *, codec: str = "raw", name: str = OURS) -> None:
        self.name = name
        self.failures: list[str] = []
        self._began_s = 0.0
        self._saved: Saved | None = None
        self._newest = self._settled = ""  # ids of what was saved and what was compressed last
        self._policy = WhenTold()
        self.run = mementum.open_run(
            folder,
            task="bench",
            model=training.model,
            optimizer=training.optimizer,
            policy=self._policy,
            config={"vitals": "off", "alarms": "off"},  # what seeing costs, bench/overhead.py tells
            keep_last=2,
            codec=codec,
            resume="never",
            on_event=self._hear,
        )

    def save(self) -> None:
        self._saved = None
        self._policy.wanted = True
        self._began_s = time.perf_counter()
        self.run.record()

    def after_step(self, loss: float) -> None:
        self.run.record(loss=loss)

    def busy(self) -> bool:
        """Until it is durable, and older ones are removed."""
        if self.failures:
            raise RuntimeError(f"{self.name}: {self.failures[0]}")
        return not self.run.wait(timeout_s=0) or self._saved is None

    def settles(self) -> bool:
        """Whether the last save is compressed later, which a wait shows."""
        until = time.monotonic() + SETTLE_WAIT_S
        while self._settled != self._newest and time.monotonic() < until:
            time.sleep(POLL_S)
        return self._settled == self._newest

    def saved(self) -> Saved:
        assert self._saved is not None
        return self._saved

    def tidy(self) -> None:
        """It removes its older checkpoints itself, within the block."""

    def close(self) -> None:
        self.run.close()

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                durable_s = time.perf_counter() - self._began_s
                self._newest = event.id
                self._saved = Saved(durable_s=durable_s, size=event.size, told_s=event.blocked_s)
            case events.Failed() | events.SaveSkipped():
                self.failures.append(repr(event))
            case events.Settled():
                self._settled = event.id


class Peer(ABC):
    """What the peers share: a new place for every save, and removal of the last but one, which is not charged."""

    def __init__(self, training: Training, folder: Path, name: str) -> None:
        self.name, self.training, self.folder = name, training, folder
        self._number = 0
        self._began_s = 0.0
        self._durable_s: float | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # dcp warns, also from its threads, that there is no process group, which is meant here.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

    @property
    def place(self) -> Path:
        return self.folder / f"{self._number:06d}"

    def save(self) -> None:
        self._number += 1
        self._durable_s = None
        self._began_s = time.perf_counter()
        self._write(self.place)

    @abstractmethod
    def _write(self, place: Path) -> None:
        """Save to `place`, and call `_durable` when it is."""

    def _durable(self) -> None:
        self._durable_s = time.perf_counter() - self._began_s

    def after_step(self, loss: float) -> None:
        del loss  # they are told nothing

    def busy(self) -> bool:
        return self._durable_s is None

    def saved(self) -> Saved:
        assert self._durable_s is not None
        return Saved(durable_s=self._durable_s, size=size_of(self.place))

    def tidy(self) -> None:
        for old in sorted(self.folder.iterdir())[:-2]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder)


class TorchSave(Peer):
    """`torch.save` of both state_dicts, then fsync of the file and of its folder."""

    def _write(self, place: Path) -> None:
        state = {"model": self.training.model.state_dict(), "optimizer": self.training.optimizer.state_dict()}
        torch.save(state, place)
        sync_file(place)
        sync_file(place.parent)
        self._durable()


class DcpSave(Peer):
    """`torch.distributed.checkpoint.save`, which syncs its files itself; then fsync of the folders."""

    def _write(self, place: Path) -> None:
        dcp.save(state_of(self.training), storage_writer=dcp.FileSystemWriter(place), no_dist=True)
        sync_file(place)
        sync_file(place.parent)
        self._durable()


class DcpAsync(Peer):
    """`dcp.async_save` in a thread, staged by its default, or in shared memory that is used again."""

    def __init__(self, training: Training, folder: Path, name: str, *, staged: bool) -> None:
        super().__init__(training, folder, name)
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options) if staged else None
        self._error: BaseException | None = None

    def _write(self, place: Path) -> None:
        response = dcp.async_save(
            state_of(self.training),
            storage_writer=dcp.FileSystemWriter(place),
            async_stager=self._stager,
            no_dist=True,
        )
        upload: Future[Any] = response if isinstance(response, Future) else response.upload_completion
        if not isinstance(response, Future):
            response.staging_completion.result()  # a step before would tear the copy
        upload.add_done_callback(self._ended)

    def _ended(self, upload: Future[Any]) -> None:
        self._error = upload.exception()
        sync_file(self.place)
        sync_file(self.folder)
        self._durable()

    def saved(self) -> Saved:
        if self._error is not None:
            raise self._error
        return super().saved()

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()
        super().close()


def state_of(training: Training) -> dict[str, Any]:
    """The state as dcp's own guides take it."""
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer}


def make(name: str, training: Training, folder: Path) -> Saver:
    """A saver by its name, that writes below `folder`."""
    below = folder / name
    match name:
        case "mementum":
            return Ours(training, below)
        case "mementum_settling":
            return Ours(training, below, codec="planes+zstd:1", name=SETTLED)
        case "torch_save":
            return TorchSave(training, below, name)
        case "dcp_save":
            return DcpSave(training, below, name)
        case "dcp_async" | "dcp_async_staged":
            return DcpAsync(training, below, name, staged=name == "dcp_async_staged")
    raise ValueError(f"there is no saver {name!r}")


class Watch:
    """For how long the hooks between its own two stand in the way of `optimizer.step()`: those of every saver that is
    made in its `with` block, whoever made them, seen from outside."""

    def __enter__(self) -> Watch:
        self._began_s = 0.0
        self.held_s = 0.0
        self._hooks = [register_optimizer_step_pre_hook(self._before)]
        return self

    def all_made(self) -> None:
        """To be called when the savers are made: hooks are called in the order in which they were registered."""
        self._hooks.append(register_optimizer_step_pre_hook(self._after))

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: object) -> None:
        self._began_s = time.perf_counter()

    def _after(self, *_: object) -> None:
        self.held_s += time.perf_counter() - self._began_s
