"""Resuming: killed at any step, any number of times, a run ends with the bits of one that was never killed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import mementum
from loops import Outcome, Parts, assert_same, dataset, parts, step_once, train
from mementum.data import ElasticSampler
from mementum.errors import NothingToResume, StateMismatch, UsageError

TOTAL = 15  # two epochs of six steps and a half


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("straight"), TOTAL)


@pytest.mark.parametrize("stop", range(TOTAL + 1))
def test_a_resume_after_any_step_equals_the_straight_run(tmp_path: Path, straight: Outcome, stop: int) -> None:
    """0 is before the first step, 6 and 12 are the last batches of epochs, 15 is after the last step."""
    train(tmp_path, TOTAL, stop=stop)
    resumed = train(tmp_path, TOTAL)
    assert resumed.resumed.step == stop
    assert sorted(resumed.losses) == list(range(stop + 1, TOTAL + 1))
    assert_same(straight, resumed)


@pytest.mark.parametrize("stops", [(0, 0, 0), (1, 2, 3), (6, 6, 7), (5, 6, 12), (3, 12, 15), (15, 15)])
def test_a_resume_of_a_resume_of_a_resume(tmp_path: Path, straight: Outcome, stops: tuple[int, ...]) -> None:
    for stop in stops:
        train(tmp_path, TOTAL, stop=stop)
    assert_same(straight, train(tmp_path, TOTAL))


def test_saves_leave_no_trace_in_the_training(tmp_path: Path, straight: Outcome) -> None:
    assert_same(straight, train(tmp_path, TOTAL, every_steps=1000))


def test_steps_since_the_last_save_are_done_again(tmp_path: Path, straight: Outcome) -> None:
    train(tmp_path, TOTAL, stop=9, every_steps=4)
    resumed = train(tmp_path, TOTAL)
    assert resumed.resumed.step == 8
    assert_same(straight, resumed)


def test_a_finished_run_is_extended(tmp_path: Path, straight: Outcome) -> None:
    train(tmp_path, 8)
    again = train(tmp_path, 8)
    assert (again.resumed.step, again.losses) == (8, {})
    assert_same(straight, train(tmp_path, TOTAL))


@pytest.mark.parametrize("stop", [2, 6, 9])
def test_another_worker_count_and_another_construction_order(tmp_path: Path, straight: Outcome, stop: int) -> None:
    train(tmp_path, TOTAL, stop=stop)
    assert_same(straight, train(tmp_path, TOTAL, make=lambda: parts(workers=1)))


def test_the_data_may_be_given_to_the_loop_alone(tmp_path: Path, straight: Outcome) -> None:
    train(tmp_path, TOTAL, stop=7, data=None)
    assert_same(straight, train(tmp_path, TOTAL, data=None))


def test_accumulation_takes_several_batches_a_step(tmp_path: Path) -> None:
    def step(made: Parts, batches: list[object]) -> float:
        return sum(step_once(made, batch) for batch in batches)

    def run(root: Path, stop: int | None) -> dict[int, tuple[float, int]]:
        made, seen = parts(), {}
        with mementum.open_run(root, task="a", model=made.model, optimizer=made.optimizer, data=made.loader) as run:
            for number, batches in run.steps(made.loader, 7, accumulate=4):
                seen[number] = (step(made, batches), len(batches))
                run.record()
                if number == stop:
                    break
        return seen

    whole = run(tmp_path / "whole", None)
    assert [count for _, count in whole.values()] == [4, 2, 4, 2, 4, 2, 4]  # no step takes batches of two epochs
    assert run(tmp_path / "cut", 3) == {number: whole[number] for number in (1, 2, 3)}


def test_epochs_bound_the_loop_and_the_last_batch_is_known(tmp_path: Path) -> None:
    made = parts()
    ends: list[tuple[int, int]] = []
    with mementum.open_run(tmp_path, task="e", model=made.model, data=made.loader) as run:
        for number, _ in run.steps(made.loader, epochs=2):
            run.record()
            if run.ends_epoch:
                ends.append((run.epoch, number))
    assert ends == [(0, 6), (1, 12)]
    loader = parts().loader
    with mementum.open_run(tmp_path, task="e", model=made.model, data=loader, resume="must") as run:
        assert (run.step, list(run.steps(loader, epochs=2))) == (12, [])


def test_values_come_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="v", model=model) as run:
        run.values.update(best=float("-inf"), seen={1, 2}, nested=[(1, "a")])
        run.record()
    with mementum.open_run(tmp_path, task="v", model=model) as run:
        assert run.values == {"best": float("-inf"), "seen": {1, 2}, "nested": [(1, "a")]}
        assert (run.step, run.resumed.reason) == (1, "the run ended")


def test_modes_come_back(tmp_path: Path) -> None:
    made = parts()
    made.model.train()
    made.model[1].eval()
    with mementum.open_run(tmp_path, task="m", model=made.model) as run:
        run.record()
    fresh = parts()
    fresh.model.eval()
    with mementum.open_run(tmp_path, task="m", model=fresh.model):
        assert [module.training for module in fresh.model] == [True, False, True, True, True]


def test_never_begins_anew_and_must_insists(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(NothingToResume, match="no checkpoint"):
        mementum.open_run(tmp_path, task="n", model=model, resume="must")
    with mementum.open_run(tmp_path, task="n", model=model) as run:
        run.record()
    with mementum.open_run(tmp_path, task="n", model=model, resume="never") as run:
        assert (run.resumed, run.step) == (None, 0)
        run.record()
        run.record()
    with mementum.open_run(tmp_path, task="n", model=model, resume="must") as run:
        assert run.step == 2


def test_what_does_not_fit_is_named_and_nothing_changes(tmp_path: Path) -> None:
    made = parts()
    train(tmp_path, 3)
    made.model[4] = torch.nn.Linear(8, 2)
    before = {key: value.clone() for key, value in made.model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(StateMismatch) as refused:
        mementum.open_run(
            tmp_path,
            task="loop",
            model=made.model,
            optimizer=made.optimizer,
            scheduler=made.scheduler,
            data=made.loader,
            state={"ema": {}},
        )
    assert "model.4.weight was stored with shape (1, 8) and has shape (2, 8)" in str(refused.value)
    assert "ema is given and was not stored" in str(refused.value)
    assert all(torch.equal(before[key], value) for key, value in made.model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert train(tmp_path, 3).resumed.step == 3  # the task was let go of, and the checkpoint is as it was


def test_data_of_another_length_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 3)

    def shorter() -> Parts:
        made = parts()
        data = torch.utils.data.Subset(dataset(), range(20))
        made.loader = DataLoader(data, batch_size=4, sampler=ElasticSampler(data))
        return made

    with pytest.raises(StateMismatch, match="the data had 23 samples and has 20"):
        train(tmp_path, 5, make=shorter)


def test_misuse_of_the_loop_is_refused(tmp_path: Path) -> None:
    made = parts()
    with mementum.open_run(tmp_path, task="u", model=made.model, data=made.loader) as run:
        with pytest.raises(UsageError, match="either total"):
            run.steps(made.loader)
        with pytest.raises(UsageError, match="one source of data"):
            run.steps(parts().loader, 3)
        with pytest.raises(UsageError, match="accumulate"):
            run.steps(made.loader, 3, accumulate=0)
    with pytest.raises(UsageError, match="is closed"):
        run.record()
    with (
        mementum.open_run(tmp_path, task="empty", model=made.model) as run,
        pytest.raises(UsageError, match="no batches"),
    ):
        list(run.steps([], 3))


def test_exactness_is_said_before_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = parts()
    plain = DataLoader(dataset(), batch_size=4, shuffle=True)
    with mementum.open_run(tmp_path, task="x", model=made.model, data=plain) as run:
        assert not run.exactness.exact
        assert "cannot tell its position" in str(run.exactness)
    assert "a resume will be not exact" in caplog.text
    with mementum.open_run(tmp_path, task="y", model=made.model, data=parts(workers=2).loader) as run:
        assert run.exactness.exact
        assert "2 loader workers" in str(run.exactness)


def test_the_last_step_is_saved_at_a_clean_end_only(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)

    def run(stop: BaseException | None) -> None:
        with mementum.open_run(tmp_path, task="z", model=model, every_steps=100) as opened:
            for number, _ in opened.steps([0] * 5, opened.step + 3):
                opened.record()
                if stop is not None and number == opened.step and number % 3 == 2:
                    raise stop

    run(None)
    with mementum.open_run(tmp_path, task="z", model=model) as opened:
        assert opened.step == 3
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    with mementum.open_run(tmp_path, task="z", model=model) as opened:
        assert opened.step == 3


@pytest.mark.parametrize("stop", [4, 5, 6, 7, 10, 11])
def test_several_loops_over_one_loader_are_one(tmp_path: Path, stop: int) -> None:
    """The second goes on in the middle of the first one's epoch, with its iterator and its random numbers."""

    def run(root: Path, stop: int | None) -> dict[int, float]:
        made, seen = parts(), {}
        with mementum.open_run(root, task="l", model=made.model, data=made.loader, every_steps=5) as opened:
            for total in (5, 10, 14):
                for number, (inputs,) in opened.steps(made.loader, total):
                    if number == stop:
                        raise_away()
                    seen[number] = inputs.sum().item() + torch.rand(1).item()
                    opened.record()
                    opened.wait()
        return seen

    straight = run(tmp_path / "straight", None)
    with pytest.raises(InterruptedError):
        run(tmp_path / "cut", stop)
    resumed = run(tmp_path / "cut", None)
    assert max(resumed) == 14
    assert resumed == {number: straight[number] for number in resumed}


def raise_away() -> None:
    raise InterruptedError


def test_the_values_are_a_dict_and_stay_one(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="v", state={"s": {}}) as run, pytest.raises(AttributeError):
        run.values = [1]  # type: ignore[misc]


def test_a_listener_that_exits_or_waits_stops_no_save(tmp_path: Path) -> None:
    runs: list[mementum.Run] = []
    waited: list[bool] = []

    def leave(event: object) -> None:
        if type(event).__name__ == "Committed":
            waited.append(runs[0].wait(60))
            raise SystemExit(3)

    with mementum.open_run(tmp_path, task="s", state={"s": {}}, every_steps=1, on_event=leave) as run:
        runs.append(run)
        for _ in range(3):
            run.record()
            assert run.wait(30)
    assert waited == [False]  # it would have waited for itself
    with mementum.open_run(tmp_path, task="s", state={"s": {}}) as run:
        assert run.step == 3


def test_partial_holds_for_data_that_only_the_loop_is_given(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="p", model=model) as run:
        for _ in run.steps([0] * 5, total=3):
            run.record()
    with mementum.open_run(tmp_path, task="p", model=model, fit="partial") as run:
        assert [step for step, _ in run.steps([0] * 7, total=5)] == [4, 5]
