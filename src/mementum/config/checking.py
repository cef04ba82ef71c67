"""Checking: plain values to a frozen model, and all that stands in the way as findings."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mementum.config.policies import KINDS
from mementum.config.reading import FOUND_MAX, SHOWN_MAX, Finding, Path, spelled
from mementum.config.section import Section
from mementum.config.settings import Settings

Model = TypeVar("Model", bound=Section)
Line = Callable[[Path], int | None]
LISTED_MAX = 8  # keys that a message lists where none is similar
LIKE = 0.6  # of two words: below it they have nothing to do with each other

# Words that one could look for in a configuration, and where what they mean is said instead.
ARGUMENTS = "root task model optimizer scheduler scaler data state resume rename takeover on_event user clock"
SWITCHED = ("alarms", "vitals", "notices", "recorder", "watermarks", "scrub")  # sections that may be `off`
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(ARGUMENTS.split(), "it is an argument of open_run, and no setting"),
    "verify": "reading saves back comes with a later part: until then `mementum verify ROOT --deep`",
    "scorer": "a learned scorer comes with a later part: alarms watch the run",
    "window": "it is one of the list under policy",
    "cost": "it is one of the list under policy",
    "signals": "it stands under notices",
}  # fmt: skip
EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "model_type": "a mapping of its settings",
    "tuple_type": "a list",
    "too_short": "at least one item; leave the key out for the default",
}


def checked(model: type[Model], values: Mapping[str, Any], line: Line) -> tuple[Model | None, tuple[Finding, ...]]:
    """The values as a model; or None, and everything that is wrong with them."""
    try:
        return model.model_validate(values), ()
    except ValidationError as error:
        errors = error.errors(include_url=False)
        within = {one["loc"][:length] for one in errors for length in range(len(one["loc"]))}
        # A list of which nothing is left counts as too short: what is wrong with its items is said already.
        errors = [one for one in errors if not (one["type"] == "too_short" and one["loc"] in within)]
        found = [_finding(model, one, line) for one in errors]
        return None, tuple(found[:FOUND_MAX])


def _finding(model: type[Section], error: ErrorDetails, line: Line) -> Finding:
    path: Path = tuple(one[:SHOWN_MAX] if isinstance(one, str) else one for one in error["loc"])
    what, expected, near = _said(model, error)
    return Finding(key=spelled(path), what=what, line=line(path), expected=expected, nearest=near)


def _said(model: type[Section], error: ErrorDetails) -> tuple[str, str | None, str | None]:
    """What is wrong, what was expected, and the nearest that would be right."""
    kind, context, path = error["type"], error.get("ctx", {}), error["loc"]
    if kind == "extra_forbidden":
        word = str(path[-1])
        if word in ELSEWHERE and len(path) == 1:
            return ELSEWHERE[word], None, None
        near = nearest_key(model, path)
        return "there is no such key", None if near else _beside(model, path), near
    if kind == "missing":
        return "it is not given, and has no default", None, None
    if "what" in context:
        among = context["among"].split(",") if "among" in context else KINDS
        near = nearest(str(context["tried"]), among) if "tried" in context else None
        return str(context["what"]), str(context["expected"]), near
    secret = "options" in path  # of a tier: keys of a store
    shown = "the value" if secret else f"{error['input']!r:.{SHOWN_MAX}}"
    if kind == "literal_error":
        words = str(context["expected"]).replace("'", "")
        near = nearest(str(error["input"]), words.replace(" or ", ", ").split(", "))
        return f"{shown} is none of its values", words, near
    if kind == "model_type" and path[-1] in SWITCHED:
        return f"{shown} is no section", "off, on, or a mapping of its settings", None
    return f"{shown} does not fit", EXPECTED.get(kind) or error["msg"].removeprefix("Input should be "), None


def nearest(word: str, among: Any) -> str | None:
    """The most similar of several words, if any is similar at all."""
    found = difflib.get_close_matches(word[:SHOWN_MAX], list(among), n=1, cutoff=LIKE)
    return found[0] if found else None


def nearest_key(model: type[Section], path: tuple[str | int, ...]) -> str | None:
    """The key that was meant: a similar one of the same section, or the same or a similar one of another section."""
    word = str(path[-1])
    near = nearest(word, _siblings(model, path))
    if near is not None:
        return near
    leaves = {key.rpartition(".")[2]: key for key in reversed(keys(model))}
    return leaves.get(nearest(word, leaves) or "")


def _siblings(model: type[Section], path: tuple[str | int, ...]) -> list[str]:
    """The keys that could stand at `path`."""
    above = ".".join(str(one) for one in path[:-1] if isinstance(one, str))
    return [key.rpartition(".")[2] for key in keys(model) if key.rpartition(".")[0] == above]


def _beside(model: type[Section], path: tuple[str | int, ...]) -> str | None:
    known = _siblings(model, path)
    return f"one of {', '.join(known)}" if 0 < len(known) <= LISTED_MAX else None


@cache
def keys(model: type[Section] = Settings) -> tuple[str, ...]:
    """Every key that a model knows, by its path; those of policies as `policy.window.base_interval`."""
    return tuple(_keys(model, ""))


def _keys(model: type[Section], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield above + name
        if (model, name) == (Settings, "policy"):
            for kind, policy in KINDS.items():
                yield f"{above}{name}.{kind}"
                yield from _keys(policy, f"{above}{name}.{kind}.")
        inner = section_in(field.annotation)
        if inner is not None:
            yield from _keys(inner, f"{above}{name}.")


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds, or a list of them, if it does."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next((found for one in get_args(annotation) if (found := section_in(one)) is not None), None)
    if get_origin(annotation) is tuple:  # a list of one kind of section; that of policies has several
        inner = get_args(annotation)[0]
        return inner if isinstance(inner, type) and issubclass(inner, Section) else None
    return None
