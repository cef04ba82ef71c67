"""The benchmark of deciding: its replay agrees with itself, its traces are read, and it tells its figures."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
DATA = BENCH.parents[1] / "shared/data"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # where a record looks for its own module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("_replay", monkeypatch)


def test_fixed_intervals_keep_whole_intervals(replay: ModuleType) -> None:
    gaps_s = np.array([200.0, 300.0, 1299.0, 1300.0, 3000.0])  # 300 s of each are the restart
    assert replay.fixed(gaps_s, 900.0, 100.0).tolist() == [0, 0, 0, 900, 1800]
    assert replay.clairvoyant(gaps_s, 100.0).tolist() == [0, 0, 899, 900, 2600]
    best_s, kept_s = replay.best_fixed(np.array([1300.0] * 3), 100.0)
    assert 850 <= best_s <= 900
    assert kept_s.sum() == pytest.approx(3 * best_s)


def test_the_mean_of_gaps_looks_back_only(replay: ModuleType) -> None:
    assert replay.online_mean([10.0, 30.0], np.array([80.0, 1000.0])).tolist() == [20.0, 40.0]


@pytest.mark.parametrize("cost_s", [0.5, 20.0])
def test_the_closed_form_makes_the_saves_that_steps_make(replay: ModuleType, cost_s: float) -> None:
    learnt_s, gap_s = [30_000.0] * 40, 80_000.0 if cost_s == 20 else 16_000.0
    rates = replay.Rates(learnt_s, [gap_s], nodes=64)
    ours = replay.Ours(rates, cost_s)
    kept_s, saves = ours.gap(gap_s, rates.by_gap[0])
    played = replay.stepped(gap_s, hazards=rates.hazards[0], policy=ours.policy, cost_s=cost_s, step_s=cost_s / 5 + 0.9)
    assert saves == pytest.approx(played, rel=0.02)
    assert saves > 60
    assert kept_s == pytest.approx(gap_s - 300 - saves * cost_s, abs=2 * (gap_s - 300) / saves)


def test_alarms_that_are_never_right_are_believed_less_and_less(replay: ModuleType) -> None:
    gaps_s = np.random.default_rng(3).exponential(30_000.0, 300)
    ours = replay.Ours(replay.Rates([30_000.0] * 60, gaps_s.tolist(), nodes=64), 5.0)
    plain_s = ours.kept_s(gaps_s.tolist()).sum()

    def lost_points(*, learns: bool) -> float:
        draw = np.random.default_rng(4)
        kept = replay.with_random_alarms(gaps_s, ours, per_failure=100, claimed=0.5, learns=learns, draw=draw)
        return float(100 * (plain_s - kept.sum()) / gaps_s.sum())

    assert lost_points(learns=False) > 0.15
    assert abs(lost_points(learns=True)) < 0.1


@pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not beside this repository")
def test_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = {trace.name: trace for trace in load("_traces", monkeypatch).read_traces(DATA)}
    assert {name: len(trace.gaps_s) for name, trace in traces.items()} == {
        "LANL 2": 5396,
        "LANL 16": 2353,
        "LANL 18": 3917,
        "LANL 19": 3235,
        "LANL 20": 2400,
        "spot p3": 78,
        "spot g4dn": 47,
        "spot gcp v100": 54,
        "spot gcp a100": 35,
    }
    learnt_s, tested_s = traces["LANL 18"].halves()
    assert np.mean(learnt_s) / 3600 == pytest.approx(7.23, abs=0.01)
    assert np.mean(tested_s) / 3600 == pytest.approx(7.73, abs=0.01)
    assert min(min(trace.gaps_s) for trace in traces.values()) > 0


@pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not beside this repository")
def test_it_tells_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, str(BENCH / "policies.py"), "--quick", "--json", str(out)], check=True, capture_output=True
    )
    told = json.loads(out.read_text())
    assert told["worst_gap_points_lanl"] < 0.5
    assert told["ours_vs_young_random_alarms_points"] > -5
    replays = told["samples"]["replays"]
    assert {(one["trace"], one["cost_s"]) for one in replays} == {
        (trace, cost_s) for trace in ("LANL 16", "spot p3") for cost_s in (0.15, 5.0, 60.0)
    }
    for one in replays:
        assert all(0 <= goodput <= one["goodput"]["clairvoyant"] for goodput in one["goodput"].values())
        low, high = one["ours_minus_best_points_95"]
        assert low <= high


def test_without_data_it_says_which_file_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "policies.py"), "--data", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no failure traces" in done.stdout
    assert "LA-UR-05-7318" in done.stdout.replace("\n", "")
