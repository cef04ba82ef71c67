"""The training whose snapshots are in memory while its disk is held back: a server that forks one for every order.

An order is a line of JSON: the root, and from which step on no part of a checkpoint with `held_part` in its name is
written; with `stop` it does no step at all. Each trainer tells what it does in lines on the standard output.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it, which takes longer than all else in a start
from blake3 import blake3

from mementum import open_run
from mementum.events import Committed, Event, Failed, PassedOver, PhaseBegan
from mementum.execute.slots import Slot
from mementum.storage.local import LocalStore

TASK = "ram"
STEPS = 24
EVERY_STEPS = 3
WIDTH = 512  # 0.3 million parameters: a copy takes a millisecond, long enough to be hit


def tell(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def hear(event: Event) -> None:
    match event:
        case PhaseBegan(phase="capture"):
            tell("capture")
        case PhaseBegan(phase="write"):
            tell("write")
        case Committed(step=step):
            tell("committed", step)
        case Failed() | PassedOver():
            tell("trouble", repr(event).replace("\n", " "))


def tell_of_whole_ones() -> None:
    """Tell of each snapshot that a later process can begin with."""
    validate = Slot.validate

    def validated(slot: Slot, head: bytes, **label: Any) -> None:
        validate(slot, head, **label)
        tell("whole", label["step"])

    Slot.validate = validated  # type: ignore[method-assign]


def hold_back(held_from: int, part: str) -> None:
    """Have every put of such a part of a checkpoint wait for ever."""
    put = LocalStore.put

    def held(store: LocalStore, key: str, chunks: Any) -> Any:
        if key.startswith("step_") and int(key[5:15]) >= held_from and part in key:
            tell("held", key)
            threading.Event().wait()
        return put(store, key, chunks)

    LocalStore.put = held  # type: ignore[method-assign]


def train(root: str, held_from: int | None, held_part: str, stop: bool) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(5)
    tell_of_whole_ones()
    if held_from is not None:
        hold_back(held_from, held_part)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH),
        torch.nn.BatchNorm1d(WIDTH),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Linear(WIDTH, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    with open_run(
        root,
        task=TASK,
        model=model,
        optimizer=optimizer,
        scheduler=schedule,
        every_steps=EVERY_STEPS,
        keep_last=2,
        on_event=hear,
    ) as run:
        tell("opened", run.step, run.resumed.tier if run.resumed is not None else "none")
        if stop:
            threading.Event().wait()
        while run.step < STEPS:
            optimizer.zero_grad()
            model(torch.randn(16, 64)).pow(2).mean().backward()
            optimizer.step()
            schedule.step()
            run.values["seen"] = run.values.get("seen", 0) + 16
            run.record()
            tell("step", run.step)
        held = [*model.state_dict().values(), *(v for one in optimizer.state.values() for v in one.values())]
        bits = b"".join(tensor.numpy().tobytes() for tensor in held)
        plain = repr((run.step, run.values, schedule.state_dict(), torch.get_rng_state().tolist()))
        tell("live", blake3(bits + plain.encode()).hexdigest())
    tell("done")


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(**order)
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)  # the way back leads into the server's loop
        tell("pid", child)
        _, status = os.waitpid(child, 0)
        tell("exit", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
