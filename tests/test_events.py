"""Events reach every listener and the log; a listener that raises is dropped, and stands in nobody's way."""

from __future__ import annotations

import logging
import threading

import pytest

from mementum.events import (
    Committed,
    Emitter,
    Event,
    Failed,
    Note,
    PassedOver,
    PhaseBegan,
    PhaseEnded,
    Removed,
    SaveSkipped,
    Swept,
)

NOTE = Note(text="told once")


def test_every_listener_hears_every_event_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    emit = Emitter((first.append, second.append))
    events = [PhaseBegan(phase="write", id="c1"), PhaseEnded(phase="write", id="c1"), NOTE]
    for event in events:
        emit(event)
    assert first == second == events


def test_nobody_need_listen() -> None:
    Emitter()(NOTE)


def test_a_listener_that_raises_is_dropped_and_named_and_the_others_still_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    heard: list[Event] = []

    def bad(event: Event) -> None:
        calls.append("bad")
        raise ZeroDivisionError("mine")

    emit = Emitter((bad, heard.append))
    emit(NOTE)
    emit(NOTE)
    assert calls == ["bad"]
    assert heard == [NOTE, NOTE]
    assert "a listener raised on Note(text='told once') and is not called again" in caplog.text
    assert "ZeroDivisionError: mine" in caplog.text


def test_a_listener_that_raises_inside_of_itself_is_dropped_once() -> None:
    """It raises while it is already being dropped: nothing of that may reach the training."""

    def bad(event: Event) -> None:
        if event is NOTE:
            emit(Note(text="from inside"))
        raise ZeroDivisionError

    heard: list[Event] = []
    emit = Emitter((bad, heard.append))
    emit(NOTE)
    assert heard == [Note(text="from inside"), NOTE]


def test_a_listener_that_raises_on_two_threads_is_dropped_once() -> None:
    both = threading.Barrier(2)
    errors: list[BaseException] = []

    def bad(event: Event) -> None:
        both.wait(30)
        raise ZeroDivisionError

    emit = Emitter((bad,))

    def work() -> None:
        try:
            emit(NOTE)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_is_not_swallowed(error: type[BaseException]) -> None:
    def interrupts(event: Event) -> None:
        raise error

    with pytest.raises(error):
        Emitter((interrupts,))(NOTE)


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (Failed(what="the save", error="full", kept="older"), logging.ERROR, "the save failed: full (kept: older)"),
        (PassedOver(id="c1", what="missing"), logging.WARNING, "checkpoint c1 is passed over: missing"),
        (SaveSkipped(step=3, reason="slow"), logging.WARNING, "no save at step 3: slow"),
        (NOTE, logging.WARNING, "told once"),
        (
            Committed(id="c1", step=3, size=5, reason="asked", blocked_s=0.1, durable_s=0.2),
            logging.INFO,
            "step 3 saved as c1 (asked)",
        ),
        (Removed(id="c1", step=3, reason="old"), logging.INFO, "checkpoint c1 of step 3 removed: old"),
        (Swept(keys=("a", "b")), logging.INFO, "2 leftovers removed"),
        (PhaseBegan(phase="write"), logging.DEBUG, "PhaseBegan(phase='write', id='')"),
        (PhaseEnded(phase="write"), logging.DEBUG, "PhaseEnded(phase='write', id='', duration_s=0.0)"),
        (Note(text="100 % of %s"), logging.WARNING, "100 % of %s"),
    ],
)
def test_the_log_says_it_in_words(caplog: pytest.LogCaptureFixture, event: Event, level: int, text: str) -> None:
    with caplog.at_level(logging.DEBUG, logger="mementum"):
        Emitter()(event)
    assert [(each.name, each.levelno, each.getMessage()) for each in caplog.records] == [("mementum", level, text)]
