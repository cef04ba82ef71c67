"""Clients that upload a checkpoint while a training goes on: ours, to a tier, and plain ones in a thread of their own.

All of them send checkpoints of one run, each of which is saved and durable before its upload begins, so that what is
measured is the upload and nothing else. Its files were written past the page cache: every client reads them from disk.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import boto3
import obstore
from _model import Training
from _savers import POLL_S, WAIT_S, Saved, WhenTold
from _sink import Sink, Told
from botocore.config import Config
from obstore.store import S3Store

import mementum
from mementum import events
from mementum.records import record

BUCKET = "bench"
TIER = "sink"
OURS, OBSTORE, BOTO3 = "mementum", "obstore", "boto3"
PEERS = (OBSTORE, BOTO3)
TOKIO = "tokio-rt-worker"  # the threads in which obstore's client works
OPTIONS = {
    "region": "us-east-1",
    "access_key_id": "bench",
    "secret_access_key": "bench",
    "unsigned_payload": "true",  # as with TLS, which loopback has not: the body is not signed
}


@record
class State:
    """What both sides have done so far. `threads_s`: processor seconds of this process's threads, by name."""

    told: Told
    threads_s: dict[str, float]


@record
class Sent:
    """What one upload was for both sides. `threads_s`: as of a `State`, without threads that have ended."""

    received: int
    requests: int
    sink_cpu_s: float
    threads_s: dict[str, float]


class Source:
    """A run that saves when it is told, and whose checkpoints go to the tier only when they are let go."""

    def __init__(self, training: Training, folder: Path, sink: Sink) -> None:
        options = {**OPTIONS, "endpoint": sink.endpoint, "allow_http": "true"}
        self.failures: list[str] = []
        self.placed = self.newest = ""  # ids
        self._folder, self._sink = folder, sink
        self._policy = WhenTold()
        self.run = mementum.open_run(
            folder,
            task="bench",
            model=training.model,
            optimizer=training.optimizer,
            policy=self._policy,
            config={
                "vitals": "off",  # what seeing costs, bench/overhead.py tells
                "alarms": "off",
                "scrub": "off",  # it would read back what was saved, beside any client
                "tiers": [{"url": f"s3://{BUCKET}/tier", "name": TIER, "options": options}],
            },
            keep_last=2,
            codec="raw",
            resume="never",
            on_event=self._hear,
        )
        background = self.run._background
        self._worker, self._forwarding = background._worker, background._forwarding
        self._offer = self._forwarding.offer
        self._forwarding.offer = lambda id: None  # type: ignore[method-assign]  # it waits for its turn
        self.before = self.state()

    def make(self) -> None:
        """A new checkpoint, durable, while the training stands still."""
        before = self.newest
        self._policy.wanted = True
        self.run.record()
        wait_for(lambda: self._is_idle() and self.newest != before, "a save")
        self.before = self.state()

    def let_go(self) -> None:
        """Send the newest, as after a commit: the saver's thread offers it to the tier."""
        self._worker.submit_fact(partial(self._offer, self.newest))

    def _is_idle(self) -> bool:
        self.check()
        return self.run.wait(timeout_s=0)

    def state(self) -> State:
        return State(told=self._sink.told(), threads_s=spent_by_name())

    def files(self) -> tuple[Path, ...]:
        """Those of the newest checkpoint."""
        found = max(self._folder.glob("*/*/step_*/meta.json"), key=lambda path: path.stat().st_mtime_ns)
        return tuple(sorted(found.parent.iterdir()))

    def is_on_its_way(self) -> bool:
        """Whether the newest is not on the tier yet, or what follows there is still to be done."""
        self.check()
        return self.placed != self.newest or bool(self._forwarding.waiting())

    def check(self) -> None:
        if self.failures:
            raise RuntimeError(f"{OURS}: {self.failures[0]}")

    def close(self) -> None:
        self.run.close()

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                self.newest = event.id
            case events.Placed():
                self.placed = event.id
            case events.Failed() | events.SaveSkipped() | events.Unplaced():
                self.failures.append(repr(event))


