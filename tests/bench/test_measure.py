"""Tests of what the benchmarks compute from their samples."""

from __future__ import annotations

import importlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("_measure")


def test_an_interval_holds_the_median_and_comes_again(measuring: Any) -> None:
    samples = [0.1 * number for number in range(21)]
    found = measuring.estimate(samples)
    assert found.median == pytest.approx(1.0)
    assert 0.4 < found.low < 1.0 < found.high < 1.6
    assert found == measuring.estimate(samples)
    assert found.count == 21


def test_an_interval_of_equal_samples_is_a_point(measuring: Any) -> None:
    found = measuring.estimate([0.25] * 5)
    assert (found.low, found.median, found.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(100, 0.99, 99), (200, 0.99, 198), (20, 0.99, 20), (4, 0.5, 2)]
)
def test_a_quantile_is_a_sample(measuring: Any, count: int, share: float, expected: int) -> None:
    assert measuring.quantile(list(range(count, 0, -1)), share) == expected


def test_bytes_of_a_folder_are_those_of_its_files(measuring: Any, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"123")
    (tmp_path / "below" / "two").write_bytes(b"12345")
    assert measuring.size_of(tmp_path) == 8
    assert measuring.size_of(tmp_path / "one") == 3


def test_a_thread_that_is_told_to_be_beside_is_no_trainer(measuring: Any) -> None:
    begin, done, leave = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begin.wait()
        while time.thread_time() < 0.05:
            pass
        done.set()
        leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    watchers = [measuring.Processor(), measuring.Processor(beside={thread.native_id})]
    before = [one.read() for one in watchers]
    begin.set()
    done.wait()
    used = [one.read().since(earlier) for one, earlier in zip(watchers, before, strict=True)]
    leave.set()
    thread.join()
    assert used[0].trainers_s - used[1].trainers_s > 0.03


def test_a_wait_for_quiet_has_an_end(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter(range(1000))
    monkeypatch.setattr(measuring, "_busy_s", lambda: float(next(busy)))  # others use a second at every look
    assert measuring.Quiet(patience_s=0.2).wait() is False


def test_a_file_just_written_is_in_memory_until_it_is_made_cold(measuring: Any, tmp_path: Path) -> None:
    limits = importlib.import_module("_limits")
    (tmp_path / "file").write_bytes(bytes(40_000))
    assert limits._cached([tmp_path / "file"]) == 1.0
    assert limits.make_cold(tmp_path) in (0.0, 1.0)  # a file system in memory keeps it


@pytest.mark.parametrize(("lost", "steps"), [(0.5, 5), (0.0, 7)])
def test_lost_is_what_is_beyond_the_median_steps(measuring: Any, lost: float, steps: int) -> None:
    losing = importlib.import_module("_lost")

    def block(count: int, more_s: float) -> Any:
        return losing.Block(steps=(0.3,) * count, total_s=0.3 * count + more_s, others_s=0.0, quiet=True)

    pairs = losing._pairs("saver", [block(5, 0), block(steps, lost), block(steps, lost), block(5, 0)])
    assert [pair.lost_s for pair in pairs] == pytest.approx([lost, lost])
