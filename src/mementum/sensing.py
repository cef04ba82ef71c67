"""Sensing: what of a run is watched, made from settings, the live state and the task's own past."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from mementum import ram
from mementum.clock import Clock
from mementum.config import policies as wished
from mementum.config import settings as config
from mementum.config.settings import Settings
from mementum.deciding import Watchers
from mementum.events import Emit, Note
from mementum.execute import room
from mementum.format import vitals
from mementum.live.component import Component
from mementum.live.modules import ModuleState
from mementum.live.optimizers import OptimizerState
from mementum.live.stateful import StatefulState
from mementum.opening import Opened
from mementum.past import Past, past_of, written_before
from mementum.perceive import deadlines
from mementum.perceive.ailing import Ailing
from mementum.perceive.alarms import Detectors
from mementum.perceive.budgets import Budget, Budgets
from mementum.perceive.costs import Costs, Planned
from mementum.perceive.day import DAY_S
from mementum.perceive.gradients import Gradients
from mementum.perceive.hang import Watch
from mementum.perceive.hazards import Hazards
from mementum.perceive.health import Judge
from mementum.perceive.memory import Memory
from mementum.perceive.notices import Notices
from mementum.perceive.recorder import Recorder
from mementum.perceive.signs import Limits
from mementum.perceive.situation import Perception, Senses
from mementum.perceive.timing import StepTimes
from mementum.perceive.vitals import VitalSigns
from mementum.planning import OPTIMIZERS
from mementum.records import Alarm, Reach, Trouble

# What a save costs before one was measured: bench/save.py, two busy cores, 1.2 GB. See planning for the same figures.
BLOCKED_S = 0.005
LOST_S_PER_GB = 0.27
COPY_LOST_S_PER_GB = 0.05
COPY_S_PER_GB = 0.25
DURABLE_S_PER_GB = 0.9
# What a copy to a tier takes more, beside the training: reading, digests and sending at low priority.
PLACED_LOST_S_PER_GB = 0.25
PLACED_S_PER_GB = 5.0  # 200 MB/s, a usual object store from one machine, unless the tier's rate is less
GB = 1e9


def watchers(
    settings: Settings,
    components: Sequence[Component],
    opened: Opened,
    *,
    size: int,
    begun: int,
    alarm: Callable[[Alarm], None],
    clock: Clock,
    emit: Emit,
) -> Watchers:
    """What watches this run. `size`: bytes of a state that a save copies; `begun`: steps done before."""

    def tell(text: str) -> None:
        emit(Note(text=text))

    costs = Costs(planned(settings, size))
    past = past_of(opened.store, opened.attempt.number)
    hazards = Hazards(nodes=settings.nodes, history=past.ended)
    notices = _notices(settings, clock, tell)
    times = StepTimes(clock, device=_device(components))
    parts = _vital_parts(settings, components, past, clock, tell)
    tells = settings.alarms is not None and Trouble.HARDWARE in settings.alarms.which
    senses = Senses(
        costs=costs,
        hazards=hazards,
        budgets=_budgets(settings, costs, opened, clock),
        times=times,
        notices=notices,
        deadlines=_deadlines(settings, costs, clock, tell),
        lr=_lr_of(components),
        best=_best(settings),
        loss_window=_loss_window(settings),
        ailing=Ailing(parts["memory"], hazards, tells=tells) if "memory" in parts else None,
        **parts,
    )
    hang = None
    if settings.alarms is not None and Trouble.HANG in settings.alarms.which:
        thresholds = settings.alarms.thresholds
        hang = Watch(alarm, clock=clock, factor=thresholds.hang_factor, floor_s=thresholds.hang_floor)
    return Watchers(
        perception=Perception(senses, clock=clock, step=begun),
        recorder=Recorder(vitals) if settings.vitals is not None else None,
        notices=notices,
        hang=hang,
        memory=senses.memory,
        sending=senses.budgets.sending,
    )


def expected_size(size: int, components: Sequence[Component]) -> int:
    """Bytes of a state once its optimizers have made theirs, which most do in their first step."""
    for component in components:
        if isinstance(component, OptimizerState) and not component.optimizer.state:
            numbers = OPTIMIZERS.get(type(component.optimizer).__name__.lower(), 0)
            parameters = [one for group in component.optimizer.param_groups for one in group["params"]]
            size += numbers * sum(one.numel() * one.element_size() for one in parameters if one.requires_grad)
    return size


def planned(settings: Settings, size: int) -> dict[Reach, Planned]:
    """What saves will cost, until they are measured: what the settings expect, else what was measured elsewhere."""
    expected = settings.expected
    gb = size / GB
    lost_s = BLOCKED_S + LOST_S_PER_GB * gb if expected.lost_per_save is None else expected.lost_per_save
    copy_s = COPY_S_PER_GB * gb
    durable_s = copy_s + DURABLE_S_PER_GB * gb if expected.durable_after is None else expected.durable_after
    written = size if expected.checkpoint_size is None else expected.checkpoint_size
    plans = {
        Reach.REBOOT: Planned(lost_s=lost_s, snapshot_s=copy_s, durable_s=durable_s, size=int(written), memory=size)
    }
    if _goes_far(settings):
        rates = [tier.rate for tier in settings.tiers if tier.outlives is Reach.MACHINE and tier.rate is not None]
        rate = min(rates, default=GB / PLACED_S_PER_GB)
        plans[Reach.MACHINE] = replace(
            plans[Reach.REBOOT],
            lost_s=lost_s + PLACED_LOST_S_PER_GB * gb,
            durable_s=durable_s + max(PLACED_S_PER_GB * gb, size / rate),
        )
    free = room.within(room.look(shm=ram.FOLDER), settings.budgets.memory)
    if settings.slots and room.choose(free, size, wanted=settings.slots).kind == "shm":
        copied_s = min(lost_s, BLOCKED_S + COPY_LOST_S_PER_GB * gb)
        plans[Reach.PROCESS] = Planned(lost_s=copied_s, snapshot_s=copy_s, durable_s=copy_s, size=0, memory=size)
    return plans


def _goes_far(settings: Settings) -> bool:
    """Whether checkpoints go to a place that outlives the machine."""
    return any(tier.outlives is Reach.MACHINE for tier in settings.tiers)


def _vital_parts(
    settings: Settings, components: Sequence[Component], past: Past, clock: Clock, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Signs, gradients, detectors and memory, as far as they are wanted."""
    wanted = settings.vitals
    if wanted is None:
        return {}
    optimizers = {one.name: one.optimizer for one in components if isinstance(one, OptimizerState)}
    parts: dict[str, Any] = {
        "signs": VitalSigns(long=max(1000, _loss_window(settings) or 0), tell=tell),
        "memory": Memory(tell=tell, clock=clock, every=wanted.memory_every),
        "every": wanted.every,
        "scaled": any(isinstance(one, StatefulState) and _scales(one.thing) for one in components),
    }
    if optimizers:
        parts["gradients"] = Gradients(
            optimizers,
            _layers(components),
            full_every=wanted.full_norms_every,
            every=wanted.every,
            clock=clock,
            tell=tell,
        )
    if settings.alarms is not None:
        limits = _limits(settings.alarms)
        parts["detectors"] = Detectors(limits, which=settings.alarms.which, seen=past.seen)
        if settings.on_divergence != "ignore":
            parts["judge"] = Judge(hold=settings.health.hold, confirm=settings.health.confirm, limits=limits)
    return parts


