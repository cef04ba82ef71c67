"""Codecs as settings: a spec whose stages are installed here."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from mementum.errors import UsageError
from mementum.plugins import factory

SPEC = re.compile(r"[a-z0-9_]+(:[0-9]+)*(\+[a-z0-9_]+(:[0-9]+)*)*")
DELTA = re.compile(r"^delta(:[1248])?\+")  # no codec of its own: it hands differences to those behind it


def _codec(value: object) -> str:
    if not (isinstance(value, str) and SPEC.fullmatch(value)):
        fields = {"what": f"{value!r:.40} is no codec", "expected": "a codec such as raw, zstd:1 or planes+zstd:1"}
        raise PydanticCustomError("codec", "{what}; expected {expected}", fields)
    for stage in DELTA.sub("", value).split("+"):
        name, *parameters = stage.split(":")
        try:
            made = factory("mementum.codecs", name)
            made(*(parameters or ["4"] if name == "planes" else parameters))  # planes alone takes the element's width
        except UsageError as error:
            fields = {"what": error.message, "expected": "a codec that is installed here"}
            raise PydanticCustomError("codec", "{what}; expected {expected}", fields) from error
    return value


Codec = Annotated[str, BeforeValidator(_codec)]
