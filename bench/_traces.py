"""Failure traces: public logs of machines that failed, as gaps between the ends of a job that runs on all of them."""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from mementum.records import record

LANL_FILE = "lanl/LA-UR-05-7318-failure-data-1996-2005.csv.xz"  # Los Alamos National Laboratory, LA-UR-05-7318
LANL_SYSTEMS = (2, 16, 18, 19, 20)
SPOT_FILES = {  # of the Bamboo artefact (MIT): a job on the whole fleet ends whenever a machine is taken away
    "spot p3": "bamboo-spot/traces/p3-trace.csv",
    "spot g4dn": "bamboo-spot/traces/g4dn-trace.csv",
    "spot gcp v100": "bamboo-spot/traces/gcloud/v100x1-east1c.txt",
    "spot gcp a100": "bamboo-spot/traces/gcloud/a100x1-east1b.txt",
}
NODES_OF_SPOT = 48  # roughly what those fleets hold; it scales the prior, which few failures outweigh


@record
class Trace:
    """Seconds between failures, in their order; `nodes` is what the prior is scaled by."""

    name: str
    nodes: int
    gaps_s: tuple[float, ...]

    def halves(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What a policy may learn from, and what it is tested on."""
        middle = len(self.gaps_s) // 2
        return self.gaps_s[:middle], self.gaps_s[middle:]


def read_traces(folder: Path) -> tuple[Trace, ...]:
    """All traces under `folder`. FileNotFoundError names the first that is missing."""
    return (*_lanl(folder / LANL_FILE), *(_spot(folder / path, name) for name, path in SPOT_FILES.items()))


def gaps_of(times_s: Iterable[float]) -> tuple[float, ...]:
    """Gaps between failures; those of one moment are one failure."""
    ordered = sorted(set(times_s))
    return tuple(later - earlier for earlier, later in pairwise(ordered))


def _lanl(path: Path) -> tuple[Trace, ...]:
    times: dict[int, list[float]] = {system: [] for system in LANL_SYSTEMS}
    nodes: dict[int, int] = {}
    for row in csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode("latin-1"))):
        system = int(row["System"]) if row["System"].isdigit() else 0
        if system not in times or not row["Prob Started"]:
            continue
        started = datetime.strptime(row["Prob Started"], "%m/%d/%Y %H:%M")
        times[system].append((started - datetime(1990, 1, 1)).total_seconds())
        nodes[system] = int(row["nodes"])
    return tuple(
        Trace(name=f"LANL {system}", nodes=nodes[system], gaps_s=gaps_of(times[system])) for system in LANL_SYSTEMS
    )


def _spot(path: Path, name: str) -> Trace:
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    taken_s = _removals(rows) if path.suffix == ".csv" else _falls(rows)
    return Trace(name=name, nodes=NODES_OF_SPOT, gaps_s=gaps_of(taken_s))


def _removals(rows: list[list[str]]) -> list[float]:
    return [int(at_ms) / 1000 for at_ms, what, _ in rows if what == "remove"]


def _falls(rows: list[list[str]]) -> list[float]:
    """When the count of machines fell. The log holds each count for some polls, whose times overlap: file order."""
    found, before, at_s = [], 0, 0.0
    for date, clock, count in rows:
        moment = datetime.strptime(f"{date.strip()} {clock.strip()}", "%Y-%m-%d %H:%M:%S")
        at_s = max(at_s, (moment - datetime(2021, 1, 1)).total_seconds())
        if int(count) < before:
            found.append(at_s)
        before = int(count)
    return found