def _scales(thing: Any) -> bool:
    """Whether it is torch's GradScaler, or one that is made like it, and is switched on."""
    alike = all(callable(getattr(thing, name, None)) for name in ("scale", "get_scale", "update"))
    return alike and bool(getattr(thing, "is_enabled", lambda: True)())


def _limits(alarms: config.Alarms) -> Limits:
    given = alarms.thresholds.model_dump(exclude={"hang_factor", "hang_floor"})
    return Limits(**given)


def _layers(components: Sequence[Component]) -> dict[int, str]:
    """The name of the layer that each parameter belongs to."""
    layers: dict[int, str] = {}
    for component in components:
        if isinstance(component, ModuleState):
            for name, parameter in component.module.named_parameters():
                layers.setdefault(id(parameter), f"{component.name}.{name.rpartition('.')[0] or name}")
    return layers


def _lr_of(components: Sequence[Component]) -> Callable[[], float | None]:
    """Reads the learning rate of the first group. One that lies on a device is not asked for."""
    optimizers: list[Any] = [one.optimizer for one in components if isinstance(one, OptimizerState)]

    def lr() -> float | None:
        groups = optimizers[0].param_groups if optimizers else ()
        rate = groups[0].get("lr") if groups else None
        if rate is None or getattr(getattr(rate, "device", None), "type", "cpu") != "cpu":
            return None
        return float(rate)

    return lr


