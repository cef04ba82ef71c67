"""Settings: all that a configuration can say, as frozen models with the value that holds where nothing is said."""

from __future__ import annotations

import re
import signal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from mementum.config.codecs import Codec
from mementum.config.policies import Policy
from mementum.config.quantities import Duration, Rate, Share, Size
from mementum.config.section import COUNT_MAX, Count, Flag, Limit, Name, Part, Section
from mementum.config.tiers import Ageing, CatalogUrl, Scrub, Tier, Watermarks
from mementum.records import Trouble

KEEP_LAST = 10  # checkpoints; enough to go back behind a divergence that was seen late, and the disk does not fill
KEEP_BEST = 1  # a checkpoint; the one that people ask for when a run is over
KEEP_SPREAD = 3  # they reach five times as far back as the newest ten: a drift is seen long after it began
TIERS_MAX = 16  # places; each is a thread's work
SPREAD_MAX = 20  # each goes up to three times further back: more than a run has steps
LOST_TIME = 0.05  # of the training's time; beyond it saving costs more than most failures
FULL_NORMS_EVERY = 16  # steps; all gradients cost 3 % of a step, so that every sixteenth time is 0.2 %
MEMORY_EVERY = 5  # steps; reading the limits takes a fraction of a millisecond
GIVE_IN_S = 120.0  # what Slurm and the clouds leave at the most between a notice and the end
LEAD_S = 120.0  # the warning that AWS gives, in which most checkpoints become durable
HOLD = 100  # steps; an alarm of the same kind may be told again after as many
CONFIRM = 50  # steps; most spikes of real logs that the run got over were over within 30
RECORD_EVERY = 25  # steps; three slots then reach back over 50 to 75
RECORD_SHARE = 0.01  # a fifth of what all saves may cost
ROLLBACKS = 3  # for one trouble; what three do not cure is no matter of a few batches
HANG_FLOOR_S = 300.0  # an evaluation, or a compiler at its first step, looks like a hang for minutes
NEVER_CAUGHT = ("SIGKILL", "SIGSTOP")
NODES_MAX = 1_000_000  # ten times the largest machine


def _signal(value: object) -> str:
    names = {one.name for one in signal.Signals} - set(NEVER_CAUGHT)
    if isinstance(value, str) and value in names:
        return value
    why = "no process can catch it" if value in NEVER_CAUGHT else "there is no such signal"
    fields = {"what": f"{value!r:.40}: {why}", "expected": "the name of a signal such as SIGTERM"}
    if value not in NEVER_CAUGHT:
        fields |= {"tried": str(value), "among": ",".join(sorted(names))}
    raise PydanticCustomError("signal", "{what}; expected {expected}", fields)


def _trouble(value: object) -> Trouble:
    def folded(text: str) -> str:
        return re.sub(r"[\s_-]+", "", text.lower())

    for trouble in Trouble:
        if isinstance(value, str) and folded(value) == folded(trouble):
            return trouble
    names = ",".join(Trouble)
    fields = {"what": f"{value!r:.40} is no trouble that is watched", "expected": f"one of {', '.join(Trouble)}"}
    fields |= {"tried": str(value), "among": names}
    raise PydanticCustomError("trouble", "{what}; expected {expected}", fields)


def _whole(value: object) -> object:
    if type(value) is int:
        return value
    fields = {"what": f"{value!r:.40} is no whole number", "expected": "0, 2 or 3"}
    raise PydanticCustomError("slots", "{what}; expected {expected}", fields)


def _unless_off(value: Any) -> Any:
    """`off` (and false) is nothing, `on` (and true) the section as it is where nothing is said."""
    word = value.lower() if isinstance(value, str) else value
    if word is False or word in ("off", "no", "false"):
        return None
    return {} if word is True or word in ("on", "yes", "true") else value


def _switched(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"enum": ["on", "off", True, False]})


SWITCH = Field(json_schema_extra=_switched)
Signal = Annotated[str, BeforeValidator(_signal)]
Watched = Annotated[Trouble, BeforeValidator(_trouble)]


class PerTier(Section):
    """One amount of bytes for each place that keeps checkpoints."""

    ssd: Size | None = None
    """On the disk that the root is on."""
    object_store: Size | None = None
    """All that is sent to tiers that outlive the machine."""


class Prices(Section):
    """What a GB (10^9 bytes) costs that is written, in your currency."""

    ssd: Annotated[float, Field(strict=True, ge=0)] = 0.0
    """On the disk that the root is on."""
    object_store: Annotated[float, Field(strict=True, ge=0)] = 0.0
    """On tiers that outlive the machine."""


class Money(Section):
    """What saving may cost."""

    per_day: Limit
    """The most that saves may cost in any 24 hours, in your currency."""
    per_gb: Prices = Prices()
    """What a GB costs that is written, in the same currency."""


