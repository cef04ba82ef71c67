"""What is seen of a run, and what is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from mementum.records.making import record
from mementum.records.words import Granularity, Health, Reach, Trouble


@record
class Vitals:
    """The run's vital signs after a step. None: not given, not known yet, or not finite (`finite` tells that apart).

    Those that are normalised compare with the run's own recent past, in units of its own spread (median and MAD), so
    that neither batch size nor scale look like risk."""

    step: int
    at_s: float  # seconds since the attempt began
    finite: bool = True  # whether loss and gradients were numbers
    held_back: bool = False  # whether gradients that were none have been used by no optimizer, as far as can be seen
    loss_finite: bool = True  # whether the loss was, if there was one
    loss: float | None = None  # as given
    loss_z: float | None = None  # above its trend, normalised
    loss_slope: float | None = None  # of the trend a step, normalised: below 0 while the run learns
    loss_spread: float | None = None  # of the last few steps over that of the last many: 1 where nothing changes
    grad_norm: float | None = None  # in all, as given or as estimated from a sample
    grad_z: float | None = None  # its logarithm, normalised
    layer_ratio: float | None = None  # the largest ratio of a layer's norm to that layer's median
    grad_noise: float | None = None  # variance over a short window, in units of the median squared
    update_ratio: float | None = None  # median over the layers of update to weight
    curvature: float | None = None  # trace of Adam's second moments, per parameter
    lr: float | None = None  # of the first group
    memory_used: float | None = None  # part of the tightest limit, 0 to 1
    memory_steps_left: float | None = None  # until that limit, by a robust slope; inf where memory does not grow
    step_s: float | None = None  # duration, on the device where there is one


@record
class Alarm:
    """A vital sign that is out of its limits. `chance`: the excess probability that the process ends in `horizon_s`; 0
    for trouble that ends none. It follows from what the detector `claimed`, and how often such alarms were right."""

    trouble: Trouble
    step: int
    value: float
    limit: float
    text: str
    chance: float = 0.0
    claimed: float = 0.0
    horizon_s: float = 0.0


@record
class Diagnosis:
    """What the vital signs so far say of the state after a step. `onset`: the first step whose state is not trusted any
    more, as far as it can be told; states before it are. None, and `why` empty, while all is clean."""

    health: Health = Health.CLEAN
    onset: int | None = None
    seen: int | None = None  # the step at which the trouble was noticed
    why: str = ""
    calm: int = 0  # steps in a row that were as before the onset
    hold: int = 0  # so many of them end the trouble
    episode: int = 0  # how many troubles there have been so far, this one included


@record
class Notice:
    """Somebody said that the process will be stopped, or wants a save. `left_s`: seconds until then, None if unknown.
    `stops`: whether the process will end; a mere wish for a save does not end it."""

    source: str  # "SIGTERM", "SIGUSR1", "Slurm time limit", "spot reclaim", "wall time", ...
    left_s: float | None = None
    stops: bool = True


@record
class Standing:
    """What one kind of loss would cost now, and what a save against it costs. Times in seconds, rates a second."""

    reach: Reach
    since_s: float  # work at risk: since the newest state that outlives this loss was taken
    since_steps: int
    cost_s: float  # lost to one save, measured; planned before the first
    durable_s: float = 0.0  # from its beginning until the state outlives the loss
    size: int = 0  # bytes that it writes
    rate: float = 0.0  # of failures that only this reach outlives
    exposure_s: float = 0.0  # the integral of rate(t) (t - last) dt since then: expected seconds lost so far
    in_flight: bool = False


@record
class Allowance:
    """What is left of a budget now. `name`: "lost time", "bytes a day", "network", "memory", "money".

    `per_save` is what one save of `reach` takes of it; `for_alarms` is what saves that an alarm asks for may take.
    `others`: what saves for other reasons than the tolerance have taken of a day's budget."""

    name: str
    reach: Reach
    unit: str
    left: float
    limit: float
    per_save: float
    for_alarms: float
    others: float = 0.0


@record
class Situation:
    """All that a policy may know. A policy is a pure function of it, so that a past run can be replayed."""

    step: int
    epoch: int
    ends_epoch: bool = False
    since_save_steps: int
    since_save_s: float
    saves_since_exact: int = 0  # inexact ones since the newest exact one was taken
    since_exact_s: float | None = None  # since it was taken; None: there is none yet
    saves_in_flight: int = 0
    total_steps: int | None = None
    at_s: float = 0.0  # since the attempt began
    step_s: float | None = None  # median duration of a step
    notices: tuple[Notice, ...] = ()  # those that no save has answered yet, the most urgent first
    vitals: Vitals | None = None
    alarms: tuple[Alarm, ...] = ()  # raised at this step
    diagnosis: Diagnosis | None = None  # None: nobody looks
    standings: tuple[Standing, ...] = ()  # by reach
    allowances: tuple[Allowance, ...] = ()
    loss_std: float | None = None  # of the newest losses, as many as the window policy asks for
    risk: float = 0.0  # 0 to 1: mean over ten steps, for the window policy
    risk_rose: bool = False  # whether it has just risen from below 0.2 to above 0.7
    metrics: Mapping[str, float] = field(default_factory=dict)  # newest of each name
    best: Mapping[str, float] = field(default_factory=dict)  # best of each name so far, before this step
    events: tuple[str, ...] = ()  # that the program told at this step, by `run.event(name)`


@record
class Save:
    """A decision to save, with its reason."""

    reason: str
    granularity: Granularity = Granularity.FULL
    reach: Reach = Reach.REBOOT
    numbers: Mapping[str, float] = field(default_factory=dict)
    urgent: bool = False  # whether no budget may refuse it
    cause: str = "interval"  # "alarm", "notice", "asked", "epoch", "event", "best", "end"


@record
class Skip:
    """A decision not to save. `refused`: a save was due, and a limit forbids it; `wanted` is that save."""

    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    refused: bool = False
    wanted: Save | None = None


Decision = Save | Skip
