"""The runs that are made: which families, how many of each, and what differs between them."""

from __future__ import annotations

import random

from _faults import FAULTS
from _runs import Setup

from mementum.records import record

ONSETS = (250, 420)  # the first step of a fault: long after the warm-up, and never at the same place twice
AFTER = 260  # steps from the onset to the run's end: 100 until it has not come back, 100 of hold, and some to be seen
DRIFT_AFTER = 350
FOREVER = 10_000
EACH, DRIFTS = 10, 32  # runs of a family; of the slow drift


@record
class Plan:
    """What varies in a family. `lasts`: least and most steps. `severity`: least and most."""

    kinds: tuple[str, ...] = ("",)
    optimizers: tuple[str, ...] = ("adamw", "adamw", "sgd")
    clips: tuple[float | None, ...] = (None, 1.0)
    lasts: tuple[int, int] = (FOREVER, FOREVER)
    severity: tuple[float, float] = (0.1, 1.0)
    sgd_lr: tuple[float, float] = (0.05, 0.15)
    log_lr: tuple[float, float] = (-3.0, -2.3)  # of AdamW, decimal


PLANS: dict[str, Plan] = {
    "lr jump": Plan(lasts=(120, 250)),
    "missing warm-up": Plan(optimizers=("adamw",), clips=(None,), severity=(0.6, 1.0), log_lr=(-2.6, -2.3)),
    "corrupted batches": Plan(lasts=(110, 250)),
    "repeated batches": Plan(lasts=(110, 200), optimizers=("adamw",), log_lr=(-2.6, -2.2)),
    "label noise": Plan(lasts=(110, 250)),
    "bit flips in weights": Plan(kinds=("highest", "highest", "low"), severity=(0.0, 1.0)),
    "bit flips in moments": Plan(kinds=("first", "second"), optimizers=("adamw",)),
    "clip off": Plan(optimizers=("sgd",), clips=(1.0,)),
    "loss-scale overflow": Plan(kinds=("infinite", "infinite", "saturating"), clips=(None,)),
    "lost moments": Plan(
        kinds=("second", "both"), optimizers=("adamw",), clips=(None,), severity=(0.5, 1.0), log_lr=(-2.0, -1.6)
    ),
    "NaN": Plan(kinds=("weight", "gradient", "loss")),
    "summed gradients": Plan(optimizers=("sgd",), clips=(None,), sgd_lr=(0.15, 0.4)),
    "shifted targets": Plan(),
    "lost layer": Plan(severity=(0.7, 1.0)),
    "bad rank": Plan(optimizers=("sgd",), clips=(None,), lasts=(120, 250)),
    "slow drift": Plan(kinds=("lr", "labels", "decay", "data"), clips=(None,), severity=(0.3, 1.0)),
}


def setups(*, each: int = EACH, drifts: int = DRIFTS) -> tuple[Setup, ...]:
    """The runs with a fault, family by family turn about, so that a part of them is a sample of all."""
    assert set(PLANS) == set(FAULTS)
    made = [setup(family, number) for family in PLANS for number in range(drifts if family == "slow drift" else each)]
    return tuple(sorted(made, key=lambda one: (int(one.name.rpartition("-")[2]) // (4 if one.drift else 1), one.name)))


def setup(family: str, number: int) -> Setup:
    """The `number`th run of a family: the same for ever."""
    plan, draw = PLANS[family], random.Random(f"{family} {number}")
    drift = family == "slow drift"
    onset = draw.randint(*ONSETS)
    optimizer = draw.choice(plan.optimizers)
    lr = draw.uniform(*plan.sgd_lr) if optimizer == "sgd" else 10 ** draw.uniform(*plan.log_lr)
    return Setup(
        name=f"{family.replace(' ', '-')}-{number}",
        family=family,
        kind=plan.kinds[number % len(plan.kinds)],
        seed=draw.randrange(10**6),
        onset=onset,
        steps=onset + (DRIFT_AFTER if drift else AFTER),
        severity=draw.uniform(*plan.severity),
        lasts=draw.randint(*plan.lasts),
        optimizer=optimizer,
        lr=lr,
        clip=draw.choice(plan.clips),
        warm_up=draw.randint(20, 80),
        cosine=draw.random() < 0.5,
        batch=draw.choice((8, 8, 10)),
        drift=drift,
    )
