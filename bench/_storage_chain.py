"""What each way of keeping less takes off the bytes of a run of 30 days, one after the other: the documents' -64 %."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _storage_arms import Ours, Paced, checkpoints, du, torch_save, written
from _storage_content import ALL, PLANES, QUIET
from _storage_trainings import SMALL, Characters

from mementum.records import Granularity, record

RUN_DAYS = 30.0
STEPS_EACH = 2  # from one save to the next; in the documents' run 2000
AGEING = {"level_0": 30.0, "level_1": 7.0, "level_2": 90.0}  # days, as the documents' configuration has them
FULL_EVERY = 4  # saves, of which the others are of weights alone
KEEP = {"keep_last": 10, "keep_spread": 3, "keep_best": 1}  # the product's defaults


@record
class Link:
    """One way. `saves`: the part of the fixed interval's saves that it makes; `full_every`: which of them are full."""

    name: str
    config: Mapping[str, Any]
    codec: str = PLANES
    saves: float = 1.0
    full_every: int = 1


@record
class Kept:
    """What a way left behind: bytes on the disk, checkpoints, how many saves it made, and bytes that it had written."""

    name: str
    size: int
    checkpoints: int
    saves: int
    written: int


def links(saves: float) -> tuple[Link, ...]:
    """Each with all that the ones before it have; the last stands beside them. `saves`: by the product's decision, the
    part of those at the documents' interval."""
    aged = {**ALL, "retention_days": AGEING}
    return (
        Link(name="container", config=ALL, codec="raw"),
        Link(name="codec", config=ALL),
        Link(name="saving less often", config=ALL, saves=saves),
        Link(name="ageing", config=aged, saves=saves),
        Link(name="keep rule", config={**KEEP, "retention_days": AGEING}, saves=saves),
        Link(name="granularity", config=ALL, full_every=FULL_EVERY),
    )


def measure(folder: Path, *, saves: float, turns: int, advance: Callable[[], None]) -> list[Kept]:
    """All ways beside one training; first `torch.save` at every turn, of which everything stays."""
    clock, training, ways = Paced(), Characters(SMALL), links(saves)
    for _ in range(STEPS_EACH):
        training.step()
    runs = [
        Ours(training, folder / str(number), {**QUIET, **way.config}, codec=way.codec, clock=clock)
        for number, way in enumerate(ways)
    ]
    spent, made = [0] * len(ways), [0] * len(ways)
    peer, peer_written = folder / "torch", 0
    peer.mkdir()
    try:
        for turn in range(turns):
            loss = 0.0
            for _ in range(STEPS_EACH):
                loss = training.step()
            clock.advance(RUN_DAYS * 86_400.0 / turns)
            before = written()
            torch_save(training, peer / f"{turn:04}.pt")
            peer_written += written() - before
            for number, (way, run) in enumerate(zip(ways, runs, strict=True)):
                if int((turn + 1) * way.saves) > made[number]:
                    before = written()
                    run.save(loss, granularity=granularity_of(way, made[number]))
                    spent[number] += written() - before
                    made[number] += 1
            advance()
    finally:
        for run in runs:
            run.close()
    found = [Kept(name="torch.save", size=du([peer]), checkpoints=turns, saves=turns, written=peer_written)]
    for number, way in enumerate(ways):
        root = folder / str(number)
        found.append(
            Kept(
                name=way.name,
                size=du([root]),
                checkpoints=len(checkpoints(root)),
                saves=made[number],
                written=spent[number],
            )
        )
    return found


def granularity_of(way: Link, made: int) -> Granularity:
    return Granularity.FULL if made % way.full_every == 0 else Granularity.WEIGHTS
