"""The benchmark of anomalies: whether the state from before a fault is still there, and known as clean, afterwards.

Small transformers are trained on real text with a fault from a known step on, each beside a twin of the same seed
without it, and what mementum sees is recorded (`_runs`, once: a run that is there is used again, and the benchmark can
be killed at any time). Then the policies are replayed over the recorded steps with equal slots and equally many
checkpoints written (`_keeping`), and judged at the step of detection plus the hold (`_judging`). docs/anomalies.md says
how."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from _judging import Harm, harm_of, is_captured, is_poisoned, is_there, wilson
from _keeping import Keeper, Look, Ours, look_at, looks, others, play
from _measure import Report
from _runs import OUT, Array, Setup, begin_process, run, stored
from _setups import DRIFTS, EACH, setups
from _tables import Bar, print_bars, print_table, told, wide_console
from rich.console import Console
from rich.progress import track

from mementum.decide.flight import EVERY
from mementum.perceive.vitals import VitalSigns
from mementum.records import Health, record

LOG = Path(__file__).resolve().parents[2] / "shared/data/modded-nanogpt-logs/llmc_gpt2-124M_2024-10-13_main.log"
LINE = re.compile(r"s:(\d+) trl:([\d.]+) lr:([\d.]+) norm:([\d.]+)")
PROCESSES = 2
OURS = "ours"
POLICIES = (OURS, "fixed", "window", "save_on_alarm")
DENSITIES = (20, 25, 33, 50, 75)  # steps between the flight recorder's snapshots, of which the captured share is told


@record
class Effort:
    """How many runs have a fault: of each family, and of the slow drift."""

    each: int
    drifts: int


FULL, QUICK = Effort(each=EACH, drifts=DRIFTS), Effort(each=2, drifts=8)


@record
class Row:
    """What came of one run with a fault."""

    setup: Setup
    harm: Harm
    detected: int | None  # the first step from the onset on that is not called clean
    estimate: int | None  # the earliest onset that was told from then until the moment
    moment: int  # the step at which is judged
    captured: dict[str, bool]
    there: dict[str, bool]
    poisoned: dict[str, bool]
    written: dict[str, int]
    newest_clean: dict[str, int | None]
    unsound: int  # states that ours calls clean although they hold something that is not finite
    by_density: dict[int, bool]

    @property
    def missed(self) -> str:
        """Why ours has not captured it; empty where it has."""
        onset, newest = self.setup.onset, self.newest_clean[OURS]
        if self.captured[OURS]:
            return ""
        if self.detected is None:
            return "not seen"
        if self.poisoned[OURS]:
            return "the onset was told too late" if (self.estimate or 0) > onset else "clean again too soon"
        if newest is None:
            return "nothing clean was left"
        early = onset - newest
        return f"kept {early} steps before" + (", a nearer one was taken for suspect" if self.there[OURS] else "")


def record_all(wanted: Sequence[Setup], folder: Path, console: Console, *, processes: int) -> None:
    """Train what is not there, on as many cores as there are `processes`."""
    todo = [(one, faulty) for one in wanted for faulty in (True, False) if stored(one, folder, faulty=faulty) is None]
    if not todo:
        return
    with ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=begin_process
    ) as pool:
        jobs = [pool.submit(run, one, folder, faulty=faulty) for one, faulty in todo]
        for job in track(as_completed(jobs), total=len(jobs), description="training", console=console):
            job.result()


def there(setup: Setup, folder: Path, *, faulty: bool) -> dict[str, Array]:
    found = stored(setup, folder, faulty=faulty)
    assert found is not None
    return found


def judged(setup: Setup, folder: Path, *, hold: int) -> Row:
    """All policies over one run with a fault."""
    hurt, twin = there(setup, folder, faulty=True), there(setup, folder, faulty=False)
    seen = look_at(hurt)
    last = len(seen)
    detected = next((look.step for look in seen[setup.onset - 1 :] if look.diagnosis.health is not Health.CLEAN), None)
    moment = last if detected is None else min(detected + hold, last)
    whole = hurt["state_finite"].tolist()
    sound = hurt["state_sound"].tolist()
    ours = play(Ours(sound), seen, moment)
    keepers: dict[str, Keeper] = {OURS: ours, **others(ours, seen, moment)}
    told = [one.diagnosis.onset for one in seen[(detected or last) - 1 : moment] if one.diagnosis.onset is not None]
    return Row(
        setup=setup,
        harm=harm_of(setup, hurt["losses"], twin["losses"], whole=all(whole)),
        detected=detected,
        estimate=min(told, default=None),
        moment=moment,
        captured={name: is_captured(setup, one.clean()) for name, one in keepers.items()},
        there={name: is_there(setup, one.states()) for name, one in keepers.items()},
        poisoned={name: is_poisoned(setup, one.clean()) for name, one in keepers.items()},
        written={name: one.written for name, one in keepers.items()},
        newest_clean={name: max(one.clean(), default=None) for name, one in keepers.items()},
        unsound=sum(not whole[step - 1] for step in ours.listed()),
        by_density={
            every: is_captured(setup, play(Ours(sound, every=every), seen, moment).clean()) for every in DENSITIES
        },
    )


@record
class Calm:
    """What a healthy run has cost."""

    steps: int
    quarantines: int
    alarm_saves: dict[str, int]


def calm_of(seen: Sequence[Look]) -> Calm:
    """Every policy over a healthy run."""
    last = len(seen)
    ours = play(Ours([True] * last), seen, last)
    alarms = sum(bool(look.alarms) for look in seen)
    saves = {OURS: ours.alarm_saves, "fixed": 0, "save_on_alarm": alarms}
    saves["window"] = sum(look.situation.risk_rose for look in seen)
    return Calm(steps=last, quarantines=max(look.diagnosis.episode for look in seen), alarm_saves=saves)


def healthy_log(path: Path) -> list[Look] | None:
    """The log of llm.c's GPT-2 124M as the product would have seen it; None where it is not there."""
    if not path.exists():
        return None
    signs = VitalSigns()
    return looks(
        [
            signs.observe(int(step), at_s=float(step), loss=float(loss), grad_norm=float(norm), lr=float(lr))
            for step, loss, lr, norm in LINE.findall(path.read_text(encoding="utf-8"))
        ]
    )


