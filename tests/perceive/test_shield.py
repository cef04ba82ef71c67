"""Shielded workers, for real: a process group that gets SIGTERM in the middle of a step."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from mementum.perceive import shield as shield_room
from mementum.perceive.shield import shield

TIMEOUT_S = 60.0  # a test that hangs, not one that is slow

TRAIN = """
import os, signal, subprocess, sys, time
import torch
from mementum.perceive.shield import shield
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, at):
        return torch.tensor(float(at))

def ready(worker_id):
    torch.manual_seed(worker_id)

if __name__ == "__main__":
    kind, start = sys.argv[1:]
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    workers = 2 if start == "fork" else 1  # a spawned one takes seconds to import torch
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, multiprocessing_context=start,
                        worker_init_fn=ready, persistent_workers=True, prefetch_factor=1)
    if kind == "shielded":
        shield(loader)
    total = 0.0
    for step, batch in enumerate(loader):
        if step == 2:
            print("ready", flush=True)
            while not stopped:
                time.sleep(0.01)
            time.sleep(0.2)  # so that a worker that dies is dead when the next batch is asked for
        total += float(batch.sum())
    print("total", total, flush=True)
    sys.exit(7 if stopped else 0)
"""


WORKERS = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from mementum.perceive import shield as room

room.LOOK_S, room.GRACE_LOOKS = 0.05, 4 if sys.argv[1] == "grace" else 10_000

def work(kind, ready):
    if kind != "blocked":  # a thread that was there before us, as a native library's, takes the signal
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    room._Shield(lambda worker_id: ready.set())(0)
    time.sleep(600)

def start(kind):
    ready = multiprocessing.get_context("fork").Event()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(kind, ready), daemon=True)
    worker.start()
    assert ready.wait(30)
    return worker

def stranger(worker):  # another process sends it
    subprocess.run(["/bin/sh", "-c", f"kill -TERM {worker.pid}"], check=True)

def ended(worker, within_s):
    worker.join(within_s)
    return worker.exitcode

match sys.argv[1]:
    case "by sender":
        worker = start("blocked")
        for _ in range(3):
            stranger(worker)
        print(ended(worker, 0.5))
        worker.terminate()
        print(ended(worker, 30))
    case "by number":
        worker = start("open")
        stranger(worker)
        print(ended(worker, 0.3))
        worker.terminate()
        print(ended(worker, 30))
    case "grace":
        worker = start("open")
        stranger(worker)
        print(ended(worker, 30))
    case "orphans":
        print(start("blocked").pid, start("open").pid, flush=True)
        os._exit(0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"  # a file, since a spawned worker imports it
    path.write_text(TRAIN, encoding="utf-8")
    return path


def train(script: Path, *, kind: str, start: str) -> tuple[int, str]:
    """Run the script in a process group of its own, send SIGTERM to all of it; its exit code and its output."""
    command = [sys.executable, "-W", "ignore", str(script), kind, start]
    with subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output


def play(scene: str) -> str:
    done = subprocess.run([sys.executable, "-c", WORKERS, scene], text=True, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unshielded_group_loses_its_workers(script: Path) -> None:
    code, output = train(script, kind="bare", start="fork")
    assert code != 0
    assert "killed by signal: Terminated" in output


def test_a_shielded_group_finishes_and_leaves_its_own_way(script: Path) -> None:
    assert train(script, kind="shielded", start="fork") == (7, f"total {sum(range(64))}.0\n")


def test_a_spawned_group_finishes(script: Path) -> None:
    """There, threads that a native library has started take the signal."""
    assert train(script, kind="shielded", start="spawn") == (7, f"total {sum(range(64))}.0\n")


def test_strangers_do_not_end_a_worker_and_the_trainer_does() -> None:
    assert play("by sender") == "None\n0\n"


def test_the_second_signal_ends_a_worker_that_cannot_tell_who_sent_it() -> None:
    assert play("by number") == "None\n0\n"


def test_such_a_worker_ends_a_while_after_the_first() -> None:
    assert play("grace") == "0\n"


def test_workers_end_when_the_trainer_is_gone() -> None:
    """They hold the write end of its output, so communicate() returns only once they are gone."""
    assert len(play("orphans").split()) == 2


def test_masks_are_read_as_the_kernel_writes_them() -> None:
    assert shield_room._blocks("Name:\tpython\nSigBlk:\t0000000000004000\n")
    assert not shield_room._blocks("Name:\tpython\nSigBlk:\t000000000000bfff\n")
    assert not shield_room._blocks("Name:\tpython\n")


def test_an_unreadable_proc_counts_as_threads_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shield_room, "THREADS", str(tmp_path / "none"))
    assert not shield_room._others_block_it()


def seen(worker_id: int) -> str:
    return f"seen {worker_id}"


def test_the_loaders_own_function_is_called_and_given_back() -> None:
    loader = DataLoader([1, 2, 3], num_workers=1, worker_init_fn=seen)
    calls: list[int] = []
    loader.worker_init_fn = calls.append
    undo = shield(loader)
    loader.worker_init_fn(5)  # in no worker: only the loader's own function has something to do
    assert calls == [5]
    undo()
    assert loader.worker_init_fn == calls.append


def test_twice_is_once() -> None:
    loader = DataLoader([1, 2, 3], num_workers=1, worker_init_fn=seen)
    undo = shield(loader)
    once = loader.worker_init_fn
    shield(loader)()
    assert loader.worker_init_fn is once
    undo()
    assert loader.worker_init_fn is seen


def test_undo_leaves_a_function_that_came_later() -> None:
    loader = DataLoader([1, 2, 3], num_workers=1)
    undo = shield(loader)
    loader.worker_init_fn = seen
    undo()
    assert loader.worker_init_fn is seen


def test_loaders_without_workers_are_left_alone() -> None:
    loader = DataLoader([1, 2, 3], worker_init_fn=seen)
    shield(loader)()
    assert loader.worker_init_fn is seen
    shield(SimpleNamespace(num_workers=2))()
    shield([1, 2, 3])()


def test_it_can_be_pickled() -> None:
    loader = DataLoader([1, 2, 3], num_workers=1, worker_init_fn=os.getpgid)
    shield(loader)
    assert pickle.loads(pickle.dumps(loader.worker_init_fn)).inner is os.getpgid
