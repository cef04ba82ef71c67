"""Addresses: the words by which a person names a checkpoint, `TASK[@SEL]`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from mementum.errors import NoSuchAddress, UsageError
from mementum.records import Entry, Granularity, Health, record

LATEST = "latest"
NAMED = (LATEST, "exact", "clean")
BEST = re.compile(r"best(?::(?P<sense>\+?)(?P<metric>.+))?", re.DOTALL)
METRIC = "loss"  # what `best` looks at where no metric is named
STEP = re.compile(r"[0-9]{1,19}")  # a step fits into 64 bits
ID_PREFIX = re.compile(r"c[0-9a-hjkmnp-tv-z]*")  # the alphabet of ids lacks i, l, o and u
SELECTORS = "latest, exact, clean, best[:METRIC], a step, or the beginning of an id"
SHOWN_MAX = 10  # tasks, steps or ids that an error lists; more do not help anybody


@record
class Address:
    """A task (None: the only one there is) and what is wanted of it (None: nothing was said, which is the latest)."""

    task: str | None = None
    selector: str | None = None


def parse(text: str, *, tasks: Collection[str] = ()) -> Address:
    """`TASK`, `TASK@SEL` or `@SEL`, cut at the last `@`. UsageError says what is wrong with it.

    A name in `tasks` is that task, whatever stands in it: a task may be called `a@b`."""
    if text in tasks:
        return Address(task=text)
    task, at, selector = text.rpartition("@")
    if not at:
        task, selector = text, LATEST
    if not text or (at and not selector):
        raise UsageError(f"{text!r} is not an address", next_command=f"write TASK or TASK@SEL; SEL is {SELECTORS}")
    if not _is_selector(selector):
        raise UsageError(
            f"{selector!r} selects no checkpoint",
            next_command=f"write one of: {SELECTORS}; or {text}@latest for a task",
        )
    return Address(task=task or None, selector=selector if at else None)


def _is_selector(word: str) -> bool:
    return word in NAMED or any(form.fullmatch(word) for form in (BEST, STEP, ID_PREFIX))


def select(entries: Sequence[Entry], address: Address) -> Entry:
    """The one checkpoint that is meant. NoSuchAddress says what there is instead; UsageError if it could be several."""
    task = _task(entries, address)
    held = sorted((entry for entry in entries if entry.manifest.task == task), key=lambda entry: entry.order)
    selector = LATEST if address.selector is None else address.selector
    if selector == LATEST:
        return held[-1]
    if selector in NAMED:
        return _exact(held, selector, task)
    best = BEST.fullmatch(selector)
    if best is not None:
        return _best(held, best["metric"] or METRIC, highest=best["sense"] == "+", task=task)
    if STEP.fullmatch(selector):
        return _at_step(held, int(selector), task)
    return _by_id(held, selector, task)


def _task(entries: Sequence[Entry], address: Address) -> str:
    """The address's task, of which there is at least one entry."""
    present = sorted({entry.manifest.task for entry in entries})
    if not present:
        of = "" if address.task is None else f" of task {address.task!r}"
        raise NoSuchAddress(f"there is no checkpoint{of}: none was saved yet", next_command="mementum ls ROOT")
    if address.task is None:
        if len(present) > 1:
            raise UsageError(
                f"there are {len(present)} tasks and the address names none: {_some(map(repr, present))}",
                next_command=f"write TASK@{address.selector or LATEST}",
            )
        return present[0]
    if address.task not in present:
        raise NoSuchAddress(
            f"there is no checkpoint of task {address.task!r}; there are checkpoints of {_some(map(repr, present))}",
            next_command="mementum ls ROOT",
        )
    return address.task


def _exact(held: Sequence[Entry], selector: str, task: str) -> Entry:
    """The newest full checkpoint; `clean` also wants it healthy, by all that is known, and not known to be damaged."""
    for entry in reversed(held):
        healthy = entry.health is Health.CLEAN and entry.damaged is None
        if entry.manifest.granularity is Granularity.FULL and (healthy or selector == "exact"):
            return entry
    states = sorted({_state(entry) for entry in held})
    raise _missing(task, f"that is {selector}", f"what there is: {'; '.join(states)}")


def _state(entry: Entry) -> str:
    words = (entry.manifest.granularity.name.lower(), entry.health.value)
    return ", ".join((*words, "damaged") if entry.damaged is not None else words)


def _best(held: Sequence[Entry], metric: str, *, highest: bool, task: str) -> Entry:
    """The lowest value of the metric, or the highest; of equal ones the newest. NaN and infinities do not count,
    nor does any state that is not clean: by an accident a run that goes wrong may look better than it is."""
    values = [(_value(entry, metric), entry) for entry in reversed(held)]
    present = [(value, entry) for value, entry in values if value is not None]
    if not present:
        names = sorted({name for entry in held for name in entry.metrics if _value(entry, name) is not None})
        raise _missing(task, f"with a value of {metric!r}", f"there are values of {_some(map(repr, names))}")
    clean = [(value, entry) for value, entry in present if entry.health is Health.CLEAN]
    if not clean:
        states = sorted({_state(entry) for _, entry in present})
        raise _missing(task, f"that is clean with a value of {metric!r}", f"what there is: {'; '.join(states)}")
    best = max if highest else min
    return best(clean, key=lambda pair: pair[0])[1]


def _value(entry: Entry, metric: str) -> float | None:
    value: object = entry.metrics.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _at_step(held: Sequence[Entry], step: int, task: str) -> Entry:
    for entry in reversed(held):
        if entry.manifest.step == step:
            return entry
    steps = dict.fromkeys(entry.manifest.step for entry in reversed(held))
    raise _missing(task, f"at step {step}", f"there are steps {_some(map(str, steps))}")


def _by_id(held: Sequence[Entry], prefix: str, task: str) -> Entry:
    found = [entry for entry in reversed(held) if entry.manifest.id.startswith(prefix)]
    ids = dict.fromkeys(entry.manifest.id for entry in found or reversed(held))
    if not found:
        raise _missing(task, f"whose id begins with {prefix}", f"there are {_some(ids)}")
    if len(ids) > 1:
        raise UsageError(
            f"{len(ids)} checkpoints of task {task!r} have ids that begin with {prefix}: {_some(ids)}",
            next_command="give more characters of the id",
        )
    return found[0]


def _missing(task: str, wanted: str, instead: str) -> NoSuchAddress:
    return NoSuchAddress(f"task {task!r} has no checkpoint {wanted}; {instead}", next_command="mementum ls ROOT")


def _some(words: Collection[str] | map[str]) -> str:
    every = list(words)
    more = f" and {len(every) - SHOWN_MAX} more" if len(every) > SHOWN_MAX else ""
    return (", ".join(every[:SHOWN_MAX]) or "nothing") + more
