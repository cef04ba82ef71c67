"""Restoring: seconds from a cold file, and from what a killed process left in memory, to a state that can train."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from _limits import make_cold
from _measure import Quiet
from _model import Training
from _savers import WhenTold, make, state_of, wait_until_idle
from torch.distributed.checkpoint.state_dict import set_state_dict

import mementum
from mementum.format.blocks import digest
from mementum.records import record

PAGE = 4096
BACKED = 8  # times the weights, which with the optimizer's moments are three: more than the largest reader takes
VICTIM = Path(__file__).with_name("_victim.py")
VICTIM_WAIT_S = 300.0  # to make a model and some steps on a machine that is busy
READERS = {  # which saver's files each one reads
    "mementum": "mementum",
    "torch_load_mmap": "torch_save",
    "torch_load": "torch_save",
    "dcp_load": "dcp_save",
}


@record
class Restored:
    """One restore. `call_s` is until the reader returned, `restore_s` until every page of the state was there: what is
    mapped and not yet read is read then, where without it the first step would wait."""

    reader: str
    restore_s: float
    call_s: float
    still_cached: float
    quiet: bool
    tier: str | None = None


def restore_cold(
    training: Training, folder: Path, *, rounds: int, quiet: Quiet, advance: Callable[[str], None]
) -> list[Restored]:
    """Every reader once a round, in another order each time, each from files written for it and read once."""
    done: list[Restored] = []
    names = list(READERS)
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 == 0 else reversed(order):
            done.append(_restore_once(name, training, folder / "restore", quiet))
            advance(name)
    return done


def _restore_once(name: str, training: Training, folder: Path, quiet: Quiet) -> Restored:
    saver = make(READERS[name], training, folder)
    saver.after_step(0.0)
    saver.save()
    wait_until_idle(saver)
    if name == "mementum":
        saver.close()  # nothing of it stays in memory, and the task can be opened again
    stayed = make_cold(folder)
    fresh = _fresh(training)
    was_quiet = quiet.wait()
    back_memory(fresh)
    place = next(folder.glob("torch_save/*" if name.startswith("torch_load") else f"{READERS[name]}/*"))
    began_s = time.perf_counter()
    run = _READ[name](place, fresh)
    called_s = time.perf_counter()
    touch(fresh)
    ended_s = time.perf_counter()
    _require_same(name, training, fresh)
    if run is not None:
        run.close()
    shutil.rmtree(folder)
    return Restored(
        reader=name,
        restore_s=ended_s - began_s,
        call_s=called_s - began_s,
        still_cached=stayed,
        quiet=was_quiet,
        tier=_tier(run) if run is not None else None,
    )


def back_memory(fresh: Training) -> None:
    """Have the host of a virtual machine back the memory that a restore will take, for every reader alike. Where free
    memory goes back to the host, its first touch costs five times what is measured here, and varies as much."""
    weights = sum(tensor.nbytes for tensor in fresh.model.state_dict().values())
    memory = np.ones(BACKED * weights // 8)
    del memory


def _fresh(training: Training) -> Training:
    """What a program has made before it resumes: a model with other weights, an optimizer without state."""
    gc.collect()
    return Training(seed=99, sequence=training.sequence, size=training.size)


def _read_mementum(place: Path, fresh: Training) -> Any:
    return _open(place.parent, fresh)


def _open(root: Path, fresh: Training) -> Any:
    return mementum.open_run(
        root, task="bench", model=fresh.model, optimizer=fresh.optimizer, policy=WhenTold(), resume="must"
    )


def _read_torch(place: Path, fresh: Training, *, mapped: bool) -> None:
    state = torch.load(place, mmap=mapped, weights_only=True)
    fresh.model.load_state_dict(state["model"])
    fresh.optimizer.load_state_dict(state["optimizer"])


def _read_dcp(place: Path, fresh: Training) -> None:
    state = state_of(fresh)
    dcp.load(state, storage_reader=dcp.FileSystemReader(place), no_dist=True)
    set_state_dict(fresh.model, fresh.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


_READ: dict[str, Callable[[Path, Training], Any]] = {
    "mementum": _read_mementum,
    "torch_load_mmap": lambda place, fresh: _read_torch(place, fresh, mapped=True),
    "torch_load": lambda place, fresh: _read_torch(place, fresh, mapped=False),
    "dcp_load": _read_dcp,
}


def touch(training: Training) -> None:
    """Read a byte of every page of the state."""
    for _, tensor in training.tensors():
        tensor.detach().reshape(-1).view(torch.uint8)[::PAGE].sum()


def _require_same(name: str, training: Training, fresh: Training) -> None:
    expected, got = dict(training.tensors()), dict(fresh.tensors())
    wrong = [key for key in expected if key not in got or not torch.equal(expected[key], got[key])]
    if wrong or expected.keys() != got.keys():
        raise AssertionError(f"{name} brought back something else: {wrong or sorted(got.keys() - expected.keys())}")


def digests(training: Training) -> dict[str, str]:
    """A digest of every tensor of the state, to compare it with that of a process that is dead."""
    return {
        name: digest(tensor.detach().reshape(-1).view(torch.uint8).numpy().data) for name, tensor in training.tensors()
    }


def restore_killed(
    folder: Path, *, sequence: int, size: str, rounds: int, quiet: Quiet, advance: Callable[[str], None]
) -> list[Restored]:
    """Each time a process trains, takes a snapshot and is killed with SIGKILL; the next start is timed."""
    done: list[Restored] = []
    for turn in range(rounds):
        root, told = folder / "killed", folder / "killed.json"
        victim = [sys.executable, str(VICTIM), str(root), str(told), str(sequence), size]
        ended = subprocess.run(victim, capture_output=True, text=True, timeout=VICTIM_WAIT_S, check=False)
        if ended.returncode != -9:
            raise RuntimeError(f"the process that was to be killed ended by itself: {ended.stderr[-2000:]}")
        gc.collect()
        fresh = Training(seed=100 + turn, sequence=sequence, size=size)
        was_quiet = quiet.wait()
        back_memory(fresh)
        began_s = time.perf_counter()
        run = _open(root, fresh)
        called_s = time.perf_counter()
        touch(fresh)
        ended_s = time.perf_counter()
        if digests(fresh) != json.loads(told.read_text()):
            raise AssertionError("what came back after the kill is not what was saved")
        done.append(
            Restored(
                reader="mementum",
                restore_s=ended_s - began_s,
                call_s=called_s - began_s,
                still_cached=1.0,
                quiet=was_quiet,
                tier=_tier(run),
            )
        )
        run.close()
        shutil.rmtree(root)
        told.unlink()
        advance("after kill -9")
    return done


def _tier(run: Any) -> str | None:
    tier: str | None = getattr(run.resumed, "tier", None)
    return tier


def of(name: str, done: Sequence[Restored]) -> list[float]:
    """Seconds of one reader's restores."""
    return [one.restore_s for one in done if one.reader == name]
