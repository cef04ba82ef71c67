"""Public bug reports about what is written and under which name: each test has its number in our collection."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mementum
from mementum.errors import StateMismatch
from mementum.events import Committed, Failed
from trips import Box, Told, bits, resume, save_now

MEMORY = """
import sys, pathlib, torch, mementum
def peak():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS")]
state = {"large": torch.ones(int(sys.argv[2]) // 4)}
with mementum.open_run(sys.argv[1], task="a25", state={"held": state}, every_steps=1) as run:
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()[1]
    run.record(); run.wait()
    one = peak()[0] - before
    run.record(); run.wait(); run.record(); run.wait()
    print(one, peak()[0] - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a25_a_save_takes_no_memory_besides_its_slots(tmp_path: Path) -> None:
    size = 100_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), str(size)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, three = map(int, done.stdout.split())
    assert one - size < size / 2  # a slot holds the copy
    assert three - 3 * size < size / 2  # and there are never more than three


def test_a26_what_changes_after_the_call_is_not_what_is_written(tmp_path: Path) -> None:
    large = torch.ones(2_000_000)
    saving = mementum.async_save(tmp_path / "folder", {"large": large})
    large.fill_(-1)
    saving.result()
    fresh = torch.zeros(2_000_000)
    mementum.load(tmp_path / "folder", {"large": fresh})
    assert torch.equal(fresh, torch.ones(2_000_000))
    with mementum.open_run(tmp_path / "run", task="a26", state={"large": large}) as run:
        run.save()
        large.fill_(-2)
    resumed = torch.zeros(2_000_000)
    with mementum.open_run(tmp_path / "run", task="a26", state={"large": resumed}, resume="must"):
        assert torch.equal(resumed, torch.full((2_000_000,), -1.0))


def test_a29_a_slice_of_a_large_tensor_is_stored_as_a_slice(tmp_path: Path) -> None:
    x = torch.arange(1_000_000.0)
    save_now(tmp_path, {"state": {"box": Box(part=x[:1000], some=x[::1000], twice=[x[10:20], x[15:25]])}})
    (folder,) = (path.parent for path in tmp_path.rglob("meta.json"))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 64 * 1024
    fresh = Box()
    resume(tmp_path, {"state": {"box": fresh}})
    assert torch.equal(fresh.held["part"], x[:1000])
    assert fresh.held["part"].untyped_storage().nbytes() == 4000
    assert [part.tolist() for part in fresh.held["twice"]] == [list(range(10, 20)), list(range(15, 25))]


def test_a30_weights_in_any_order_of_memory(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.Linear(5, 7))
        model[1].weight = nn.Parameter(torch.randn(5, 7).t())
        model.register_buffer("strided", torch.randn(20)[::2])
        return model

    saved, fresh = make(), make()
    save_now(tmp_path, {"model": saved})
    resume(tmp_path, {"model": fresh})
    assert bits(fresh.state_dict()) == bits(saved.state_dict())
    assert fresh[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert (fresh[1].weight.stride(), fresh.strided.stride()) == ((1, 7), (2,))


def test_a31_numbers_of_numpy_stay_numbers_of_numpy(tmp_path: Path) -> None:
    def make(lr: Any) -> dict[str, Any]:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return {"model": model, "optimizer": optimizer, "state": {"box": Box(), "held": {}}}

    saved = make(np.float64(0.1))
    saved["state"]["box"].held |= {"lr": np.float64(0.1), "n": np.int32(3), "flag": np.bool_(True), "row": np.arange(3)}
    saved["state"]["held"] |= {np.int64(2): np.float32(1 / 3)}
    save_now(tmp_path, saved)
    fresh = make(0.5)
    resume(tmp_path, fresh)
    assert repr(fresh["optimizer"].param_groups[0]["lr"]) == repr(np.float64(0.1))
    held = fresh["state"]["box"].held
    assert {key: repr(value) for key, value in held.items()} == {
        key: repr(value) for key, value in saved["state"]["box"].held.items()
    }
    assert repr(fresh["state"]["held"]) == repr({np.int64(2): np.float32(1 / 3)})


def test_a33_weights_that_are_no_numbers_come_back_exactly_and_the_good_ones_are_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    good = bits(model.state_dict())
    with mementum.open_run(tmp_path, task="a33", model=model) as run:
        run.record(loss=1.0)
        run.save()
        run.wait()
        model.weight.data.view(torch.int32)[0] = torch.tensor([0x7FC00001, -0x400000])  # two kinds of NaN
        model.bias.data.fill_(-math.inf)
        run.record(loss=math.nan)
        run.save()
    fresh = nn.Linear(2, 2)
    with mementum.open_run(tmp_path, task="a33", model=fresh, resume="must") as run:
        assert bits(fresh.state_dict()) == bits(model.state_dict())
        entries = run._opened.catalog.entries(run._opened.home)
    assert [math.isnan(entry.metrics["loss"]) for entry in entries] == [False, True]
    first = nn.Linear(2, 2)
    first_folder = next(path.parent for path in tmp_path.rglob("meta.json") if "step_0000000001" in str(path))
    assert first_folder.exists()
    (first_folder.parent / "step_0000000002" / "meta.json").unlink()
    with mementum.open_run(tmp_path, task="a33", model=first, resume="must"):
        assert bits(first.state_dict()) == good


@pytest.mark.parametrize("task", ["exp/1: lr=3e-4", "..", "größe 重み", "a\\b*?", "-rf", "CON", "a" * 300])
def test_a34_names_of_any_kind_make_no_folders_and_are_found_again(tmp_path: Path, task: str) -> None:
    root, told = tmp_path / "root", Told()
    names = {"val/loss": 0.5, "a: b c": 1.0, "../up": 2.0, "ümlaut": 3.0, "": 4.0}
    with mementum.open_run(
        root, task=task, state={"s": {}}, every_steps=1, keep_last=1, keep_every_steps=None, on_event=told
    ) as run:
        for _ in range(3):
            run.record(**names)
            run.wait()
        run.metrics(3, **{"test/acc: top 1": 0.9})
    assert told.of(Failed) == []
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert sorted(path.parent.name for path in root.rglob("meta.json")) == ["step_0000000003"]
    with mementum.open_run(root, task=task, state={"s": {}}, resume="must") as run:
        (entry,) = run._opened.catalog.entries(run._opened.home)
        assert run.step == 3
    assert entry.metrics == {**names, "test/acc: top 1": 0.9}
    assert entry.manifest.task == task


class Patience:
    """Stops when the loss has not fallen for so many steps."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.bad = patience, math.inf, 0

    def stop(self, loss: float) -> bool:
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.bad = state["best"], state["bad"]


def test_a35_patience_goes_on_and_leaving_it_out_is_told(tmp_path: Path) -> None:
    losses = [3.0, 2.0, 2.5, 2.4, 2.3, 2.2]
    saved = Patience(4)
    with mementum.open_run(tmp_path, task="a35", state={"patience": saved, "other": {}}) as run:
        assert [saved.stop(loss) for loss in losses[:4]] == [False] * 4
        run.record()
    fresh = Patience(4)
    with mementum.open_run(tmp_path, task="a35", state={"patience": fresh, "other": {}}):
        assert [fresh.stop(loss) for loss in losses[4:]] == [False, True]
    with pytest.raises(StateMismatch, match="patience was stored and is not given"):
        mementum.open_run(tmp_path, task="a35", state={"other": {}})
