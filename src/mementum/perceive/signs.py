"""Signs: what a detector says at a step, and the limits beyond which it says so."""

from __future__ import annotations

from mementum.records import Trouble, record


@record
class Limits:
    """Beyond what a vital sign is out of order. The defaults' sources are in docs/alarms.md; "spreads" are robust
    standard deviations of the run's own recent past, "steps" are those at which the sign was given."""

    # Loss. Of 1,180 six-spread outliers in 73 healthy runs (281,161 steps) none stayed up, and none was above 28.
    loss_z: float = 6.0
    loss_z_stays: float = 3.0  # what a step after it must be above, for it to have stayed up
    stays_steps: int = 4  # of the last `within_steps`: a bad batch is over at the next step
    within_steps: int = 6
    loss_z_at_once: float = 40.0  # alone: far beyond every bad batch of those runs
    # Gradients. BLOOM's norm was 3.9 times its own four steps before the loss jumped; in 19,560 healthy steps: 2.
    grad_z: float = 6.0
    grad_ratio: float = 3.5  # to the norm's own level: a spread that is tiny makes every step an outlier
    grad_ratio_stays: float = 2.0  # with `grad_z`, at `stays_steps` of the last `within_steps`
    layer_ratio: float = 10.0  # of one layer to its own median, at `stays_steps`: small layers are noisy
    overflows: int = 16  # steps in a row, where a loss scale is used: its search halves 65536 so often until it is 1
    # Slow changes. Slack and limit of the CUSUM: none in those 281,161 steps; a rise of 1.5 spreads takes 30 steps.
    cusum_slack: float = 0.5
    cusum_limit: float = 30.0
    cusum_memory: int = 512
    # A second sum, for a loss that falls fast. The largest of those runs was 10.6.
    rise_limit: float = 18.0
    rise_memory: int = 64
    slow_ratio: float = 1.2  # of a step's duration to its own level: what a person would look into
    update_ratio_low: float = 0.01  # of (update to weight, by learning rate) to its own level
    # Memory, as parts of the tightest limit.
    memory_high: float = 0.92
    memory_urgent: float = 0.97
    # Evaluations.
    eval_rises: int = 3  # in a row while the training loss falls
    eval_rise: float = 0.02  # in all, as a part of the lowest of them: less is noise
    # Episodes.
    calm_steps: int = 100  # without the sign, after which it may be told again


@record
class Sign:
    """A detector's finding at one step, before it is known whether it was told already. A higher `grade` is told even
    in an episode of which a lower one was told. `rising`: for how many values it has been so already, where the
    detector counts them. `spoils`: whether what it tells may spoil the state. `chance` and `horizon_s` as in
    `Alarm`."""

    trouble: Trouble
    value: float
    limit: float
    text: str
    grade: int = 1
    rising: int = 0
    spoils: bool = True
    chance: float = 0.0
    horizon_s: float = 0.0
