"""Signals that announce an end, sent to this process: what pends, what waits, what stands where."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from mementum.clock import ManualClock
from mementum.perceive.notices import SAME_S, Notices
from mementum.records import Notice

TERM = Notice(source="SIGTERM", stops=True)
USR1 = Notice(source="SIGUSR1", stops=False)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def untold(text: str) -> None:
    pytest.fail(f"told: {text}")


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def opened(clock: ManualClock) -> Notices:
    notices = Notices(clock=clock, tell=untold)
    notices.install()
    return notices


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(number)


# Notes and answers, in this process.


def test_nothing_pends_at_first(clock: ManualClock) -> None:
    notices = opened(clock)
    assert notices.pending() == ()
    notices.answered()
    notices.let_go()
    notices.close()


def test_a_wish_pends_until_it_is_answered(clock: ManualClock) -> None:
    notices = opened(clock)
    send(signal.SIGUSR1)  # whose default action would end the process
    assert notices.pending() == (USR1,)
    assert notices.pending() == (USR1,)
    notices.answered()
    notices.let_go()
    assert notices.pending() == ()
    send(signal.SIGUSR1)
    assert notices.pending() == (USR1,)
    notices.close()


def test_what_stops_goes_first(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    notices = opened(clock)
    send(signal.SIGUSR1)
    clock.advance(1.0)
    send(signal.SIGTERM)
    assert notices.pending() == (TERM, USR1)
    notices.close()


def test_a_state_from_before_answers_nothing(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    notices = opened(clock)
    send(signal.SIGUSR1)
    clock.advance(1.0)
    taken_s = clock.monotonic()
    clock.advance(1.0)
    send(signal.SIGTERM)
    notices.answered(taken_s)
    notices.let_go()
    assert notices.pending() == (TERM,)
    notices.answered(clock.monotonic())
    with pytest.raises(SystemExit):
        notices.let_go()
    notices.close()


def test_a_wish_that_is_repeated_wants_the_later_state(clock: ManualClock) -> None:
    notices = opened(clock)
    send(signal.SIGUSR1)
    taken_s = clock.monotonic()
    clock.advance(1.0)
    send(signal.SIGUSR1)
    notices.answered(taken_s)
    assert notices.pending() == (USR1,)
    notices.close()


def test_the_programs_handler_is_called_at_once_and_every_time(clock: ManualClock) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    notices = opened(clock)
    send(signal.SIGTERM)
    assert calls == [signal.SIGTERM]
    send(signal.SIGTERM)
    assert calls == [signal.SIGTERM] * 2
    notices.answered()
    notices.let_go()
    assert notices.pending() == ()
    notices.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), RuntimeError("theirs")])
@pytest.mark.parametrize("number", SIGNALS)
def test_what_the_programs_handler_raises_waits(clock: ManualClock, number: int, error: BaseException) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise error

    signal.signal(number, handler)
    notices = opened(clock)
    send(number)
    assert notices.pending() == (Notice(source=signal.Signals(number).name, stops=True),)
    notices.let_go()  # no save is durable yet
    notices.answered()
    assert notices.pending() == ()
    with pytest.raises(type(error)) as caught:
        notices.let_go()
    assert caught.value is error
    notices.let_go()  # once
    notices.close()


def test_the_second_signal_raises_there_and_then(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    notices = opened(clock)
    send(signal.SIGTERM)
    clock.advance(SAME_S - 0.01)
    send(signal.SIGTERM)  # by way of a launcher
    clock.advance(0.01)
    with pytest.raises(SystemExit):
        send(signal.SIGTERM)
    assert notices.pending() == ()
    notices.close()


def test_an_ignored_signal_is_only_noted(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    notices = opened(clock)
    send(signal.SIGTERM)
    send(signal.SIGTERM)
    assert notices.pending() == (TERM,)
    notices.answered()
    notices.let_go()
    assert notices.pending() == ()
    notices.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_kept_exception_is_let_go_after_closing_too(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    notices = opened(clock)
    send(signal.SIGTERM)
    notices.close()
    with pytest.raises(SystemExit):
        notices.let_go()


# Installing and closing.


def test_closing_puts_back_what_was_there(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    notices = opened(clock)
    notices.install()  # twice is once
    assert signal.getsignal(signal.SIGTERM) is not leave
    notices.close()
    notices.close()
    assert signal.getsignal(signal.SIGTERM) is leave
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_closing_leaves_a_handler_that_came_later(clock: ManualClock) -> None:
    calls: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append("first"))
    notices = opened(clock)
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)

    def later(number: int, frame: FrameType | None) -> None:
        calls.append("later")
        ours(number, frame)

    signal.signal(signal.SIGTERM, later)
    send(signal.SIGTERM)
    assert calls == ["later", "first"]
    assert notices.pending() == (TERM,)
    notices.close()
    assert signal.getsignal(signal.SIGTERM) is later
    send(signal.SIGTERM)  # ours steps aside
    assert calls == ["later", "first"] * 2


def test_whoever_chains_ours_takes_charge_of_the_default_action(clock: ManualClock) -> None:
    notices = opened(clock)
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)
    signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))
    send(signal.SIGTERM)
    send(signal.SIGTERM)  # twice: there is nothing of ours to give in to
    assert notices.pending() == (TERM,)
    notices.answered()
    notices.let_go()  # and this process lives on
    notices.close()


def test_ours_put_back_by_somebody_after_closing_steps_aside(clock: ManualClock) -> None:
    calls: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        calls.append(number)

    signal.signal(signal.SIGTERM, handler)
    notices = opened(clock)
    ours = signal.getsignal(signal.SIGTERM)
    notices.close()
    signal.signal(signal.SIGTERM, ours)
    send(signal.SIGTERM)
    assert calls == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert notices.pending() == ()


def test_another_thread_may_not_install(clock: ManualClock) -> None:
    told: list[str] = []
    notices = Notices(clock=clock, tell=told.append)
    thread = threading.Thread(target=notices.install)
    thread.start()
    thread.join()
    assert told == ["signals are not heard: only the main thread may install handlers; open the run there"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert notices.pending() == ()
    notices.close()


def test_closed_by_another_thread_ours_steps_aside(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    notices = opened(clock)
    thread = threading.Thread(target=notices.close)
    thread.start()
    thread.join()
    with pytest.raises(SystemExit):
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is leave


def test_a_signal_that_nobody_can_hear_is_told(clock: ManualClock) -> None:
    told: list[str] = []
    notices = Notices(clock=clock, tell=told.append, signals={signal.SIGKILL: True, signal.SIGUSR1: False})
    notices.install()
    assert told == ["SIGKILL is not heard: [Errno 22] Invalid argument"]
    send(signal.SIGUSR1)
    assert notices.pending() == (USR1,)
    notices.close()


def test_a_handler_that_is_not_pythons_stays(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    real = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else real(number))
    notices = Notices(clock=clock, tell=told.append)
    notices.install()
    monkeypatch.undo()
    assert told == ["SIGTERM is not heard: its handler was not set from Python, so it cannot be chained"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    notices.close()


def test_a_real_time_signal_has_a_name(clock: ManualClock) -> None:
    number = signal.SIGRTMIN + 3
    notices = Notices(clock=clock, tell=untold, signals={number: False})
    notices.install()
    send(number)
    assert notices.pending() == (Notice(source=f"signal {int(number)}", stops=False),)
    notices.close()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_two_runs_hear_it_both_and_close_in_any_order(clock: ManualClock) -> None:
    signal.signal(signal.SIGTERM, leave)
    outer = opened(clock)
    inner = opened(clock)
    send(signal.SIGTERM)
    assert outer.pending() == inner.pending() == (Notice(source="SIGTERM", stops=True),)
    outer.close()
    inner.close()
    assert signal.getsignal(signal.SIGTERM) is leave
    inner.let_go()
    with pytest.raises(SystemExit):
        outer.let_go()
