"""Tables: the figures of a benchmark for people, with ratios, shares and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mementum.records import record

WIDTH = 150  # columns where the output is no terminal, so that no table is folded in a log

Figures = Mapping[str, float | None]


@record
class Bar:
    """What is asked of a figure: at most, or at least, `bound`."""

    what: str
    value: float | None
    bound: float
    at_most: bool = True
    note: str = ""


def wide_console() -> Console:
    """A console whose tables are not folded in a log."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def told(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def print_table(console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first column is words, and all others numbers."""
    table = Table(title=title, title_justify="left")
    for position, name in enumerate(names):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=position > 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_bars(console: Console, bars: Sequence[Bar]) -> None:
    """Every bar with its figure, and whether it is met."""
    rows = []
    for bar in bars:
        met = None if bar.value is None else bar.value <= bar.bound if bar.at_most else bar.value >= bar.bound
        sign = "<=" if bar.at_most else ">="
        said = "not measured" if met is None else "met" if met else "MISSED"
        rows.append((bar.what, told(bar.value), f"{sign} {bar.bound:g}", said, bar.note))
    print_table(console, "What is asked for", ("figure", "is", "asked", "", "beside it"), rows)


def ratio(one: float | None, other: float | None) -> float | None:
    """One figure as a multiple of another, where there are both."""
    return one / other if one is not None and other else None


def best(figures: Figures, names: Sequence[str]) -> float | None:
    """The smallest of those figures that there are."""
    there = [value for name in names if (value := figures.get(name)) is not None]
    return min(there, default=None)
