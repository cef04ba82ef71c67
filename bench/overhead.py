"""The benchmark of watching: what all seeing and deciding takes of a step, hooks included, saves excluded.

Two trainings: the demo's, a step of some ten milliseconds, and one of 100 million parameters (1.2 GB of state with
AdamW in fp32). Both run under a policy that asks the default one and saves nothing, so that all is seen and decided.
What is timed is our own code, where a program calls it: `run.record`, the hook before the optimizer's step, and the
end of the step; by the clock, and by the processor time of that thread. Seconds of the clock contain what other
programs took of the machine meanwhile. Then the same again with the parts timed. `beside`: processor time of threads
of ours, a step.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from _measure import Processor, Report, quantile
from _model import SHAPES, Training
from _spans import Spans
from _tables import Bar, print_bars, print_table, told, wide_console
from rich.console import Console
from torch.utils.data import DataLoader

import mementum
from mementum.config.settings import Settings
from mementum.decide.policy import Policy
from mementum.deciding import Deciding
from mementum.perceive import adam
from mementum.perceive.alarms import Detectors
from mementum.perceive.budgets import Budgets
from mementum.perceive.costs import Costs
from mementum.perceive.exposure import Exposure
from mementum.perceive.gradients import Gradients
from mementum.perceive.hazards import Hazards
from mementum.perceive.memory import Memory
from mementum.perceive.recorder import Recorder
from mementum.perceive.sample import Sample
from mementum.perceive.situation import Perception
from mementum.perceive.stepping import Stepping
from mementum.perceive.vitals import GradientReading, VitalSigns
from mementum.policies import policy_of
from mementum.records import Decision, Situation, Skip, record
from mementum.run import Run

sys.path.append(str(Path(__file__).resolve().parents[1] / "demo"))
from text import Windows, read_text
from train import CLIP_NORM, PEAK_RATE, new_model

SEQUENCE = 48  # tokens; with a batch of two a step takes 0.4 to 0.7 s on two cores
WARM_STEPS = 25  # in which everything was read once in full, and torch has made its threads
NEVER = 1_000_000  # steps
DEMO_MS, DEMO_MS_P99, BIG_SHARE = 0.5, 5.0, 0.003  # what is asked for
Groups = dict[str, tuple[tuple[object, str], ...]]

ALL: Groups = {"all": ((Run, "record"), (Run, "_end_step"), (Gradients, "_before_step"))}
PARTS: Groups = {
    "gradients, hook": ((Gradients, "_before_step"),),
    "gradients, sample": ((Sample, "norms"),),
    "gradients, in full": ((Stepping, "_read_in_full"),),
    "gradients, moments": ((adam, "read"),),
    "gradients, understood": ((Gradients, "take"),),
    "vital signs": ((VitalSigns, "observe"),),
    "memory": ((Memory, "look"),),
    "detectors": ((Detectors, "look"),),
    "costs": ((Costs, "every"),),
    "rates and exposure": ((Hazards, "rates"), (Exposure, "advance"), (Perception, "_standing")),
    "budgets": ((Budgets, "allowances"),),
    "policy": ((Deciding, "_decide"),),
    "recorder": ((Deciding, "_record"),),
    "recorder, form": ((Recorder, "add"), (Recorder, "due")),
    "looking, all": ((Perception, "look"),),
}


@record
class Effort:
    """Steps that are measured: of the demo, and of the large model."""

    demo: int
    big: int


FULL, QUICK = Effort(demo=2000, big=120), Effort(demo=150, big=40)
TINY = Effort(demo=20, big=40)  # shows that the benchmark works; its figures say nothing


@record
class Weighing:
    """Asks `policy`, and saves nothing."""

    policy: Policy

    def decide(self, situation: Situation) -> Decision | None:
        decision = self.policy.decide(situation)
        return decision if decision is None or isinstance(decision, Skip) else Skip(reason="nothing is saved here")


class Watched:
    """One training under watch: what is measured of it, and how well the gradients are known."""

    def __init__(self, folder: Path, *, steps: int, groups: Groups) -> None:
        self.spans, self.step_s = Spans(), list[float]()
        self.errors: list[float] = []
        self.part, self.own_error, self.beside_s = 0.0, None, 0.0
        self._folder, self._steps, self._groups = folder, steps, groups

    def demo(self) -> Watched:
        """The demo's program, clipping and telling what it does."""
        random.seed(0)
        torch.manual_seed(0)
        model = new_model(hidden=128, layers=4, window=64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
        loader = DataLoader(Windows(read_text(None), length=64), batch_size=4, shuffle=True)

        def backward(tokens: torch.Tensor) -> dict[str, Any]:
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            return {"loss": loss, "grad_norm": norm, "lr": PEAK_RATE}

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the demo does
        try:
            self._train(model, optimizer, backward, loader)
        finally:
            torch.set_num_threads(threads)
        return self

    def big(self, size: str, sequence: int) -> Watched:
        """The large model, whose program tells its loss alone: the norm has to be read."""
        training = Training(seed=1, sequence=sequence, size=size)
        self._train(training.model, training.optimizer, lambda _: {"loss": training.backward()})
        return self

    def _train(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        backward: Callable[[Any], dict[str, Any]],
        loader: DataLoader[torch.Tensor] | None = None,
    ) -> None:
        spans, total = self.spans, WARM_STEPS + self._steps
        with spans.over(self._groups), readings_of() as read, opened(self._folder, model, optimizer) as run:
            steps = ((step, None) for step in range(1, total + 1)) if loader is None else run.steps(loader, total)
            for step, batch in steps:
                began_s = time.perf_counter()
                metrics = backward(batch)
                passed_s = time.perf_counter() - began_s
                norm = norm_of(optimizer)  # not ours, and not timed
                began_s = time.perf_counter()
                optimizer.step()
                optimizer.zero_grad()
                known = len(read)
                run.record(**metrics)
                self.step_s.append(passed_s + time.perf_counter() - began_s)
                self.errors += [abs(one.norm / norm - 1) for _, one in read[known:] if one.norm is not None]
                spans.end_step()
                if step == WARM_STEPS:
                    spans.forget()
                    self.errors.clear()
                    self.step_s.clear()
                    processor = Processor(beside=own_threads())  # torch's threads are there by now
                    used = processor.read()
            passed = processor.read().since(used)
        self.beside_s = (passed.all_s - passed.trainers_s) / self._steps
        (sampling,) = read[-1][0].sampling()
        self.part, self.own_error = sampling.part, sampling.error


@contextmanager
def readings_of() -> Iterator[list[tuple[Gradients, GradientReading]]]:
    """What `Gradients.take` gives, the newest last; nothing at a step that was not read."""
    read: list[tuple[Gradients, GradientReading]] = []
    take = Gradients.take

    def kept(gradients: Gradients, *args: Any, **kwargs: Any) -> GradientReading | None:
        reading = take(gradients, *args, **kwargs)
        if reading is not None:
            read.append((gradients, reading))
        return reading

    with patch.object(Gradients, "take", kept):
        yield read


@contextmanager
def opened(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Run]:
    """A run that sees and weighs everything; it makes no save at its end either."""
    policy = Weighing(policy=policy_of(None, Settings(), explicit=False))
    seldom = {"recorder": {"every": NEVER}}  # it is asked at every step, and its snapshots are saves
    run = mementum.open_run(
        folder, task="watched", model=model, optimizer=optimizer, policy=policy, config=seldom, resume="never"
    )
    try:
        yield run
    finally:
        run.close(why="measured")


def own_threads() -> frozenset[int | None]:
    """Those of ours that there are now, as the kernel numbers them."""
    return frozenset(one.native_id for one in threading.enumerate() if one.name.startswith("mementum"))


def norm_of(optimizer: torch.optim.Optimizer) -> float:
    """Of all gradients that it is about to use."""
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    return float(torch.stack(torch._foreach_norm(gradients)).norm())


class Bench:
    """Each training twice: timed in all, and in its parts."""

    def __init__(self, folder: Path, *, effort: Effort, size: str, sequence: int) -> None:
        self.report, self.parts = Report(), dict[str, dict[str, float]]()
        self._folder, self._effort, self._size, self._sequence = folder, effort, size, sequence

    def run(self) -> None:
        for name, steps in (("demo", self._effort.demo), ("big", self._effort.big)):
            whole = self._watch(f"{name}-all", steps, ALL)
            self._figures(name, whole)
            parts = self._watch(f"{name}-parts", max(steps // 2, 1), PARTS)
            self.parts[name] = {
                part: 1e3 * statistics.fmean(seconds) for part, seconds in parts.spans.wall_s.items() if seconds
            }
        share = self.report.figures["big_ms_mean"], self.report.figures["big_step_ms"]
        self.report.figures["big_share"] = None if None in share else share[0] / share[1]
        self.report.samples["parts_ms_mean"] = self.parts

    def _watch(self, name: str, steps: int, groups: Groups) -> Watched:
        watched = Watched(self._folder / name, steps=steps, groups=groups)
        return watched.demo() if name.startswith("demo") else watched.big(self._size, self._sequence)

    def _figures(self, name: str, watched: Watched) -> None:
        wall_s, cpu_s = watched.spans.wall_s["all"], watched.spans.cpu_s["all"]
        self.report.figures |= {
            f"{name}_ms_mean": 1e3 * statistics.fmean(wall_s),
            f"{name}_ms_median": 1e3 * statistics.median(wall_s),
            f"{name}_ms_p99": 1e3 * quantile(wall_s, 0.99),
            f"{name}_cpu_ms_mean": 1e3 * statistics.fmean(cpu_s),
            f"{name}_cpu_ms_p99": 1e3 * quantile(cpu_s, 0.99),
            f"{name}_beside_ms_mean": 1e3 * watched.beside_s,
            f"{name}_step_ms": 1e3 * statistics.median(watched.step_s),
            f"{name}_part": watched.part,
            f"{name}_norm_error": statistics.median(watched.errors) if watched.errors else None,
            f"{name}_own_error": watched.own_error,
        }
        self.report.samples[name] = {"wall_s": wall_s, "cpu_s": cpu_s, "step_s": watched.step_s}


def show(console: Console, bench: Bench) -> None:
    """Tables for people: what a step's watching takes, its parts, and what is asked for."""
    figures = bench.report.figures
    names = ("ms_mean", "ms_median", "ms_p99", "cpu_ms_mean", "cpu_ms_p99", "beside_ms_mean", "step_ms")
    rows = [(name, told(figures[f"demo_{name}"]), told(figures[f"big_{name}"])) for name in names]
    known = ("part", "norm_error", "own_error")
    rows += [(name, told(figures[f"demo_{name}"], 5), told(figures[f"big_{name}"], 5)) for name in known]
    print_table(console, "Of a step", ("figure", "demo", "1.2 GB"), rows)
    parts = [(part, *(told(bench.parts[name].get(part), 4) for name in ("demo", "big"))) for part in PARTS]
    print_table(console, "Parts, mean ms a step", ("part", "demo", "1.2 GB"), parts)
    print_bars(
        console,
        [
            Bar(what="demo, ms a step", value=figures["demo_ms_mean"], bound=DEMO_MS),
            Bar(what="demo, ms, 99th percentile", value=figures["demo_ms_p99"], bound=DEMO_MS_P99),
            Bar(what="1.2 GB, share of the median step", value=figures["big_share"], bound=BIG_SHARE),
        ],
    )


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps: a minute.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    sequence: Annotated[int, typer.Option(min=1, max=256, help="Tokens of a sequence: how long a step is.")] = SEQUENCE,
    size: Annotated[str, typer.Option(help=f"Of the large model: {', '.join(SHAPES)}.")] = "full",
) -> None:
    """Measure what all seeing and deciding takes of a step."""
    logging.getLogger("mementum").setLevel(logging.CRITICAL)  # what is told is no figure
    console = wide_console()
    folder = Path(tempfile.mkdtemp(prefix="bench-overhead-", dir=Path.cwd()))
    try:
        effort = TINY if size == "tiny" else QUICK if quick else FULL
        bench = Bench(folder, effort=effort, size=size, sequence=sequence)
        bench.run()
    finally:
        shutil.rmtree(folder)
    show(console, bench)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
