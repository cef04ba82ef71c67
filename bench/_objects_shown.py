"""What the benchmark of uploads shows: its table, and the bars that it is there to keep."""

from __future__ import annotations

from _measure import DRAWS, SEED, Report
from _objects_clients import OURS, PEERS
from _tables import Bar, print_bars, print_table, ratio, told
from rich.console import Console


def figure_name(client: str, figure: str) -> str:
    """Ours stand alone, those of peers after their names."""
    return figure if client == OURS else f"{client}.{figure}"


def show(console: Console, report: Report) -> None:
    """Every figure for people."""
    figures = report.figures

    def of_client(name: str, figure: str, digits: int = 2) -> str:
        return told(figures.get(figure_name(name, figure)), digits)

    rows = []
    for name in (OURS, *PEERS):
        lost = of_client(name, "lost_s_per_upload")
        bounds = f"[{of_client(name, 'lost_s_per_upload_lo')}, {of_client(name, 'lost_s_per_upload_hi')}]"
        size = figures.get(figure_name(name, "bytes"))
        rows.append(
            (
                name,
                f"{lost} {bounds}",
                of_client(name, "cpu_s_per_upload"),
                of_client(name, "blocked_ms_median", 1),
                of_client(name, "uploaded_s"),
                of_client(name, "uploaded_standing_s"),
                told(ratio(size, 1e6), 0),
                of_client(name, "requests", 0),
                of_client(name, "sink_cpu_s"),
            )
        )
    names = (
        "client",
        "lost s [95 %]",
        "cpu s",
        "blocked ms",
        "uploaded s",
        "standing s",
        "MB",
        "requests",
        "sink cpu s",
    )
    print_table(console, "One upload", names, rows)
    for name in (name for name in sorted(figures) if "." not in name):
        console.print(f"  {name:34} {told(figures[name], 4)}", highlight=False)
    for name, note in report.notes.items():
        console.print(f"  {name}: {note}", highlight=False)
    console.print(f"intervals: {DRAWS} bootstrap draws of the median, seed {SEED}", highlight=False)
    print_bars(console, bars(report))


def bars(report: Report) -> list[Bar]:
    """What the benchmark is there to keep."""
    figures = report.figures
    asked: list[Bar] = []
    for name in PEERS:
        figure = f"lost_more_than_{name}_s"
        low, high = told(figures.get(f"{figure}_lo")), told(figures.get(f"{figure}_hi"))
        note = f"95 %: {low} to {high}; control {told(figures.get('control_lost_s'))}"
        asked.append(Bar(what=f"lost more than with {name}, s", value=figures.get(figure), bound=0.3, note=note))
    return [
        *asked,
        Bar(what="cpu, s", value=figures.get("cpu_s_per_upload"), bound=1.5),
        Bar(what="blocked, ms", value=figures.get("blocked_ms_median"), bound=2),
    ]
