"""What a checkpoint of equal content weighs, and what stays of many under one keep rule."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _storage_arms import PEERS, Ours, adapters_save, checkpoints, du, torch_save, written
from _storage_trainings import Training, untouched_share

from mementum.records import record

PLANES, DELTA = "planes+zstd:1", "delta+planes+zstd:1"
CODECS = {"raw": "raw", "planes": PLANES, "delta": DELTA}
# Neither seeing nor deciding is weighed here, and nothing but the keep rule may remove anything.
QUIET: Mapping[str, Any] = {
    "vitals": "off",
    "alarms": "off",
    "recorder": "off",
    "watermarks": "off",
    "scrub": "off",
    "slots": 0,
}
ALL: Mapping[str, Any] = {"keep_last": None, "keep_spread": 0, "keep_best": 0}


@record
class Plan:
    """`warm`: steps before the first save; `every`: steps from one save to the next; `keep`: how many of the newest
    stay where not all do. `tiers`: codecs of copies on tiers, that are weighed too."""

    warm: int
    saves: int
    every: int
    keep: int
    codecs: tuple[str, ...] = tuple(CODECS)
    tiers: tuple[str, ...] = ()
    adapters: bool = False


def same_rule(keep: int) -> dict[str, Any]:
    return {"keep_last": keep, "keep_spread": 0, "keep_best": 0}


class Weighing:
    """One training whose every save is made by all; `figures` are bytes, by who made them and what they are."""

    def __init__(self, make: Callable[[], Training], folder: Path, plan: Plan, *, advance: Callable[[], None]) -> None:
        self.plan, self.figures = plan, dict[str, float]()
        self.samples: dict[str, list[int]] = {}
        self._folder, self._advance = folder, advance
        self._training = make()

    def run(self) -> None:
        plan, training = self.plan, self._training
        for _ in range(plan.warm):
            training.step()
        runs = {name: self._open(name) for name in self._names()}
        files: list[Path] = []
        try:
            for number in range(plan.saves):
                loss = 0.0
                for _ in range(plan.every):
                    loss = training.step()
                files.append(self._torch(number))
                for name, run in runs.items():
                    self._save(name, run, loss)
                self._advance()
        finally:
            for run in runs.values():
                run.close()
        self._weigh(runs, files)

    def _names(self) -> list[str]:
        names = [name for codec in self.plan.codecs for name in (codec, f"last_{codec}")]
        return [*names, "tiers"] if self.plan.tiers else names

    def _open(self, name: str) -> Ours:
        if name == "tiers":
            places = [{"url": str(self._tier(one)), "name": one, "codec": CODECS[one]} for one in self.plan.tiers]
            return Ours(self._training, self._folder / name, {**QUIET, **ALL, "tiers": places})
        rule = same_rule(self.plan.keep) if name.startswith("last_") else ALL
        codec = CODECS[name.removeprefix("last_")]
        return Ours(self._training, self._folder / name, {**QUIET, **rule}, codec=codec)

    def _tier(self, name: str) -> Path:
        return self._folder.resolve() / f"tier-{name}"

    def _torch(self, number: int) -> Path:
        path = self._folder / "torch" / f"{number:04}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = written()
        torch_save(self._training, path)
        self._sample("torch_save.written", written() - before)
        self._sample("torch_save.bytes", du([path]))
        return path

    def _save(self, name: str, run: Ours, loss: float) -> None:
        whole, before = du(checkpoints(run.folder)), written()
        tiers = {one: du(checkpoints(self._tier(one))) for one in self.plan.tiers if name == "tiers"}
        run.save(loss)
        self._sample(f"{name}.written", written() - before)
        if not name.startswith("last_"):
            self._sample(f"{name}.bytes", du(checkpoints(run.folder)) - whole)
        for one, size in tiers.items():
            self._sample(f"tier_{one}.bytes", du(checkpoints(self._tier(one))) - size)

    def _sample(self, name: str, value: int) -> None:
        self.samples.setdefault(name, []).append(value)

    def _weigh(self, runs: Mapping[str, Ours], files: list[Path]) -> None:
        for name, values in self.samples.items():
            self.figures[name] = statistics.median(values[1:])  # the first brings what all others share
            self.figures[f"{name}_mean"] = statistics.fmean(values)
        self.figures["torch_save.kept"] = du(files[-self.plan.keep :])
        self.figures["torch_save.kept_all"] = du(files)
        for name, run in runs.items():
            self.figures[f"{name}.kept"] = du([run.folder])
            self.figures[f"{name}.bases"] = run.bases
        for name, save in PEERS.items():
            self.figures[f"{name}.bytes"] = self._peer(name, save)
        if self.plan.adapters:
            self.figures["adapters_alone.bytes"] = self._peer("adapters_alone", adapters_save)
        self.figures["untouched_share"] = untouched_share(self._training)

    def _peer(self, name: str, save: Callable[[Training, Path], None]) -> float:
        path = self._folder / name
        save(self._training, path)
        return du([path])

    def share(self, name: str, *, of: str = "torch_save", what: str = "bytes") -> float | None:
        """To `torch.save`; None where it was not weighed."""
        one = self.figures.get(f"{name}.{what}")
        return None if one is None else one / self.figures[f"{of}.{what}"]
