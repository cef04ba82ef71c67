"""Filters: the words by which a person chooses some of many checkpoints, `loss<2.1 and health==clean`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from mementum.errors import UsageError
from mementum.format.levels import KINDS, kind_of
from mementum.records import Entry, Granularity, Health, record

NUMBERS = frozenset({"step", "epoch", "seq", "attempt", "generation", "ranks", "mem_percent", "gpu_mem_percent"})
FLAGS = frozenset({"pinned", "damaged", "verified", "exact"})
CHOICES: Mapping[str, tuple[str, ...]] = {  # fields that have few values
    "health": tuple(one.value for one in Health),
    "granularity": KINDS,
}
WORDS = frozenset({"task", "id", "parent", "reason", "tier", *CHOICES})
FIELDS = NUMBERS | FLAGS | WORDS | {"size", "restore", "time"}
METRIC = "metric:"  # before the name of a metric that is also the name of a field
TEXT_MAX = 1000  # characters; nobody reads a longer one
DEPTH_MAX = 50  # brackets in brackets, and `not` before `not`

TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|==|!=|[<>=~()]|&&|\|\|)|'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<word>[^\s<>=!~()'"&|]+))"""
)
TIME = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d)?)?Z?)?)?)?", re.ASCII)
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
AND, OR, NOT = ("and", "&&"), ("or", "||"), ("not",)


@record
class Test:
    """One comparison. Without a sign: that the flag is set, or that there is such a value at all."""

    name: str
    sign: str | None
    value: float | str | None
    at: int  # in the text


@record
class Not:
    """What its part is not."""

    part: Filter


@record
class Every:
    """What all of its parts are."""

    parts: tuple[Filter, ...]


@record
class Some:
    """What any of its parts is."""

    parts: tuple[Filter, ...]


Filter = Test | Not | Every | Some


@record
class Row:
    """What can be asked of one checkpoint. None: it has no such value."""

    values: Mapping[str, float | str | bool | tuple[str, ...] | None]
    metrics: Mapping[str, float]


def row(entry: Entry, *, task: str, damaged: str | None) -> Row:
    """`task` is the name of the folder's task, `damaged` what is wrong with it now."""
    manifest = entry.manifest
    values: dict[str, float | str | bool | tuple[str, ...] | None] = {
        "step": manifest.step,
        "epoch": manifest.epoch,
        "seq": manifest.seq,
        "attempt": manifest.attempt,
        "generation": manifest.generation,
        "ranks": manifest.world_size,
        **{name: _percent(manifest.memory.get(name)) for name in ("mem_percent", "gpu_mem_percent")},
        "size": manifest.size,
        "restore": entry.restore_s,
        "time": manifest.time,
        "task": task,
        "id": manifest.id,
        "parent": manifest.parent,
        "reason": manifest.reason,
        "health": entry.health.value,
        "granularity": kind_of(manifest.granularity, manifest.levels),
        "tier": tuple(place.tier for place in entry.places),
        "pinned": entry.pinned is not None,
        "damaged": damaged is not None,
        "verified": entry.verified is not None and damaged is None,
        "exact": manifest.granularity is Granularity.FULL and not manifest.exactness,
    }
    return Row(values=values, metrics={name: value for name, value in entry.metrics.items() if _is_number(value)})


def parse(text: str) -> Filter:
    """The filter that is meant. UsageError shows where it is none."""
    if len(text) > TEXT_MAX:
        raise UsageError(
            f"a filter of {len(text)} characters is too long", next_command=f"write at most {TEXT_MAX} of them"
        )
    return _Reader(text).whole()


def matches(chosen: Filter, asked: Row) -> bool:
    """Whether a checkpoint is one of those that are meant. Where it has no such number or time, it is not."""
    match chosen:
        case Not():
            return not matches(chosen.part, asked)
        case Every():
            return all(matches(part, asked) for part in chosen.parts)
        case Some():
            return any(matches(part, asked) for part in chosen.parts)
    value = asked.values[chosen.name] if chosen.name in FIELDS else asked.metrics.get(metric_of(chosen))
    if chosen.sign is None:
        return value is not None and value is not False and value != ()
    return _compares(chosen.name, value, chosen.sign, chosen.value)


def metric_of(test: Test) -> str:
    return test.name.removeprefix(METRIC)


