"""Ends that are known beforehand: when notice is given, and what becomes of nonsense."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mementum.clock import ManualClock, timestamp
from mementum.errors import UsageError
from mementum.perceive.deadlines import (
    LEAD_S,
    AwsSpot,
    Deadlines,
    EndsAt,
    FileAppears,
    GcpPreemption,
    Polled,
    slurm_limit,
    wall_time,
)
from mementum.records import Notice

WAIT_S = 10.0  # for an event that comes within milliseconds


class Metadata(BaseHTTPRequestHandler):
    """The machine's metadata service, in as far as it is asked: `server.answers` maps paths to status and text."""

    def do_PUT(self) -> None:
        self._answer(needs=("X-aws-ec2-metadata-token-ttl-seconds", "60"))

    def do_GET(self) -> None:
        aws = "meta-data" in self.path
        self._answer(needs=("X-aws-ec2-metadata-token", "a token") if aws else ("Metadata-Flavor", "Google"))

    def _answer(self, *, needs: tuple[str, str]) -> None:
        name, value = needs
        status, text = self.server.answers.get(self.path, (404, ""))  # type: ignore[attr-defined]
        if self.headers.get(name) != value:
            status, text = 401, ""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


class Service:
    def __init__(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        self.answers: dict[str, tuple[int, str]] = {"/latest/api/token": (200, "a token")}
        self.server.answers = self.answers  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def untold(text: str) -> None:
    pytest.fail(f"told: {text}")


# Ends at a known moment.


def test_notice_comes_with_the_lead_and_counts_down() -> None:
    deadline = EndsAt("wall time", ends_s=1000.0, lead=lambda: 60.0)
    assert deadline.look(940.0) is None
    assert deadline.look(941.0) == Notice(source="wall time", left_s=59.0)
    assert deadline.look(1005.0) == Notice(source="wall time", left_s=-5.0)


def test_the_lead_is_asked_anew() -> None:
    leads = [10.0, 100.0]
    deadline = EndsAt("wall time", ends_s=1000.0, lead=lambda: leads.pop(0))
    assert deadline.look(950.0) is None
    assert deadline.look(950.0) == Notice(source="wall time", left_s=50.0)


def test_wall_time_runs_from_now(clock: ManualClock) -> None:
    clock.advance(500.0)
    deadline = wall_time(3600.0, clock=clock)
    assert deadline.look(500.0 + 3600.0 - LEAD_S) is None
    assert deadline.look(500.0 + 3590.0) == Notice(source="wall time", left_s=10.0)


@pytest.mark.parametrize("walltime_s", [0.0, -1.0, math.nan, math.inf])
def test_a_wall_time_that_is_none_is_refused(clock: ManualClock, walltime_s: float) -> None:
    with pytest.raises(UsageError, match="no time in which to train") as caught:
        wall_time(walltime_s, clock=clock)
    assert caught.value.next_command == "give the seconds that the process may run, such as walltime_s=4 * 3600"


def test_slurm_says_when_its_job_ends(clock: ManualClock) -> None:
    clock.advance(70.0)
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": str(int(clock.now()) + 600)}
    deadline = slurm_limit(environ, clock=clock, tell=untold, lead=lambda: 30.0)
    assert deadline is not None
    assert deadline.look(70.0) is None
    assert deadline.look(70.0 + 575.0) == Notice(source="Slurm time limit", left_s=25.0)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_END_TIME": "1800000000"}])
def test_outside_of_a_job_slurm_says_nothing(clock: ManualClock, environ: dict[str, str]) -> None:
    assert slurm_limit(environ, clock=clock, tell=untold) is None


@pytest.mark.parametrize("text", ["tomorrow", "", "nan", "inf", "-1", "1600000000"])
def test_nonsense_from_slurm_is_told_once(clock: ManualClock, text: str) -> None:
    told: list[str] = []
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": text}
    assert slurm_limit(environ, clock=clock, tell=told.append) is None
    assert told == [f"SLURM_JOB_END_TIME is {text!r}, which is no moment to come: the job's time limit is not known"]


# Probes.


def test_a_file_appears(tmp_path: Path) -> None:
    probe = FileAppears(tmp_path / "reclaim", left_s=25.0)
    assert probe.ask() is None
    (tmp_path / "reclaim").touch()
    assert probe.ask() == ("spot reclaim", 25.0)


def test_aws_names_the_moment(service: Service, clock: ManualClock) -> None:
    probe = AwsSpot(clock=clock, url=service.url)
    assert probe.ask() is None
    when = timestamp(clock.now() + 90.0)[: len("2026-11-30T06:10:09")] + "Z"
    service.answers["/latest/meta-data/spot/instance-action"] = (200, json.dumps({"action": "stop", "time": when}))
    assert probe.ask() == ("spot reclaim", 90.0)


@pytest.mark.parametrize("text", ["", "soon", "[]", "{}", '{"time": 5}', '{"time": "soon"}', '{"time": "2026-11-30"}'])
def test_a_notice_counts_even_if_its_time_cannot_be_read(service: Service, clock: ManualClock, text: str) -> None:
    service.answers["/latest/meta-data/spot/instance-action"] = (200, text)
    assert AwsSpot(clock=clock, url=service.url).ask() == ("spot reclaim", None)


def test_aws_without_a_token_is_no_answer(service: Service, clock: ManualClock) -> None:
    del service.answers["/latest/api/token"]
    with pytest.raises(ValueError, match="gives no token"):
        AwsSpot(clock=clock, url=service.url).ask()


def test_google_says_true(service: Service) -> None:
    probe = GcpPreemption(url=service.url)
    service.answers["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
    assert probe.ask() is None
    service.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE\n")
    assert probe.ask() == ("spot reclaim", 30.0)


@pytest.mark.parametrize("answer", [(404, ""), (200, "<html>"), (200, "")])
def test_what_google_never_says_is_no_answer(service: Service, answer: tuple[int, str]) -> None:
    service.answers["/computeMetadata/v1/instance/preempted"] = answer
    with pytest.raises(ValueError, match="where TRUE or FALSE was expected"):
        GcpPreemption(url=service.url).ask()


def test_no_proxy_is_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    service.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
    assert GcpPreemption(url=service.url).ask() == ("spot reclaim", 30.0)


# Polled.


class Scripted:
    """Answers one after the other, and says when they are used up."""

    def __init__(self, *answers: tuple[str, float | None] | Exception | None) -> None:
        self._answers = list(answers)
        self.done = threading.Event()
        self.threads: set[str] = set()

    def ask(self) -> tuple[str, float | None] | None:
        self.threads.add(threading.current_thread().name)
        if not self._answers:
            self.done.set()
            return None
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_probe_is_asked_elsewhere_until_there_is_a_notice(clock: ManualClock) -> None:
    probe = Scripted(None, None, ("spot reclaim", 30.0), AssertionError("asked again"))
    polled = Polled(probe, clock=clock, tell=untold, interval_s=0.001)
    polled._thread.join(WAIT_S)
    assert not polled._thread.is_alive()
    assert probe.threads == {"mementum-deadlines"}
    assert polled.look(10.0) == Notice(source="spot reclaim", left_s=20.0)


def test_a_notice_without_a_time(clock: ManualClock) -> None:
    polled = Polled(Scripted(("spot reclaim", None)), clock=clock, tell=untold)
    polled._thread.join(WAIT_S)
    assert polled.look(10.0) == Notice(source="spot reclaim", left_s=None)


def test_a_failure_is_told_once_and_may_pass(clock: ManualClock) -> None:
    told: list[str] = []
    probe = Scripted(OSError("no route"), ValueError("odd"), OSError("no route"), ("spot reclaim", 30.0))
    polled = Polled(probe, clock=clock, tell=told.append, interval_s=0.001)
    polled._thread.join(WAIT_S)
    assert polled.look(0.0) == Notice(source="spot reclaim", left_s=30.0)
    assert told == ["no word of whether this machine is taken away: Scripted: no route"]


def test_a_service_that_is_not_there(clock: ManualClock) -> None:
    told: list[str] = []
    heard = threading.Event()
    service = Service()
    service.close()  # its port is free now, and refuses

    def tell(text: str) -> None:
        told.append(text)
        heard.set()

    polled = Polled(AwsSpot(clock=clock, url=service.url), clock=clock, tell=tell)
    assert heard.wait(WAIT_S)
    polled.close()
    polled._thread.join(WAIT_S)
    assert not polled._thread.is_alive()
    assert polled.look(0.0) is None
    assert len(told) == 1
    assert told[0].startswith("no word of whether this machine is taken away: AwsSpot: ")


def test_closing_ends_the_thread(clock: ManualClock) -> None:
    probe = Scripted()
    polled = Polled(probe, clock=clock, tell=untold, interval_s=3600.0)
    assert probe.done.wait(WAIT_S)
    Deadlines((polled,)).close()
    polled._thread.join(WAIT_S)
    assert not polled._thread.is_alive()


# Several.


def test_the_nearest_is_first_and_an_answer_silences() -> None:
    deadlines = Deadlines((EndsAt("wall time", ends_s=100.0), EndsAt("Slurm time limit", ends_s=90.0)))
    assert deadlines.pending(-50.0) == ()
    near = (Notice(source="Slurm time limit", left_s=90.0), Notice(source="wall time", left_s=100.0))
    assert deadlines.pending(0.0) == near
    deadlines.answered()
    assert deadlines.pending(10.0) == ()


def test_what_came_near_after_the_state_was_taken_stays() -> None:
    deadlines = Deadlines((EndsAt("wall time", ends_s=200.0), EndsAt("Slurm time limit", ends_s=150.0)))
    assert [notice.source for notice in deadlines.pending(40.0)] == ["Slurm time limit"]
    assert len(deadlines.pending(100.0)) == 2
    deadlines.answered(taken_s=50.0)
    assert [notice.source for notice in deadlines.pending(110.0)] == ["wall time"]


def test_an_end_of_unknown_time_goes_first(clock: ManualClock) -> None:
    polled = Polled(Scripted(("spot reclaim", None)), clock=clock, tell=untold)
    polled._thread.join(WAIT_S)
    deadlines = Deadlines((EndsAt("wall time", ends_s=1.0), polled))
    assert [notice.source for notice in deadlines.pending(0.0)] == ["spot reclaim", "wall time"]
