"""Tests that the benchmark of watching runs, and that it finds what it times."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mementum.perceive import thrift

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.soak  # it trains for a while
def test_watching(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH / "overhead.py"), "--quick", "--json", str(out), "--size", "tiny"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told = json.loads(out.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]  # nothing else is left
    for name, steps in (("demo", 20), ("big", 40)):
        assert 0 < told[f"{name}_ms_mean"] <= told[f"{name}_ms_p99"] < told[f"{name}_step_ms"] * 50
        assert 0 < told[f"{name}_part"] < 1
        assert told[f"{name}_norm_error"] >= 0
        assert len(told["samples"][name]["wall_s"]) == len(told["samples"][name]["step_s"]) == steps
        parts = told["samples"]["parts_ms_mean"][name]
        assert all(ms > 0 for part, ms in parts.items() if part != "gradients, moments"), parts
        assert parts["gradients, sample"] < parts["gradients, hook"]
    assert told["big_share"] == pytest.approx(told["big_ms_mean"] / told["big_step_ms"])


def test_only_fresh_readings_count_and_threads_of_the_warm_up_are_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    overhead: Any = importlib.import_module("overhead")
    take, taken, made = overhead.Gradients.take, list[bool](), list[tuple[int, int]]()

    def every_second(gradients: Any) -> Any:
        reading = take(gradients)
        taken.append(reading is not None and len(taken) % 2 == 0)
        return reading if taken[-1] else None

    class Noted(overhead.Processor):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            made.append((len(taken), len(options.get("beside", ()))))
            super().__init__(**options)

    monkeypatch.setattr(thrift, "SHARE", 100.0)  # every step is read
    monkeypatch.setattr(overhead.Gradients, "take", every_second)
    monkeypatch.setattr(overhead, "Processor", Noted)
    watched = overhead.Watched(tmp_path / "watched", steps=10, groups=overhead.ALL).big("tiny", 8)
    assert len(taken) == overhead.WARM_STEPS + 10
    assert len(watched.errors) == sum(taken[overhead.WARM_STEPS :]) == 5
    ((steps, ours),) = made
    assert steps == overhead.WARM_STEPS
    assert ours > 0
