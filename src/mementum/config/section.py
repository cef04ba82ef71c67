"""A section: the frozen model that every part of the settings is, and the plain values in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from mementum.masking import veiled

COUNT_MAX = 1 << 53  # steps, epochs, nodes: what every reader of JSON keeps exactly
NAME_MAX = 200  # characters of a metric's or an event's name: longer ones are a mistake
WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


class Section(BaseModel):
    """A part of the settings: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Without secrets: a traceback, a debugger and a log show it."""
        for name, value in super().__repr_args__():
            yield name, value if name is None else veiled(name, value)


def _flag(value: object) -> bool:
    found = WORDS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        fields = {"what": f"{value!r:.40} is neither true nor false", "expected": "true or false"}
        raise PydanticCustomError("flag", "{what}; expected {expected}", fields)
    return found


Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, Field(strict=True, ge=1, le=COUNT_MAX)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=NAME_MAX)]
Limit = Annotated[float, Field(strict=True, gt=0, le=1e9)]  # beyond it a threshold is none
Part = Annotated[float, Field(strict=True, gt=0, le=1)]
