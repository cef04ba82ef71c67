"""Something is made once, whoever asks first; a failure is not kept."""

from __future__ import annotations

import threading

import pytest

from mementum.once import Once


def test_it_is_made_when_it_is_asked_for_and_never_again() -> None:
    made: list[int] = []
    once = Once(lambda: made.append(1) or len(made))  # type: ignore[func-returns-value]
    assert made == []
    assert [once(), once()] == [1, 1]


def test_threads_that_ask_together_get_one() -> None:
    begin, made = threading.Barrier(8), list[object]()

    def make() -> object:
        made.append(object())
        return made[-1]

    once, got = Once(make), list[object]()

    def ask() -> None:
        begin.wait(10)
        got.append(once())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert got == made * 8


def test_what_fails_is_tried_again() -> None:
    answers = iter([ValueError("not yet"), 7])

    def make() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    once = Once(make)
    with pytest.raises(ValueError, match="not yet"):
        once()
    assert once() == 7
