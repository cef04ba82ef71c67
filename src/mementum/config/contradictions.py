"""Contradictions: settings each of which is well, and which cannot all be kept."""

from __future__ import annotations

from collections.abc import Iterator

from mementum.config.policies import Best, Event, Window
from mementum.config.quantities import duration_text, share_text, size_text
from mementum.config.reading import Finding, Path, spelled
from mementum.config.settings import Settings
from mementum.config.tier_rules import tier_rules
from mementum.records import Trouble

DAY_S = 86400.0
GB = 1e9  # bytes; what prices are given for
# Troubles that are seen in the vital signs; memory is one of these, the others are seen in time alone.
FROM_VITALS = frozenset(Trouble) - {Trouble.HANG, Trouble.SLOW, Trouble.HARDWARE}

Said = Iterator[tuple[Path, str]]


def contradictions(settings: Settings, given: frozenset[Path]) -> tuple[Finding, ...]:
    """What cannot be kept. `given`: the paths that somebody has written; what holds by itself is not held against
    anybody. Lines are not known here."""
    rules = (_policies, _listening, _alarms, _tolerance, _money, _memory, tier_rules)
    found = [one for rule in rules for one in rule(settings)]
    found += _pointless(settings, given)
    return tuple(Finding(key=spelled(path), what=what) for path, what in found)


def _policies(settings: Settings) -> Said:
    for key in ("every_steps", "every_s"):
        if settings.policy is not None and getattr(settings, key) is not None:
            yield (key,), "a policy is given too: put it into the list, as steps or seconds"
    seen: set[object] = set()
    for number, policy in enumerate(settings.policy or ()):
        several = isinstance(policy, Event | Best)  # of several names there may be several
        mark = (policy.kind, getattr(policy, "name", getattr(policy, "metric", None)) if several else None)
        if mark in seen:
            yield ("policy", number), f"{policy.kind} stands in the list already: the second one would never be asked"
        seen.add(mark)
    kinds = [policy.kind for policy in settings.policy or ()]
    if "window" in kinds and "cost" in kinds:
        text = "window stands in the list too, is asked before it and always has an opinion: cost would never be asked"
        yield ("policy", kinds.index("cost")), text


def _listening(settings: Settings) -> Said:
    kinds = [policy.kind for policy in settings.policy or ()]
    for number, policy in enumerate(settings.policy or ()):
        if isinstance(policy, Window) and settings.vitals is None:
            yield ("policy", number, "window"), "window judges by the losses, and vitals are off"
    if settings.notices is None:
        if "before_stop" in kinds:
            yield ("policy", kinds.index("before_stop")), "before_stop waits for notices, and notices are off"
        return
    both = set(settings.notices.signals.stop) & set(settings.notices.signals.save)
    for name in sorted(both):
        yield ("notices", "signals"), f"{name} stands under stop and under save"
    if settings.notices.walltime is not None and settings.notices.walltime <= settings.notices.lead:
        text = f"the process ends after {duration_text(settings.notices.walltime)}, before a notice"
        yield ("notices", "lead"), f"{text} of {duration_text(settings.notices.lead)} can be given"


def _alarms(settings: Settings) -> Said:
    if settings.alarms is None:
        return
    limits = settings.alarms.thresholds
    if limits.memory_high >= limits.memory_urgent:
        first, urgent = share_text(limits.memory_high), share_text(limits.memory_urgent)
        yield (
            ("alarms", "thresholds", "memory_high"),
            f"memory_high ({first}) must be less than memory_urgent ({urgent})",
        )


def _pointless(settings: Settings, given: frozenset[Path]) -> Said:
    """What somebody has written, and something else makes void."""
    if settings.vitals is None and settings.alarms is not None and ("alarms", "which") in given:
        lost = [str(trouble) for trouble in settings.alarms.which if trouble in FROM_VITALS]
        if lost and len(settings.alarms.which) < len(Trouble):  # all of them is what holds by itself
            yield ("alarms", "which"), f"{', '.join(lost)}: seen in the vital signs, and vitals are off"
    if settings.verify_capture and settings.capture == "blocking":
        yield ("verify_capture",), "nothing can change the state while it is copied: capture is blocking"


def _tolerance(settings: Settings) -> Said:
    """Whether what may be lost leaves the time that the budgets ask for between two saves."""
    expected = settings.expected
    most, path = settings.tolerance.max_lost, ("tolerance", "max_lost")
    restore = settings.tolerance.max_restore
    if restore is not None and expected.restore is not None and expected.restore > restore:
        text = f"{duration_text(restore)} is less than the {duration_text(expected.restore)} that a restore takes"
        yield ("tolerance", "max_restore"), f"{text} (expected.restore)"
    if most is None:
        return
    if settings.every_s is not None and settings.every_s > most:
        yield path, f"{duration_text(most)} is less than every_s, {duration_text(settings.every_s)}"
    durable = expected.durable_after or 0.0
    for least, why in _least_intervals(settings):
        if least + durable > most:
            late = f", and a save is durable {duration_text(durable)} after it begins" if durable else ""
            yield path, f"{duration_text(most)} cannot be kept: {why}{late}"
    if durable >= most:
        yield path, f"{duration_text(most)} cannot be kept: a save is durable only after {duration_text(durable)}"


def _least_intervals(settings: Settings) -> Iterator[tuple[float, str]]:
    """The shortest intervals that the budgets allow, with the reason; seconds."""
    cost, size = settings.expected.lost_per_save, settings.expected.checkpoint_size
    budget = settings.budgets
    if cost is not None:
        least = cost / budget.lost_time
        text = f"a save costs {duration_text(cost)}, and at {share_text(budget.lost_time)} of lost time"
        yield least, f"{text} there is one every {_rounded(least)} at the most"
    if size is not None and budget.bytes_per_day.ssd is not None:
        least = DAY_S * size / budget.bytes_per_day.ssd
        text = f"a save writes {size_text(size)}, and at {size_text(budget.bytes_per_day.ssd)} a day"
        yield least, f"{text} there is one every {_rounded(least)} at the most"
    if size is not None and budget.money is not None and budget.money.per_gb.ssd > 0:
        least = DAY_S * size / GB * budget.money.per_gb.ssd / budget.money.per_day
        text = f"a save costs {size / GB * budget.money.per_gb.ssd:g}, and at {budget.money.per_day:g} a day"
        yield least, f"{text} there is one every {_rounded(least)} at the most"


def _rounded(duration_s: float) -> str:
    return duration_text(max(float(round(duration_s)), 1.0))


def _money(settings: Settings) -> Said:
    money = settings.budgets.money
    if money is not None and money.per_gb.ssd == 0 and money.per_gb.object_store == 0:
        yield ("budgets", "money"), "there is a limit of money, and no price: give per_gb.ssd"


def _memory(settings: Settings) -> Said:
    size, memory, daily = settings.expected.checkpoint_size, settings.budgets.memory, settings.budgets.bytes_per_day.ssd
    if size is not None and memory is not None and settings.slots and memory < settings.slots * size:
        text = f"{size_text(memory)} do not hold {settings.slots} slots of {size_text(size)}"
        yield ("budgets", "memory"), f"{text}: less slots, or slots: 0"
    if size is not None and daily is not None and daily < size:
        text = f"{size_text(daily)} a day do not hold one checkpoint of {size_text(size)}"
        yield ("budgets", "bytes_per_day", "ssd"), text
