"""Arriving: the loss and the gradient norm of each step, at once or, from a device, some steps later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mementum.perceive.late import Late
from mementum.perceive.measured import LOSS, NORM, is_on_device
from mementum.records import record


@record
class Arrived:
    """What a step gave. `fetched`: what of it came from a device. `stepped`: whether an optimizer may have used its
    gradients."""

    step: int
    loss: Any = None
    norm: Any = None
    fetched: Mapping[str, float] = field(default_factory=dict)
    stepped: bool = True


class Arriving:
    """Keeps the steps in order: one whose values have not come yet holds back those after it."""

    def __init__(self) -> None:
        self._late: Late[tuple[Arrived, tuple[str, ...]]] = Late()

    def take(self, step: int, metrics: Mapping[str, Any], *, stepped: bool) -> tuple[Arrived, ...]:
        """The steps whose values are here now, oldest first: often this one, none or several where a device is late."""
        given = {name: metrics.get(name) for name in (LOSS, NORM)}
        on_device: dict[str, Any] = {name: value for name, value in given.items() if is_on_device(value)}
        here = {name: value for name, value in given.items() if name not in on_device}
        told = Arrived(step=step, loss=here.get(LOSS), norm=here.get(NORM), stepped=stepped)
        if not on_device and not self._late:
            return (told,)
        self._late.put((told, tuple(on_device)), [*on_device.values()])
        return tuple(_whole(of, names, values) for (of, names), values in self._late.ready())

    def forget(self) -> None:
        """What is still on its way is of no use any more."""
        self._late.forget()


def _whole(told: Arrived, names: tuple[str, ...], values: tuple[float, ...]) -> Arrived:
    fetched = dict(zip(names, values, strict=True))
    return Arrived(
        step=told.step,
        loss=fetched.get(LOSS, told.loss),
        norm=fetched.get(NORM, told.norm),
        fetched=fetched,
        stepped=told.stepped,
    )
