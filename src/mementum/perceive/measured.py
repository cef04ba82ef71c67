"""Measured: the newest and the best of each metric that the program has told."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

from mementum.records import record

LOSS, NORM = "loss", "grad_norm"  # the names under which a loop records them
EVALUATED = ("eval_loss", "val_loss", "validation_loss")  # the first of these that is new is an evaluation's
LATE_MAX = 64  # metrics that came late between two steps
NAMES_MAX = 256  # of metrics whose newest and best are remembered: more are made of something that changes
BESTS_MAX = 64  # bests of each name so far: a trouble takes back those since its onset, and one of before it is wanted


@record
class _Best:
    step: int
    value: float


class Measured:
    """`modes`: the names of metrics of which the best is wanted, and whether that is the lowest or the highest; of all
    others it is the lowest."""

    def __init__(self, modes: Mapping[str, Literal["min", "max"]]) -> None:
        self._modes = modes
        self._newest: dict[str, float] = {}
        self._bests: dict[str, list[_Best]] = {}
        self._late: deque[dict[str, Any]] = deque(maxlen=LATE_MAX)
        self._since: dict[str, float] = {}  # told since the last `judge`
        self._evaluated: float | None = None

    @property
    def newest(self) -> dict[str, float]:
        return dict(self._newest)

    @property
    def best(self) -> dict[str, float]:
        return {name: bests[-1].value for name, bests in self._bests.items() if bests}

    def came_late(self, metrics: Mapping[str, Any]) -> None:
        """Metrics that count at the next step."""
        self._late.append(dict(metrics))

    def take_late(self) -> None:
        """Count what came late."""
        while self._late:
            self.note(self._late.popleft())

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Metrics of this step. What is no number that is here is passed over."""
        for name, value in metrics.items():
            if name in (LOSS, NORM) and name not in self._modes:
                continue
            known = _number(value)
            if known is None or (name not in self._newest and len(self._newest) >= NAMES_MAX):
                continue
            self._newest[name] = self._since[name] = known
            if name in EVALUATED:
                self._evaluated = known

    def take_evaluated(self) -> float | None:
        """The loss of an evaluation that has ended since this was asked last."""
        evaluated, self._evaluated = self._evaluated, None
        return evaluated

    def judge(self, step: int, onset: int | None) -> None:
        """What was told by this step counts for the best, unless its state is not trusted: from `onset` on none is."""
        told, self._since = self._since, {}
        if onset is not None:
            for bests in self._bests.values():
                while bests and bests[-1].step >= onset:
                    bests.pop()
            return
        for name, value in told.items():
            bests = self._bests.setdefault(name, [])
            if not isfinite(value):
                continue
            lowest = self._modes.get(name, "min") == "min"
            if not bests or (value < bests[-1].value if lowest else value > bests[-1].value):
                bests.append(_Best(step=step, value=value))
            if len(bests) > BESTS_MAX:
                del bests[_nearest(bests, step)]

    def forget(self) -> None:
        """What was told and has not counted yet is of no use any more."""
        self._late.clear()
        self._since, self._evaluated = {}, None

    def state(self) -> dict[str, Any]:
        """As plain values."""
        bests = {name: [[best.step, best.value] for best in bests] for name, bests in self._bests.items() if bests}
        return {"newest": self.newest, "best": self.best, "bests": bests}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`. If it is none of ours, nothing has changed."""
        newest = {str(name): float(value) for name, value in state["newest"].items()}
        told = state.get("bests", {})  # a checkpoint of an earlier version has none
        bests = {
            str(name): [_Best(step=int(step), value=float(best)) for step, best in told.get(name, [(0, value)])]
            for name, value in state["best"].items()
        }
        self._newest, self._bests, self._since = newest, bests, {}


def _nearest(bests: list[_Best], now: int) -> int:
    """The place of the one that is missed least: its neighbours are near each other for their age. First and last
    stay."""
    return min(
        range(1, len(bests) - 1),
        key=lambda place: (bests[place + 1].step - bests[place - 1].step) / (now - bests[place - 1].step + 1),
    )


def is_on_device(value: Any) -> bool:
    """Whether it is one number on a device, which would have to be fetched."""
    device = getattr(value, "device", None)
    return getattr(device, "type", "cpu") != "cpu" and getattr(value, "numel", lambda: 0)() == 1


def _number(value: Any) -> float | None:
    """A plain number that is here; what would have to be fetched from a device is not."""
    if isinstance(value, bool | str) or is_on_device(value):
        return None
    try:
        return float(getattr(value, "item", lambda: value)())
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
