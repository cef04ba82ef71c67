"""The benchmark of deciding: how much of the time of failing machines each policy turns into progress.

Each trace is a job on a whole machine that starts anew, 300 s after every failure, from its newest save. Policies may
learn from the first half of a trace and are judged on the second. Goodput: seconds of work that outlive their gap, of
all seconds. A save stops the work for C seconds and counts from its end. Ours is the default policy itself, fed with
the rates that `perceive.hazards` believes; `_replay` says how often it is asked.

Neither ours nor the best fixed interval in hindsight has a budget; a second pair of both is held to 5 % of the time.
A spot trace tests on 18 to 39 failures: how much hindsight wins on so few by chance alone is told beside its gap.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from _measure import SEED, Report
from _replay import (
    BUDGET_SHARE,
    RESTART_S,
    Array,
    Ours,
    Rates,
    best_fixed,
    capped,
    clairvoyant,
    fixed,
    luck_of_hindsight,
    online_mean,
    stepped,
    with_random_alarms,
)
from _tables import Bar, print_bars, print_table, wide_console
from _traces import Trace, read_traces
from rich.console import Console
from rich.progress import track

from mementum.decide.theory import daly, young
from mementum.decide.window import interval_steps
from mementum.records import record

DATA = Path(__file__).resolve().parents[1].parent / "shared/data"
COSTS_S = (0.15, 5.0, 60.0)
CHECKFREQ_SHARE = 0.035  # of the time that CheckFreq (FAST'21) lets saves take; it knows nothing of failures
WINDOW_ALPHA, WINDOW_BETA = 0.57, 0.02  # the median of a healthy GPT-2 run's log, and hardly any risk; steps of 1 s
BLOCK = 20  # failures that are drawn together: failures come in bursts
SPOT_BLOCK = 5  # of the spot traces, which have some dozens
FEW = 10 * BLOCK  # gaps: with fewer, chance decides which fixed interval was best
MOVED_TIMES = 20  # that a trace of few gaps is played with each of them moved by up to half an interval
PER_FAILURE = (1, 10, 100)
CLAIMED = 0.1  # the chance that random alarms claim at first
STEPPED_MOST_S = 10 * 86_400.0  # gaps that are played through step by step are shorter
STEPPED_LEAST = 100  # saves, of which 2 % can be told from one more at a gap's end
STEPPED_SHARE = 0.02  # of saves; a step is up to 1 % of an interval, and a gap ends in the midst of one
GAP_POINTS, ALARM_POINTS = 0.2, 0.1  # what is asked for
OURS, BEST, YOUNG, ONLINE = "ours", "best fixed in hindsight", "Young, true MTBF", "Young, online"
BEST_CAPPED, CAPPED = "best fixed that takes at most 5 %", "ours, at most 5 %"


@record
class Effort:
    """How much of everything is done."""

    draws: int  # of the bootstrap
    replicas: int  # of a trace with random alarms
    sampled: int  # gaps of a trace that are played through step by step
    step_s: float
    traces: frozenset[str] | None  # all


FULL = Effort(draws=1000, replicas=3, sampled=3, step_s=60.0, traces=None)
QUICK = Effort(draws=100, replicas=1, sampled=1, step_s=60.0, traces=frozenset({"LANL 16", "spot p3"}))


@record
class Played:
    """What each policy kept of every gap of one trace at one cost."""

    trace: str
    cost_s: float
    gaps_s: Array
    kept_s: dict[str, Array]
    best_interval_s: float
    asked: int

    def goodput(self, policy: str) -> float:
        """Per cent."""
        return 100 * float(self.kept_s[policy].sum() / self.gaps_s.sum())


def play(trace: Trace, rates: Rates, cost_s: float) -> Played:
    """All policies over the second half of a trace."""
    learnt_s, tested_s = trace.halves()
    gaps_s = np.array(tested_s)
    true_s, trained_s = float(gaps_s.mean()), float(np.mean(learnt_s))
    ours = Ours(rates, cost_s)
    best_s, best_kept_s = best_fixed(gaps_s, cost_s)
    window_s = interval_steps(2000, alpha=WINDOW_ALPHA, beta=WINDOW_BETA)
    intervals_s: dict[str, Array | float] = {
        "fixed 30 min": 1800.0,
        "fixed 1 h": 3600.0,
        "fixed 3 h": 10_800.0,
        YOUNG: young(cost_s, true_s),
        "Young, MTBF of the first half": young(cost_s, trained_s),
        ONLINE: np.sqrt(2 * cost_s * online_mean(learnt_s, gaps_s)),
        "Daly, true MTBF": daly(cost_s, true_s),
        "CheckFreq's cap": cost_s / CHECKFREQ_SHARE,
        "window": window_s,
    }
    kept_s = {name: fixed(gaps_s, interval_s, cost_s) for name, interval_s in intervals_s.items()}
    kept_s[BEST_CAPPED] = best_fixed(gaps_s, cost_s, float(capped(0.0, cost_s)))[1]
    kept_s[CAPPED] = Ours(rates, cost_s, overhead=BUDGET_SHARE).kept_s(tested_s)
    kept_s |= {OURS: ours.kept_s(tested_s), BEST: best_kept_s, "clairvoyant": clairvoyant(gaps_s, cost_s)}
    return Played(
        trace=trace.name, cost_s=cost_s, gaps_s=gaps_s, kept_s=kept_s, best_interval_s=best_s, asked=ours.asked
    )


def interval_of(played: Played, one: str, other: str, *, draws: int) -> tuple[float, float]:
    """Between which bounds 95 % of the differences in goodput lie, in points, if blocks of failures are drawn anew."""
    count = len(played.gaps_s)
    block = BLOCK if count >= FEW else SPOT_BLOCK
    draw = np.random.default_rng(SEED)
    starts = draw.integers(0, count, (draws, -(-count // block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(draws, -1)[:, :count] % count
    kept = (played.kept_s[one] - played.kept_s[other])[rows].sum(axis=1)
    low, high = np.percentile(100 * kept / played.gaps_s[rows].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def of_few(trace: Trace, rates: Rates, cost_s: float, effort: Effort) -> dict[str, float]:
    """What chance does to a trace of few gaps; nothing where there are many.

    `moved`: points of ours above the best fixed interval if each gap is longer or shorter by up to half an interval, as
    it would be another time. `luck`: mean and 95th percentile of what hindsight wins over the true rate by chance."""
    gaps_s, draw = np.array(trace.halves()[1]), np.random.default_rng(SEED)
    if len(gaps_s) >= FEW:
        return {}
    mean_s, ours, ours_s, moved_s = float(gaps_s.mean()), Ours(rates, cost_s), 0.0, []
    half_s = young(cost_s, mean_s) / 2
    for _ in range(MOVED_TIMES):
        moved_s.append(np.maximum(gaps_s + draw.uniform(-half_s, half_s, len(gaps_s)), 1.0))
        ours_s += float(ours.kept_s(moved_s[-1].tolist()).sum())
    all_s = np.concatenate(moved_s)
    best_s = float(best_fixed(all_s, cost_s)[1].sum())
    luck = luck_of_hindsight(len(gaps_s), mean_s, cost_s, draws=effort.draws // 5, draw=draw)
    return {
        "moved_points": 100 * (ours_s - best_s) / float(all_s.sum()),
        "luck_points_mean": float(luck.mean()),
        "luck_points_95": float(np.percentile(luck, 95)),
    }


def difference_when_stepped(trace: Trace, rates: Rates, cost_s: float, effort: Effort) -> float | None:
    """The part by which the closed form makes more saves than every step played through, on some gaps of many saves;
    None where there are too few of them."""
    ours, places = Ours(rates, cost_s), []
    for place, gap_s in enumerate(trace.halves()[1]):
        interval_s = young(cost_s, 1 / rates.by_gap[place][0])
        if RESTART_S + 10 * interval_s < gap_s < min(100 * interval_s, STEPPED_MOST_S):
            places.append((place, gap_s, min(interval_s / 100, effort.step_s)))
    picked = places[:: max(1, len(places) // effort.sampled)][: effort.sampled]
    closed = sum(ours.gap(gap_s, rates.by_gap[place])[1] for place, gap_s, _ in picked)
    played = sum(
        stepped(gap_s, hazards=rates.hazards[place], policy=ours.policy, cost_s=cost_s, step_s=step_s)
        for place, gap_s, step_s in picked
    )
    return closed / played - 1 if played >= STEPPED_LEAST else None


def alarmed(trace: Trace, rates: Rates, cost_s: float, effort: Effort) -> dict[str, dict[str, dict[str, float]]]:
    """By whether their chance follows how often they were right ("calibrated") or not ("believed"), and by alarms per
    failure: points of goodput above plain Young (online, and with the true MTBF) and above ours without any alarm.

    Where in an interval a failure falls is chance, and more of it than what is looked for: so the trace is played
    several times, each gap longer or shorter by up to half an interval, and all of them on the same gaps."""
    learnt_s, tested_s = trace.halves()
    gaps_s, ours, draw = np.array(tested_s), Ours(rates, cost_s), np.random.default_rng(SEED)
    online_s = np.sqrt(2 * cost_s * online_mean(learnt_s, gaps_s))
    true_s = young(cost_s, float(gaps_s.mean()))
    all_s, plain_s = 0.0, {"online": 0.0, "true": 0.0, "silent": 0.0}
    kept_s = {(learns, per_failure): 0.0 for learns in (True, False) for per_failure in PER_FAILURE}
    for _ in range(max(effort.replicas, effort.replicas * 1000 // len(gaps_s))):
        moved_s = np.maximum(gaps_s + draw.uniform(-0.5, 0.5, len(gaps_s)) * online_s, 1.0)

        def kept(per_failure: int, claimed: float, *, learns: bool, gaps_s: Array = moved_s) -> float:
            found = with_random_alarms(gaps_s, ours, per_failure=per_failure, claimed=claimed, learns=learns, draw=draw)
            return float(found.sum())

        all_s += float(moved_s.sum())
        plain_s["online"] += float(fixed(moved_s, online_s, cost_s).sum())
        plain_s["true"] += float(fixed(moved_s, true_s, cost_s).sum())
        plain_s["silent"] += kept(1, 0.0, learns=False)
        for learns, per_failure in kept_s:
            kept_s[learns, per_failure] += kept(per_failure, CLAIMED, learns=learns)

    def above(learns: bool, per_failure: int) -> dict[str, float]:
        return {name: 100 * (kept_s[learns, per_failure] - plain) / all_s for name, plain in plain_s.items()}

    return {
        "calibrated": {str(one): above(True, one) for one in PER_FAILURE},
        "believed": {str(one): above(False, one) for one in PER_FAILURE},
    }


class Bench:
    """All traces at all costs, and what comes of it."""

    def __init__(self, traces: tuple[Trace, ...], effort: Effort) -> None:
        self.report, self._traces, self._effort = Report(), traces, effort
        self.played: list[Played] = []

    def run(self, console: Console) -> None:
        raw: list[dict[str, object]] = []
        for trace in track(self._traces, description="traces", console=console):
            rates = Rates(*trace.halves(), nodes=trace.nodes)
            for cost_s in COSTS_S:
                played = play(trace, rates, cost_s)
                low, high = interval_of(played, OURS, BEST, draws=self._effort.draws)
                self.played.append(played)
                raw.append(
                    {
                        "trace": trace.name,
                        "failures": len(played.gaps_s),
                        "cost_s": cost_s,
                        "goodput": {name: played.goodput(name) for name in played.kept_s},
                        "best_interval_s": played.best_interval_s,
                        "ours_minus_best_points": played.goodput(OURS) - played.goodput(BEST),
                        "capped_minus_best_capped_points": played.goodput(CAPPED) - played.goodput(BEST_CAPPED),
                        "true_young_minus_best_points": played.goodput(YOUNG) - played.goodput(BEST),
                        "of_few": of_few(trace, rates, cost_s, self._effort),
                        "ours_minus_best_points_95": [low, high],
                        "policy_asked": played.asked,
                        "closed_over_stepped_share": difference_when_stepped(trace, rates, cost_s, self._effort),
                        "random_alarms": alarmed(trace, rates, cost_s, self._effort),
                    }
                )
        self.report.samples["replays"] = raw
        self.report.figures |= figures(raw)

    def show(self, console: Console) -> None:
        for cost_s in COSTS_S:
            rows = [one for one in self.played if one.cost_s == cost_s]
            names = sorted(rows[0].kept_s, key=lambda name: -sum(one.goodput(name) for one in rows))
            table = [(name, *(f"{one.goodput(name):.2f}" for one in rows)) for name in names]
            print_table(
                console, f"Goodput in %, a save costs {cost_s:g} s", ("policy", *(r.trace for r in rows)), table
            )
        self._show_few(console)
        told = self.report.figures
        print_bars(
            console,
            (
                Bar(what="LANL: points below best fixed", value=told["worst_gap_points_lanl"], bound=GAP_POINTS),
                Bar(what="spot: points below best fixed", value=told["worst_gap_points_spot"], bound=GAP_POINTS),
                Bar(what="all: points below best fixed", value=told["worst_gap_points"], bound=GAP_POINTS),
                Bar(
                    what="LANL, both at most 5 %: points below best fixed",
                    value=told["worst_gap_capped_points_lanl"],
                    bound=GAP_POINTS,
                ),
                Bar(
                    what="spot, both at most 5 %: points below best fixed",
                    value=told["worst_gap_capped_points_spot"],
                    bound=GAP_POINTS,
                ),
                Bar(
                    what="LANL, random alarms: points above plain Young",
                    value=told["ours_vs_young_random_alarms_points_lanl"],
                    bound=-ALARM_POINTS,
                    at_most=False,
                    note="online Young; the chance of an alarm follows how often such alarms were right",
                ),
                Bar(
                    what="LANL, the same, if alarms were believed for ever",
                    value=told["ours_vs_young_random_alarms_believed_points_lanl"],
                    bound=-ALARM_POINTS,
                    at_most=False,
                    note=f"each claims {CLAIMED:.0%}",
                ),
                Bar(
                    what="random alarms: points above plain Young",
                    value=told["ours_vs_young_random_alarms_points"],
                    bound=-ALARM_POINTS,
                    at_most=False,
                    note="the worst of all traces, costs and rates of alarms, online Young",
                ),
                Bar(
                    what="random alarms: points above ours without any alarm",
                    value=told["random_alarms_cost_points"],
                    bound=-ALARM_POINTS,
                    at_most=False,
                    note="what alarms cost: the rest is what few gaps do to any estimate of the rate",
                ),
                Bar(
                    what="the same, if alarms were believed for ever",
                    value=told["ours_vs_young_random_alarms_believed_points"],
                    bound=-ALARM_POINTS,
                    at_most=False,
                    note=f"each claims {CLAIMED:.0%}",
                ),
                Bar(
                    what="saves in closed form against every step played through, share",
                    value=told["closed_over_stepped_share"],
                    bound=STEPPED_SHARE,
                ),
            ),
        )

    def _show_few(self, console: Console) -> None:
        """Points below the best fixed interval in hindsight, where few gaps are tested."""
        rows = []
        for one in self.report.samples["replays"]:
            few = one["of_few"]
            if few:
                low, high = one["ours_minus_best_points_95"]
                rows.append(
                    (
                        f"{one['trace']}, {one['cost_s']:g} s",
                        str(one["failures"]),
                        f"{-one['ours_minus_best_points']:.2f}",
                        f"{-high:.2f} to {-low:.2f}",
                        f"{-one['true_young_minus_best_points']:.2f}",
                        f"{-few['moved_points']:.2f}",
                        f"{few['luck_points_mean']:.2f}, {few['luck_points_95']:.2f}",
                    )
                )
        columns = ("trace, C", "gaps", "ours", "95 %", "Young, true MTBF", "ours, gaps moved", "by chance: mean, 95th")
        print_table(console, "Points below the best fixed interval in hindsight, on few gaps", columns, rows)


def figures(raw: list[dict[str, object]]) -> dict[str, float | None]:
    """The worst of everything."""

    def worst_gap(word: str, name: str = "ours_minus_best_points") -> float | None:
        gaps = [-float(str(one[name])) for one in raw if str(one["trace"]).startswith(word)]
        return max(gaps, default=None)

    def worst_alarms(name: str, baseline: str, word: str = "") -> float | None:
        points = [
            values[baseline]
            for one in raw
            if str(one["trace"]).startswith(word)
            for values in one["random_alarms"][name].values()  # type: ignore[index]
        ]
        return min(points, default=None)

    return {
        "worst_gap_points": worst_gap(""),
        "worst_gap_points_lanl": worst_gap("LANL"),
        "worst_gap_points_spot": worst_gap("spot"),
        "worst_gap_capped_points_lanl": worst_gap("LANL", "capped_minus_best_capped_points"),
        "worst_gap_capped_points_spot": worst_gap("spot", "capped_minus_best_capped_points"),
        "worst_true_young_gap_points_spot": worst_gap("spot", "true_young_minus_best_points"),
        "ours_vs_young_random_alarms_points": worst_alarms("calibrated", "online"),
        "ours_vs_young_random_alarms_points_lanl": worst_alarms("calibrated", "online", "LANL"),
        "ours_vs_young_random_alarms_believed_points_lanl": worst_alarms("believed", "online", "LANL"),
        "random_alarms_cost_points": worst_alarms("calibrated", "silent"),
        "ours_vs_true_young_random_alarms_points": worst_alarms("calibrated", "true"),
        "ours_vs_young_random_alarms_believed_points": worst_alarms("believed", "online"),
        "closed_over_stepped_share": max(
            (abs(float(str(one[name]))) for one in raw if one[name := "closed_over_stepped_share"] is not None),
            default=None,
        ),
        "restart_s": RESTART_S,
    }


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Two traces, few draws.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw goodput there.")] = None,
    data: Annotated[Path, typer.Option(help="The folder that holds lanl/ and bamboo-spot/.")] = DATA,
) -> None:
    """Replay policies on public failure traces."""
    console, effort = wide_console(), QUICK if quick else FULL
    try:
        traces = read_traces(data)
    except FileNotFoundError as missing:
        console.print(f"no failure traces: {missing.filename} is missing; give --data FOLDER", highlight=False)
        raise typer.Exit(2) from None
    bench = Bench(tuple(one for one in traces if effort.traces is None or one.name in effort.traces), effort)
    bench.run(console)
    bench.show(console)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
