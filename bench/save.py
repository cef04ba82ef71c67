"""The benchmark of saving: what a save takes from a training on the CPU, beside the savers that torch has.

One training of 100 million parameters (1.2 GB of state with AdamW in fp32) is saved by each saver in turn, in one
process and with the same work: all of model and optimizer, durable. Blocks of steps with and without a save stand in
ABBA order. A block with a save lasts until all of the save's work is done, removal of older checkpoints included (for
the peers, who do not remove, that is done outside of the clock). What it takes beyond its number of median steps
without a save is lost. `blocked` is measured from outside: the calls, and the hooks of ours in the optimizer's step.
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
from _footprint import footprint_mb
from _limits import BLOCKS, THREADS, Grid
from _lost import CONTROL, Pair, measure, raw, rehearse, save_often, save_standing
from _measure import Processor, Quiet, Report, estimate, quantile
from _model import BATCH, SHAPES, Training
from _restore import READERS, Restored, of, restore_cold, restore_killed
from _savers import OURS, PEERS, SETTLED, Ours, Saver, Watch, make
from _settling import settle_in_turns
from _shown import figure_name, show
from _tables import wide_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mementum.records import record

SEQUENCE = 32  # tokens; with a batch of two a step takes 0.3 to 0.5 s on two cores
SHORT_SEQUENCE = 1  # whose forward and backward pass are over before the copy is
PARTS = ("limits", "lost", "standing", "blocked", "short", "settle", "restore", "ram", "footprint")
WARM_STEPS = 3


@record
class Effort:
    """How much of everything is measured."""

    rounds: int  # of two pairs each
    settle_rounds: int
    often: int  # saves for the 99th percentile
    often_s: float  # and how long they may take
    short: int
    standing: int
    restores: int
    kills: int
    patience_s: float  # to wait for a quiet machine, in all


FULL = Effort(
    rounds=10,
    settle_rounds=3,
    often=100,
    often_s=300,
    short=20,
    standing=5,
    restores=5,
    kills=5,
    patience_s=300,
)
QUICK = Effort(
    rounds=1,
    settle_rounds=1,
    often=30,
    often_s=40,
    short=5,
    standing=1,
    restores=1,
    kills=1,
    patience_s=20,
)


class Bench:
    """All parts, in an order in which the limits of the disk stand before, between and after what they limit."""

    def __init__(
        self, folder: Path, *, effort: Effort, sequence: int, size: str, parts: frozenset[str], progress: Progress
    ) -> None:
        self.folder, self.effort, self.sequence, self.parts = folder, effort, sequence, parts
        self.report = Report()
        self._progress = progress
        self._task: TaskID = progress.add_task("", total=None)
        self.training = Training(seed=1, sequence=sequence, size=size)
        for _ in range(WARM_STEPS):
            self.training.step()
        self._processor, self._quiet = Processor(), Quiet(effort.patience_s if size == "full" else 0.0)
        self.bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in self.training.tensors())
        self._grid = Grid(folder, self.bytes, self._quiet)

    def run(self) -> None:
        self._limits()
        if self.parts & {"lost", "standing", "blocked", "short"}:
            self._saving()
        self._limits()
        if "settle" in self.parts:
            self._settling()
        self._restoring()
        if "footprint" in self.parts:
            self._footprint()
        if self.effort is FULL:
            self._limits()
        self._limit_figures()

    def _begin(self, what: str, total: int) -> None:
        self._progress.reset(self._task, total=total, description=what)

    def _advance(self, _: str = "") -> None:
        self._progress.advance(self._task)

    def _limits(self) -> None:
        if "limits" in self.parts:
            self._begin("limits of the disk", len(BLOCKS) * len(THREADS))
            self._grid.measure(self._advance)

    def _saving(self) -> None:
        with Watch() as watch:
            savers = [make(name, self.training, self.folder) for name in (OURS, *PEERS)]
            watch.all_made()
            try:
                rehearse(self.training, savers)
                if "lost" in self.parts:
                    self._begin("seconds lost", self.effort.rounds * (1 + len(savers)))
                    pairs = measure(
                        self.training,
                        savers,
                        rounds=self.effort.rounds,
                        watch=watch,
                        processor=self._processor,
                        quiet=self._quiet,
                        advance=self._advance,
                    )
                    self._lost_figures(pairs)
                if "standing" in self.parts:
                    self._standing(savers)
                if "blocked" in self.parts:
                    self._often(savers[0], watch, self.sequence, "blocked", self.effort.often)
                if "short" in self.parts:
                    self._often(savers[0], watch, SHORT_SEQUENCE, "short_step", self.effort.short)
            finally:
                for saver in savers:
                    saver.close()

    def _lost_figures(self, pairs: list[Pair]) -> None:
        report = self.report
        report.samples["pairs"] = raw(pairs)
        for name in (CONTROL, OURS, *PEERS):
            own = [pair for pair in pairs if pair.saver == name]
            lost = estimate([pair.lost_s for pair in own])
            if name == CONTROL:
                report.figures |= {"control_lost_s": lost.median, "control_lost_s_hi": lost.high}
                report.figures["control_lost_s_lo"] = lost.low
                report.figures["step_s"] = statistics.median(pair.step_s for pair in pairs)
                continue
            blocks = [pair.block for pair in own]
            saves = [block.saved for block in blocks if block.saved is not None]
            report.figures |= {
                figure_name(name, "lost_s_per_save"): lost.median,
                figure_name(name, "lost_s_per_save_lo"): lost.low,
                figure_name(name, "lost_s_per_save_hi"): lost.high,
                figure_name(name, "durable_s"): statistics.median(saved.durable_s for saved in saves),
                figure_name(name, "cpu_s_per_save"): statistics.median(block.cpu_s for block in blocks),
                figure_name(name, "bytes"): float(saves[-1].size),
            }
            self._blocked_figures(name, [block.blocked_s for block in blocks])

    def _blocked_figures(self, name: str, blocked: list[float]) -> None:
        self.report.figures[figure_name(name, "blocked_ms_median")] = 1e3 * statistics.median(blocked)
        self.report.figures[figure_name(name, "blocked_ms_p99")] = 1e3 * quantile(blocked, 0.99)

    def _standing(self, savers: list[Saver]) -> None:
        self._begin("durable, the loop standing still", len(savers))
        for saver in savers:
            durable = save_standing(self.training, saver, count=self.effort.standing, quiet=self._quiet)
            self.report.samples[figure_name(saver.name, "durable_standing_s")] = durable
            self.report.figures[figure_name(saver.name, "durable_standing_s")] = statistics.median(durable)
            self._advance()

    def _often(self, saver: Saver, watch: Watch, sequence: int, name: str, count: int) -> None:
        self._begin(f"saves, {BATCH * sequence} tokens a step", count)
        self.training.sequence = sequence
        began_s = time.perf_counter()
        for _ in range(WARM_STEPS):
            saver.after_step(self.training.step())
        step_s = (time.perf_counter() - began_s) / WARM_STEPS
        blocked, saves = save_often(
            self.training, saver, count=count, limit_s=self.effort.often_s, watch=watch, advance=self._advance
        )
        self.training.sequence = self.sequence
        told_s = [saved.told_s for saved in saves]
        self.report.samples[name] = {"step_s": step_s, "blocked_s": blocked, "told_s": told_s}
        if name == "blocked":
            self._blocked_figures(saver.name, blocked)
            self.report.figures["told_blocked_ms_median"] = 1e3 * statistics.median(filter(None, told_s))
        else:
            self.report.figures["short_step_s"] = step_s
            self.report.figures["short_step_blocked_ms_median"] = 1e3 * statistics.median(blocked)
            self.report.figures["short_step_blocked_ms_p99"] = 1e3 * quantile(blocked, 0.99)

    def _settling(self) -> None:
        """What compressing later adds to a save."""
        report, rounds = self.report, self.effort.settle_rounds
        self._begin("settling", rounds)
        with Watch() as watch:
            saver = make(SETTLED, self.training, self.folder)
            watch.all_made()
            assert isinstance(saver, Ours)
            try:
                rehearse(self.training, [saver])
                done = settle_in_turns(
                    self.training, saver, rounds=rounds, processor=self._processor, advance=self._advance
                )
            finally:
                saver.close()
        if not done:
            report.figures["settle_lost_s_per_save"] = None
            report.notes["settle_lost_s_per_save"] = "no save was compressed later"
            return
        report.samples["settling"] = [asdict(one) for one in done]
        lost = estimate([one.lost_s / one.share for one in done])
        report.figures |= {
            "settle_lost_s_per_save": lost.median,
            "settle_lost_s_per_save_lo": lost.low,
            "settle_lost_s_per_save_hi": lost.high,
            "settle_cpu_s_per_save": statistics.median(one.cpu_s / one.share for one in done),
            "settle_share_seen": statistics.median(one.share for one in done),
            "settle_beside_s": statistics.median(one.beside_s for one in done),
        }

    def _restoring(self) -> None:
        report, done = self.report, list[Restored]()
        if "restore" in self.parts:
            self._begin("cold restores", self.effort.restores * len(READERS))
            done = restore_cold(
                self.training, self.folder, rounds=self.effort.restores, quiet=self._quiet, advance=self._advance
            )
            for name in READERS:
                report.samples[figure_name(name, "restore_cold")] = [
                    (one.restore_s, one.call_s, one.still_cached, one.quiet) for one in done if one.reader == name
                ]
                report.figures[figure_name(name, "restore_cold_s")] = statistics.median(of(name, done))
                calls = [one.call_s for one in done if one.reader == name]
                report.figures[figure_name(name, "restore_cold_call_s")] = statistics.median(calls)
        if "ram" in self.parts:
            self._begin("restores after kill -9", self.effort.kills)
            after = restore_killed(
                self.folder,
                sequence=self.sequence,
                size=self.training.size,
                rounds=self.effort.kills,
                quiet=self._quiet,
                advance=self._advance,
            )
            report.samples["restore_killed"] = [(one.restore_s, one.call_s, one.tier) for one in after]
            from_ram = [one.restore_s for one in after if one.tier == "ram"]
            report.figures["restore_ram_s"] = statistics.median(from_ram) if len(from_ram) == len(after) else None
            if len(from_ram) < len(after):
                report.notes["restore_ram_s"] = (
                    f"no ram tier: {len(after) - len(from_ram)} of {len(after)} came from disk"
                )

    def _footprint(self) -> None:
        self._begin("memory", 1 + len(PEERS))
        for name in (OURS, *PEERS):
            figure = footprint_mb(name, self.folder, sequence=self.sequence, size=self.training.size)
            self.report.figures[figure_name(name, "peak_extra_rss_mb")] = figure
            self._advance()

    def _limit_figures(self) -> None:
        figures = self.report.figures
        if "limits" not in self.parts:
            return
        limits = self._grid.limits()
        figures |= {"write_limit_bytes_per_s": limits.write, "read_limit_bytes_per_s": limits.read}
        self.report.samples["limits"] = [
            {"block": rate.block, "threads": rate.threads, "write": rate.write, "read": rate.read}
            for rate in limits.rates
        ]
        for name in (OURS, *PEERS, *READERS):
            for seconds, share, limit in (
                ("durable_s", "durable_share_of_limit", limits.write),
                ("durable_standing_s", "durable_standing_share_of_limit", limits.write),
                ("restore_cold_s", "restore_share_of_limit", limits.read),
            ):
                took_s = figures.get(figure_name(name, seconds))
                if took_s is not None:
                    figures[figure_name(name, share)] = self.bytes / took_s / limit


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: at most five minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"A part: {', '.join(PARTS)}. May be given again.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the files go; on a disk, not in memory.")
    ] = None,
    sequence: Annotated[int, typer.Option(min=1, max=256, help="Tokens of a sequence: how long a step is.")] = SEQUENCE,
    size: Annotated[str, typer.Option(help=f"Of the model: {', '.join(SHAPES)}.")] = "full",
) -> None:
    """Measure what a save takes from a training, and how fast it comes back."""
    # One compression takes minutes, since it waits for a processor that the training uses: quickly only if asked for.
    parts = frozenset(only or (part for part in PARTS if not (quick and part == "settle")))
    if parts - set(PARTS):
        raise typer.BadParameter(
            f"there is no part {', '.join(sorted(parts - set(PARTS)))}; there are {', '.join(PARTS)}"
        )
    logging.getLogger("mementum").setLevel(logging.CRITICAL)  # what fails is raised by the benchmark itself
    console = wide_console()
    folder = Path(tempfile.mkdtemp(prefix="bench-save-", dir=directory or Path.cwd()))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            effort = QUICK if quick else FULL
            bench = Bench(folder, effort=effort, sequence=sequence, size=size, parts=parts, progress=progress)
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
