"""What the benchmark of saving shows: its tables, and the bars that it is there to keep."""

from __future__ import annotations

from _measure import DRAWS, SEED, Report
from _restore import READERS
from _savers import OURS, PEERS
from _tables import Bar, best, print_bars, print_table, ratio, told
from rich.console import Console

ASYNC = ("dcp_async", "dcp_async_staged")


def figure_name(saver: str, figure: str) -> str:
    """Ours stand alone, those of peers after their names."""
    return figure if saver == OURS else f"{saver}.{figure}"


def show(console: Console, report: Report) -> None:
    """Every figure for people."""
    figures = report.figures

    def of_saver(name: str, figure: str, digits: int = 3) -> str:
        return told(figures.get(figure_name(name, figure)), digits)

    rows = []
    for name in (OURS, *PEERS):
        lost = figures.get(figure_name(name, "lost_s_per_save"))
        bounds = f"[{of_saver(name, 'lost_s_per_save_lo', 2)}, {of_saver(name, 'lost_s_per_save_hi', 2)}]"
        rows.append(
            (
                name,
                of_saver(name, "blocked_ms_median", 1),
                of_saver(name, "blocked_ms_p99", 1),
                f"{told(lost)} {bounds}",
                f"{told(ratio(lost, figures.get('lost_s_per_save')), 1)}x",
                of_saver(name, "durable_s"),
                of_saver(name, "durable_share_of_limit", 2),
                of_saver(name, "durable_standing_share_of_limit", 2),
                of_saver(name, "cpu_s_per_save", 2),
                of_saver(name, "peak_extra_rss_mb", 0),
                told(ratio(figures.get(figure_name(name, "bytes")), 1e6), 0),
            )
        )
    names = ("saver", "blocked ms", "p99", "lost s [95 %]", "to ours", "durable s", "of limit", "standing", "cpu s")
    print_table(console, "One save", (*names, "RSS MB", "MB"), rows)
    rows = [
        (
            name,
            of_saver(name, "restore_cold_s"),
            of_saver(name, "restore_cold_call_s"),
            of_saver(name, "restore_share_of_limit", 2),
            f"{told(ratio(figures.get(figure_name(name, 'restore_cold_s')), figures.get('restore_cold_s')), 2)}x",
        )
        for name in READERS
    ]
    print_table(console, "A cold restore", ("reader", "s", "of it the call", "of limit", "to ours"), rows)
    for name in (name for name in sorted(figures) if "." not in name):
        console.print(f"  {name:34} {told(figures[name], 4)}  {report.notes.get(name, '')}", highlight=False)
    console.print(f"intervals: {DRAWS} bootstrap draws of the median, seed {SEED}", highlight=False)
    print_bars(console, bars(report))


def bars(report: Report) -> list[Bar]:
    """What the benchmark is there to keep."""
    figures = report.figures
    lost, durable, cold = (figures.get(name) for name in ("lost_s_per_save", "durable_s", "restore_cold_s"))
    beside = f"control {told(figures.get('control_lost_s'))}, high {told(figures.get('lost_s_per_save_hi'))}"
    best_async = best(figures, [f"{name}.lost_s_per_save" for name in ASYNC])
    best_reader = best(figures, [f"{name}.restore_cold_s" for name in READERS if name != OURS])
    return [
        Bar(what="blocked, median ms", value=figures.get("blocked_ms_median"), bound=2),
        Bar(what="blocked, p99 ms", value=figures.get("blocked_ms_p99"), bound=10),
        Bar(what="lost, s a save", value=lost, bound=0.20, note=beside),
        Bar(what="lost, to the best dcp.async_save", value=ratio(lost, best_async), bound=1 / 3),
        Bar(what="settling adds, s a save", value=figures.get("settle_lost_s_per_save"), bound=0.20),
        Bar(what="durable, of the write limit", value=figures.get("durable_share_of_limit"), bound=0.7, at_most=False),
        Bar(what="durable, to torch.save", value=ratio(durable, figures.get("torch_save.durable_s")), bound=0.5),
        Bar(what="cold restore, to the best peer", value=ratio(cold, best_reader), bound=1),
        Bar(what="restore, of the read limit", value=figures.get("restore_share_of_limit"), bound=0.7, at_most=False),
        Bar(what="restore after kill -9, s", value=figures.get("restore_ram_s"), bound=0.3),
    ]
