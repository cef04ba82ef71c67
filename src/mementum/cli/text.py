"""Text: names, sizes, tables and JSON as they are printed."""

from __future__ import annotations

import json
from collections.abc import Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """`text` with every character escaped that a terminal would obey or not show: controls, overrides, surrogates."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a digit before the point."""
    amount, unit = float(count), 0
    while round(amount, 1) >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {UNITS[unit]}"


def moment(time: str) -> str:
    """An ISO time to the second, without the letters: 2026-11-30 06:10:09."""
    return time[:19].replace("T", " ")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_json(value: object) -> str:
    """ASCII, so that no encoding and no control character in a name can spoil it."""
    return json.dumps(value, indent=1, allow_nan=False)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> list[str]:
    """A plain table, as wide as it needs: two spaces between columns, those named in `right` flush right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines: list[str] = []
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
