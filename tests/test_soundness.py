"""What is not finite is written and marked as diverged; no run resumes from it while there is something clean."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import mementum
from mementum.cli.reading import look
from mementum.events import Diagnosed, Note, NotFinite
from mementum.records import Entry, Health
from mementum.soundness import Soundness
from trips import Told

NAN, INF = float("nan"), float("inf")


class Net(torch.nn.Module):
    """A line with a mask, and a gate that may begin as it likes."""

    def __init__(self, gate: float = 0.0) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)
        self.gate = torch.nn.Parameter(torch.tensor([0.0, gate]), requires_grad=False)
        self.register_buffer("mask", torch.full((2, 2), -INF).triu(1))


def train(
    root: Path, steps: range, *, net: Net | None = None, spoil: int | None = None, told: Any = (), **options: Any
) -> None:
    """A run that saves at every step; at step `spoil` a weight becomes NaN, and the loss does not show it."""
    torch.manual_seed(5)
    net = net or Net()
    optimizer = torch.optim.Adam(net.line.parameters(), lr=1e-2)
    options = {"every_steps": 1, **options}
    with mementum.open_run(root, task="t", model=net, optimizer=optimizer, on_event=told, **options) as run:
        assert run.step == steps.start
        for step in steps:
            optimizer.zero_grad()
            net.line(torch.ones(2, 3)).pow(2).mean().backward()
            optimizer.step()
            if step + 1 == spoil:
                with torch.no_grad():
                    net.line.weight[0, 1] = NAN
            run.record(loss=1.0)
            run.wait()


def entries(root: Path) -> dict[int, Entry]:
    return {held.entry.manifest.step: held.entry for held in look(str(root)).held}


def test_a_state_with_nan_is_diverged_and_the_next_start_goes_before_it(tmp_path: Path) -> None:
    told = Told()
    train(tmp_path, range(6), spoil=4, told=told, keep_last=None)
    found = entries(tmp_path)
    assert {step: entry.manifest.health for step, entry in found.items()} == {
        1: Health.CLEAN,
        2: Health.CLEAN,
        3: Health.CLEAN,
        **dict.fromkeys((4, 5, 6), Health.DIVERGED),
    }
    assert found[4].manifest.decision["non_finite"] == "model.line.weight"
    events = told.of(NotFinite)
    assert [(one.id, one.step, one.name, one.after_step) for one in events] == [
        (found[step].manifest.id, step, "model.line.weight", 3) for step in (4, 5, 6)
    ]
    train(tmp_path, range(3, 4))


def test_the_run_hears_of_what_its_vital_signs_do_not_show(tmp_path: Path) -> None:
    """From the step after the newest state that was finite on, nothing is trusted."""
    told = Told()
    train(tmp_path, range(12), spoil=9, told=told, keep_last=None, every_steps=3)
    (first,) = {one.diagnosis.onset for one in told.of(Diagnosed)}
    assert first == 7  # the state of step 6 was saved, and finite
    assert told.of(Diagnosed)[0].diagnosis.why == "model.line.weight is not finite"
    assert {step: entry.health.value for step, entry in entries(tmp_path).items()} == {
        3: "clean",
        6: "clean",
        9: "diverged",
        12: "diverged",
    }
    assert entries(tmp_path)[6].pinned is not None


def test_after_going_back_other_steps_count(tmp_path: Path) -> None:
    """What was finite on the branch that was left says nothing of the one that the run is on."""
    images: list[str | None] = [None, None, "m.w"]
    told = Told()
    facts: list[str] = []

    class Looks:
        def first_bad(self, images_: Any) -> str | None:
            return images.pop(0)

    def tell(kind: str, **values: Any) -> None:
        facts.append(f"{kind} {values['checkpoint']} {values['step']} {values['values']['health']}")

    looks: Any = Looks()
    soundness = Soundness(looks, step=0, tell=tell, emit=told)
    for id, step in (("c1", 10), ("c2", 40)):
        soundness.look(_snapshot(id, step), _never)
    soundness.rewound(20)
    soundness.look(_snapshot("c3", 50), _never)
    (found,) = told
    assert (found.step, found.after_step) == (50, 20)
    assert facts == ["health c3 50 diverged"]
    assert soundness.take_found() == found
    assert soundness.take_found() is None


def _snapshot(id: str, step: int) -> Any:
    return SimpleNamespace(id=id, step=step, images=())


def _never(snapshot: Any, files: Any) -> Any:
    raise AssertionError("nothing is described here")


def test_what_an_optimizer_remembers(tmp_path: Path) -> None:
    """Moments that are far too large leave the weight alone: it stands still from then on, and nothing else tells."""
    net = Net()
    optimizer = torch.optim.Adam(net.line.parameters(), lr=1e-2)
    with mementum.open_run(tmp_path, task="t", model=net, optimizer=optimizer, every_steps=1, keep_last=None) as run:
        for scale in (1.0, 1e30, 1.0):
            optimizer.zero_grad()
            (net.line(torch.ones(2, 3)).mean() * scale).backward()
            optimizer.step()
            run.record(loss=1.0)
            run.wait()
        assert torch.isfinite(net.line.weight).all()
    found = entries(tmp_path)
    assert [found[step].health for step in (1, 2, 3)] == [Health.CLEAN, Health.DIVERGED, Health.DIVERGED]
    assert found[2].manifest.decision["non_finite"] == "optimizer.state/model.line.weight/exp_avg_sq"


def test_no_later_fact_makes_it_clean(tmp_path: Path) -> None:
    """Nor does a catalog that is made anew from what lies on the disk forget it."""
    train(tmp_path, range(3), spoil=2, keep_last=None)
    entry = entries(tmp_path)[2]
    (journal,) = tmp_path.glob("*/*/journal/*.jsonl") or tmp_path.glob("*/journal/*.jsonl")
    fact = {"kind": "health", "time": "2099-01-01T00:00:00.000000Z", "checkpoint": entry.manifest.id, "step": 2}
    with journal.open("a") as lines:
        lines.write(json.dumps({**fact, "values": {"health": "clean", "why": "calm"}}) + "\n")
    for _ in range(2):
        assert entries(tmp_path)[2].health is Health.DIVERGED
        for cache in tmp_path.glob("catalog.db*"):
            cache.unlink()


def test_a_gate_that_begins_infinite_stays_meant_in_later_attempts(tmp_path: Path) -> None:
    told = Told()
    train(tmp_path, range(2), net=Net(gate=-INF), told=told)
    assert [note.text for note in told.of(Note) if "meant" in note.text] == [
        "model.gate: infinite when the run began, and taken as meant so"
    ]
    train(tmp_path, range(2, 4), net=Net(gate=-INF))
    assert {entry.health for entry in entries(tmp_path).values()} == {Health.CLEAN}
    train(tmp_path, range(4, 6), net=Net(gate=-INF), spoil=6)
    assert entries(tmp_path)[6].manifest.decision["non_finite"] == "model.line.weight"


def test_infinities_that_came_later_are_not_meant(tmp_path: Path) -> None:
    """Where nothing clean is left, a run resumes from what there is, and does not take it for good."""
    net = Net()
    optimizer = torch.optim.SGD(net.line.parameters(), lr=1e-2)
    with mementum.open_run(tmp_path, task="t", model=net, optimizer=optimizer, every_steps=1) as run:
        with torch.no_grad():
            net.gate[0] = INF
        run.record(loss=1.0)
    assert entries(tmp_path)[1].health is Health.DIVERGED
    fresh = Net()
    optimizer = torch.optim.SGD(fresh.line.parameters(), lr=1e-2)
    with mementum.open_run(tmp_path, task="t", model=fresh, optimizer=optimizer, every_steps=1) as run:
        assert (run.step, fresh.gate[0].item()) == (1, INF)
        run.record(loss=1.0)
    assert entries(tmp_path)[2].health is Health.DIVERGED


def test_where_health_is_nobodys_business_nothing_is_marked(tmp_path: Path) -> None:
    train(tmp_path, range(3), spoil=2, config={"on_divergence": "ignore"})
    assert {entry.health for entry in entries(tmp_path).values()} == {Health.CLEAN}
