"""The context: what a checkpoint knows besides tensors, as typed JSON, one file a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mementum.errors import NewerFormat, UnknownFormat
from mementum.format import typed_json
from mementum.format.fields import FORMAT, PLAIN


def name(rank: int) -> str:
    return f"context-{rank:05d}.json"


def render(context: Mapping[str, Any]) -> bytes:
    """`context` as bytes. UnsupportedState names the value that has no typed form."""
    return typed_json.dumps({"format": PLAIN, **context})


def parse(data: bytes | memoryview, what: str) -> dict[str, Any]:
    """The context as it was; UnknownFormat if it is not one."""
    value = typed_json.loads(bytes(data))
    if not isinstance(value, dict) or type(value.get("format")) is not int:
        raise UnknownFormat(f"{what} is not a context")
    if value["format"] > FORMAT:
        raise NewerFormat(
            f"{what} has format {value['format']}, this mementum reads up to {FORMAT}",
            next_command="pip install --upgrade mementum",
        )
    return value
