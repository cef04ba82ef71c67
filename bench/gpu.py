"""The benchmark of copying from a GPU: right under a running training, without a stop of the host, and how fast."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from _measure import estimate
from _model import Training
from rich.console import Console

from mementum.execute.device import DeviceCopy, pin

SEQUENCE = 256  # tokens: a step of the full model takes some 20 ms on a GPU of a data center
STEPS = 10
ROUNDS, ROUNDS_QUICK = 10, 3
OPTIMIZERS = ("fused", "foreach", "scaled")  # the last with a GradScaler around a fused one
OVERWRITTEN = 255

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Figures = dict[str, Any]


class Memory:
    """Host memory for the whole state, one stretch, pinned or not."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.array: Bytes = np.full(size, OVERWRITTEN, np.uint8)
        self._let_go = pin(self.array) if pinned else None
        self.pinned = self._let_go is not None

    def pairs(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, Bytes]]:
        placed, offset = [], 0
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            placed.append((tensor, self.array[offset : offset + size]))
            offset += size
        return placed

    def close(self) -> None:
        if self._let_go is not None:
            self._let_go()


class Loop:
    """A training on a GPU whose optimizer is one of three kinds."""

    def __init__(self, kind: str, *, size: str, sequence: int) -> None:
        self.training = Training(seed=3, sequence=sequence, size=size, device="cuda")
        way = {"foreach": True} if kind == "foreach" else {"fused": True}
        self.training.optimizer = torch.optim.AdamW(self.training.model.parameters(), lr=1e-3, **way)
        self._scaler = torch.amp.GradScaler("cuda", init_scale=4.0) if kind == "scaled" else None
        self._copy: DeviceCopy | None = None
        self.held_s = 0.0
        self._hook = self.training.optimizer.register_step_pre_hook(self._before_step)

    def step(self) -> None:
        """A whole step; the scaler's own look at the gradients waits for the device, as it does without us."""
        loss = self.training.backward(scale=self._scaler.scale if self._scaler is not None else None)
        del loss
        if self._scaler is not None:
            self._scaler.step(self.training.optimizer)
            self._scaler.update()
        else:
            self.training.optimizer.step()
        self.training.optimizer.zero_grad()

    def device_tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in self.training.tensors() if tensor.is_cuda]

    def begin(self, memory: Memory) -> DeviceCopy:
        """Begin a copy of the present state in a thread; the next step is held back on the device."""
        self._copy = DeviceCopy(memory.pairs(self.device_tensors()))
        threading.Thread(target=self._copy.issue, name="copy", daemon=True).start()
        return self._copy

    def close(self) -> None:
        self._hook.remove()

    def _before_step(self, *_: object) -> None:
        if self._copy is not None:
            began_s = time.perf_counter()
            self._copy.hold_back()
            self.held_s += time.perf_counter() - began_s
            self._copy = None


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it, torch raises where this program makes the host wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def bytes_of(tensors: list[torch.Tensor]) -> Bytes:
    """What a copy must give, read with the device standing still."""
    torch.cuda.synchronize()
    return np.concatenate([tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy() for tensor in tensors])


def check_right(kind: str, *, size: str, sequence: int, rounds: int) -> int:
    """Copies under way are those of the state at their beginning, bit for bit; gives how many were compared."""
    loop = Loop(kind, size=size, sequence=sequence)
    loop.step()
    memory = Memory(sum(tensor.numel() * tensor.element_size() for tensor in loop.device_tensors()), pinned=True)
    try:
        for _ in range(rounds):
            expected = bytes_of(loop.device_tensors())
            memory.array[:] = OVERWRITTEN
            copy = loop.begin(memory)
            for _ in range(3):
                loop.step()
            copy.finish()
            if not np.array_equal(expected, memory.array):
                raise AssertionError(
                    f"{kind}: {int((expected != memory.array).sum())} bytes are not those of the state"
                )
            if np.array_equal(expected, bytes_of(loop.device_tensors())):
                raise AssertionError(f"{kind}: the steps changed nothing, so this check can find nothing")
    finally:
        memory.close()
        loop.close()
    return rounds


