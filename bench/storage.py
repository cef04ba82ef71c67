"""The benchmark of storage: bytes of a checkpoint, bytes written, and bytes that stay, beside `torch.save`.

All of it are runs on the disk, weighed as `du` does: what is allocated, files with several names once, folders
included. Written is what the kernel says that this process had written."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from _measure import Report
from _storage_chain import Kept, measure
from _storage_content import Plan, Weighing
from _storage_decision import FIXED_STEPS, LOST_MOST, STRIDE, Decided, decide, fixed
from _storage_shown import show
from _storage_trainings import MIDDLE, SMALL, Characters, Training
from _tables import wide_console
from rich.progress import Progress

from mementum.records import record

Make = Callable[[], Training]


@record
class Effort:
    """How much of everything is done. `steps`: of the run that decides for itself. `turns`: saves in 30 days."""

    plans: dict[str, tuple[Make, Plan]]
    steps: int
    turns: int
    ways: tuple[str, ...] = ("ours",)  # of deciding


def encoder(*, adapted: bool) -> Training:
    """MiniLM; what it needs is imported for it alone."""
    from _storage_encoder import Sentences

    return Sentences(adapted=adapted)


FULL, BF16 = partial(Characters, MIDDLE), partial(Characters, MIDDLE, dtype=torch.bfloat16)
ALL_OF_IT, ADAPTED = partial(encoder, adapted=False), partial(encoder, adapted=True)
BOTH = ("planes", "delta")

LONG = Effort(
    plans={
        "full": (FULL, Plan(warm=200, saves=12, every=10, keep=5, tiers=("delta",))),
        "near": (FULL, Plan(warm=200, saves=12, every=1, keep=5, codecs=BOTH, tiers=("delta",))),
        "bf16": (BF16, Plan(warm=200, saves=12, every=10, keep=5, codecs=BOTH, tiers=("delta",))),
        "encoder": (ALL_OF_IT, Plan(warm=30, saves=5, every=5, keep=3, tiers=("delta",))),
        "lora": (ADAPTED, Plan(warm=5, saves=12, every=2, keep=5, adapters=True)),
    },
    steps=120_000,
    turns=150,
    ways=("ours", "default"),
)
QUICK = Effort(
    plans={
        "full": (FULL, Plan(warm=30, saves=5, every=10, keep=2, codecs=("raw", "planes"), tiers=("delta",))),
        "near": (FULL, Plan(warm=30, saves=3, every=1, keep=2, codecs=("delta",), tiers=("delta",))),
        "bf16": (BF16, Plan(warm=30, saves=3, every=10, keep=2, codecs=("delta",), tiers=("delta",))),
        "lora": (ADAPTED, Plan(warm=2, saves=6, every=1, keep=3, codecs=("raw", "planes"), adapters=True)),
    },
    steps=16_000,
    turns=16,
)
TINY = Effort(  # shows that the benchmark works; its figures say nothing
    plans={"full": (partial(Characters, SMALL), Plan(warm=2, saves=2, every=1, keep=1, codecs=("raw", "planes")))},
    steps=FIXED_STEPS,
    turns=2,
)


class Bench:
    """Everything that is weighed, and the figures of it."""

    def __init__(self, folder: Path, effort: Effort) -> None:
        self.report, self.effort, self._folder = Report(), effort, folder
        self.weighed: dict[str, Weighing] = {}
        self.decided: dict[str, Decided] = {}
        self.kept: list[Kept] = []

    def run(self, progress: Progress) -> None:
        for name, (make, plan) in self.effort.plans.items():
            task = progress.add_task(name, total=plan.saves)
            below = self._folder / name
            weighing = self.weighed[name] = Weighing(make, below, plan, advance=partial(progress.advance, task))
            weighing.run()
            shutil.rmtree(below)
        steps = self.effort.steps
        self.decided["fixed"] = fixed(steps)
        for name in self.effort.ways:
            most = LOST_MOST if name == "ours" else None
            task = progress.add_task(f"deciding: {name}", total=steps)
            advance = partial(progress.advance, task, STRIDE)
            self.decided[name] = decide(self._folder / f"decision-{name}", steps=steps, tolerance=most, advance=advance)
        task = progress.add_task("30 days", total=self.effort.turns)
        less = min(1.0, self.decided["ours"].per_1000 / self.decided["fixed"].per_1000)
        turns, advance = self.effort.turns, partial(progress.advance, task)
        self.kept = measure(self._folder / "chain", saves=less, turns=turns, advance=advance)
        self._tell()

    def _tell(self) -> None:
        report = self.report
        for name, weighing in self.weighed.items():
            report.figures |= {f"{name}.{what}": value for what, value in weighing.figures.items()}
            report.samples[name] = weighing.samples
        report.figures |= contents(self.weighed) | decisions(self.decided, self.weighed["full"]) | parts(self.kept)


def contents(weighed: dict[str, Weighing]) -> dict[str, float | None]:
    """To `torch.save`: a checkpoint of equal content, and what stays of many under the same keep rule."""
    found: dict[str, float | None] = {}
    for name, weighing in weighed.items():
        found[f"content_share_{name}"] = weighing.share("planes")
        found[f"kept_share_{name}"] = weighing.share("last_planes", what="kept", of="torch_save")
        for codec in ("raw", "delta"):
            found[f"content_share_{name}_{codec}"] = weighing.share(codec)
            found[f"kept_share_{name}_{codec}"] = weighing.share(f"last_{codec}", what="kept")
        found[f"content_share_{name}_tier"] = weighing.share("tier_delta")
        found[f"written_share_{name}_a_save"] = weighing.share("raw", what="written")
        found[f"written_share_{name}_a_save_planes"] = weighing.share("planes", what="written")
        for peer in ("dcp_save", "safetensors", "adapters_alone"):
            found[f"{peer}.content_share_{name}"] = weighing.share(peer)
    return found


def decisions(decided: dict[str, Decided], full: Weighing) -> dict[str, float | None]:
    """Saves and losses of each way, and what ours writes in 1000 steps to what `torch.save` at 2000 steps does."""
    found: dict[str, float | None] = {}
    for name, one in decided.items():
        found[f"saves_per_1000_{name}"], found[f"lost_steps_{name}"] = one.per_1000, one.lost
        found[f"lost_steps_process_{name}"], found[f"lost_steps_reboot_{name}"] = one.lost_process, one.lost_reboot
    times = decided["ours"].per_1000 / decided["fixed"].per_1000
    raw, planes = full.share("raw", what="written"), full.share("planes", what="written")
    found["written_share"] = None if raw is None else raw * times
    found["written_share_planes"] = None if planes is None else planes * times
    found["written_share_same_interval"] = raw
    found["lost_share"] = decided["ours"].lost / decided["fixed"].lost
    return found


def parts(kept: list[Kept]) -> dict[str, float | None]:
    """What is left of `torch.save` of everything, way by way."""
    whole, *ways = kept
    return {f"left_{one.name.replace(' ', '_')}": one.size / whole.size for one in ways}


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer saves, and no encoder.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the files go.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Saves in the 30 days.")] = None,
    size: Annotated[str, typer.Option(help="full; tiny: figures that say nothing, in seconds.")] = "full",
) -> None:
    """Weigh what is saved, beside what `torch.save` of everything takes."""
    if size not in ("full", "tiny"):
        raise typer.BadParameter(f"there is no size {size}; there are full, tiny")
    logging.getLogger("mementum").setLevel(logging.CRITICAL)  # what fails is raised by the benchmark itself
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # of transformers, by peft
    torch.set_num_threads(
        1
    )  # bytes are what is asked for, and on a busy machine threads that wait for each other crawl
    effort = TINY if size == "tiny" else QUICK if quick else LONG
    effort = effort if turns is None else replace(effort, turns=turns)
    folder = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=directory or Path.cwd()))
    console = wide_console()
    bench = Bench(folder, effort)
    try:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bench.run(progress)
    finally:
        shutil.rmtree(folder)
    show(console, bench.weighed, bench.decided, bench.kept, bench.report)
    if json_file is not None:
        json_file.write_text(json.dumps(bench.report.document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
