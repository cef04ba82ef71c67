"""What was learnt of a run comes back with its state: the signs after a resume are those of a run that went on."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from deaths import die
from mementum import ram
from mementum.clock import ManualClock
from mementum.decide.policy import Policy
from mementum.deciding import Deciding
from mementum.events import Failed, Note
from mementum.format import context as contexts
from mementum.records import Decision, Save, Situation
from trips import Told

TASK = "t"
SAVED, STEPS = 150, 220
POLICY = [{"window": {"base_interval": 20}}, {"best": {"metric": "eval_loss", "mode": "min"}}]
SAMPLED = (
    "update_ratio",
    "curvature",
    "layer_ratio",
    "grad_norm",
    "grad_z",
    "grad_noise",
)  # are read at some steps, which an attempt counts from its own beginning
OF_THE_ATTEMPT = ("at_s", "memory_used", "memory_steps_left", "step_s")  # of the time and the machine of now


class Listening:
    """Asks what the configuration asks for, keeps what it was shown, and saves at one step."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.seen: dict[int, Situation] = {}
        self.decided: dict[int, Decision | None] = {}

    def decide(self, situation: Situation) -> Decision | None:
        self.seen[situation.step] = situation
        self.decided[situation.step] = self.inner.decide(situation)
        return Save(reason="of the test") if situation.step == SAVED else None


class Training:
    """Losses with spikes, a gap and a nan, the same in every life; gradients of a small model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.told, self.clock = Told(), ManualClock()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        run = mementum.open_run(
            root,
            task=TASK,
            model=self.model,
            optimizer=self.optimizer,
            config={"policy": POLICY},
            on_event=self.told,
            clock=self.clock,
            **wishes,
        )
        self.policy = run._deciding._policy = Listening(run._deciding._policy)
        return run

    def train(self, run: mementum.Run, until: int) -> None:
        while run.step < until:
            step = run.step + 1
            chance = random.Random(step)
            self.clock.advance(1.0 + chance.random() / 10)
            self.optimizer.zero_grad()
            inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
            (self.model(inputs).pow(2).mean() * (30.0 if step % 37 == 0 else 1.0)).backward()
            self.optimizer.step()
            loss = 3.0 / step**0.2 + chance.gauss(0.0, 0.05) + (8.0 if 170 < step < 180 else 0.0)
            metrics = {} if step % 53 == 0 else {"loss": float("nan") if step == 97 else loss}
            if step % 10 == 0:
                metrics["eval_loss"] = 2.0 / step**0.3 + chance.random() / 10
            run.record(**metrics)
            assert run.wait()


def signs(situation: Situation) -> Mapping[str, Any]:
    vitals = situation.vitals
    assert vitals is not None
    names = [name for name in vitals.__dataclass_fields__ if name not in (*OF_THE_ATTEMPT, *SAMPLED)]
    return {
        **{name: getattr(vitals, name) for name in names},
        "alarms": [(str(alarm.trouble), alarm.value, alarm.text) for alarm in situation.alarms],
        "risk": (situation.risk, situation.risk_rose),
        "metrics": dict(situation.metrics),
        "best": dict(situation.best),
        "loss_std": situation.loss_std,
    }


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shared memory of these tests' own: runs that end as if they were killed leave their slots in it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as path:
        monkeypatch.setattr(ram, "FOLDER", path)
        yield


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    first = Training()
    run = first.open(tmp_path)
    first.train(run, SAVED)
    die(run)
    return tmp_path


def test_signs_and_decisions_after_a_resume_are_those_of_a_run_that_went_on(
    killed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    straight = Training()
    run = straight.open(tmp_path_factory.mktemp("straight"))
    straight.train(run, STEPS)
    die(run)
    again = Training()
    run = again.open(killed, resume="must")
    assert run.step == SAVED
    again.train(run, STEPS)
    die(run)
    assert list(again.policy.seen) == list(range(SAVED + 1, STEPS + 1))
    for step in again.policy.seen:
        assert signs(again.policy.seen[step]) == signs(straight.policy.seen[step]), step
        mine, theirs = again.policy.decided[step], straight.policy.decided[step]
        assert type(mine) is type(theirs)
        assert getattr(mine, "reason", None) == getattr(theirs, "reason", None), step
    raised = [alarm.trouble for one in again.policy.seen.values() for alarm in one.alarms]
    assert raised  # the loss jumped up after the resume
    assert any(isinstance(one, Save) for one in again.policy.decided.values())
    assert again.told.of(Failed) == []


def test_a_checkpoint_that_remembers_nothing_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Deciding, "remembered", lambda deciding: None)
        first = Training()
        run = first.open(tmp_path)
        first.train(run, SAVED)
        die(run)
    again = Training()
    run = again.open(tmp_path, resume="must")
    again.train(run, SAVED + 5)
    die(run)
    assert again.policy.seen[SAVED + 1].vitals.loss_z is None  # learnt anew
    assert [event for event in again.told.of(Note) if "remembered" in event.text] == []
    assert again.told.of(Failed) == []


@pytest.mark.parametrize(
    "foreign", [{}, {"newest": 3}, {"signs": {"losses": 1}, "newest": {}, "best": {}}, [1], "words", 7]
)
def test_what_does_not_fit_is_told_and_learnt_anew(killed: Path, monkeypatch: pytest.MonkeyPatch, foreign: Any) -> None:
    parse = contexts.parse

    def damaged(*given: Any) -> Any:
        return {**parse(*given), "perceived": foreign}

    monkeypatch.setattr(contexts, "parse", damaged)
    again = Training()
    run = again.open(killed, resume="must")
    again.train(run, SAVED + 5)
    die(run)
    (told,) = (event.text for event in again.told.of(Note) if "remembered" in event.text)
    assert told.startswith("what was remembered of the run does not fit and is learnt anew: ")
    assert again.policy.seen[SAVED + 1].vitals.loss_z is None
    assert again.told.of(Failed) == []


def test_any_damage_to_a_leaf_is_refused_whole_or_forgotten(killed: Path, rng: random.Random) -> None:
    """A word, a list, nothing or a number that cannot be in the place of any value: the run is watched all the same."""
    again = Training()
    run = again.open(killed, resume="must")
    perception = run._deciding._watchers.perception
    good = perception.state()
    places = leaves(good)
    for place in rng.sample(places, min(40, len(places))):
        for junk in ("word", [1, "x"], None, -1, {"a": 1}, b"\x00"):
            damaged = copy.deepcopy(good)
            put(damaged, place, junk)
            before = len(again.told)
            run._deciding.apply(damaged)
            if again.told[before:]:
                assert perception.state() == good, place  # nothing of it was taken
            again.train(run, run.step + 2)
            assert len(Told(again.told[before:]).of(Failed)) <= 1, (place, junk)
            run._deciding._faults.clear()
            run._deciding.apply(good)
    again.train(run, run.step + 1)
    assert again.policy.seen[run.step].vitals is not None
    die(run)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict) and tree:
        return [place for key in tree for place in leaves(tree[key], (*path, key))]
    if isinstance(tree, list) and tree:
        return leaves(tree[0], (*path, 0))
    return [path]


def put(tree: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = value


def test_what_is_remembered_does_not_change_while_it_is_written(killed: Path) -> None:
    again = Training()
    run = again.open(killed, resume="must")
    perception = run._deciding._watchers.perception
    remembered = perception.state()
    before = copy.deepcopy(remembered)
    again.train(run, SAVED + 20)
    assert remembered == before
    assert perception.state() != before
    die(run)
