"""Policies as settings: the list of opinions on when to save, each by its name and with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mementum.config.quantities import Duration
from mementum.config.section import Count, Name, Part, Section
from mementum.records import record

BASE_INTERVAL = 2000  # steps; the documents' number
STABILITY_WINDOW = 100  # losses; the documents' number
RISK_THRESHOLD = 0.68  # the documents' number; elsewhere they say 0.65
WINDOW_MAX = 100_000  # losses that are kept at the most: a megabyte

Kept = Literal["full", "weights", "weights_and_optimizer", "essentials"]


class BeforeStop(Section):
    """Save when a notice says that the process will be stopped, or when somebody asks for a save."""

    kind: ClassVar[str] = "before_stop"
    short: ClassVar[str | None] = None


class Cost(Section):
    """Save when what a failure would cost so far has reached what a save costs."""

    kind: ClassVar[str] = "cost"
    short: ClassVar[str | None] = None


class Window(Section):
    """The documents' formula: the interval shrinks while the loss is unstable and risk is high. It needs losses."""

    kind: ClassVar[str] = "window"
    short: ClassVar[str | None] = "base_interval"
    base_interval: Count = BASE_INTERVAL
    """Steps between saves of a calm run."""
    stability_window: Annotated[int, Field(strict=True, ge=2, le=WINDOW_MAX)] = STABILITY_WINDOW
    """How many of the newest losses tell whether the loss is stable."""
    risk_threshold: Part = RISK_THRESHOLD
    """The risk, 0 to 1, from which on its rise saves at once."""
    decay: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    """The part of base_interval that is gone at the end of the run; it shrinks on the way, if its length is known."""


class Steps(Section):
    """Save every so many steps."""

    kind: ClassVar[str] = "steps"
    short: ClassVar[str | None] = "every"
    every: Count
    """Steps from one save to the next."""
    granularity: Kept = "full"
    """What is saved. Only full ones resume bit for bit."""


class Seconds(Section):
    """Save every so often."""

    kind: ClassVar[str] = "seconds"
    short: ClassVar[str | None] = "every"
    every: Duration
    """From one save to the next; a plain number is in seconds."""
    granularity: Kept = "full"
    """What is saved. Only full ones resume bit for bit."""


class Epoch(Section):
    """Save at the end of an epoch."""

    kind: ClassVar[str] = "epoch"
    short: ClassVar[str | None] = "every"
    every: Count = 1
    """How many epochs from one save to the next."""
    granularity: Kept = "full"
    """What is saved. Only full ones resume bit for bit."""


class Event(Section):
    """Save when the program tells that something has happened: run.event(name)."""

    kind: ClassVar[str] = "event"
    short: ClassVar[str | None] = "name"
    name: Name
    """The name that the program gives."""
    granularity: Kept = "full"
    """What is saved. Only full ones resume bit for bit."""


class Best(Section):
    """Save when a metric is better than ever before."""

    kind: ClassVar[str] = "best"
    short: ClassVar[str | None] = "metric"
    metric: Name
    """Its name, as it is recorded."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher is better."""
    min_delta: Annotated[float, Field(strict=True, ge=0)] = 0.0
    """How much better it must be, in the metric's own unit."""
    granularity: Kept = "weights"
    """What is saved. Only full ones resume bit for bit."""


KINDS: Mapping[str, type[Section]] = {
    "before_stop": BeforeStop,
    "cost": Cost,
    "window": Window,
    "steps": Steps,
    "seconds": Seconds,
    "epoch": Epoch,
    "event": Event,
    "best": Best,
}
EXPECTED = f"a policy: one of {', '.join(KINDS)}, alone or as a mapping of one of them to its settings"


@record
class Named:
    """How a policy stands in the list: `cost`, `steps: 1000`, or `best: {metric: eval_loss}`."""

    kind: str
    short: str | None

    def unwrap(self, value: Any) -> Any:
        """The settings alone; a bare name has none, and one plain value is the one that matters most."""
        if isinstance(value, str):
            return {}
        if not isinstance(value, Mapping):  # a model already
            return value
        inner = value[self.kind]
        if inner is None:
            return {}
        return {self.short: inner} if self.short and not isinstance(inner, Mapping | list | tuple) else inner

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.unwrap, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        full = handler.resolve_ref_schema(inner)
        short = full.get("properties", {}).get(self.short or "", {})
        value = {"anyOf": [inner, {key: of for key, of in short.items() if key not in ("default", "title")}]}
        wrapped = {
            "type": "object",
            "properties": {self.kind: value if short else inner},
            "required": [self.kind],
            "additionalProperties": False,
        }
        return wrapped if full.get("required") else {"anyOf": [{"const": self.kind}, wrapped]}


def kind_of(value: Any) -> str | None:
    """Which policy an item of the list is; None if it is none."""
    if isinstance(value, Section):
        return str(getattr(value, "kind", ""))
    names = _names(value)
    return names[0] if len(names) == 1 and names[0] in KINDS else None


def _names(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(key) for key in value] if isinstance(value, Mapping) else []


def _checked(value: Any) -> Any:
    """The item itself. PydanticCustomError says what was expected of one that is no policy."""
    if kind_of(value) is None:
        names = _names(value)
        what = (
            f"{len(names)} policies in one item of the list" if len(names) > 1 else f"{str(value)!r:.60} is no policy"
        )
        fields = {"what": what, "expected": EXPECTED, "tried": names[0] if len(names) == 1 else ""}
        raise PydanticCustomError("policy", "{what}; expected {expected}", fields)
    return value


Policy = Annotated[
    Annotated[BeforeStop, Named(kind="before_stop", short=None), Tag("before_stop")]
    | Annotated[Cost, Named(kind="cost", short=None), Tag("cost")]
    | Annotated[Window, Named(kind="window", short="base_interval"), Tag("window")]
    | Annotated[Steps, Named(kind="steps", short="every"), Tag("steps")]
    | Annotated[Seconds, Named(kind="seconds", short="every"), Tag("seconds")]
    | Annotated[Epoch, Named(kind="epoch", short="every"), Tag("epoch")]
    | Annotated[Event, Named(kind="event", short="name"), Tag("event")]
    | Annotated[Best, Named(kind="best", short="metric"), Tag("best")],
    Discriminator(kind_of),
    BeforeValidator(_checked),
]
