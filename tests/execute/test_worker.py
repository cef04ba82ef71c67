"""The worker saves one thing at a time, the newest that waits, keeps its failures, and ends when told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mementum.events import Event, Failed
from mementum.execute.worker import FACTS_MAX, SaveJob, Worker, rank_of
from mementum.records import Granularity, Save

LONG_S = 30.0  # for what must come; a test that waits this long has failed


class Told:
    """Everything that happened, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.events: list[Event] = []

    def job(self, name: str, error: BaseException | None = None) -> SaveJob:
        def work() -> None:
            self.done.append(name)
            if error is not None:
                raise error

        return SaveJob(what=f"the save of {name}", work=work, cancel=lambda: self.done.append(f"{name} cancelled"))

    def fact(self, name: str) -> None:
        self.done.append(name)


class Gate:
    """A save that has begun, and goes on when it is let."""

    def __init__(self, worker: Worker) -> None:
        self._begun, self._open = threading.Event(), threading.Event()
        worker.submit(SaveJob(what="the gate", work=self._work, cancel=lambda: None))
        assert self._begun.wait(LONG_S)

    def _work(self) -> None:
        self._begun.set()
        assert self._open.wait(LONG_S)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def worker(told: Told) -> Iterator[Worker]:
    made = Worker(emit=told.events.append)
    yield made
    assert made.close(LONG_S)


def test_a_save_is_done_on_another_thread(worker: Worker) -> None:
    names: list[str] = []
    worker.submit(SaveJob(what="", work=lambda: names.append(threading.current_thread().name), cancel=lambda: None))
    assert worker.drain(LONG_S)
    assert names == ["mementum-worker"]


