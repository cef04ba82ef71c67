"""The recorder: when a chunk is due, that one is on its way at a time, and what a slow or failing disk costs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from mementum.format import vitals
from mementum.perceive import recorder as recorders
from mementum.perceive.recorder import CHUNK_ROWS, WAITING_ROWS_MAX, Recorder
from mementum.records import Vitals
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def seen(step: int, at_s: float = 0.0) -> Vitals:
    return Vitals(step=step, at_s=at_s, loss=step / 4)


def steps(data: bytes) -> list[int]:
    found = vitals.parse(data)
    assert (found.damage, found.torn) == ((), 0)
    return list(found.rows)


def begun() -> Recorder:
    """One whose first chunk is written."""
    recorder = Recorder(vitals)
    recorder.add(seen(0))
    assert recorder.due(1.0) is not None
    recorder.written(True)
    return recorder


def test_nothing_is_due_of_nothing() -> None:
    recorder = Recorder(vitals)
    assert recorder.due(1000.0) is None
    assert recorder.rest() is None


def test_a_second_makes_a_chunk() -> None:
    recorder = Recorder(vitals)
    recorder.add(seen(1, 5.0))
    recorder.add(seen(2, 5.5))
    assert recorder.due(5.99) is None
    data = recorder.due(6.0)
    assert data is not None
    assert data.startswith(vitals.begin())
    assert steps(data) == [1, 2]
    assert [row.loss for row in vitals.parse(data).rows.values()] == [0.25, 0.5]


def test_many_rows_make_a_chunk_before_that() -> None:
    recorder = begun()
    for step in range(1, CHUNK_ROWS):
        recorder.add(seen(step, 1.0))
        assert recorder.due(1.0) is None
    recorder.add(seen(CHUNK_ROWS, 1.0))
    data = recorder.due(1.0)
    assert data is not None
    assert data.startswith(vitals.MARK)  # the line of the columns stands in the file already
    assert steps(vitals.begin() + data) == list(range(1, CHUNK_ROWS + 1))


def test_one_chunk_is_on_its_way_at_a_time() -> None:
    recorder = Recorder(vitals)
    recorder.add(seen(1))
    first = recorder.due(1.0)
    recorder.add(seen(2))
    assert recorder.due(100.0) is None
    recorder.written(True)
    second = recorder.due(100.0)
    assert first is not None
    assert second is not None
    assert steps(first + second) == [1, 2]


def test_a_chunk_that_failed_comes_again_a_second_later() -> None:
    recorder = begun()
    recorder.add(seen(1, 1.0))
    lost = recorder.due(2.0)
    assert lost is not None
    recorder.written(False)
    recorder.add(seen(2, 2.1))
    for _ in range(CHUNK_ROWS):  # a disk that fails is not tried at every step
        assert recorder.due(2.2) is None
    again = recorder.due(3.2)
    assert again is not None
    # It may have left a part of itself: the line is told anew, and both are found after that part.
    found = vitals.parse(vitals.begin() + lost[:50] + again)
    assert list(found.rows) == [1, 2]
    assert len(found.damage) == 1


def test_a_disk_that_is_behind_costs_detail_oldest_first() -> None:
    recorder = begun()
    recorder.add(seen(1, 1.0))
    assert recorder.due(2.0) is not None  # and nobody tells what became of it
    count = 3 * WAITING_ROWS_MAX
    for step in range(2, count + 1):
        recorder.add(seen(step, 2.0))
    data = recorder.rest()
    assert data is not None
    found = steps(data)
    assert found == sorted(set(found))
    assert found[-WAITING_ROWS_MAX // 2 :] == list(range(count - WAITING_ROWS_MAX // 2 + 1, count + 1))
    assert len(found) <= WAITING_ROWS_MAX
    assert recorder.dropped == count - len(found)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert max(gaps) > 1  # detail was lost
    assert max(gaps[len(gaps) // 2 :]) == 1  # none of the newer half


def test_the_rest_has_what_nobody_told_of() -> None:
    recorder = begun()
    recorder.add(seen(1, 1.0))
    assert recorder.due(2.0) is not None
    recorder.add(seen(2, 2.0))
    data = recorder.rest()
    assert data is not None
    assert steps(data) == [1, 2]
    recorder.written(True)
    assert recorder.rest() is None


def test_what_is_appended_to_a_store_is_read_whole(tmp_path: Path) -> None:
    recorder, store = Recorder(vitals), LocalStore(PosixDisk(), str(tmp_path))
    for step in range(1, 301):
        recorder.add(seen(step, step / 10))
        data = recorder.due(step / 10)
        if data is not None:
            store.append(vitals.key(1), data)
            recorder.written(True)
    kept = vitals.parse(store.get(vitals.key(1)))  # what a kill would leave now
    assert list(kept.rows) == list(range(1, len(kept.rows) + 1))
    assert 300 - len(kept.rows) <= 10  # ten steps a second
    data = recorder.rest()
    if data is not None:
        store.append(vitals.key(1), data)
    assert steps(bytes(store.get(vitals.key(1)))) == list(range(1, 301))


def test_limits_fit_together() -> None:
    assert 2 * recorders.WAITING_ROWS_MAX <= vitals.ROWS_MAX
