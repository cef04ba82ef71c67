"""Ends that are known beforehand: a job's time limit, a wall time of the user's, a spot machine that is reclaimed."""

from __future__ import annotations

import http.client
import json
import math
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from mementum.clock import Clock
from mementum.errors import UsageError
from mementum.records import Notice

Tell = Callable[[str], None]
Lead = Callable[[], float]  # seconds before the end at which to say so: what a save needs, which is measured anew

LEAD_S = 120.0  # where nothing is measured: AWS's warning, in which most checkpoints become durable
POLL_S = 5.0  # what AWS recommends; the shortest warning, GCP's, is 30 s
TIMEOUT_S = 1.0  # metadata services stand on the machine itself and answer in milliseconds
ANSWER_MAX = 4096  # bytes; theirs are below 100
AWS_TOKEN_TTL_S = 60  # longer than the two requests that it is for
GCP_WARNING_S = 30.0  # from Google's documentation of preemptible and spot machines

METADATA = "http://169.254.169.254"  # the same link-local address on AWS and on GCP
AWS_TOKEN = "/latest/api/token"
AWS_ACTION = "/latest/meta-data/spot/instance-action"
GCP_PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Deadline(Protocol):
    """Something that may end the process, and says so beforehand."""

    def look(self, at_s: float) -> Notice | None:
        """The notice, with the seconds that are left at `at_s`, by the monotonic clock. None: no end is near."""
        ...


class Probe(Protocol):
    """A question to the world outside, which may take its time: one for `Polled`."""

    def ask(self) -> tuple[str, float | None] | None:
        """Who ends the process, and in how many seconds from now (None: unknown). None: nobody does.

        Raises OSError, HTTPException or ValueError if there is no answer, or one that makes no sense.
        """
        ...


def default_lead() -> float:
    return LEAD_S


class EndsAt:
    """An end at a known moment. It gives notice from `lead()` seconds before that on, since a save must be durable by
    then: `left_s` may be below zero once it has passed."""

    def __init__(self, source: str, *, ends_s: float, lead: Lead = default_lead) -> None:
        self._source, self._ends_s, self._lead = source, ends_s, lead

    def look(self, at_s: float) -> Notice | None:
        left_s = self._ends_s - at_s
        return Notice(source=self._source, left_s=left_s) if left_s < self._lead() else None


def wall_time(walltime_s: float, *, clock: Clock, lead: Lead = default_lead) -> EndsAt:
    """The end of a time that the user has given, in seconds from now."""
    if not (math.isfinite(walltime_s) and walltime_s > 0):
        raise UsageError(
            f"a wall time of {walltime_s!r} s is no time in which to train",
            next_command="give the seconds that the process may run, such as walltime_s=4 * 3600",
        )
    return EndsAt("wall time", ends_s=clock.monotonic() + walltime_s, lead=lead)


def slurm_limit(environ: Mapping[str, str], *, clock: Clock, tell: Tell, lead: Lead = default_lead) -> EndsAt | None:
    """The time limit of the Slurm job that this process belongs to. None: in no job, or Slurm does not say.

    SLURM_JOB_END_TIME is in seconds since 1970. What is not a moment to come is told, and passed over.
    """
    text = environ.get("SLURM_JOB_END_TIME")
    if "SLURM_JOB_ID" not in environ or text is None:
        return None
    try:
        left_s = float(text) - clock.now()
    except ValueError:
        left_s = math.nan
    if not (math.isfinite(left_s) and left_s > 0):
        tell(f"SLURM_JOB_END_TIME is {text!r}, which is no moment to come: the job's time limit is not known")
        return None
    return EndsAt("Slurm time limit", ends_s=clock.monotonic() + left_s, lead=lead)


class FileAppears:
    """A file that somebody puts there when the machine will be taken away. `left_s`: how long it lasts from then."""

    def __init__(self, path: str | os.PathLike[str], *, left_s: float | None = None) -> None:
        self._path, self._left_s = path, left_s

    def ask(self) -> tuple[str, float | None] | None:
        try:
            os.stat(self._path)
        except FileNotFoundError:
            return None
        return "spot reclaim", self._left_s