def test_the_newest_that_waits_wins_and_the_others_are_cancelled_once(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    for name in "abc":
        worker.submit(told.job(name))
    assert told.done == ["a cancelled", "b cancelled"]
    assert worker.saves_in_flight == 2
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["a cancelled", "b cancelled", "c"]
    assert worker.saves_in_flight == 0


def test_a_save_that_nothing_was_in_flight_before_is_in_flight_even_while_a_fact_is_written(
    worker: Worker, told: Told
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fact() -> None:
        begun.set()
        assert go_on.wait(LONG_S)

    assert worker.submit_fact(fact)
    assert begun.wait(LONG_S)
    for name in "abc":
        worker.submit(told.job(name))
    assert worker.saves_in_flight == 2
    go_on.set()
    assert worker.drain(LONG_S)
    assert told.done == ["b cancelled", "a", "c"]


def test_the_one_in_flight_is_never_cancelled(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    assert worker.saves_in_flight == 1
    assert worker.cancel_waiting() is False
    worker.submit(told.job("a"))
    assert worker.cancel_waiting() is True
    assert worker.cancel_waiting() is False
    assert told.done == ["a cancelled"]
    assert worker.saves_in_flight == 1
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["a cancelled"]


def test_a_failure_is_kept_counted_and_told_and_the_next_job_runs(worker: Worker, told: Told) -> None:
    error = OSError(28, "No space left on device")
    worker.submit(told.job("a", error))
    assert worker.drain(LONG_S)
    assert (worker.failures, worker.failure) == (1, error)
    assert told.events == [Failed(what="the save of a", error=repr(error), kept="older checkpoints")]
    worker.submit(told.job("b"))
    assert worker.drain(LONG_S)
    assert told.done == ["a", "b"]
    assert worker.failures == 1


def test_a_fact_that_fails_is_told_as_one(worker: Worker, told: Told) -> None:
    def fails() -> None:
        raise ValueError("no")

    assert worker.submit_fact(fails)
    assert worker.drain(LONG_S)
    assert told.events == [Failed(what="writing a fact", error="ValueError('no')", kept="older checkpoints")]


def test_facts_are_written_in_order_and_before_the_save_that_waits(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    worker.submit(told.job("save"))
    for number in range(5):
        assert worker.submit_fact(lambda number=number: told.fact(str(number)))
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["0", "1", "2", "3", "4", "save"]


def test_the_queue_of_facts_is_bounded(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    assert all(worker.submit_fact(lambda: told.fact("x")) for _ in range(FACTS_MAX))
    assert worker.submit_fact(lambda: told.fact("one too many")) is False
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["x"] * FACTS_MAX
    assert worker.submit_fact(lambda: told.fact("again"))
    assert worker.drain(LONG_S)
    assert told.done[-1] == "again"


def test_a_drain_gives_up_after_its_time(worker: Worker) -> None:
    gate = Gate(worker)
    assert worker.drain(0.0) is False
    assert worker.drain(0.01) is False
    gate.open()
    assert worker.drain(LONG_S)
    assert worker.drain(0.0)


def test_close_finishes_what_is_queued(told: Told) -> None:
    worker = Worker(emit=told.events.append)
    gate = Gate(worker)
    worker.submit(told.job("save"))
    worker.submit_fact(lambda: told.fact("fact"))
    gate.open()
    assert worker.close(LONG_S)
    assert told.done == ["fact", "save"]
    assert worker.close(0.0)


def test_close_gives_up_after_its_time_and_the_work_goes_on(told: Told) -> None:
    worker = Worker(emit=told.events.append)
    gate = Gate(worker)
    worker.submit(told.job("save"))
    assert worker.close(0.01) is False
    assert told.done == []
    gate.open()
    assert worker.close(LONG_S)
    assert told.done == ["save"]


def test_closing_after_a_failure_ends_too(told: Told) -> None:
    worker = Worker(emit=told.events.append)
    worker.submit(told.job("a", RuntimeError("no")))
    assert worker.close(LONG_S)
    assert worker.failures == 1


def test_many_threads_lose_and_double_nothing(worker: Worker, told: Told) -> None:
    """Every job is done or cancelled exactly once."""
    names = [f"{thread}.{number}" for thread in range(4) for number in range(100)]

    def submit(thread: int) -> None:
        for number in range(100):
            worker.submit(told.job(f"{thread}.{number}"))

    threads = [threading.Thread(target=submit, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.drain(LONG_S)
    assert sorted(name.removesuffix(" cancelled") for name in told.done) == sorted(names)


def test_a_waiting_save_makes_room_only_for_one_that_is_worth_as_much() -> None:
    done: list[str] = []
    go_on = threading.Event()
    worker = Worker(emit=lambda event: None)

    def job(name: str, rank: int, work: Callable[[], object] = lambda: None) -> SaveJob:
        def doing() -> None:
            work()
            done.append(name)

        return SaveJob(what=name, work=doing, cancel=lambda: done.append(f"not {name}"), rank=rank)

    begun = threading.Event()
    worker.submit(job("first", 1, lambda: begun.set() or go_on.wait(60)))
    assert begun.wait(60)
    worker.submit(job("epoch", 2))
    worker.submit(job("weights", 0))
    assert worker.cancel_waiting(1) is False
    worker.submit(job("asked", 2))
    assert done == ["not weights", "not epoch"]
    go_on.set()
    assert worker.drain(60)
    assert done == ["not weights", "not epoch", "first", "asked"]
    worker.close(60)


def test_what_is_exact_and_what_comes_once_is_worth_more() -> None:
    weights = Save(reason="r", granularity=Granularity.WEIGHTS, cause="epoch")
    assert [rank_of(weights), rank_of(Save(reason="r")), rank_of(Save(reason="r", cause="asked"))] == [0, 1, 2]


def test_what_is_kept_goes_before_the_one_that_waits_and_takes_nobodys_place(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    worker.submit(told.job("first"))
    worker.keep(told.job("kept"))
    worker.keep(told.job("kept too"))
    assert worker.saves_in_flight == 4
    worker.submit(told.job("second"))
    assert told.done == ["first cancelled"]
    assert worker.cancel_waiting()
    assert not worker.cancel_waiting()  # what is kept is not to be had
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["first cancelled", "second cancelled", "kept", "kept too"]


def test_what_is_kept_is_done_at_once_where_nothing_is_in_flight(worker: Worker, told: Told) -> None:
    worker.keep(told.job("kept"))
    assert worker.drain(LONG_S)
    assert (told.done, worker.saves_in_flight) == (["kept"], 0)


def test_one_that_waits_may_become_kept(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    waiting = told.job("waiting")
    worker.submit(replace(waiting, id="w"))
    worker.keep_waiting("another")
    worker.keep_waiting("w")
    worker.submit(told.job("newer"))
    worker.submit(told.job("newest"))
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["newer cancelled", "waiting", "newest"]


def test_a_kept_one_that_fails_leaves_those_behind_it(worker: Worker, told: Told) -> None:
    gate = Gate(worker)
    worker.keep(told.job("kept", ValueError("full")))
    worker.submit(told.job("waiting"))
    gate.open()
    assert worker.drain(LONG_S)
    assert told.done == ["kept", "waiting"]
    assert [event.what for event in told.events if isinstance(event, Failed)] == ["the save of kept"]
