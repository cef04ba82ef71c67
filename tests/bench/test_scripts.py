"""Tests that the benchmarks run, on a model so small that their figures say nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from services import missing

BENCH = Path(__file__).resolve().parents[2] / "bench"


def figures(script: str, folder: Path, *words: str) -> dict[str, Any]:
    out = folder / "figures.json"
    command = [sys.executable, str(BENCH / script), "--quick", "--json", str(out), *words]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told: dict[str, Any] = json.loads(out.read_text())
    assert [path.name for path in folder.iterdir()] == ["figures.json"]  # nothing else is left
    return told


@pytest.mark.soak  # it trains for a while
def test_saving(tmp_path: Path) -> None:
    told = figures("save.py", tmp_path, "--size", "tiny", "--only", "lost", "--only", "restore")
    for name in ("", "torch_save.", "dcp_save.", "dcp_async.", "dcp_async_staged."):
        assert told[f"{name}bytes"] > 1_000_000
        assert told[f"{name}lost_s_per_save_lo"] <= told[f"{name}lost_s_per_save"] <= told[f"{name}lost_s_per_save_hi"]
        assert 0 < told[f"{name}blocked_ms_median"] <= told[f"{name}blocked_ms_p99"]
        assert told[f"{name}durable_s"] > 0
    for name in ("", "torch_load_mmap.", "torch_load.", "dcp_load."):
        assert told[f"{name}restore_cold_s"] > 0
    assert len(told["samples"]["pairs"]) == 2 * 6  # two of every saver and of the control


@pytest.mark.soak  # it trains for a while
def test_adapters(tmp_path: Path) -> None:
    told = figures("adapters.py", tmp_path, "--size", "tiny")
    assert len(told["samples"]["written"]) == 4
    assert told["lora_share"] == told["bytes_per_save"] / told["torch_save_bytes"]
    assert told["first_save_bytes"] > 500_000
    assert told["bytes_per_save"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, where it takes its time")
def test_without_a_gpu_the_copy_from_it_is_skipped(tmp_path: Path) -> None:
    assert figures("gpu.py", tmp_path) == {"skipped": "torch sees no GPU here"}


def test_catalogs(tmp_path: Path) -> None:
    told = figures("catalog.py", tmp_path, "--share", "0.005", "--only", "sqlite", "--only", "rebuild")
    assert (told["sqlite_rows"], told["rebuild_files"]) == (500, 50)
    for what in ("recovery_point", "recovery_point_before", "insert"):
        assert 0 < told[f"sqlite_{what}_s_p50"] <= told[f"sqlite_{what}_s_p99"]
    assert told["rebuild_s"] > told["rebuild_read_s"] > 0


@pytest.mark.soak  # it trains for most of a minute
def test_uploads(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("boto3", "obstore")):
        missing("pip install boto3 obstore")
    told = figures("objects.py", tmp_path, "--size", "tiny")
    for name in ("", "obstore.", "boto3."):
        assert told[f"{name}bytes"] > 1_000_000
        lost = [told[f"{name}lost_s_per_upload{bound}"] for bound in ("_lo", "", "_hi")]
        assert lost == sorted(lost)
        assert told[f"{name}cpu_s_per_upload"] > 0
    assert (
        told["lost_more_than_obstore_s_lo"] <= told["lost_more_than_obstore_s"] <= told["lost_more_than_obstore_s_hi"]
    )
    assert len(told["samples"]["pairs"]) == 2 * 4  # two of every client and of the control
