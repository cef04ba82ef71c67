"""The functional door: save, load and async_save in a folder, in place, exact, all or nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mementum
from loops import parts, train
from mementum.errors import (
    CheckpointDamaged,
    NoSuchAddress,
    NothingToResume,
    SaveFailed,
    StateMismatch,
    UnsupportedState,
    UsageError,
)
from mementum.live import rng
from mementum.storage.disk import PosixDisk


def trained() -> dict[str, Any]:
    made = parts()
    for _ in range(3):
        made.optimizer.zero_grad()
        made.model(torch.rand(4, 6)).sum().backward()
        made.optimizer.step()
        made.scheduler.step()
    return {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler, "step": 3, "name": "a"}


def fresh() -> dict[str, Any]:
    made = parts(seed=9)
    return {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler, "step": 0, "name": None}


def bits(state: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    averages = [state["optimizer"].state[parameter]["exp_avg"] for parameter in state["model"].parameters()]
    return [*state["model"].state_dict().items(), *((str(number), one) for number, one in enumerate(averages))]


def test_what_was_saved_comes_back_in_place(tmp_path: Path) -> None:
    saved, live = trained(), fresh()
    model = live["model"]
    id = mementum.save(tmp_path, saved)
    given = mementum.load(tmp_path, live)
    assert live["model"] is model
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(bits(saved), bits(live), strict=True))
    assert live["scheduler"].state_dict() == saved["scheduler"].state_dict()
    assert (live["step"], live["name"], given["step"]) == (3, "a", 3)
    assert id.startswith("c")


def test_a_load_may_ask_for_less_and_not_for_more(tmp_path: Path) -> None:
    saved = trained()
    mementum.save(tmp_path, saved)
    model = fresh()["model"]
    mementum.load(tmp_path, {"model": model})
    assert torch.equal(model[0].weight, saved["model"][0].weight)
    before = model[0].weight.clone()
    with pytest.raises(StateMismatch, match="ema is given and was not stored"):
        mementum.load(tmp_path, {"model": model, "ema": fresh()["model"]})
    assert torch.equal(model[0].weight, before)


def test_every_kind_of_value(tmp_path: Path) -> None:
    state = {
        "tensor": torch.arange(3.0),
        "list": [1, (2, {"x": np.float32(0.5)})],
        "set": {1},
        "none": None,
        "random": random.Random(3),
        "numpy": np.random.default_rng(3),
        "torch": torch.Generator().manual_seed(3),
        "global": mementum.GlobalGenerators(),
        "mine": mementum.per_rank({"rank": 0}),
    }
    mementum.save(tmp_path, state)
    drawn = (state["random"].random(), state["numpy"].random(), torch.rand(1, generator=state["torch"]), torch.rand(1))
    live = {
        "tensor": torch.zeros(3),
        "list": [],
        "set": set(),
        "none": 1,
        "random": random.Random(),
        "numpy": np.random.default_rng(),
        "torch": torch.Generator(),
        "global": mementum.GlobalGenerators(),
        "mine": mementum.per_rank({}),
    }
    kept = live["list"]
    mementum.load(tmp_path, live)
    again = (live["random"].random(), live["numpy"].random(), torch.rand(1, generator=live["torch"]), torch.rand(1))
    assert again == drawn
    assert live["tensor"].tolist() == [0.0, 1.0, 2.0]
    assert kept is live["list"]
    assert (kept, live["set"], live["none"], live["mine"].thing) == ([1, (2, {"x": 0.5})], {1}, None, {"rank": 0})


def test_a26_what_changes_after_async_save_returned_is_not_written(tmp_path: Path) -> None:
    weights = torch.ones(1000, 100)
    saving = mementum.async_save(tmp_path, {"weights": weights})
    weights.fill_(-1)
    assert saving.wait()
    assert saving.done()
    loaded = torch.zeros(1000, 100)
    mementum.load(tmp_path, {"weights": loaded})
    assert loaded.eq(1).all()


def test_saves_become_checkpoints_in_the_order_of_their_calls(tmp_path: Path) -> None:
    savings = [mementum.async_save(tmp_path, {"n": number}, step=5, keep_last=None) for number in range(8)]
    ids = [saving.result() for saving in savings]
    assert mementum.load(tmp_path, {"n": None}) == {"n": 7}
    assert [mementum.load(tmp_path, {"n": None}, checkpoint=id)["n"] for id in ids] == list(range(8))


def test_the_newest_stay_and_nothing_piles_up(tmp_path: Path) -> None:
    for number in range(6):
        mementum.save(tmp_path, {"n": number})
    assert len(list(tmp_path.rglob("meta.json"))) == 2
    assert [path.name for path in tmp_path.rglob("attempts/*.json")] == ["0006.json"]
    assert len(list(tmp_path.rglob("journal/*"))) == 1


def test_a_damaged_newest_is_passed_over_unless_it_is_asked_for(tmp_path: Path) -> None:
    first = mementum.save(tmp_path, {"n": torch.full((4,), 1.0)})
    second = mementum.save(tmp_path, {"n": torch.full((4,), 2.0)})
    blocks = next(p.parent for p in tmp_path.rglob("meta.json") if second in p.read_text()) / "optimizer.blocks"
    data = bytearray(blocks.read_bytes())
    data[3] ^= 1
    blocks.write_bytes(data)
    live = torch.zeros(4)
    with pytest.raises(CheckpointDamaged, match="does not match its digest"):
        mementum.load(tmp_path, {"n": live}, checkpoint=second)
    assert live.eq(0).all()
    mementum.load(tmp_path, {"n": live})
    assert live.eq(1).all()
    mementum.load(tmp_path, {"n": live}, checkpoint=first)
    assert live.eq(1).all()


def test_a_run_can_be_loaded_from(tmp_path: Path) -> None:
    train(tmp_path, 4, keep_last=None)
    made = parts(seed=9)
    mementum.load(tmp_path, {"model": made.model}, checkpoint="1")
    second = made.model[0].weight.clone()
    mementum.load(tmp_path, {"model": made.model}, checkpoint="loop@latest")
    assert not torch.equal(second, made.model[0].weight)
    with pytest.raises(NoSuchAddress, match="77"):
        mementum.load(tmp_path, {"model": made.model}, checkpoint="77")


def test_what_cannot_be_saved_or_loaded_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    root = tmp_path / "none"
    with pytest.raises(UnsupportedState, match=r"f.*function"):
        mementum.save(root, {"f": lambda: 0})
    with pytest.raises(UsageError, match="not a name"):
        mementum.save(root, {"a/b": 1})
    for step in (-1, 2**62, 1.5, "x"):
        with pytest.raises(UsageError, match="a step is"):
            mementum.save(root, {"a": 1}, step=step)
    with pytest.raises(UsageError, match="codec"):
        mementum.save(root, {"a": 1}, codec="lzma")
    with pytest.raises(NothingToResume, match="holds no checkpoint"):
        mementum.load(root, {"a": 1})
    assert not root.exists()


def test_a_failed_save_is_raised_by_result_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mementum.save(tmp_path, {"n": 1})

    def full(disk: PosixDisk, path: str) -> Any:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(PosixDisk, "create", full)
    saving = mementum.async_save(tmp_path, {"n": 2})
    with pytest.raises(SaveFailed, match="the disk is full") as failed:
        saving.result()
    assert failed.value.kept == "older checkpoints"
    monkeypatch.undo()
    assert mementum.load(tmp_path, {"n": None}) == {"n": 1}
    mementum.save(tmp_path, {"n": 3})
    assert mementum.load(tmp_path, {"n": None}) == {"n": 3}


def test_generators_of_the_process_are_untouched(tmp_path: Path) -> None:
    state = trained()
    before = rng.read()
    mementum.save(tmp_path, state)
    mementum.load(tmp_path, fresh_without_drawing(state))
    after = rng.read()
    assert (before["python"], before["torch"]) == (after["python"], after["torch"])
    assert np.array_equal(before["numpy"]["state"]["key"], after["numpy"]["state"]["key"])


def fresh_without_drawing(state: dict[str, Any]) -> dict[str, Any]:
    return {name: thing for name, thing in state.items() if name in ("model", "optimizer")}


def test_two_processes_take_turns(tmp_path: Path) -> None:
    code = f"import mementum\nfor n in range(5): mementum.save({str(tmp_path)!r}, {{'n': n}}, keep_last=None)"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert len(list(tmp_path.rglob("meta.json"))) == 10
    assert mementum.load(tmp_path, {"n": None}) == {"n": 4}


def test_threads_take_turns(tmp_path: Path) -> None:
    def work(number: int) -> None:
        mementum.save(tmp_path, {"n": number}, keep_last=None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.rglob("meta.json"))) == 6


def test_what_is_not_finite_is_marked_and_is_the_latest_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound, state, live = trained(), trained(), fresh()
    with torch.no_grad():
        state["model"][0].weight[0, 1] = float("nan")
    clean = mementum.save(tmp_path, sound, step=1)
    assert caplog.messages == []
    ids = [mementum.save(tmp_path, state, step=step) for step in (2, 3, 4)]
    told = "model.0.weight is not finite: its checkpoint is diverged"
    assert caplog.messages == [f"step {step}: {told}" for step in (2, 3, 4)]
    mementum.load(tmp_path, live)
    warned = f'model.0.weight of checkpoint {ids[-1]} is not finite; checkpoint="clean" loads the newest that is'
    assert caplog.messages[3:] == [warned]
    assert torch.isnan(live["model"][0].weight).nonzero().tolist() == [[0, 1]]
    by_id = fresh()
    mementum.load(tmp_path, by_id, checkpoint=ids[-1])
    assert torch.isnan(by_id["model"][0].weight).sum() == 1
    mementum.load(tmp_path, live, checkpoint="clean")  # no number of later saves has pushed it out
    assert torch.equal(live["model"][0].weight, sound["model"][0].weight)
    (newest,) = [one.parent for one in tmp_path.rglob("meta.json") if ids[-1] in one.read_text()]
    next(newest.glob("model*.safetensors")).unlink()
    mementum.load(tmp_path, live)  # a damaged one is fallen back from, to the best there is
    assert torch.equal(live["model"][0].weight, sound["model"][0].weight)
    assert clean != ids[-1]