def check_no_waiting(*, size: str, sequence: int) -> None:
    """Neither the beginning of a copy nor holding a step back makes the host wait for the device."""
    loop = Loop("fused", size=size, sequence=sequence)
    loop.step()
    tensors = loop.device_tensors()
    memory = Memory(sum(tensor.numel() * tensor.element_size() for tensor in tensors), pinned=True)
    copy = None
    try:
        with no_waiting():
            copy = DeviceCopy(memory.pairs(tensors))
            copy.issue()
            copy.hold_back()
        copy.finish()
    finally:
        memory.close()
        loop.close()


def check_refused_pin() -> None:
    """Memory that is pinned already is refused, and that does not come up in a kernel of the program's."""
    memory = Memory(1 << 20, pinned=True)
    try:
        if pin(memory.array) is not None:
            raise AssertionError("memory was pinned twice")
        if float(torch.ones(8, device="cuda").sum()) != 8.0:
            raise AssertionError("the device counts wrong")
    finally:
        memory.close()


def bandwidth(size: int, *, pinned: bool, rounds: int) -> float:
    """Bytes a second from the GPU into host memory that was touched before."""
    memory = Memory(size, pinned=pinned)
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    seconds = []
    try:
        for _ in range(rounds):
            torch.cuda.synchronize()
            copy = DeviceCopy([(source, memory.array)])
            began_s = time.perf_counter()
            copy.issue()
            copy.finish()
            seconds.append(time.perf_counter() - began_s)
    finally:
        memory.close()
    return size / statistics.median(seconds)


def lost(*, size: str, sequence: int, rounds: int) -> Figures:
    """Seconds a copy takes from the training, against blocks without one in ABBA order, and for how long it blocks."""
    loop = Loop("fused", size=size, sequence=sequence)
    for _ in range(STEPS):
        loop.step()
    memory = Memory(sum(tensor.numel() * tensor.element_size() for tensor in loop.device_tensors()), pinned=True)
    blocked_ms: list[float] = []
    took: dict[bool, list[float]] = {False: [], True: []}
    try:
        for _ in range(rounds):
            for copies in (False, True, True, False):
                torch.cuda.synchronize()
                loop.held_s, began_s = 0.0, time.perf_counter()
                copy = loop.begin(memory) if copies else None
                begun_s = time.perf_counter()
                for _ in range(STEPS):
                    loop.step()
                torch.cuda.synchronize()
                took[copies].append(time.perf_counter() - began_s)
                if copy is not None:
                    copy.finish()
                    blocked_ms.append(1e3 * (begun_s - began_s + loop.held_s))
    finally:
        memory.close()
        loop.close()
    # Blocks one and four stand around two and three: a drift of the machine falls out of their difference.
    losses = [with_it - without for with_it, without in zip(took[True], took[False], strict=True)]
    found = estimate(losses)
    return {
        "step_s": statistics.median(took[False]) / STEPS,
        "blocked_ms_median": statistics.median(blocked_ms),
        "blocked_ms_max": max(blocked_ms),
        "lost_s_per_copy": found.median,
        "lost_s_per_copy_lo": found.low,
        "lost_s_per_copy_hi": found.high,
        "samples": {"blocked_ms": blocked_ms, "without_s": took[False], "with_s": took[True]},
    }


def measure(*, size: str, sequence: int, rounds: int) -> Figures:
    """Everything, on the present GPU. AssertionError says what is not right."""
    figures: Figures = {"gpu": torch.cuda.get_device_name()}
    for kind in OPTIMIZERS:
        figures[f"equal_{kind}"] = check_right(kind, size=size, sequence=sequence, rounds=rounds)
    check_no_waiting(size=size, sequence=sequence)
    check_refused_pin()
    figures["host_waits"] = 0
    room = 1 << 30 if size == "full" else 1 << 24
    for pinned in (True, False):
        name = "pinned" if pinned else "pageable"
        figures[f"{name}_bytes_per_s"] = bandwidth(room, pinned=pinned, rounds=rounds)
    return figures | lost(size=size, sequence=sequence, rounds=rounds)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    size: Annotated[str, typer.Option(help="Of the model: full or tiny.")] = "full",
) -> None:
    """Check and measure the copy from a GPU; without one it is skipped, which is no failure."""
    console = Console()
    if torch.cuda.is_available():
        figures = measure(size=size, sequence=SEQUENCE - 1, rounds=ROUNDS_QUICK if quick else ROUNDS)
        for name, value in figures.items():
            if name != "samples":
                console.print(f"  {name:24} {value}", highlight=False)
    else:
        figures = {"skipped": "torch sees no GPU here"}
        console.print(f"skipped: {figures['skipped']}", highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
