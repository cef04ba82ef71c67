"""Text: what a terminal must not see, sizes, and tables that do not wrap."""

from __future__ import annotations

import json

import pytest

from mementum.cli.text import as_json, columns, counted, moment, printable, size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 日本, [red]", "plain, größer, 日本, [red]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 62, "4096.0 PiB"),
    ],
)
def test_size(count: int, shown: str) -> None:
    assert size(count) == shown


def test_words() -> None:
    assert counted(1, "task") == "1 task"
    assert counted(0, "task") == "0 tasks"
    assert moment("2026-11-30T06:10:09.123456Z") == "2026-11-30 06:10:09"


def test_columns() -> None:
    lines = columns(("name", "size"), [("model", "1.0 KiB"), ("x", "2 B")], right=frozenset({"size"}))
    assert lines == ["name      size", "model  1.0 KiB", "x          2 B"]


def test_json_is_ascii_without_controls() -> None:
    text = as_json({"é\x1b\x9b": "\u202e"})
    assert text.isascii()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert json.loads(text) == {"é\x1b\x9b": "\u202e"}