class Bench:
    """All runs, what came of them, and the figures."""

    def __init__(self, wanted: Sequence[Setup], folder: Path, log: Path) -> None:
        self._wanted, self._folder, self._log = wanted, folder, log
        self.report = Report()
        self.rows: list[Row] = []

    def run(self, console: Console) -> None:
        calm: list[Calm] = []
        for setup in track(self._wanted, description="replaying", console=console):
            seen = look_at(there(setup, self._folder, faulty=False))
            self.rows.append(judged(setup, self._folder, hold=seen[0].diagnosis.hold))
            calm.append(calm_of(seen))
        figures = self.report.figures
        figures |= captured_figures(self.rows)
        figures |= calm_figures("", calm)
        log = healthy_log(self._log)
        if log is None:
            self.report.notes["log.false_quarantines_per_1000"] = f"{self._log.name} is not there"
        else:
            figures |= calm_figures("log.", [calm_of(log)])
        self.report.samples["runs"] = [_plain(row) for row in self.rows]
        self.report.samples["twins"] = [
            {"name": setup.name, **asdict(one)} for setup, one in zip(self._wanted, calm, strict=True)
        ]

    def show(self, console: Console) -> None:
        self._show_families(console)
        self._show_policies(console)
        told = self.report.figures
        print_bars(
            console,
            (
                Bar(what="harmful runs, drift apart", value=told["harmful"], bound=100, at_most=False),
                Bar(
                    what="captured, drift apart",
                    value=told["captured_share"],
                    bound=0.95,
                    at_most=False,
                    note=f"fixed at equal bytes: {told['fixed.captured_share']:.2f}",
                ),
                Bar(what="drift: one from before", value=told["drift.captured_share"], bound=0.9, at_most=False),
                Bar(what="poisoned", value=told["poison_rate"], bound=0.0),
                Bar(what="not finite and called clean", value=told["unsound"], bound=0.0),
                Bar(what="twins: quarantines per 1000", value=told["false_quarantines_per_1000"], bound=0.1),
                Bar(what="twins: alarm saves per 1000", value=told["alarm_saves_per_1000"], bound=1.0),
                Bar(what="llm.c: quarantines per 1000", value=told.get("log.false_quarantines_per_1000"), bound=0.1),
                Bar(what="llm.c: alarm saves per 1000", value=told.get("log.alarm_saves_per_1000"), bound=1.0),
            ),
        )

    def _show_families(self, console: Console) -> None:
        families: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            families[row.setup.family].append(row)
        table = []
        for family, rows in families.items():
            harmful = [row for row in rows if row.harm.harmful]
            hits = sum(row.captured[OURS] for row in harmful)
            low, high = wilson(hits, len(harmful))
            delays = [row.detected - row.setup.onset for row in harmful if row.detected is not None]
            early = [row.setup.onset - row.estimate for row in harmful if row.estimate is not None]
            table.append(
                (
                    family,
                    str(len(rows)),
                    str(len(harmful)),
                    str(hits),
                    f"{low:.2f}–{high:.2f}",
                    str(sum(row.captured["fixed"] for row in harmful)),
                    str(sum(row.there["fixed"] for row in harmful)),
                    str(sum(row.poisoned[OURS] for row in harmful)),
                    str(len(harmful) - len(delays)),
                    told(float(np.median(delays)), 0) if delays else "–",
                    told(float(np.median(early)), 0) if early else "–",
                    str(min(early, default="–")),
                    str(sum(row.detected is not None for row in rows if not row.harm.harmful)),
                )
            )
        columns = ("family", "runs", "harmful", "ours", "95 %", "fixed", "fixed has it", "poisoned", "unseen")
        more = ("seen after", "onset early by", "least", "harmless, seen")
        print_table(
            console, "Harmful runs whose state from before the fault is kept and called clean", columns + more, table
        )

    def _show_policies(self, console: Console) -> None:
        figures, table = self.report.figures, []
        for name in POLICIES:
            prefix = "" if name == OURS else f"{name}."
            figure = [figures[f"{prefix}{one}"] for one in ("captured_share", "captured_share_lo", "there_share")]
            figure += [figures[f"{prefix}{one}"] for one in ("drift.captured_share", "poison_rate", "written")]
            table.append((name, *map(told, figure), told(figures[f"{prefix}alarm_saves_per_1000"])))
        missed = [
            (
                row.setup.name,
                row.setup.kind,
                str(row.setup.onset),
                "–" if row.estimate is None else str(row.estimate),
                "–" if row.detected is None else str(row.detected),
                row.missed,
            )
            for row in self.rows
            if row.harm.harmful and row.missed
        ]
        print_table(console, "Harmful and not captured", ("run", "kind", "onset", "told", "seen at", "why"), missed)
        columns = ("policy", "captured", "at least", "there", "drift", "poisoned", "written", "alarm saves per 1000")
        print_table(console, "At equally many checkpoints written and three slots", columns, table)
        shares = [(str(every), told(figures[f"every_{every}.captured_share"])) for every in DENSITIES]
        print_table(console, f"By steps between snapshots in memory ({EVERY} above)", ("steps", "captured"), shares)


