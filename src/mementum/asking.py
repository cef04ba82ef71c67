"""Asking: what a caller wants of a run, from a configuration and from arguments, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from mementum.assemble import fit_of, plain_fields, require_count, retention_of
from mementum.config.loading import Configured, Source, load
from mementum.config.settings import KEEP_BEST, KEEP_LAST, KEEP_SPREAD, Settings
from mementum.decide.ageing import Ageing
from mementum.decide.policy import Policy
from mementum.decide.retain import Retention
from mementum.errors import UsageError
from mementum.format import codec as codecs
from mementum.live.fitting import Fit
from mementum.policies import policy_of
from mementum.records import record

CHOICES = {
    "resume": ("auto", "never", "must"),
    "on_error": ("tell", "raise"),
    "capture": ("overlapped", "blocking"),
}


class Unsaid(Enum):
    """Stands for an argument that was not given: the configuration's word holds, or what holds where nobody says."""

    UNSAID = "unsaid"


UNSAID = Unsaid.UNSAID


@record
class Asked:
    """What the caller wants, checked. `notes`: what becomes of settings that have no effect."""

    settings: Settings
    policy: Policy
    retention: Retention
    resume: str
    user: Mapping[str, Any]
    fit: Fit
    takeover: bool
    notes: tuple[str, ...]


def asked_of(
    config: Source,
    given: Mapping[str, Any],
    *,
    every_steps: int | None,
    every_s: float | None,
    policy: Policy | None,
    resume: str,
    rename: Mapping[str, str] | None,
    takeover: bool,
    user: Mapping[str, Any] | None,
) -> Asked:
    """`given` are arguments of the names of settings; one that is said wins over the configuration. When to save is one
    thing: an argument for it puts all that the configuration says of it aside."""
    said = {name: value for name, value in given.items() if value is not UNSAID}
    for name, value in {**said, "resume": resume}.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{name} must be one of {', '.join(CHOICES[name])}, got {value!r}")
    _check(said)
    configured = load(config)
    settings = configured.settings.model_copy(update=said)
    by_argument = every_steps is not None or every_s is not None or policy is not None
    if by_argument:
        _check_intervals(policy, every_steps, every_s)
        settings = settings.model_copy(update={"policy": None, "every_steps": every_steps, "every_s": every_s})
    fit = fit_of(settings.fit, rename, settings.lr_wins)
    return Asked(
        settings=settings,
        policy=policy_of(policy, settings, explicit=by_argument and not _has_limits(configured)),
        retention=_retention(settings),
        resume=resume,
        user=plain_fields(user),
        fit=fit,
        takeover=takeover,
        notes=tuple(f"{one.key}: {one.text}" for one in configured.said if not one.effective),
    )


def _has_limits(configured: Configured) -> bool:
    """Whether a budget or tolerance was set, and is not only what holds where nothing is said."""
    return any(
        name.partition(".")[0] in ("budgets", "tolerance") and origin != "default"
        for name, origin in configured.origins.items()
    )


def _retention(settings: Settings) -> Retention:
    days = settings.retention_days
    return retention_of(
        settings.keep_last,
        settings.keep_every_steps,
        _spread(settings),
        keep_best=KEEP_BEST if settings.keep_best is None else settings.keep_best,
        best_of=settings.keep_best_of,
        ageing=Ageing(level_0=days.level_0, level_1=days.level_1, level_2=days.level_2),
    )


def _spread(settings: Settings) -> int:
    """How many older ones stay, spread out; where nobody says, as many as go with `keep_last`."""
    if settings.keep_spread is not None:
        return settings.keep_spread
    return KEEP_SPREAD if settings.keep_last is None or settings.keep_last >= KEEP_LAST else 0


def _check(said: Mapping[str, Any]) -> None:
    verify, rate, slots = said.get("verify_capture", False), said.get("write_rate"), said.get("slots", 3)
    if not isinstance(verify, bool):
        raise UsageError(f"verify_capture is True or False, got {verify!r}")
    if rate is not None and (type(rate) not in (int, float) or not rate > 0):
        raise UsageError(f"write_rate is a number of bytes a second, got {rate!r}")
    if type(slots) is not int or slots not in (0, 2, 3):
        raise UsageError(f"slots must be 3, 2 or 0, got {slots!r}")
    if "codec" in said:
        codecs.check(said["codec"])
    for name in ("keep_last", "keep_every_steps"):
        require_count(name, said.get(name))
    fit_of(said.get("fit", "strict"), None, said.get("lr_wins", "stored"))


def _check_intervals(policy: Policy | None, every_steps: int | None, every_s: float | None) -> None:
    if policy is not None and (every_steps is not None or every_s is not None):
        raise UsageError("give either a policy or every_steps and every_s")
    require_count("every_steps", every_steps)
    if every_s is not None and not (isinstance(every_s, int | float) and every_s > 0):
        raise UsageError(f"every_s must be more than 0 seconds, got {every_s!r}")
