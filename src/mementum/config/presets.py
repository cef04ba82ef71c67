"""Presets: named settings to begin from, with what of their purpose has no effect yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mementum.records import record


@record
class Said:
    """What becomes of a key: its effect, or the reason why it has none (`effective` tells which)."""

    key: str
    text: str
    effective: bool


@record
class Preset:
    """Settings by key, as they would stand in a file."""

    purpose: str
    values: Mapping[str, Any]
    said: tuple[Said, ...] = ()
    wants_store: bool = False  # that what is saved outlives the machine


def _not_yet(text: str) -> Said:
    return Said(key="preset", text=text, effective=False)


NO_STORE = "no tier outlives the machine: give `tiers` an object store, or checkpoints stay in the root folder"


def without_store(name: str) -> tuple[Said, ...]:
    """What is said of a preset where no tier outlives the machine."""
    return (_not_yet(f"{name}: {NO_STORE}"),) if PRESETS[name].wants_store else ()


PRESETS: Mapping[str, Preset] = {
    "pretrain": Preset(
        purpose="weeks on many machines: a failure costs half an hour at the most, and a disk is not worn out",
        values={
            # The window of half an hour is what holds while no failure has been seen; 7.5 TB a day is one whole
            # write a day of a common data-centre disk (7.68 TB), so that it lasts as long as its maker promises.
            "policy": ["before_stop", "cost"],
            "tolerance": {"max_lost": "30m"},
            "budgets": {"lost_time": "5 %", "bytes_per_day": {"ssd": "7.5 TB"}},
            "keep_last": 5,
            "keep_every_steps": 5000,
            "keep_spread": 3,
            "codec": "raw",
        },
        wants_store=True,
    ),
    "finetune": Preset(
        purpose="hours on one machine: weights often, an exact state at the end of each epoch, over-fitting watched",
        values={
            "policy": [
                "before_stop",
                {"epoch": {"every": 1, "granularity": "full"}},
                {"best": {"metric": "eval_loss", "mode": "min", "granularity": "weights"}},
                {"steps": {"every": 100, "granularity": "weights"}},
            ],
            "budgets": {"lost_time": "5 %"},
            "keep_last": 3,
            "codec": "planes+zstd:1",
        },
    ),
    "rlhf": Preset(
        purpose="several models that belong together: a save at each event of the program, and the cost of a failure",
        values={
            "policy": ["before_stop", {"event": {"name": "iteration", "granularity": "full"}}, "cost"],
            "tolerance": {"max_lost": "15m"},
            "budgets": {"lost_time": "5 %"},
            "keep_last": 4,
            "slots": 3,
        },
        wants_store=True,
    ),
    "inference": Preset(
        purpose="a model that is published: weights when the program says so",
        values={
            "policy": ["before_stop", {"event": {"name": "publish", "granularity": "weights"}}],
            "keep_last": 2,
        },
        said=(_not_yet("inference: quantised releases and caches at the edge come with a later part"),),
    ),
}