class Budgets(Section):
    """What saves may take. They win over intervals and tolerances; a refused save says which one refused it."""

    lost_time: Share = LOST_TIME
    """The part of the training's time that saves may cost. Alarms may take half of it."""
    bytes_per_day: PerTier = PerTier()
    """The most that is written in any 24 hours."""
    network: Rate | None = None
    """Bytes a second to each tier that lies beyond the network."""
    memory: Size | None = None
    """Bytes of host memory for snapshots. Null: what is free, and a headroom is left."""
    money: Money | None = None
    """Null: bytes cost nothing."""


class Tolerance(Section):
    """What you can bear; null: whatever costs least."""

    max_lost: Duration | None = None
    """The most work that a failure may cost; a plain number is in seconds."""
    max_restore: Duration | None = None
    """The longest that coming back may take; a plain number is in seconds. A resume that took longer is told."""


class Expected(Section):
    """What you know of your saves. It counts until they are measured, and contradictions are found with it."""

    lost_per_save: Duration | None = None
    """Training time that a save costs; a plain number is in seconds."""
    durable_after: Duration | None = None
    """From the beginning of a save until it is durable; a plain number is in seconds."""
    checkpoint_size: Size | None = None
    """Bytes that a full save writes."""
    restore: Duration | None = None
    """From the start of the program until the state is back; a plain number is in seconds."""


class Thresholds(Section):
    """From where on a vital sign raises an alarm. "Spreads" are robust standard deviations of the run's own past."""

    loss_z: Limit = 6.0
    """Loss above its trend, in spreads. It must stay up: single spikes are harmless."""
    loss_z_at_once: Limit = 40.0
    """The same; from here on a single step is enough."""
    grad_z: Limit = 6.0
    """Logarithm of the gradient norm above its median, in spreads. It must stay up."""
    grad_ratio: Limit = 3.5
    """Gradient norm over its own level; a single step is enough."""
    layer_ratio: Limit = 10.0
    """The norm of a layer's gradient over that layer's own median. It must stay up."""
    cusum_limit: Limit = 30.0
    """The sum of a loss that drifts upwards, in spreads."""
    slow_ratio: Limit = 1.2
    """Duration of a step over its own level."""
    memory_high: Share = 0.92
    """Part of the tightest memory limit that is used."""
    memory_urgent: Share = 0.97
    """The same; from here on it is saved at once."""
    eval_rises: Count = 3
    """Evaluations in a row whose loss rises while the training's falls."""
    calm_steps: Count = 100
    """Steps without the sign, after which the same alarm may be raised again."""
    hang_factor: Limit = 20.0
    """How many median steps without a step are a hang."""
    hang_floor: Duration = HANG_FLOOR_S
    """No hang is told before this; a plain number is in seconds."""


class Alarms(Section):
    """Which troubles are watched, and from where on."""

    which: tuple[Watched, ...] = tuple(Trouble)
    """The troubles that are told."""
    thresholds: Thresholds = Thresholds()


class Vitals(Section):
    """How often vital signs are read."""

    every: Count = 1
    """Steps from one look at the vital signs to the next: what is between is neither recorded nor raises an alarm."""
    full_norms_every: Count = FULL_NORMS_EVERY
    """Readings from one full norm of a gradient to its next, some at each. Between them a sample estimates it."""
    memory_every: Count = MEMORY_EVERY
    """Steps from one reading of memory and its limits to the next."""


class Signals(Section):
    """What signals mean."""

    stop: tuple[Signal, ...] = ("SIGTERM",)
    """Save, then do what the signal does."""
    save: tuple[Signal, ...] = ("SIGUSR1",)
    """Save, and go on."""


class Notices(Section):
    """Who may say that the process will be stopped."""

    signals: Signals = Signals()
    slurm: Flag = True
    """Whether the end of a Slurm job's time, where there is one, is heeded."""
    walltime: Duration | None = None
    """The process will be stopped this long after its start; a plain number is in seconds."""
    spot: Literal["aws", "gcp"] | None = None
    """The cloud that is asked every few seconds whether it takes the machine back. Null: nobody is asked."""
    spot_file: Annotated[str, Field(strict=True, min_length=1, max_length=4096)] | None = None
    """A file that appears when the machine is reclaimed."""
    lead: Duration = LEAD_S
    """How long before a known end it is a notice; a plain number is in seconds."""
    give_in: Duration = GIVE_IN_S
    """If no step ends for so long after a signal, it does what it would have done; a plain number is in seconds."""


class Health(Section):
    """When a run that was in trouble counts as clean again, or as diverged."""

    hold: Count = HOLD
    """Steps in a row without a sign, and with the loss near what it was before, that end a trouble."""
    confirm: Count = CONFIRM
    """Steps for which the loss stays above what it was before a trouble, and the run has diverged."""


class Recorder(Section):
    """Snapshots in memory, of which the newest from before a trouble is kept."""

    every: Count = RECORD_EVERY
    """Steps from one snapshot to the next; any save counts as one."""
    share: Share = RECORD_SHARE
    """The part of the training's time that they may cost: where it would be more, they are rarer."""


