"""The benchmark of uploads: what bringing a checkpoint to S3 takes from a training, beside plain clients.

One training of 100 million parameters (1.2 GB of state with AdamW in fp32) goes on while its newest checkpoint is sent
to an S3 on loopback: by ours, as to any tier, and by boto3 and obstore alone in a thread. Blocks of steps with and
without an upload stand in ABBA order; a block with one lasts until all of its work is done, and what it takes beyond
its number of median steps is lost. `blocked` is what calls and hooks of ours take in the block beyond what they take in
as many steps without an upload. The save itself is over before: what it takes, `bench/save.py` tells. The server
is a process of its own that throws bodies away (`_sink.py`), the same one for all.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from _lost import CONTROL, Pair, measure, raw, rehearse, save_standing
from _measure import Processor, Quiet, Report, estimate
from _model import SHAPES, Training
from _objects_clients import OURS, PEERS, Client, Ours, Source, WithBoto3, WithObstore
from _objects_shown import figure_name, show
from _savers import Watch
from _sink import Sink, started
from _tables import wide_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mementum.records import record

SEQUENCE = 32  # tokens; with a batch of two a step takes 0.3 to 0.5 s on two cores
WARM_STEPS = 3


@record
class Effort:
    """How much of everything is measured."""

    rounds: int  # of two pairs each
    limit_s: float  # no round begins later
    calls: int  # without an upload, for what they take anyway
    standing: int
    patience_s: float  # to wait for a quiet machine, in all


FULL = Effort(rounds=6, limit_s=480, calls=20, standing=3, patience_s=60)
QUICK = Effort(rounds=1, limit_s=90, calls=10, standing=1, patience_s=20)


class Bench:
    """The clients in turn, then each while the training stands still."""

    def __init__(
        self, folder: Path, sink: Sink, *, effort: Effort, sequence: int, size: str, progress: Progress
    ) -> None:
        self.report, self._effort, self._progress = Report(), effort, progress
        self._task: TaskID = progress.add_task("", total=None)
        self._folder, self._sink = folder, sink
        self._training = Training(seed=1, sequence=sequence, size=size)
        for _ in range(WARM_STEPS):
            self._training.step()
        self._processor, self._quiet = Processor(), Quiet(effort.patience_s if size == "full" else 0.0)
        self._calls_s = 0.0  # of a step without an upload
        self.bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in self._training.tensors())

    def run(self) -> None:
        with Watch() as watch:
            source = Source(self._training, self._folder, self._sink)
            try:
                watch.all_made()
                clients = [Ours(OURS, source), WithObstore(source, self._sink), WithBoto3(source, self._sink)]
                source.make()
                rehearse(self._training, clients)
                self._calls(source, watch)
                self._lost(clients, watch)
                self._standing(clients)
            finally:
                source.close()
        if not all(client.is_raised for client in clients if isinstance(client, WithObstore)):
            self.report.notes["obstore.lost_s_per_upload"] = "its threads stayed at ours's low priority: no privilege"

    def _begin(self, what: str, total: int) -> None:
        self._progress.reset(self._task, total=total, description=what)

    def _advance(self, _: str = "") -> None:
        self._progress.advance(self._task)

    def _calls(self, source: Source, watch: Watch) -> None:
        """What calls and hooks of ours take in a step with no save and no upload: that is not the upload's."""
        self._begin("calls without an upload", self._effort.calls)
        took_s: list[float] = []
        for _ in range(self._effort.calls):
            held_s, loss = watch.held_s, self._training.step()
            began_s = time.perf_counter()
            source.run.record(loss=loss)
            took_s.append(time.perf_counter() - began_s + watch.held_s - held_s)
            self._advance()
        self._calls_s = statistics.median(took_s)
        self.report.figures["calls_ms_per_step"] = 1e3 * self._calls_s
        self.report.samples["calls_s"] = took_s

    def _lost(self, clients: list[Client], watch: Watch) -> None:
        self._begin("seconds lost", self._effort.rounds * (1 + len(clients)))
        for client in clients:
            client.sent.clear()  # of the rehearsal
        pairs: list[Pair] = []
        until = time.monotonic() + self._effort.limit_s
        for turn in range(self._effort.rounds):
            if time.monotonic() > until:
                self.report.notes["rounds"] = f"{turn} of {self._effort.rounds}: there was no time for more"
                break
            first = turn % len(clients)  # they take turns in who is first
            pairs += measure(
                self._training,
                [*clients[first:], *clients[:first]],
                rounds=1,
                watch=watch,
                processor=self._processor,
                quiet=self._quiet,
                advance=self._advance,
            )
        report = self.report
        report.samples["pairs"] = raw(pairs)
        report.figures["step_s"] = statistics.median(pair.step_s for pair in pairs)
        control = estimate(_lost_s(pairs, CONTROL))
        report.figures |= {
            "control_lost_s": control.median,
            "control_lost_s_lo": control.low,
            "control_lost_s_hi": control.high,
        }
        for client in clients:
            self._figures(client, [pair for pair in pairs if pair.saver == client.name])
        for name in PEERS:  # one after the other in every round, on the same machine
            more = [ours - theirs for ours, theirs in zip(_lost_s(pairs, OURS), _lost_s(pairs, name), strict=True)]
            found = estimate(more)
            report.figures |= {
                f"lost_more_than_{name}_s": found.median,
                f"lost_more_than_{name}_s_lo": found.low,
                f"lost_more_than_{name}_s_hi": found.high,
            }

    def _figures(self, client: Client, own: list[Pair]) -> None:
        name, blocks = client.name, [pair.block for pair in own]
        lost = estimate([pair.lost_s for pair in own])
        uploads = [block.saved for block in blocks if block.saved is not None]
        calls_s = self._calls_s if name == OURS else 0.0
        blocked_ms = [1e3 * (block.blocked_s - calls_s * len(block.steps)) for block in blocks]
        self.report.samples[figure_name(name, "sent")] = [asdict(one) for one in client.sent]
        for figure, value in (
            ("lost_s_per_upload", lost.median),
            ("lost_s_per_upload_lo", lost.low),
            ("lost_s_per_upload_hi", lost.high),
            ("cpu_s_per_upload", statistics.median(block.cpu_s for block in blocks)),
            ("blocked_ms_median", statistics.median(blocked_ms)),
            ("blocked_ms_max", max(blocked_ms)),
            ("calls_ms_median", statistics.median(1e3 * block.blocked_s for block in blocks)),
            ("uploaded_s", statistics.median(one.durable_s for one in uploads)),
            ("bytes", statistics.median(one.received for one in client.sent)),
            ("requests", statistics.median(one.requests for one in client.sent)),
            ("sink_cpu_s", statistics.median(one.sink_cpu_s for one in client.sent)),
        ):
            self.report.figures[figure_name(name, figure)] = value

    def _standing(self, clients: list[Client]) -> None:
        self._begin("uploaded, the loop standing still", len(clients))
        for client in clients:
            took_s = save_standing(self._training, client, count=self._effort.standing, quiet=self._quiet)
            self.report.samples[figure_name(client.name, "uploaded_standing_s")] = took_s
            self.report.figures[figure_name(client.name, "uploaded_standing_s")] = statistics.median(took_s)
            self._advance()


def _lost_s(pairs: list[Pair], name: str) -> list[float]:
    return [pair.lost_s for pair in pairs if pair.saver == name]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: at most four minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the checkpoints go; on a disk, not in memory.")
    ] = None,
    sequence: Annotated[int, typer.Option(min=1, max=256, help="Tokens of a sequence: how long a step is.")] = SEQUENCE,
    size: Annotated[str, typer.Option(help=f"Of the model: {', '.join(SHAPES)}.")] = "full",
) -> None:
    """Measure what an upload takes from a training."""
    logging.getLogger("mementum").setLevel(logging.CRITICAL)  # what fails is raised by the benchmark itself
    console = wide_console()
    folder = Path(tempfile.mkdtemp(prefix="bench-objects-", dir=directory or Path.cwd()))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    effort = QUICK if quick else FULL
    try:
        with Progress(*columns, console=console) as progress, started() as sink:
            bench = Bench(folder, sink, effort=effort, sequence=sequence, size=size, progress=progress)
            bench.run()
    finally:
        shutil.rmtree(folder)
    console.print(f"{bench.bytes / 1e9:.2f} GB of state, {torch.get_num_threads()} threads", highlight=False)
    show(console, bench.report)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
