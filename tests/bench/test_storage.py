"""The benchmark of storage: what it counts is what it says, and it tells its figures."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module(name)


def test_a_file_with_two_names_is_weighed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = load("_storage_arms", monkeypatch)
    before = arms.du([tmp_path])
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    weight = arms.du([tmp_path]) - before
    assert 100_000 <= weight < 200_000
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert arms.du([tmp_path, tmp_path / "two"]) - before == weight
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 10_000_000)
    assert arms.du([tmp_path]) - before == weight  # nothing is allocated for it


def test_what_a_failure_loses_is_counted_from_the_newest_save(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = load("_storage_decision", monkeypatch)
    assert decision.lost_on_average([], 4) == (1 + 2 + 3 + 4) / 4
    assert decision.lost_on_average([2, 3], 4) == (1 + 0 + 0 + 1) / 4
    every_2000 = decision.fixed(4000)
    assert (every_2000.saves, every_2000.lost_process) == (2, 999.5)
    assert every_2000.per_1000 == 0.5
    assert every_2000.lost == pytest.approx(999.5)


def test_the_clock_moves_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = load("_storage_arms", monkeypatch).Paced(now_s=5.0)
    clock.sleep(0.0)
    assert (clock.now(), clock.monotonic()) == (5.0, 0.0)
    clock.advance(86_400.0)
    assert (clock.now(), clock.monotonic()) == (86_405.0, 86_400.0)


@pytest.mark.soak  # it trains for most of a minute
def test_it_tells_its_figures_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH / "storage.py"), "--size", "tiny", "--json", str(out)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    told = json.loads(out.read_text())
    assert told["full.torch_save.bytes"] > 4_000_000
    assert told["content_share_full"] == told["full.planes.bytes"] / told["full.torch_save.bytes"]
    assert told["content_share_full"] < told["content_share_full_raw"] < 1.1
    assert told["kept_share_full"] == told["full.last_planes.kept"] / told["full.torch_save.kept"]
    assert told["written_share_full_a_save_planes"] > told["written_share_full_a_save"] >= 1  # raw first, then again
    assert told["written_share"] == pytest.approx(
        told["written_share_same_interval"] * told["saves_per_1000_ours"] / told["saves_per_1000_fixed"]
    )
    assert 0 < told["lost_steps_process_ours"] < told["lost_steps_reboot_ours"]
    assert told["left_ageing"] < told["left_codec"] < told["left_container"]
