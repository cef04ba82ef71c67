"""Signals that announce an end or ask for a save: noted when they come, obeyed at a step's boundary."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import Any

from mementum.clock import Clock
from mementum.records import Notice

Handler = Callable[[int, FrameType | None], Any]
Disposition = Handler | int | None  # as signal.getsignal() gives it: None was not set from Python

SIGNALS: Mapping[int, bool] = MappingProxyType({signal.SIGTERM: True, signal.SIGUSR1: False})  # whether it stops
SAME_S = 2.0  # a person who means it a second time has seen by then that nothing has happened
GIVE_IN_S = 120.0  # a step rarely lasts longer, and schedulers that wait longer before they kill are rare too


class _Arrival:
    """A signal that has come and is not done with."""

    __slots__ = ("answered", "asked", "at_s", "ends", "kept", "sent_again", "shown")

    def __init__(self, *, at_s: float, ends: bool) -> None:
        self.at_s = at_s  # when it last came, by the monotonic clock
        self.ends = ends  # whether the default action would have ended the process
        self.kept: BaseException | None = None  # what the program's own handler raised
        self.asked = False  # whether that handler has returned
        self.shown = False  # whether a boundary has seen it
        self.answered = False  # whether a save of a state after it is durable
        self.sent_again = False  # whether we gave in to a hang

    @property
    def has_effect(self) -> bool:
        """Whether something was put off that must still happen."""
        return self.kept is not None or self.ends


class _Heard:
    """A signal that we listen to. The handler runs between any two bytecodes of anybody, so an arrival is put there
    and taken away by one assignment."""

    __slots__ = ("arrival", "previous", "stops")

    def __init__(self, *, stops: bool, previous: Handler | int) -> None:
        self.stops = stops
        self.previous = previous  # what stood there before us
        self.arrival: _Arrival | None = None

    def stops_now(self, arrival: _Arrival) -> bool:
        return self.stops or arrival.kept is not None  # a handler that raised ends it, whatever the signal meant to us


class Notices:
    """Notes signals, and puts off what they would do until a save is durable.

    `signals` maps each to whether it stops the process; one that does not is a mere wish for a save. The handler takes
    no lock, writes nothing and logs nothing. What stood before it keeps its say:

    - a handler of the program is called at once, and what it raises is kept until `let_go`;
    - the default action, if it ends the process, is put off until `let_go`; for a mere wish it is dropped;
    - where the signal was ignored it only becomes a notice;
    - a handler that was not set from Python stays, and we take no notice of that signal.

    A second signal of a kind, while the first is pending and older than `same_s`, gives in at once: whoever kills twice
    means it. One that comes sooner is the same once more, by way of a launcher. If no
    boundary is reached within `give_in_s` seconds, the signal is sent again, which is such a second one. That needs a
    main thread that still runs Python: one that hangs inside a single call of C runs no handler, ours or another's.

    In a forked child the signals do what they did before us. Whoever installs a handler after us and calls ours takes
    charge of the default action: then we never end the process.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        tell: Callable[[str], None],
        signals: Mapping[int, bool] = SIGNALS,
        give_in_s: float = GIVE_IN_S,
        same_s: float = SAME_S,
    ) -> None:
        self._clock, self._tell = clock, tell
        self._signals = dict(signals)
        self._give_in_s, self._same_s = give_in_s, same_s
        self._heard: dict[int, _Heard] = {}  # filled by install() only: a handler must not resize what others walk
        self._handler: Handler = self._note  # one object, by which we know our own handler again
        self._pid = os.getpid()
        self._open = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put() is reentrant, so a handler may ring it

    def install(self) -> None:
        """Put our handlers in place. Elsewhere than in the main thread Python forbids it: told, and nothing is done."""
        if self._open:
            return
        if threading.current_thread() is not threading.main_thread():
            self._tell("signals are not heard: only the main thread may install handlers; open the run there")
            return
        self._pid, self._open, self._heard = os.getpid(), True, {}
        for number, stops in self._signals.items():
            self._take(number, stops=stops)
        if self._heard:
            self._bell = queue.SimpleQueue()
            watch = threading.Thread(target=self._watch, args=(self._bell,), name="mementum-notices", daemon=True)
            watch.start()

    def pending(self) -> tuple[Notice, ...]:
        """What no durable save has answered yet: those that stop the process first, then by age. Asking is what a
        step's boundary does: from then on the save may take its time."""
        waiting = []
        for number, heard in self._heard.items():
            arrival = heard.arrival
            if arrival is not None and not arrival.answered:
                arrival.shown = True
                waiting.append((not heard.stops_now(arrival), arrival.at_s, number))
        return tuple(Notice(source=_name(number), stops=not wish) for wish, _, number in sorted(waiting))

    def answered(self, taken_s: float | None = None) -> None:
        """A save is durable. `taken_s`: when its state was taken, by the monotonic clock; what came later stays
        pending. None: nothing does."""
        for heard in self._heard.values():
            arrival = heard.arrival
            if arrival is None or not arrival.asked or (taken_s is not None and arrival.at_s > taken_s):
                continue
            arrival.answered = True
            if not arrival.has_effect:
                heard.arrival = None

    @property
    def has_put_off(self) -> bool:
        """Whether a signal has something to do that waits for `let_go`."""
        return any(heard.arrival is not None and heard.arrival.has_effect for heard in self._heard.values())

    def let_go(self) -> None:
        """Let happen what was put off, for notices that are answered; once closed, for all of them.

        Raises what the program's handler raised, or ends the process as the signal would have. Otherwise it returns.
        """
        for number, heard in self._heard.items():
            arrival = heard.arrival
            if arrival is not None and arrival.has_effect and (arrival.answered or not self._open):
                self._give_in(number, heard, arrival)

    def close(self) -> None:
        """Put back the handlers that we replaced, but only where ours still stands. What was put off stays put off:
        `let_go` lets it happen. Outside of the main thread, our handlers stay and step aside when they are called."""
        if not self._open:
            return
        self._open = False
        self._bell.put(None)
        if threading.current_thread() is threading.main_thread():
            for number in self._heard:
                self._put_back(number)

    # The handler. Python runs it in the main thread, between two bytecodes of whatever is going on there.

    def _note(self, number: int, frame: FrameType | None) -> None:
        heard = self._heard[number]
        arrival = heard.arrival
        if not self._open or os.getpid() != self._pid:
            self._step_aside(number, heard, frame)
        elif arrival is None:
            ends = heard.stops and self._ours(number) and _defaults(heard.previous, number)
            heard.arrival = arrival = _Arrival(at_s=self._clock.monotonic(), ends=ends)
            _ask_the_program(number, heard, arrival, frame)
            if arrival.has_effect:
                self._bell.put(None)
        elif arrival.has_effect:
            # Launchers forward a signal that the whole group was sent already: that is the same one.
            again = arrival.sent_again or self._clock.monotonic() - arrival.at_s >= self._same_s
            if again:
                self._give_in(number, heard, arrival)
        else:
            arrival.at_s = self._clock.monotonic()
            _call(heard.previous, number, frame)

    def _give_in(self, number: int, heard: _Heard, arrival: _Arrival) -> None:
        if arrival.kept is not None:
            heard.arrival = None
            raise arrival.kept
        if threading.current_thread() is not threading.main_thread():
            _kill_main_thread(number)  # which takes it for a second one, and gives in
            return
        heard.arrival = None
        if self._ours(number) or (not self._open and signal.getsignal(number) is signal.SIG_DFL):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif (outer := _other(signal.getsignal(number))) is not None:  # a run around ours, which is closed
            theirs = outer._heard[number].arrival
            if theirs is None:
                os.kill(os.getpid(), number)  # it has answered it, and trains on: it hears it once more
            else:
                theirs.ends = True  # it has heard it too: the end is now its matter

    def _step_aside(self, number: int, heard: _Heard, frame: FrameType | None) -> None:
        """We are closed, or in a forked child: as if we had never been here."""
        if self._ours(number):
            self._put_back(number)
            os.kill(os.getpid(), number)
        else:
            _call(heard.previous, number, frame)

    # What stands where.

    def _take(self, number: int, *, stops: bool) -> None:
        previous: Disposition = signal.getsignal(number)
        if previous is None:
            self._tell(f"{_name(number)} is not heard: its handler was not set from Python, so it cannot be chained")
            return
        self._heard[number] = _Heard(stops=stops, previous=previous)
        try:
            signal.signal(number, self._handler)
        except OSError as error:  # SIGKILL and SIGSTOP
            del self._heard[number]
            self._tell(f"{_name(number)} is not heard: {error}")

    def _ours(self, number: int) -> bool:
        return signal.getsignal(number) is self._handler

    def _put_back(self, number: int) -> None:
        if self._ours(number):
            signal.signal(number, _still_open(self._heard[number].previous, number))

    # The watch, which ends a hang.

    def _watch(self, bell: queue.SimpleQueue[None]) -> None:
        """Send a signal again where it came, has something to do, and no boundary has seen it for too long."""
        while self._open and bell is self._bell:
            dues = [due_s for heard in self._heard.values() if (due_s := self._due_s(heard.arrival)) is not None]
            try:
                bell.get(timeout=max(min(dues) - self._clock.monotonic(), 0.0) if dues else None)
            except queue.Empty:
                self._send_again(self._clock.monotonic())

    def _due_s(self, arrival: _Arrival | None) -> float | None:
        if arrival is None or not arrival.has_effect or arrival.shown or arrival.sent_again:
            return None
        return arrival.at_s + self._give_in_s

    def _send_again(self, now_s: float) -> None:
        for number, heard in self._heard.items():
            arrival = heard.arrival
            due_s = self._due_s(arrival)
            if arrival is not None and due_s is not None and due_s <= now_s and self._open:
                arrival.sent_again = True
                _kill_main_thread(number)