def require_metrics(chosen: Filter, text: str, known: Collection[str]) -> None:
    """UsageError where a name is no field, and no metric that any checkpoint has: it is misspelt."""
    for test in _tests(chosen):
        if test.name not in FIELDS and metric_of(test) not in known:
            names = [*known, *FIELDS]
            near = get_close_matches(metric_of(test), names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            there = f"metrics are {', '.join(sorted(known)) or 'none so far'}"
            what = f"no checkpoint here has {metric_of(test)!r}{meant} ({there})"
            raise wrong(text, test.at, what)


def wrong(text: str, at: int, what: str) -> UsageError:
    """An error that points at a place in the text."""
    return UsageError(
        f"filter: {what}, at character {at + 1}\n  {text}\n  {' ' * at}^",
        next_command="write such as 'loss<2.1 and health==clean'; fields: " + ", ".join(sorted(FIELDS)),
    )


def _tests(chosen: Filter) -> Iterator[Test]:
    match chosen:
        case Test():
            yield chosen
        case Not():
            yield from _tests(chosen.part)
        case Every() | Some():
            for part in chosen.parts:
                yield from _tests(part)


def _compares(name: str, value: object, sign: str, wanted: float | str | None) -> bool:
    if isinstance(value, tuple):  # of several, any: it is not the wanted one if none of them is
        found = any(_compares(name, one, "~" if sign == "~" else "==", wanted) for one in value)
        return found is not (sign == "!=")
    if name in WORDS:
        word = "" if value is None else str(value)
        return str(wanted) in word if sign == "~" else ORDERS[sign](word, wanted)
    if value is None:
        return False
    if name == "time":
        text = str(wanted)
        return ORDERS[sign](str(value)[: len(text)], text)  # to the same precision: a day is equal to all of its hours
    return ORDERS[sign](value, wanted)


def _percent(value: object) -> float | None:
    return float(value) if _is_number(value) and isinstance(value, int | float) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@record
class Token:
    """A word or a sign, and where it begins. What stands in quotes is never a sign, nor `and`."""

    text: str
    at: int
    sign: bool = False
    quoted: bool = False


class _Reader:
    """Reads a filter from left to right; `or` binds least, then `and`, then `not`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut())
        self._place = self._depth = 0

    def whole(self) -> Filter:
        if not self._tokens:
            raise wrong(self._text, 0, "nothing is asked")
        chosen = self._some()
        if self._next is not None:
            raise wrong(self._text, self._next.at, f"{self._next.text!r} was not expected")
        return chosen

    def _cut(self) -> Iterator[Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = TOKEN.match(self._text, at)
            if found is None:
                begin = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                what = "a quote is not closed" if self._text[begin] in "'\"" else f"{self._text[begin]!r} means nothing"
                raise wrong(self._text, begin, what)
            kind = found.lastgroup or ""
            quoted = kind in ("single", "double")
            yield Token(text=found[kind], at=found.start(kind) - quoted, sign=kind == "sign", quoted=quoted)
            at = found.end()

    @property
    def _next(self) -> Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _takes(self, words: tuple[str, ...]) -> bool:
        token = self._next
        if token is None or token.quoted or token.text.lower() not in words:
            return False
        self._place += 1
        return True

    def _some(self) -> Filter:
        parts = [self._every()]
        while self._takes(OR):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else Some(parts=tuple(parts))

    def _every(self) -> Filter:
        parts = [self._one()]
        while self._takes(AND):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Every(parts=tuple(parts))

    def _one(self) -> Filter:
        token = self._next
        if token is None:
            raise wrong(self._text, len(self._text.rstrip()), "it ends where something was to follow")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise wrong(self._text, token.at, f"more than {DEPTH_MAX} brackets stand in each other")
        try:
            if self._takes(NOT):
                return Not(part=self._one())
            if self._takes(("(",)):
                inner = self._some()
                if not self._takes((")",)):
                    raise wrong(self._text, token.at, "a bracket is not closed")
                return inner
            return self._test(token)
        finally:
            self._depth -= 1

    def _test(self, named: Token) -> Test:
        if named.sign:
            raise wrong(self._text, named.at, f"a name was expected instead of {named.text!r}")
        self._place += 1
        name = named.text.lower() if named.text.lower() in FIELDS and not named.quoted else named.text
        token = self._next
        if token is None or not token.sign or (token.text not in ORDERS and token.text not in ("=", "~")):
            return Test(name=name, sign=None, value=None, at=named.at)
        self._place += 1
        sign = "==" if token.text == "=" else token.text
        given = self._next
        if given is None or given.sign:
            raise wrong(self._text, token.at + len(token.text), f"a value was expected after {token.text!r}")
        self._place += 1
        return Test(name=name, sign=sign, value=self._value(name, sign, token, given), at=named.at)

    def _value(self, name: str, sign: str, signed: Token, given: Token) -> float | str:
        """What is compared with, as the field's kind has it."""
        if name in FLAGS:
            raise wrong(self._text, signed.at, f"{name} is yes or no: write `{name}` or `not {name}`")
        if name in WORDS:
            if sign not in ("==", "!=", "~"):
                raise wrong(self._text, signed.at, f"{name} is a word: compare it by ==, != or ~ (has in it)")
            known = CHOICES.get(name)
            if known is not None and sign != "~" and given.text not in known:
                raise wrong(self._text, given.at, f"{given.text!r} is none of {', '.join(known)}")
            return given.text
        if sign == "~":
            raise wrong(self._text, signed.at, f"{name} is no word: compare it by <, <=, ==, !=, >= or >")
        if name == "time":
            if TIME.fullmatch(given.text) is None:
                raise wrong(self._text, given.at, f"{given.text!r} is no time such as 2026-11-01 or 2026-11-01T12:30")
            return given.text.replace(" ", "T").removesuffix("Z")
        return self._number(name, given)

    def _number(self, name: str, given: Token) -> float:
        try:
            number = float(given.text)
        except ValueError:
            number = self._amount(name, given)
        if math.isnan(number):
            raise wrong(self._text, given.at, "nothing is equal to, or less than, what is no number")
        return number

    def _amount(self, name: str, given: Token) -> float:
        from mementum.config import quantities  # late: it brings pydantic, which a listing without units does not need

        try:
            if name == "size":
                return quantities.size(given.text)
            if name == "restore":
                return quantities.duration_s(given.text)
        except ValueError as error:
            raise wrong(self._text, given.at, str(error)) from error
        raise wrong(self._text, given.at, f"{given.text!r} is no number")
