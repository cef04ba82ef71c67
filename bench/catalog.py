"""The benchmark of catalogs: how soon the best recovery point is found among a million checkpoints, how long it takes
to enter one more, and how long a catalog takes that is made again of the manifests on a disk.

SQLite holds all of them; PostgreSQL and Redis beside it, where they are installed, hold fewer (the figures' names say
how many). A quarter of the checkpoints is suspect, one in a hundred is damaged, steps go back by a thousand now and
then, and the question is asked without a step and with steps all over the run. `docs/catalog.md` says what the figures
were."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from _measure import Report, quantile
from _tables import Bar, print_bars, print_table, wide_console
from rich.console import Console
from rich.progress import Progress

from mementum.catalog.catalog import Catalog
from mementum.catalog.entry import manifest_of
from mementum.catalog.rebuild import TakesTexts, refresh
from mementum.catalog.sql import SqlCatalog, open_scratch, open_sql, open_sqlite
from mementum.catalog.tasks import TaskHome
from mementum.cli.rebuilding import catch_up, fill
from mementum.format import manifest as manifests
from mementum.records import Fact, Granularity, Health, Manifest, StoredFile, record
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HOME = "20261130/bench_000001"
JOURNAL = "journal/0001.jsonl"
SEED = 7
BATCH = 2000  # checkpoints that are entered at once while a catalog is filled
BACK_EVERY, BACK = 20_000, 1000  # checkpoints from one rollback to the next, and steps that it goes back
TIME = "2026-11-30T06:10:09.000000Z"
PARTS = ("sqlite", "postgres", "redis", "rebuild")
MANY = 1_000_000  # checkpoints that the figures are promised for


@record
class Effort:
    """How many checkpoints, on servers and on the disk, and how often each is asked and entered."""

    rows: int
    served: int
    files: int
    asked: int
    entered: int


FULL = Effort(rows=MANY, served=100_000, files=100_000, asked=2000, entered=1000)
QUICK = Effort(rows=100_000, served=20_000, files=10_000, asked=500, entered=200)


def checkpoint(seq: int) -> Manifest:
    """As a run of a small model writes it: seven files, ten rows of recent steps, its versions."""
    step = 10 * (seq - seq // BACK_EVERY * BACK // 10)
    draw = random.Random(seq)
    loss = 2.0 + draw.random()
    health = Health.SUSPECT if draw.random() < 0.25 else Health.CLEAN
    names = ("model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json")
    return Manifest(
        id=f"c{seq:012d}",
        seq=seq,
        task="bench",
        attempt=1 + seq // BACK_EVERY,
        parent=f"c{seq - 1:012d}" if seq > 1 else None,
        step=step,
        epoch=step // 5000,
        time=TIME,
        reason="the cost of a failure is worth a save",
        granularity=Granularity.FULL,
        health=health,
        files=tuple(StoredFile(name=name, size=10_000_000, digest=f"{seq:064x}") for name in names),
        decision={"interval_s": 600.0, "risk": 0.01, "lost_s": 0.2, "rate": 1e-5},
        metrics={"loss": loss},
        memory={"rss": 4 << 30},
        debug_info=tuple({"step": step - back, "loss": loss, "grad_norm": 1.0, "lr": 3e-4} for back in range(10)),
        versions={"mementum": "0.1", "torch": "2.9", "python": "3.11"},
    )


def text_of(one: Manifest) -> str:
    """Its manifest, as `manifests.render` makes it but for the white space: that takes three minutes for a million of
    them, and is not what is measured."""
    fields = {
        "format": 1,
        **{name: getattr(one, name) for name in ("id", "seq", "task", "attempt", "parent", "step", "epoch", "time")},
        **{name: getattr(one, name) for name in ("reason", "decision", "metrics", "memory", "debug_info", "versions")},
        "granularity": int(one.granularity),
        "health": one.health.value,
        "exactness": [],
        "files": [{"name": file.name, "size": file.size, "blake3": file.digest} for file in one.files],
        "world_size": 1,
        "code": {},
        "user": {},
        "digest": manifests.ZEROS,
    }
    blank = json.dumps(fields)
    return blank.replace(f'"digest": "{manifests.ZEROS}"', f'"digest": "{manifests.digest(blank.encode())}"')


def folder_of(seq: int) -> str:
    return f"step_{seq:010d}"


def filled(catalog: Catalog, count: int, advance: Callable[[int], None]) -> None:
    for first in range(1, count + 1, BATCH):
        some = range(first, min(first + BATCH, count + 1))
        every = [(checkpoint(seq), folder_of(seq)) for seq in some]
        if isinstance(catalog, TakesTexts):
            catalog.add_texts(HOME, [(one, folder, text_of(one)) for one, folder in every])
        else:
            catalog.add_all(HOME, every)
        advance(len(some))
    damaged = random.Random(SEED).sample(range(1, count + 1), count // 100)
    told = [Fact(kind="damaged", time=TIME, checkpoint=f"c{seq:012d}", values={"what": "index"}) for seq in damaged]
    catalog.learn(HOME, JOURNAL, told, size=len(told))


@record
class Took:
    """Seconds by the clock, and of this thread's processor: on a machine that does other things the first is longer."""

    wall_s: float
    cpu_s: float