class AwsSpot:
    """The notice of a spot instance of AWS, by version 2 of its metadata service: two minutes before the end."""

    def __init__(self, *, clock: Clock, url: str = METADATA) -> None:
        self._clock, self._url = clock, url

    def ask(self) -> tuple[str, float | None] | None:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)}
        token = _fetch(f"{self._url}{AWS_TOKEN}", headers=ttl, method="PUT")
        if token is None:
            raise ValueError(f"{self._url} gives no token")
        action = _fetch(f"{self._url}{AWS_ACTION}", headers={"X-aws-ec2-metadata-token": token})
        return None if action is None else ("spot reclaim", self._left_s(action))

    def _left_s(self, action: str) -> float | None:
        """The notice counts even if its time cannot be read."""
        try:
            ends = datetime.fromisoformat(json.loads(action)["time"])  # 2026-11-30T06:10:09Z
        except (ValueError, TypeError, KeyError):
            return None
        return None if ends.tzinfo is None else ends.timestamp() - self._clock.now()


class GcpPreemption:
    """The notice of a preemptible or spot machine of Google's: half a minute before the end."""

    def __init__(self, *, url: str = METADATA) -> None:
        self._url = url

    def ask(self) -> tuple[str, float | None] | None:
        answer = _fetch(f"{self._url}{GCP_PREEMPTED}", headers={"Metadata-Flavor": "Google"})
        match answer:
            case "TRUE":
                return "spot reclaim", GCP_WARNING_S
            case "FALSE":
                return None
        raise ValueError(f"{self._url} says {answer!r} where TRUE or FALSE was expected")


class Polled:
    """Asks a probe now and then, on a thread of its own, so that training never waits for the answer.

    It asks until there is a notice. That a probe fails is told once; it is asked again all the same, as the failure
    may pass."""

    def __init__(self, probe: Probe, *, clock: Clock, tell: Tell, interval_s: float = POLL_S) -> None:
        self._probe, self._clock, self._tell, self._interval_s = probe, clock, tell, interval_s
        self._found: tuple[str, float | None] | None = None  # who, and the moment by the monotonic clock
        self._stop = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._poll, name="mementum-deadlines", daemon=True)
        self._thread.start()

    def look(self, at_s: float) -> Notice | None:
        found = self._found
        if found is None:
            return None
        source, ends_s = found
        return Notice(source=source, left_s=None if ends_s is None else ends_s - at_s)

    def close(self) -> None:
        """Ask no more. A question that is under way ends by its own timeout, and its answer is not heard."""
        self._stop.set()

    def _poll(self) -> None:
        while not self._stop.is_set():
            answer = self._ask()
            if answer is not None:
                source, left_s = answer
                self._found = (source, None if left_s is None else self._clock.monotonic() + left_s)
                return
            self._stop.wait(self._interval_s)

    def _ask(self) -> tuple[str, float | None] | None:
        try:
            return self._probe.ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._told and not self._stop.is_set():
                self._told = True
                self._tell(f"no word of whether this machine is taken away: {type(self._probe).__name__}: {error}")
            return None


class Deadlines:
    """Several deadlines as one: what is near and not answered yet, the nearest first. Not safe for several threads."""

    def __init__(self, sources: tuple[Deadline, ...]) -> None:
        self._sources = sources
        self._since_s: list[float | None] = [None] * len(sources)  # when each was first near
        self._answered: list[bool] = [False] * len(sources)

    def pending(self, at_s: float) -> tuple[Notice, ...]:
        """`at_s`: now, by the monotonic clock. Cheap enough for every step."""
        near = []
        for place, source in enumerate(self._sources):
            notice = None if self._answered[place] else source.look(at_s)
            if notice is not None:
                if self._since_s[place] is None:
                    self._since_s[place] = at_s
                near.append(notice)
        return tuple(sorted(near, key=_left_s))

    def answered(self, taken_s: float | None = None) -> None:
        """A save is durable. `taken_s`: when its state was taken; what came near later stays pending. None: nothing
        does."""
        for place, since_s in enumerate(self._since_s):
            if since_s is not None and (taken_s is None or since_s <= taken_s):
                self._answered[place] = True

    def close(self) -> None:
        """End the threads of those that poll."""
        for source in self._sources:
            if isinstance(source, Polled):
                source.close()


def _left_s(notice: Notice) -> float:
    return 0.0 if notice.left_s is None else notice.left_s  # an end of which nobody knows when may be now


def _fetch(url: str, *, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """The text at a URL of the machine's own metadata service; None if there is none (404)."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would ask its own machine's service
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            read: bytes = answer.read(ANSWER_MAX)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise
    return read.decode("utf-8").strip()
