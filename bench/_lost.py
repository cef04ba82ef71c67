"""Seconds lost: blocks of steps with and without saves in ABBA order, one save a block, its whole work inside."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from _measure import Processor, Quiet, Used
from _model import Training
from _savers import Saved, Saver, Watch, wait_until_idle

from mementum.records import record

STEPS = 5  # of a block, so one save every five steps
STEPS_MAX = 400  # of a block whose save does not end: it is an error then
CONTROL = "control"  # the block that is measured like one with a save, and has none


@record
class Block:
    """Some steps, and the save that was made among them."""

    steps: tuple[float, ...]
    total_s: float
    others_s: float
    quiet: bool
    blocked_s: float = 0.0
    cpu_s: float = 0.0
    saved: Saved | None = None


@record
class Pair:
    """A block with a save and the one without beside it; `lost_s` is against the median step of both blocks without a
    save in its group of four."""

    saver: str
    lost_s: float
    step_s: float
    without: Block
    block: Block


def run_block(training: Training, saver: Saver | None, watch: Watch, processor: Processor, quiet: Quiet) -> Block:
    """Some steps; with a saver, a save first, and further steps until all of its work is done."""
    was_quiet = quiet.wait()
    used, held_s, calls_s, in_calls_s = processor.read(), watch.held_s, 0.0, 0.0
    steps: list[float] = []
    began_s = time.perf_counter()
    if saver is not None:
        before = processor.read()
        saver.save()
        calls_s = time.perf_counter() - began_s
        in_calls_s = processor.read().since(before).trainers_s
    while len(steps) < STEPS or (saver is not None and saver.busy()):
        if len(steps) == STEPS_MAX and saver is not None:
            raise TimeoutError(f"{saver.name}: a save took more than {STEPS_MAX} steps")
        step_s = time.perf_counter()
        loss = training.step()
        ended_s = time.perf_counter()
        if saver is not None:
            saver.after_step(loss)
            calls_s += time.perf_counter() - ended_s
        steps.append(time.perf_counter() - step_s)
    total_s = time.perf_counter() - began_s
    spent = processor.read().since(used)
    return Block(
        steps=tuple(steps),
        total_s=total_s,
        others_s=max(0.0, spent.machine_s - spent.all_s),
        quiet=was_quiet,
        blocked_s=calls_s + watch.held_s - held_s,
        cpu_s=_of_the_save(spent, in_calls_s),
        saved=saver.saved() if saver is not None else None,
    )


def _of_the_save(spent: Used, in_calls_s: float) -> float:
    """Threads that are not the training's, and the training's while they were in a call of the saver's."""
    return max(0.0, spent.all_s - spent.trainers_s) + in_calls_s


def measure(
    training: Training,
    savers: Sequence[Saver],
    *,
    rounds: int,
    watch: Watch,
    processor: Processor,
    quiet: Quiet,
    advance: Callable[[str], None],
) -> list[Pair]:
    """Two pairs of every saver and of the control a round; the savers take turns in who is first."""
    pairs: list[Pair] = []
    for turn in range(rounds):
        order: list[Saver | None] = [None, *savers]
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for saver in order:
            blocks: list[Block] = []
            for kind in (None, saver, saver, None):  # A B B A
                blocks.append(run_block(training, kind, watch, processor, quiet))
                if kind is not None:
                    kind.tidy()
            pairs += _pairs(saver.name if saver is not None else CONTROL, blocks)
            advance(pairs[-1].saver)
    return pairs


def _pairs(name: str, blocks: Sequence[Block]) -> list[Pair]:
    first, one, two, last = blocks
    step_s = statistics.median([*first.steps, *last.steps])
    return [
        Pair(saver=name, lost_s=with_it.total_s - len(with_it.steps) * step_s, step_s=step_s, without=a, block=with_it)
        for a, with_it in ((first, one), (last, two))
    ]


def rehearse(training: Training, savers: Sequence[Saver]) -> None:
    """One save of each, not counted: memory is touched and modules are imported by it."""
    for saver in savers:
        saver.save()
        wait_until_idle(saver)
        saver.after_step(training.step())
        saver.tidy()


def save_often(
    training: Training, saver: Saver, *, count: int, limit_s: float, watch: Watch, advance: Callable[[], None]
) -> tuple[list[float], list[Saved]]:
    """`count` saves, each as soon as the last is done, or what of them `limit_s` leaves time for; for how long each
    held up the loop."""
    until = time.monotonic() + limit_s
    blocked: list[float] = []
    saves: list[Saved] = []
    for _ in range(count):
        held_s, began_s = watch.held_s, time.perf_counter()
        saver.save()
        calls_s = time.perf_counter() - began_s
        while True:
            loss = training.step()
            began_s = time.perf_counter()
            saver.after_step(loss)
            calls_s += time.perf_counter() - began_s
            if not saver.busy():
                break
        blocked.append(calls_s + watch.held_s - held_s)
        saves.append(saver.saved())
        saver.tidy()
        advance()
        if time.monotonic() > until:
            break
    return blocked, saves


def save_standing(training: Training, saver: Saver, *, count: int, quiet: Quiet) -> list[float]:
    """Seconds to durable while no step is made: what the saver can do with the machine to itself."""
    durable: list[float] = []
    for _ in range(count):
        quiet.wait()
        saver.save()
        wait_until_idle(saver)
        durable.append(saver.saved().durable_s)
        saver.tidy()
        saver.after_step(training.step())  # the next save is of another step
    return durable


def raw(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The pairs as plain values for the JSON."""
    return [asdict(pair) for pair in pairs]
