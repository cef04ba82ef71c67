"""Assemble: the arguments of `open_run` to components, policy and retention, checked before anything is written."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch

from mementum.decide.ageing import NEVER, Ageing
from mementum.decide.retain import Retention
from mementum.errors import UsageError
from mementum.format.fields import INTEGER_MAX
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.live.optimizers import OptimizerState
from mementum.live.stateful import components_in
from mementum.records import Exactness

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # of a component; a model's is the stem of its file
NO_DATA = "no data was given, so its position is not saved: open_run(data=loader), or run.steps(loader, …)"
OWN_LOOP = (
    "the loop is the program's own, so the place in the data is not kept: a resume begins the data at the place where "
    "this attempt began it; use run.steps"
)


def components_of(
    *, model: Any, optimizer: Any, scheduler: Any, scaler: Any, state: Mapping[str, Any] | None
) -> tuple[Component, ...]:
    """One component for each thing. A mapping gives several their names; a single thing is called after its role."""
    given: dict[str, Any] = {}
    for role, thing in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler), ("scaler", scaler)):
        given |= _named(role, thing, given)
    given |= _named("state", dict(state or {}), given)
    return components_in(given)


def checked_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a dict. UsageError if a name cannot be that of a component."""
    if not isinstance(state, Mapping):
        raise UsageError(f"a state is a dict of names to things, got {type(state).__name__}")
    for name in state:
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise UsageError(f"{name!r} is not a name of letters, digits, `_`, `.` and `-`")
    return dict(state)


def plain_fields(user: Mapping[str, Any] | None, *, path: str = "user") -> dict[str, Any]:
    """Fields for manifests: what any JSON reader understands. UsageError names what is something else."""
    plain: dict[str, Any] = {}
    if user is not None and not isinstance(user, Mapping):
        raise UsageError(f"{path}: fields are given as a dict, got {type(user).__name__}")
    for name, value in (user or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"{path}: the key {name!r} is no text")
        plain[name] = _plain(value, f"{path}.{name}")
    return plain


def _plain(value: Any, path: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return plain_fields(value, path=path)
    if isinstance(value, list | tuple):
        return [_plain(one, f"{path}[{number}]") for number, one in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise UsageError(f"{path}: a field is a number, a text, a list or a dict, got {type(value).__name__}")


def _named(role: str, thing: Any, taken: Mapping[str, Any]) -> dict[str, Any]:
    if thing is None:
        return {}
    if isinstance(thing, Mapping) and not hasattr(thing, "state_dict"):
        named = dict(thing)
    elif isinstance(thing, list | tuple):
        named = {f"{role}{number}": one for number, one in enumerate(thing)}
    else:
        named = {role: thing}
    for name, one in named.items():
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise UsageError(f"{role}: {name!r} is not a name of letters, digits, `_`, `.` and `-`")
        if name in taken:
            raise UsageError(f"{role}: the name {name!r} is given twice", next_command="give them different names")
        if one is None:
            raise UsageError(f"{role}: {name!r} is None")
    return named


def require_count(name: str, count: Any, *, least: int = 1) -> None:
    """UsageError unless it is None or a whole number from `least`."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise UsageError(f"{name} must be a whole number, got {count!r}")
    if int(count) < least:
        raise UsageError(f"{name} must be {least} or more, got {count}")


def retention_of(
    keep_last: int | None,
    keep_every_steps: int | None,
    keep_spread: int = 0,
    *,
    keep_best: int = 0,
    best_of: str = "loss",
    ageing: Ageing = NEVER,
) -> Retention:
    require_count("keep_last", keep_last)
    require_count("keep_every_steps", keep_every_steps)
    require_count("keep_spread", keep_spread, least=0)
    require_count("keep_best", keep_best, least=0)
    return Retention(
        last=keep_last,
        every_steps=keep_every_steps,
        spread=keep_spread,
        best=keep_best,
        best_of=best_of,
        ageing=ageing,
    )


def fit_of(fit: str, rename: Mapping[str, str] | None, lr_wins: str) -> Fit:
    """How a stored state is fitted, checked."""
    if fit not in ("strict", "partial"):
        raise UsageError(f"fit must be strict or partial, got {fit!r}")
    if lr_wins not in ("stored", "new"):
        raise UsageError(f"lr_wins must be stored or new, got {lr_wins!r}")
    names = dict(rename or {})
    for old, new in names.items():
        if not (
            isinstance(old, str) and isinstance(new, str) and old and new and old.endswith(".") == new.endswith(".")
        ):
            raise UsageError(f"rename: {old!r} to {new!r}: two names, or two prefixes that end with a dot")
    return Fit(partial=fit == "partial", rename=names, lr_wins="new" if lr_wins == "new" else "stored")


def exactness_of(components: Sequence[Component], feed: Exactness | None) -> Exactness:
    """What of the run will not come back bit for bit, as far as it can be seen before the run."""
    reasons = list(feed.reasons) if feed is not None else [NO_DATA]
    conditions = list(feed.conditions) if feed is not None else []
    for component in components:
        if isinstance(component, OptimizerState) and component.nameless:
            conditions.append(
                f"the {len(component.nameless)} parameters of {component.name} that belong to no given model "
                "keep their order"
            )
    if torch.cuda.is_available() and not torch.are_deterministic_algorithms_enabled():
        conditions.append("the CUDA kernels are deterministic (torch.use_deterministic_algorithms)")
    return Exactness(reasons=tuple(reasons), conditions=tuple(conditions))


def number(value: Any) -> Any:
    """A recorded value as a plain one. A tensor of one element is read, which waits for its device."""
    if isinstance(value, torch.Tensor):
        return value.item()
    item: Callable[[], Any] | None = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if not isinstance(plain, bool | int | float | str):
        raise UsageError(f"a metric must be a number or a word, got {type(value).__name__}")
    return plain


def held(value: Any) -> Any:
    """A recorded value without its graph, not yet read. Scalars are copied: an average may be changed in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone() if value.numel() == 1 else value.detach()


def step_number(step: Any) -> int:
    """A step that the caller names. UsageError if no manifest could hold it."""
    try:
        number_of = int(operator.index(step))
    except TypeError as cause:
        raise UsageError(f"a step is a whole number, got {step!r}") from cause
    if number_of < 0:
        raise UsageError(f"a step is not negative, got {number_of}")
    if number_of >= INTEGER_MAX:  # no manifest could be read that has it
        raise UsageError(f"a step is less than 2 ** 62, got {number_of}")
    return number_of


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
