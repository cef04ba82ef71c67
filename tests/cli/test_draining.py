"""`mementum drain`: a killed training's snapshot becomes a checkpoint, from which a start goes on bit for bit."""

from __future__ import annotations

import enum
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum import ram
from mementum.errors import StoreError
from mementum.execute.leftovers import leftovers
from mementum.storage.local import LocalStore

TASK = "byte-gpt"
HELD_AFTER = 3  # steps whose saves reach the disk; that of the next one stays in memory

CHILD = """
import sys, threading, types
import torch
import mementum
from mementum.execute.slots import Slot
from mementum.storage.local import LocalStore

root, task, held_after = sys.argv[1], sys.argv[2], int(sys.argv[3])
put, validate = LocalStore.put, Slot.validate
held, whole = threading.Event(), threading.Event()

def held_back(store, key, chunks):
    if held.is_set() and key.startswith("step_"):
        threading.Event().wait()
    return put(store, key, chunks)

def validated(slot, head, **label):
    validate(slot, head, **label)
    if label["step"] > held_after:
        whole.set()

LocalStore.put, Slot.validate = held_back, validated
program = sys.modules["program_of_a_test"] = types.ModuleType("program_of_a_test")
exec("import enum\\nclass Kind(enum.Enum):\\n    WARM = 1", vars(program))
torch.manual_seed(3)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = mementum.open_run(root, task=task, model=model, optimizer=optimizer, every_steps=1)
run.values["kind"] = program.Kind.WARM
for step in range(1, held_after + 2):
    optimizer.zero_grad()
    model(torch.full((1, 8), float(step))).pow(2).mean().backward()
    optimizer.step()
    if step > held_after:
        held.set()
    run.record()
    if step <= held_after:
        run.wait()
print(whole.wait(60), flush=True)
sys.stdin.readline()
"""


