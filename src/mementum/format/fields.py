"""Typed reading of JSON that may be anybody's: every surprise becomes an UnknownFormat that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeGuard

from mementum.errors import NewerFormat, UnknownFormat

FORMAT = 2  # the newest that is read, of manifests, indexes and contexts; a reader refuses what is newer than itself
PLAIN = 1  # what a file is that has nothing of a newer one: versions that know no other go on reading it
INTEGER_MAX = 1 << 62  # no size, offset or count of ours comes near it


class Fields:
    """A JSON object with a path to it, read field by field."""

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise UnknownFormat(f"{path} is not an object but {type(data).__name__}")
        self.data: Mapping[str, Any] = data
        self.path = path

    def wrong(self, name: str, expected: str) -> NoReturn:
        found = "missing" if name not in self.data else f"{type(self.data[name]).__name__}"
        raise UnknownFormat(f"{self.path}.{name} should be {expected}, it is {found}")

    def text(self, name: str) -> str:
        value = self.data.get(name)
        return value if _is_text(value) else self.wrong(name, "a string of valid Unicode")

    def text_or_none(self, name: str) -> str | None:
        return None if self.data.get(name) is None else self.text(name)

    def count(self, name: str) -> int:
        value = self.data.get(name)
        if type(value) is not int or not 0 <= value < INTEGER_MAX:
            self.wrong(name, "a whole number that is not negative")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.data.get(name, {})
        return value if isinstance(value, dict) else self.wrong(name, "an object")

    def items(self, name: str) -> list[Any]:
        value = self.data.get(name)
        return value if isinstance(value, list) else self.wrong(name, "a list")

    def objects(self, name: str) -> Iterator[Fields]:
        for number, item in enumerate(self.items(name)):
            yield Fields(item, f"{self.path}.{name}[{number}]")

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.items(name)
        if not all(_is_text(value) for value in values):
            self.wrong(name, "a list of strings of valid Unicode")
        return tuple(values)


def _is_text(value: object) -> TypeGuard[str]:
    """Half a surrogate pair, which JSON can escape, is no text: it could be neither written nor be part of a key."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def read_json(data: bytes | memoryview, what: str) -> Fields:
    """Parse one JSON object, of whatever format."""
    try:
        return Fields(json.loads(bytes(data)), what)
    except (ValueError, RecursionError) as cause:
        raise UnknownFormat(f"{what} is not JSON: {cause}") from cause


def require_known(fields: Fields) -> Fields:
    """The object itself. NewerFormat if a newer mementum wrote it."""
    if fields.count("format") > FORMAT:
        raise NewerFormat(
            f"{fields.path} has format {fields.count('format')}, this mementum reads up to {FORMAT}",
            kept="the checkpoint; nothing was changed",
            next_command="pip install --upgrade mementum",
        )
    return fields