def _ask_the_program(number: int, heard: _Heard, arrival: _Arrival, frame: FrameType | None) -> None:
    try:
        _call(heard.previous, number, frame)
    # SystemExit and KeyboardInterrupt are what such handlers are for: they are raised at the boundary, not in mid-step.
    except BaseException as error:
        arrival.kept = error
    arrival.asked = True


def _call(previous: Handler | int, number: int, frame: FrameType | None) -> None:
    if callable(previous):
        previous(number, frame)


def _kill_main_thread(number: int) -> None:
    """To that very thread: it may sit in a call that only a signal of its own interrupts."""
    ident = threading.main_thread().ident
    assert ident is not None, "the main thread has started"
    signal.pthread_kill(ident, number)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals between the first and the last have no name
        return f"signal {number}"


def _other(previous: Disposition) -> Notices | None:
    """The notices of another run of this process, if it was its handler that stood there before us."""
    owner = getattr(previous, "__self__", None)
    return owner if isinstance(owner, Notices) else None


def _defaults(previous: Handler | int, number: int) -> bool:
    """Whether the default action is what would have followed in the end. Of several runs, the newest ends it."""
    other = _other(previous)
    return previous is signal.SIG_DFL if other is None else _defaults(other._heard[number].previous, number)


def _still_open(previous: Handler | int, number: int) -> Handler | int:
    """What stood there before us, without runs that were closed since."""
    other = _other(previous)
    if other is None or other._open:
        return previous
    return _still_open(other._heard[number].previous, number)