def captured_figures(rows: Sequence[Row]) -> dict[str, float | None]:
    """Shares of the harmful runs, drift apart; ours also without a prefix."""
    harmful = [row for row in rows if row.harm.harmful and not row.setup.drift]
    drifts = [row for row in rows if row.harm.harmful and row.setup.drift]
    figures: dict[str, float | None] = {
        "runs": len(rows),
        "harmful": len(harmful),
        "harmful_drift": len(drifts),
        "injected_harmless": sum(not row.harm.harmful for row in rows),
        "injected_harmless_quarantined": sum(not row.harm.harmful and row.detected is not None for row in rows),
        "unseen": sum(row.detected is None for row in harmful),
        "unsound": sum(row.unsound for row in rows),
    }
    for name in POLICIES:
        hits = sum(row.captured[name] for row in harmful)
        of_policy: dict[str, float | None] = {
            "captured_share": _share(hits, len(harmful)),
            "captured_share_lo": wilson(hits, len(harmful))[0],
            "captured_share_hi": wilson(hits, len(harmful))[1],
            "there_share": _share(sum(row.there[name] for row in harmful), len(harmful)),
            "drift.captured_share": _share(sum(row.captured[name] for row in drifts), len(drifts)),
            "drift.poison_rate": _share(sum(row.poisoned[name] for row in drifts), len(drifts)),
            "poison_rate": _share(sum(row.poisoned[name] for row in harmful), len(harmful)),
            "written": _share(sum(row.written[name] for row in rows), len(rows)),
        }
        figures |= {f"{name}.{figure}": value for figure, value in of_policy.items()}
        if name == OURS:
            figures |= of_policy
    for every in DENSITIES:
        figures[f"every_{every}.captured_share"] = _share(sum(row.by_density[every] for row in harmful), len(harmful))
    return figures


def calm_figures(prefix: str, calm: Sequence[Calm]) -> dict[str, float | None]:
    """By 1000 healthy steps."""
    thousands = sum(one.steps for one in calm) / 1000
    figures: dict[str, float | None] = {
        "healthy_steps": 1000 * thousands,
        "false_quarantines_per_1000": sum(one.quarantines for one in calm) / thousands,
    }
    for name in POLICIES:
        saves = sum(one.alarm_saves[name] for one in calm) / thousands
        figures[f"{name}.alarm_saves_per_1000"] = saves
        if name == OURS:
            figures["alarm_saves_per_1000"] = saves
    return {f"{prefix}{name}": value for name, value in figures.items()}


def _share(hits: int, of: int) -> float | None:
    return hits / of if of else None


def _plain(row: Row) -> dict[str, object]:
    plain = asdict(row)
    excess = row.harm.excess
    plain["missed"] = row.missed
    plain["harm"]["excess"] = excess if np.isfinite(excess) else None
    return plain


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Two runs of each family, eight of the drift.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw rows there.")] = None,
    folder: Annotated[Path, typer.Option("--runs", help="Where recorded runs lie, and are looked for.")] = OUT,
    log: Annotated[Path, typer.Option(help="The healthy run's log.")] = LOG,
    processes: Annotated[int, typer.Option(help="Runs that are trained at once, each on one thread.")] = PROCESSES,
    recorded: Annotated[bool, typer.Option("--recorded", help="Train nothing: replay what is there.")] = False,
) -> None:
    """Train runs with faults and their twins, and replay policies over them."""
    console, effort = wide_console(), QUICK if quick else FULL
    wanted = setups(each=effort.each, drifts=effort.drifts)
    if recorded:
        wanted = tuple(
            one for one in wanted if all(stored(one, folder, faulty=faulty) is not None for faulty in (True, False))
        )
    else:
        record_all(wanted, folder, console, processes=processes)
    if not wanted:
        console.print(f"no recorded runs in {folder}; run without --recorded first", highlight=False)
        raise typer.Exit(2)
    bench = Bench(wanted, folder, log)
    bench.run(console)
    bench.show(console)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
