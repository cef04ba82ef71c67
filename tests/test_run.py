"""A run in the hands of a program that errs: policies, metrics, values, steps, and every way to leave the loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mementum
from loops import parts, step_once
from mementum.errors import SaveFailed, UnsupportedState, UsageError
from mementum.events import Committed, Failed, Note, SaveSkipped
from mementum.live import rng
from mementum.records import Save, Situation, Skip
from trips import Told, bits


class Broken:
    """A policy that raises, or gives what is no decision."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    def decide(self, situation: Situation) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [ZeroDivisionError("by zero"), True, "save", Save(reason=3)], ids=repr)  # type: ignore[arg-type]
def test_a_broken_policy_is_switched_off_and_training_goes_on(tmp_path: Path, answer: Any) -> None:
    told, policy = Told(), Broken(answer)
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, policy=policy, on_event=told) as run:
        for _ in range(6):
            run.record()
        run.save("by hand")
        run.wait()
        assert run.step == 6
    assert policy.asked == 3
    assert [event.what for event in told.of(Failed)] == ["the policy"] * 3
    assert [event.text for event in told.of(Note) if "switched off" in event.text] == [
        "the policy failed three times and is switched off"
    ]
    assert [(event.step, event.reason) for event in told.of(Committed)] == [(6, "by hand")]


def test_a_policy_may_recover(tmp_path: Path) -> None:
    class Moody:
        def decide(self, situation: Situation) -> Save | Skip | None:
            if situation.step < 3:
                raise KeyError("no such horizon")
            return {3: Skip(reason="no"), 4: None}.get(situation.step, Save(reason="yes"))

    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, policy=Moody(), on_event=told) as run:
        for _ in range(5):
            run.record()
    assert len(told.of(Failed)) == 2
    assert [(event.step, event.reason) for event in told.of(Committed)] == [(5, "yes")]


def test_the_situation_is_told_as_it_is(tmp_path: Path) -> None:
    clock, seen = mementum.clock.ManualClock(), []

    class Watching:
        def decide(self, situation: Situation) -> Save | None:
            seen.append(situation)
            return Save(reason="third") if situation.step == 3 else None

    made = parts()
    with mementum.open_run(
        tmp_path, task="t", model=made.model, data=made.loader, policy=Watching(), clock=clock
    ) as run:
        for _ in run.steps(made.loader, 8):
            clock.advance(10)
            run.record()
            run.wait()
    told = [(one.step, one.epoch, one.ends_epoch, one.since_save_steps, one.since_save_s) for one in seen]
    assert told == [
        (1, 0, False, 1, 10),
        (2, 0, False, 2, 20),
        (3, 0, False, 3, 30),
        (4, 0, False, 1, 10),
        (5, 0, False, 2, 20),
        (6, 0, True, 3, 30),
        (7, 1, False, 4, 40),
        (8, 1, False, 5, 50),
    ]


USABLE = {
    "nan": math.nan,
    "inf": -math.inf,
    "numpy": np.float32(0.5),
    "tensor": torch.tensor([0.25], requires_grad=True),
    "half": torch.tensor(1.5, dtype=torch.bfloat16),
    "word": "warmup",
    "flag": True,
    "large": 10**30,
}
UNUSABLE = {
    "none": None,
    "list": [1],
    "object": object(),
    "vector": torch.ones(2),
    "array": np.ones(2),
    "complex": 1j,
    "meta": torch.ones((), device="meta"),
}


def test_metrics_of_any_kind_never_stand_in_the_way_of_a_save(tmp_path: Path) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, on_event=told) as run:
        for _ in range(3):
            run.record(**USABLE, **UNUSABLE)
            run.wait()
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]
    assert told.of(Failed) == []
    left_out = [event.text.split("'")[1] for event in told.of(Note)]
    assert sorted(left_out) == sorted(UNUSABLE)  # each told once
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        metrics = run._opened.catalog.entries(run._opened.home)[-1].metrics
    assert {**metrics, "nan": 0} == {
        "nan": 0,
        "inf": -math.inf,
        "numpy": 0.5,
        "tensor": 0.25,
        "half": 1.5,
        "word": "warmup",
        "flag": True,
        "large": 10**30,
    }


def test_values_that_cannot_be_saved_cost_saves_and_not_the_training(tmp_path: Path) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, on_event=told) as run:
        run.values["f"] = print
        run.record()
        run.values["f"] = "print"
        run.record()
    (failed,) = told.of(Failed)
    assert failed.what == "the capture of step 1"
    assert "values.f" in failed.error
    assert [event.step for event in told.of(Committed)] == [2]
    run = mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, on_error="raise")
    run.values["f"] = print
    with pytest.raises(SaveFailed) as raised:
        run.record()
    assert isinstance(raised.value.__cause__, UnsupportedState)
    del run.values["f"]
    run.close()


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7), 7])
def test_a_loop_of_ones_own_says_its_step(tmp_path: Path, step: Any) -> None:
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        run.record(step=step)
        assert (run.step, type(run.step)) == (7, int)
        run.record()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, resume="must") as run:
        assert run.step == 8


@pytest.mark.parametrize("step", [-1, 1.5, "a", torch.ones(2)])
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any) -> None:
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        with pytest.raises(UsageError, match="a step is"):
            run.record(step=step)
        with pytest.raises(UsageError, match="a reason is a"):
            run.save(reason=3)  # type: ignore[arg-type]
        assert run.step == 0