class Rollback(Section):
    """How a run that has diverged goes back, where on_divergence is `rollback`."""

    limit: Count = ROLLBACKS
    """Rollbacks for one trouble, each further back than the one before. After them the training is stopped."""
    lr_scale: Part = 1.0
    """Each of them multiplies the learning rates by it."""
    skip: Flag = True
    """Whether the batches of the trouble are left out when they come again."""


class Settings(Section):
    """All settings."""

    preset: Literal["pretrain", "finetune", "rlhf", "inference"] | None = None
    """Settings to begin from. What else is said wins over it; lists are replaced, not joined."""
    policy: Annotated[tuple[Policy, ...], Field(min_length=1, max_length=32)] | None = None
    """When to save. They are asked in an order of their kinds, whatever the order here: notices and wishes first,
    intervals last; the first that wants a save gives its reason. Null: every_steps and every_s, or else before_stop
    and cost."""
    every_steps: Count | None = None
    """Save every so many steps; instead of a policy."""
    every_s: Duration | None = None
    """Save every so often; a plain number is in seconds; instead of a policy."""
    budgets: Budgets = Budgets()
    tolerance: Tolerance = Tolerance()
    expected: Expected = Expected()
    alarms: Annotated[Alarms | None, BeforeValidator(_unless_off), SWITCH] = Alarms()
    """`off`: no vital sign raises an alarm."""
    vitals: Annotated[Vitals | None, BeforeValidator(_unless_off), SWITCH] = Vitals()
    """`off`: neither loss nor gradients nor memory are looked at."""
    notices: Annotated[Notices | None, BeforeValidator(_unless_off), SWITCH] = Notices()
    """`off`: no signal handler is installed, and no deadline is heeded."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=NODES_MAX)] = 1
    """How many machines the training runs on: failures grow with them."""
    observe: Flag = False
    """Decide and record, and save nothing: what mementum would have done."""
    on_divergence: Literal["keep", "rollback", "stop", "ignore"] = "keep"
    """When the training diverges: `keep`: the newest state from before stays, and later ones are marked. `rollback`:
    that too, and the run goes back to it. `stop`: that too, and the run is stopped. `ignore`: nothing is marked."""
    health: Health = Health()
    recorder: Annotated[Recorder | None, BeforeValidator(_unless_off), SWITCH] = Recorder()
    """`off`: what stays from before a trouble is the newest save, and no snapshot is taken for it."""
    rollback: Rollback = Rollback()
    keep_last: Count | None = KEEP_LAST
    """How many of the newest checkpoints stay. Null: all."""
    keep_every_steps: Count | None = None
    """Checkpoints whose step is a multiple of it stay too."""
    keep_spread: Annotated[int, Field(strict=True, ge=0, le=SPREAD_MAX)] | None = None
    """How many older clean checkpoints stay too, each up to three times as far back as the one after it. Null: 3 where
    keep_last is 10 or more, or null; none where it is less, since there is little room then."""
    keep_best: Annotated[int, Field(strict=True, ge=0, le=COUNT_MAX)] | None = None
    """How many of the best checkpoints by keep_best_of stay too. Null: the best one."""
    keep_best_of: Name = "loss"
    """The metric that tells which are the best; `-name` where more is better."""
    retention_days: Ageing = Ageing()
    """When levels of old checkpoints are dropped in the root."""
    tiers: Annotated[tuple[Tier, ...], Field(max_length=TIERS_MAX)] = ()
    """Further places that get copies of checkpoints, in the background."""
    catalog: CatalogUrl | None = None
    """A database that many share: postgresql://… or redis://…. Null: SQLite on a local disk alone."""
    watermarks: Annotated[Watermarks | None, BeforeValidator(_unless_off), SWITCH] = Watermarks()
    """`off`: a disk may become full."""
    scrub: Annotated[Scrub | None, BeforeValidator(_unless_off), SWITCH] = Scrub()
    """`off`: nothing is read back before somebody asks."""
    codec: Codec = "raw"
    """Of optimizer state on disk: raw, zstd:1, planes+zstd:1, delta+planes+zstd:1. Weights are always raw."""
    capture: Literal["overlapped", "blocking"] = "overlapped"
    """Whether the state is copied beside the next step, or before it goes on."""
    verify_capture: Flag = False
    """Compare all of the copy with a digest taken before it, not a sample of every tensor."""
    slots: Annotated[Literal[0, 2, 3], BeforeValidator(_whole)] = 3
    """How many snapshots shared memory keeps, as far as there is room. 0: they are in the process and end with it."""
    write_rate: Rate | None = None
    """Bytes a second that saves may write at most. Null: as fast as it goes."""
    fit: Literal["strict", "partial"] = "strict"
    """Whether a resume wants everything to fit, or loads what does."""
    lr_wins: Literal["stored", "new"] = "stored"
    """Whose learning rates hold after a resume: the stored ones, or the program's."""
    on_error: Literal["tell", "raise"] = "tell"
    """Whether a failed save is told, or raised at the next step."""