class Client(ABC):
    """A `Saver` whose save is the upload of a checkpoint that is there already. `sent` has one entry for each."""

    def __init__(self, name: str, source: Source) -> None:
        self.name, self.source = name, source
        self.sent: list[Sent] = []
        self._began_s = self._ended_s = 0.0

    def save(self) -> None:
        self._began_s, self._ended_s = time.perf_counter(), 0.0
        self._begin()

    def busy(self) -> bool:
        if not self._ended_s and self._is_done():
            self._ended_s = time.perf_counter()
        return not self._ended_s

    def saved(self) -> Saved:
        before, after = self.source.before, self.source.state()
        sent = Sent(
            received=after.told.received - before.told.received,
            requests=after.told.requests - before.told.requests,
            sink_cpu_s=after.told.cpu_s - before.told.cpu_s,
            threads_s={name: spent_s - before.threads_s.get(name, 0.0) for name, spent_s in after.threads_s.items()},
        )
        size = sum(path.stat().st_size for path in self.source.files())
        if sent.received < size:
            raise RuntimeError(f"{self.name} has sent {sent.received} bytes of {size}")
        self.sent.append(sent)
        return Saved(durable_s=self._ended_s - self._began_s, size=sent.received)

    def tidy(self) -> None:
        """The checkpoint of the next upload, whichever client's it will be."""
        self.source.make()

    def after_step(self, loss: float) -> None:
        del loss  # a plain client is told nothing

    def close(self) -> None:
        """The run that all clients share; twice is once."""
        self.source.close()

    @abstractmethod
    def _begin(self) -> None:
        """Begin to upload the newest checkpoint."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether it has ended; what went wrong is raised."""


class Ours(Client):
    """The tier's thread, as after every save."""

    def _begin(self) -> None:
        self.source.let_go()

    def _is_done(self) -> bool:
        return not self.source.is_on_its_way()

    def after_step(self, loss: float) -> None:
        self.source.run.record(loss=loss)


class Plain(Client):
    """A client that sends the checkpoint's files one after the other, in a thread of its own."""

    def __init__(self, name: str, source: Source, send: Callable[[str, Path], object]) -> None:
        super().__init__(name, source)
        self._send = send
        self._number = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _begin(self) -> None:
        self._number += 1
        self._thread = threading.Thread(target=self._work, args=(self.source.files(),), name=f"bench-{self.name}")
        self._thread.start()

    def _work(self, files: Sequence[Path]) -> None:
        try:
            for path in files:
                self._send(f"{self.name}/{self._number:06d}/{path.name}", path)
        except BaseException as error:  # raised where it is waited for
            self._error = error

    def _is_done(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


class WithObstore(Plain):
    """obstore alone, as it comes. Its threads are this process's and have ours's priority, which is raised here to that
    of any other thread for as long as the upload lasts."""

    def __init__(self, source: Source, sink: Sink) -> None:
        store = S3Store(BUCKET, config={**OPTIONS, "endpoint": sink.endpoint}, client_options={"allow_http": "true"})
        super().__init__(OBSTORE, source, lambda key, path: obstore.put(store, key, path))
        self.is_raised = True
        self._was: dict[int, int] = {}

    def _begin(self) -> None:
        self._was = {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads_of(TOKIO)}
        try:
            for thread in self._was:
                os.setpriority(os.PRIO_PROCESS, thread, 0)
        except PermissionError:
            self.is_raised = False
        super()._begin()

    def saved(self) -> Saved:
        for thread, nice in self._was.items():
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        return super().saved()


class WithBoto3(Plain):
    """boto3's upload_file, as it comes."""

    def __init__(self, source: Source, sink: Sink) -> None:
        client = boto3.client(
            "s3",
            endpoint_url=sink.endpoint,
            region_name=OPTIONS["region"],
            aws_access_key_id=OPTIONS["access_key_id"],
            aws_secret_access_key=OPTIONS["secret_access_key"],
            config=Config(s3={"addressing_style": "path"}),
        )
        super().__init__(BOTO3, source, lambda key, path: client.upload_file(str(path), BUCKET, key))


def wait_for(happened: Callable[[], bool], what: str) -> None:
    """Stand still until it has."""
    until = time.monotonic() + WAIT_S
    while not happened():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} had not ended after {WAIT_S:.0f} s")
        time.sleep(POLL_S)


def threads_of(name: str) -> tuple[int, ...]:
    """The kernel's numbers of this process's threads of this name."""
    return tuple(number for number, comm in _threads() if comm == name)


def spent_by_name() -> dict[str, float]:
    """Processor seconds of this process's threads that live, by name."""
    spent_s: dict[str, float] = {}
    for number, name in _threads():
        try:
            told = Path(f"/proc/self/task/{number}/schedstat").read_text()
        except OSError:  # it has ended
            continue
        spent_s[name] = spent_s.get(name, 0.0) + int(told.split()[0]) / 1e9
    return spent_s


def _threads() -> list[tuple[int, str]]:
    """By Python's names where it has begun them, for which the kernel knows no other than the process's own."""
    ours = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: list[tuple[int, str]] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found.append((int(task.name), ours.get(int(task.name)) or (task / "comm").read_text().strip()))
        except OSError:  # it has ended
            continue
    return found