def test_nothing_may_be_told_to_a_closed_run(tmp_path: Path) -> None:
    run = mementum.open_run(tmp_path, task="t", state={"s": {}})
    run.record()
    run.close()
    run.close()
    for tell in (run.record, run.save, lambda: run.metrics(1, a=1)):
        with pytest.raises(UsageError, match="the run of task 't' is closed") as refused:
            tell()
        assert refused.value.kept == "what was saved before"
    assert run.wait()
    with run:  # a second end is none
        pass
    assert len(list(tmp_path.rglob("meta.json"))) == 1


def leave(root: Path, told: Told, *, recorded: bool) -> mementum.Run:
    """Leave a loop by `break` in the body of step 3."""
    run = mementum.open_run(root, task="t", state={"s": {}}, every_steps=100, on_event=told)
    for number, _ in run.steps([0] * 10, 10):
        if number == 3 and not recorded:
            break
        run.record()
        if number == 3:
            break
    return run


def test_a_break_before_record_is_told(tmp_path: Path) -> None:
    told = Told()
    leave(tmp_path, told, recorded=False).close()
    assert [event.reason for event in told.of(SaveSkipped)] == ["the loop was left in a step that was not recorded"]
    assert told.of(Committed) == []


def test_a_break_after_record_ends_a_whole_step(tmp_path: Path) -> None:
    told = Told()
    leave(tmp_path, told, recorded=True).close()
    assert [(event.step, event.reason) for event in told.of(Committed)] == [(3, "the run ended")]
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        assert [number for number, _ in run.steps([0] * 10, 5)] == [4, 5]


@pytest.mark.parametrize("recorded", [True, False])
def test_after_a_break_a_save_is_made_at_once(tmp_path: Path, recorded: bool) -> None:
    told = Told()
    run = leave(tmp_path, told, recorded=recorded)
    run.save("stopped early")
    assert run.wait()
    assert [(event.step, event.reason) for event in told.of(Committed)] == [(3, "stopped early")]
    run.record()
    assert run.step == 4
    run.close()
    assert [event.step for event in told.of(Committed)] == [3, 4]


def test_a_second_loop_goes_on_where_the_first_was_left(tmp_path: Path) -> None:
    told, data = Told(), list("abcdef")
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, data=data, on_event=told) as run:
        for _ in run.steps(data, 6):
            run.record()
            break
        assert list(run.steps(data, 3)) == [(2, "b"), (3, "c")]
        for _ in run.steps(data, 5):
            run.record()
    assert [event.step for event in told.of(Committed)] == [5]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, GeneratorExit])
def test_an_error_in_the_body_goes_on_its_way(tmp_path: Path, error: type[BaseException]) -> None:
    told = Told()

    def fail() -> None:
        with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=2, on_event=told) as run:
            for number, _ in run.steps([0] * 9, 9):
                run.record()
                if number == 5:
                    raise error

    with pytest.raises(error):
        fail()
    assert told.of(Committed)[-1].step == 4
    assert told.of(Failed) == []
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        assert run.step == 4


def test_a_run_that_recorded_nothing_saves_nothing(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="t", state={"s": {}}):
        pass
    assert not list(tmp_path.rglob("meta.json"))


def test_a_save_changes_nothing(tmp_path: Path) -> None:
    made = parts()
    ema = torch.optim.swa_utils.AveragedModel(made.model)
    scaler = torch.amp.GradScaler("cpu")
    held: dict[str, Any] = {"list": [1], "tensor": torch.ones(2)}
    for batch in made.loader:
        step_once(made, batch)
    made.model[2].eval()
    made.model[0].weight.requires_grad_(False)
    ema.update_parameters(made.model)
    things = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}

    def everything() -> dict[str, Any]:
        found: dict[str, Any] = {name: bits(thing.state_dict()) for name, thing in {**things, "ema": ema}.items()}
        found |= {"scaler": scaler.state_dict(), "held": bits(held), "ids": {key: id(held[key]) for key in held}}
        found["rng"] = bits(rng.read())
        found["modes"] = [module.training for module in made.model.modules()]
        for name, tensor in [*made.model.named_parameters(), *made.model.named_buffers()]:
            facts = (id(tensor), tensor.data_ptr(), tensor._version, tensor.requires_grad, tensor.stride())
            found[name] = (*facts, None if tensor.grad is None else bits(tensor.grad), id(tensor.grad))
        for number, state in enumerate(made.optimizer.state.values()):
            found[f"state {number}"] = {key: (id(value), value._version) for key, value in state.items()}
        found["place"] = (made.loader.sampler.epoch, made.loader.sampler.position)
        return found

    told = Told()
    with mementum.open_run(
        tmp_path, task="t", **things, data=made.loader, scaler=scaler, state={"ema": ema, "held": held}, on_event=told
    ) as run:
        before = everything()
        run.record(loss=torch.ones((), requires_grad=True))
        run.save()
        assert run.wait()
        after = everything()
        assert [name for name in before if before[name] != after[name]] == []
    assert len(told.of(Committed)) == 1


def test_a_save_inside_of_a_graph_and_under_modes_of_torch(tmp_path: Path) -> None:
    """The copy is no part of the graph, whatever mode the loop is in."""
    model = torch.nn.Linear(2, 1)
    with mementum.open_run(tmp_path, task="t", model=model, every_steps=1) as run:
        loss = model(torch.ones(1, 2)).sum()
        run.record(loss=loss)
        loss.backward()
        with torch.inference_mode():
            run.record()
        with torch.no_grad():
            run.record()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run.record()
    fresh = torch.nn.Linear(2, 1)
    with torch.inference_mode(), mementum.open_run(tmp_path, task="t", model=fresh, resume="must") as run:
        assert run.step == 4
    assert torch.equal(model.weight, fresh.weight)
    fresh(torch.ones(1, 2)).sum().backward()
    assert fresh.weight.grad is not None
