"""Parts that are handed from one thread to another: all of them, in order, and an end on either side is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mementum.storage.objects_upload import AHEAD, GivenUp, upload


def test_all_parts_arrive_in_order() -> None:
    got: list[bytes] = []
    upload(lambda parts: got.extend(parts), iter([bytes([n]) for n in range(200)]))
    assert got == [bytes([n]) for n in range(200)]
    got.clear()
    upload(lambda parts: got.extend(parts), iter(()))
    assert got == []


def test_the_parts_are_made_on_the_caller_s_thread() -> None:
    makers: set[int] = set()
    takers: set[int] = set()

    def parts() -> Iterator[bytes]:
        for _ in range(5):
            makers.add(threading.get_ident())
            yield b"1"

    def send(handed: Iterator[bytes]) -> None:
        for _ in handed:
            takers.add(threading.get_ident())

    upload(send, parts())
    assert makers == {threading.get_ident()}
    assert makers.isdisjoint(takers)


def test_few_parts_wait() -> None:
    """The device is not read faster than the network takes."""
    made, taken = 0, 0
    ahead: list[int] = []

    def parts() -> Iterator[bytes]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield b"1"

    def send(handed: Iterator[bytes]) -> None:
        nonlocal taken
        for _ in handed:
            taken += 1
            ahead.append(made - taken)

    upload(send, parts())
    assert made == taken == 50
    assert max(ahead) <= AHEAD + 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_parts_that_fail_are_told_after_the_sender_has_given_up(error: type[BaseException]) -> None:
    told: list[str] = []

    def parts() -> Iterator[bytes]:
        yield from [b"1"] * 5
        raise error("no more")

    def send(handed: Iterator[bytes]) -> None:
        try:
            list(handed)
        except GivenUp:
            told.append("given up")
            raise

    with pytest.raises(error, match="no more"):
        upload(send, parts())
    assert told == ["given up"]


@pytest.mark.parametrize("after", [0, 3])
def test_a_sender_that_fails_ends_the_making(after: int) -> None:
    made = 0

    def parts() -> Iterator[bytes]:
        nonlocal made
        while True:  # without the sender's end this would never come to one
            made += 1
            yield b"1"

    def send(handed: Iterator[bytes]) -> None:
        for _ in range(after):
            next(handed)
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        upload(send, parts())
    assert made <= after + AHEAD + 2