def _device(components: Sequence[Component]) -> Any:
    for component in components:
        if isinstance(component, ModuleState):
            for parameter in component.module.parameters():
                return parameter.device
    return None


def _budgets(settings: Settings, costs: Costs, opened: Opened, clock: Clock) -> Budgets:
    budgets, money = settings.budgets, settings.budgets.money
    prices = {} if money is None else {Reach.REBOOT: money.per_gb.ssd}
    daily = {Reach.REBOOT: budgets.bytes_per_day.ssd}
    if _goes_far(settings):  # else there is no place that these could be of
        prices |= {} if money is None else {Reach.MACHINE: money.per_gb.object_store}
        daily |= {Reach.MACHINE: budgets.bytes_per_day.object_store}
    budget = Budget(
        lost_share=budgets.lost_time,
        bytes_a_day={reach: float(limit) for reach, limit in daily.items() if limit is not None},
        network_bytes_per_s=budgets.network if Reach.MACHINE in daily else None,
        money_a_day=None if money is None else money.per_day,
        prices=prices,
    )
    made = Budgets(budget, began_s=clock.now(), first_s=max(cost.lost_s for cost in costs.every()))
    far = frozenset(tier.called for tier in settings.tiers if tier.outlives is Reach.MACHINE)
    made.written_before(written_before(opened.store, opened.attempt.number, since_s=clock.now() - DAY_S, far=far))
    return made


def _notices(settings: Settings, clock: Clock, tell: Callable[[str], None]) -> Notices | None:
    wanted = settings.notices
    if wanted is None:
        return None
    heard = dict.fromkeys(wanted.signals.save, False) | dict.fromkeys(wanted.signals.stop, True)
    signals = {int(signal.Signals[name]): stops for name, stops in heard.items()}
    return Notices(clock=clock, tell=tell, signals=signals, give_in_s=wanted.give_in)


def _deadlines(
    settings: Settings, costs: Costs, clock: Clock, tell: Callable[[str], None]
) -> deadlines.Deadlines | None:
    wanted = settings.notices
    if wanted is None:
        return None

    def lead() -> float:
        return max(wanted.lead, *(2 * cost.durable_s for cost in costs.every()))

    found: list[deadlines.Deadline | None] = []
    if wanted.slurm:
        found.append(deadlines.slurm_limit(os.environ, clock=clock, tell=tell, lead=lead))
    if wanted.walltime is not None:
        found.append(deadlines.wall_time(wanted.walltime, clock=clock, lead=lead))
    probes: list[deadlines.Probe] = []
    if wanted.spot == "aws":
        probes.append(deadlines.AwsSpot(clock=clock))
    if wanted.spot == "gcp":
        probes.append(deadlines.GcpPreemption())
    if wanted.spot_file is not None:
        probes.append(deadlines.FileAppears(wanted.spot_file))
    found += [deadlines.Polled(probe, clock=clock, tell=tell) for probe in probes]
    sources = tuple(one for one in found if one is not None)
    return deadlines.Deadlines(sources) if sources else None


def _best(settings: Settings) -> Mapping[str, Literal["min", "max"]]:
    return {one.metric: one.mode for one in settings.policy or () if isinstance(one, wished.Best)}


def _loss_window(settings: Settings) -> int | None:
    windows = [one.stability_window for one in settings.policy or () if isinstance(one, wished.Window)]
    return max(windows, default=None)