def state_after(steps: int) -> dict[str, bytes]:
    """What the child has after so many steps, trained here without mementum."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.full((1, 8), float(step))).pow(2).mean().backward()
        optimizer.step()
    return frozen(model, optimizer)


def frozen(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, bytes]:
    """Every bit of both."""
    held = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        held |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    return {name: value.numpy().tobytes() for name, value in held.items()}


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Any]:
    """Train such a child and kill it while its last save is held back; its root. At the end nothing of it is left."""
    root = tmp_path / "root"

    def run_and_kill(task: str) -> Path:
        words = [sys.executable, "-c", CHILD, str(root), task, str(HELD_AFTER)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            ready = child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        assert (ready, child.returncode) == ("True\n", -signal.SIGKILL)
        return root

    yield run_and_kill
    for left in leftovers(ram.FOLDER, ram.key_of(root, TASK)):
        left.remove()


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Any]:
    """A run of another task of the same root, in this process, with its snapshot in memory too."""
    with mementum.open_run(tmp_path / "root", task="living", state={"weights": torch.ones(8)}, every_steps=1) as run:
        run.record()
        run.wait()
        yield run


def steps_on_disk(root: Path, ask: Any, task: str) -> list[int]:
    return [one["step"] for one in json.loads(ask("ls", root, "--task", task, "--json").out)]


@pytest.mark.usefixtures("living")
def test_a_killed_training_comes_back_from_what_was_drained(
    ask: Any, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = train(TASK)
    assert steps_on_disk(root, ask, TASK) == [3, 2, 1]
    step = HELD_AFTER + 1

    planned = json.loads(ask("plan", root, TASK, "--no-measure", "--json").out)
    assert (TASK, step) in [(one["task"], one["step"]) for one in planned["left_behind"]]
    assert planned["next"].startswith(f"mementum drain {root} {TASK}, or ")

    elsewhere = json.loads(ask("plan", root / "other", "--state", "1MB", "--no-measure", "--json").out)
    assert (TASK, step) in [(one["task"], one["step"]) for one in elsewhere["left_behind"]]
    assert "drain" not in elsewhere["next"]  # what is left is of another root

    refused = ask("drain", root, "living")
    assert refused.code == 1
    assert f"task 'living' is being trained by process {os.getpid()} on " in refused.err
    refused = ask("drain", root, "living", "--json")
    assert json.loads(refused.out)["error"]["kind"] == "TaskInUse"

    with monkeypatch.context() as full:
        full.setattr(LocalStore, "put", _full)
        failed = ask("drain", root)
    assert failed.code == 1
    assert "no space" in failed.err
    assert len(ram.left_of(root, TASK)) >= 1  # it lies where it lay

    answer = ask("drain", root)  # all of the root: the living one has left nothing
    assert (answer.code, answer.err) == (0, "")
    safe, given_back, following = answer.lines
    assert safe.startswith(f"{TASK}: step {step} is safe as c")
    assert Path(safe.rpartition(" in ")[2]).joinpath("meta.json").is_file()
    assert given_back.startswith(f"{TASK}: ")
    assert following == f"next: mementum verify {root} {TASK}@latest --deep"
    assert ram.left_of(root, TASK) == ()
    assert steps_on_disk(root, ask, TASK) == [4, 3, 2, 1]
    assert steps_on_disk(root, ask, "living") == [1]

    again = ask("drain", root, TASK)
    assert (again.code, again.lines) == (0, [f"{TASK}: nothing to carry: no process has left a snapshot in memory"])

    # The class of a plain value is the program's: who drained did not have it, and the program itself does.
    program = types.ModuleType("program_of_a_test")
    vars(program)["Kind"] = enum.Enum("Kind", {"WARM": 1}, module="program_of_a_test")
    monkeypatch.setitem(sys.modules, "program_of_a_test", program)
    assert ask(*following.split()[2:]).code == 0
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with mementum.open_run(root, task=TASK, model=model, optimizer=optimizer, resume="must") as run:
        assert (run.step, run.resumed.step) == (step, step)
        assert frozen(model, optimizer) == state_after(step)
        assert run.values["kind"] is vars(program)["Kind"].WARM


def _full(store: LocalStore, key: str, chunks: object) -> None:
    raise StoreError(key, f"{key}: no space is left on the disk", kept="older checkpoints", next_command="df -h")


def test_nothing_to_drain(ask: Any, root: Path) -> None:
    every = ask("drain", root)
    assert (every.code, every.err) == (0, "")
    assert every.lines == ["nothing to carry: no process has left a snapshot of a task of this root in memory"]
    assert json.loads(ask("drain", root, "--json").out) == {"root": str(root), "tasks": []}
    (one,) = json.loads(ask("drain", root, "byte-gpt", "--json").out)["tasks"]
    assert one == {
        "task": "byte-gpt",
        "checkpoint": None,
        "step": None,
        "path": None,
        "why": "no process has left a snapshot in memory",
        "removed": 0,
    }


def test_a_slip_of_the_pen_makes_nothing(ask: Any, root: Path, listing: Any, tmp_path: Path) -> None:
    before = listing(root)
    missing = ask("drain", root, "byte-gtp")
    assert missing.code == 4
    assert "there is no task 'byte-gtp'; there are: 'byte-gpt'" in missing.err
    assert ask("drain", tmp_path / "nowhere").code == 2
    (tmp_path / "empty").mkdir()
    assert ask("drain", tmp_path / "empty").code == 4
    assert listing(root) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "root"]


def test_one_task_that_fails_does_not_keep_back_the_others(
    ask: Any, root: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(root, "second", losses=(0.1,))
    monkeypatch.setattr(ram, "tasks_with_leftovers", lambda folder: ("byte-gpt", "second"))
    with mementum.open_run(root, task="byte-gpt", state={"nothing": []}, resume="never"):
        answer = ask("drain", root)
    assert answer.code == 1
    assert answer.lines == ["second: nothing to carry: no process has left a snapshot in memory"]
    assert "task 'byte-gpt' is being trained by process" in answer.err