def asked(catalog: Catalog, count: int, times: int) -> tuple[list[Took], list[Took]]:
    """What each question without a step took, and each with one. The steps lie all over the run."""
    draw = random.Random(SEED)
    plain, before = [], []
    last = checkpoint(count).step
    for _ in range(times):
        plain.append(timed(lambda: catalog.recovery_point(HOME)))
        step = draw.randrange(last)
        before.append(timed(partial(catalog.recovery_point, HOME, before_step=step)))
    return plain, before


def entered(catalog: Catalog, count: int, times: int) -> list[Took]:
    """What it takes to enter one more, as after a save."""
    more = [(checkpoint(seq), folder_of(seq)) for seq in range(count + 1, count + 1 + times)]
    return [timed(partial(catalog.add, HOME, one, folder)) for one, folder in more]


def timed(call: Callable[[], object]) -> Took:
    began, began_cpu = time.perf_counter(), time.thread_time()
    call()
    return Took(wall_s=time.perf_counter() - began, cpu_s=time.thread_time() - began_cpu)


@contextlib.contextmanager
def server(name: str, report: Report) -> Iterator[Catalog | None]:
    """A catalog on a server of our own; None, with a note, where that is not installed."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import services

    try:
        started = services.start_postgres() if name == "postgres" else services.start_redis()
    except BaseException as error:  # pytest's own for what is missing
        report.notes[name] = f"not measured: {error}"
        yield None
        return
    try:
        if name == "postgres":
            catalog: Catalog = open_sql(f"postgresql://postgres@127.0.0.1:{started.port}/postgres")
        else:
            from mementum.catalog.redis import open_redis

            catalog = open_redis(f"redis://127.0.0.1:{started.port}/0")
        try:
            yield catalog
        finally:
            catalog.close()
    finally:
        started.stop()


class Bench:
    """Measures part after part into one report."""

    def __init__(self, folder: Path, *, effort: Effort, progress: Progress) -> None:
        self.folder, self.effort, self.report, self._progress = folder, effort, Report(), progress

    def run(self, parts: Sequence[str]) -> None:
        if "sqlite" in parts:
            catalog = open_sqlite(self.folder / "catalog.db")
            self._measure("sqlite", catalog, self.effort.rows)
            catalog.close()
            self.report.figures["sqlite_bytes"] = float((self.folder / "catalog.db").stat().st_size)
        for name in ("postgres", "redis"):
            if name in parts:
                with server(name, self.report) as catalog_there:
                    if catalog_there is not None:
                        self._measure(name, catalog_there, self.effort.served)
        if "rebuild" in parts:
            self._rebuild()

    def _measure(self, name: str, catalog: Catalog, count: int) -> None:
        assert manifest_of(text_of(checkpoint(3))) == checkpoint(3)
        task = self._progress.add_task(f"{name}: {count} checkpoints", total=count)
        fill_s = timed(lambda: filled(catalog, count, lambda done: self._progress.advance(task, done))).wall_s
        plain, before = asked(catalog, count, self.effort.asked)
        took = {"recovery_point": plain, "recovery_point_before": before}
        took["insert"] = entered(catalog, count, self.effort.entered)
        self.report.figures |= {f"{name}_rows": float(count), f"{name}_fill_s": fill_s}
        for what, every in took.items():
            walls, cpus = [one.wall_s for one in every], [one.cpu_s for one in every]
            self.report.figures |= {
                f"{name}_{what}_s_p50": quantile(walls, 0.5),
                f"{name}_{what}_s_p99": quantile(walls, 0.99),
                f"{name}_{what}_cpu_s_p99": quantile(cpus, 0.99),
            }
            self.report.samples[f"{name}_{what}"] = [(one.wall_s, one.cpu_s) for one in every]

    def _rebuild(self) -> None:
        count, root, disk = self.effort.files, self.folder / "root", PosixDisk()
        task = self._progress.add_task(f"writing {count} manifests", total=count)
        for seq in range(1, count + 1):
            at = root / HOME / folder_of(seq)
            at.mkdir(parents=True)
            (at / manifests.NAME).write_bytes(manifests.render(checkpoint(seq)))
            for name in ("model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json"):
                (at / name).touch()
            self._progress.advance(task)
        task = self._progress.add_task(f"rebuilding of {count} manifests", total=count)
        fresh, path, store = open_scratch(), root / "catalog.db", LocalStore(disk, str(root / HOME))
        began = time.perf_counter()
        refresh(fresh, HOME, store, progress=lambda done, _: self._progress.update(task, completed=done))
        read_s = time.perf_counter() - began
        fill(path, fresh, disk)
        fresh.close()
        filled_s = time.perf_counter() - began
        catch_up(path, root, [TaskHome(task="bench", home=HOME)], disk)
        whole_s = time.perf_counter() - began
        catalog: SqlCatalog = open_sqlite(path)
        assert len(catalog.generations(HOME)) == count
        catalog.close()
        self.report.figures |= {
            "rebuild_files": float(count),
            "rebuild_read_s": read_s,
            "rebuild_fill_s": filled_s - read_s,
            "rebuild_catch_up_s": whole_s - filled_s,
            "rebuild_s": whole_s,
        }


def bars(figures: Mapping[str, float | None]) -> list[Bar]:
    """What is promised of SQLite, and of a rebuild, each with how many checkpoints there were."""
    rows, files = (f"of {figures.get(name) or 0:.0f} checkpoints" for name in ("sqlite_rows", "rebuild_files"))
    asked = {
        "recovery point, SQLite, p99, s": ("sqlite_recovery_point_s_p99", 0.020, rows),
        "recovery point before a step, SQLite, p99, s": ("sqlite_recovery_point_before_s_p99", 0.020, rows),
        "one more, SQLite, p99, s": ("sqlite_insert_s_p99", 0.005, rows),
        "rebuild, s": ("rebuild_s", 120.0, files),
    }
    return [
        Bar(what=what, value=figures.get(name), bound=at, note=beside) for what, (name, at, beside) in asked.items()
    ]


def show(console: Console, report: Report) -> None:
    rows = [[name, f"{value:.6g}" if value is not None else "none"] for name, value in report.figures.items()]
    print_table(console, "catalogs", ["figure", "value"], rows)
    print_bars(console, bars(report.figures))
    for name, note in report.notes.items():
        console.print(f"{name}: {note}", highlight=False)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of everything.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"A part: {', '.join(PARTS)}. May be given again.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the files go, on a disk.")] = None,
    share: Annotated[float, typer.Option(help="Of how many checkpoints, and how often asked.")] = 1.0,
) -> None:
    """Measure catalogs of a million checkpoints."""
    parts = tuple(only or PARTS)
    if set(parts) - set(PARTS):
        raise typer.BadParameter(f"there are {', '.join(PARTS)}")
    console = wide_console()
    folder = Path(tempfile.mkdtemp(prefix="bench-catalog-", dir=directory))
    try:
        with Progress(console=console) as progress:
            effort = QUICK if quick else FULL
            counts = {name: max(10, int(getattr(effort, name) * share)) for name in Effort.__dataclass_fields__}
            bench = Bench(folder, effort=Effort(**counts), progress=progress)
            bench.run(parts)
    finally:
        shutil.rmtree(folder)
    show(console, bench.report)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
