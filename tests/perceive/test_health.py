"""A diagnosis: when a trouble opens, gets worse and ends, and that a state or a rollback changes nothing in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from mementum.perceive.alarms import Detectors
from mementum.perceive.health import REMEMBERED, Judge
from mementum.perceive.signs import Sign
from mementum.perceive.vitals import VitalSigns
from mementum.records import Diagnosis, Health, Trouble, Vitals

BEGAN = 400  # the first step with another loss
SPREAD = 0.05


class Eyes:
    """A run's vital signs, detectors and judge, as perception holds them."""

    def __init__(self, *, hold: int = 100, confirm: int = 50, steps: bool = True) -> None:
        self.signs, self.detectors, self.steps = VitalSigns(), Detectors(), steps
        self.judge = Judge(hold=hold, confirm=confirm)

    def look(self, step: int, loss: float | None, norm: float | None = None) -> Diagnosis:
        vitals = self.signs.observe(step, at_s=float(step), loss=loss, grad_norm=norm, stepped=self.steps)
        self.detectors.look(vitals)
        return self.judge.look(vitals, self.detectors.signs)

    def state(self) -> list[dict[str, object]]:
        return [self.signs.state(), self.detectors.state(), self.judge.state()]

    def apply(self, state: list[dict[str, object]]) -> None:
        for part, memory in zip((self.signs, self.detectors, self.judge), state, strict=True):
            part.apply(memory)


def losses(count: int, seed: int = 1) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(3.0, SPREAD, count) - 1e-4 * np.arange(count)


def changes(told: Iterable[tuple[int, Diagnosis]]) -> list[tuple[int, Health]]:
    found, before = [], Health.CLEAN
    for step, diagnosis in told:
        if diagnosis.health is not before:
            before = diagnosis.health
            found.append((step, before))
    return found


def course(values: Sequence[float], eyes: Eyes | None = None, first: int = 0) -> list[tuple[int, Diagnosis]]:
    eyes = eyes or Eyes()
    return [(first + place, eyes.look(first + place, float(value))) for place, value in enumerate(values)]


def bad(trouble: Trouble = Trouble.LOSS_SPIKE) -> list[Sign]:
    return [Sign(trouble=trouble, value=9.0, limit=6.0, text="up")]


def test_all_is_clean_while_nothing_is_said() -> None:
    told = course(losses(500))
    assert {diagnosis for _, diagnosis in told} == {Diagnosis(hold=100)}


def test_a_loss_that_jumps_and_stays_is_suspect_and_then_diverged() -> None:
    values = losses(600)
    values[BEGAN:] += 1.0
    told = course(values)
    (opened, suspect), (confirmed, diverged) = changes(told)
    assert (suspect, diverged) == (Health.SUSPECT, Health.DIVERGED)
    assert opened == BEGAN + 3 or opened == BEGAN  # it lasts, or is beyond every bad batch
    assert confirmed == opened + 50
    last = told[-1][1]
    assert BEGAN - 20 <= (last.onset or 0) < BEGAN
    assert (last.seen, last.episode, last.hold, last.calm) == (opened, 1, 100, 0)
    assert "stayed above 2.9" in last.why


def test_a_loss_that_comes_back_in_30_steps_is_clean_again_after_the_hold() -> None:
    values = losses(800)
    values[BEGAN : BEGAN + 60] += 1.5 * np.exp(-np.arange(60) / 8)
    told = course(values)
    (opened, _), (ended, health) = changes(told)
    assert health is Health.CLEAN
    assert BEGAN + 100 + 20 <= ended <= BEGAN + 100 + 70
    ending = dict(told)[ended]
    assert (ending.calm, ending.onset, ending.seen, ending.why, ending.episode) == (100, None, None, "", 1)
    calm_from = ended - ending.calm + 1
    assert values[calm_from - 16 : calm_from].mean() < values[:BEGAN].mean() + 1.5 * SPREAD
    assert told[-1][1] == Diagnosis(hold=100, episode=1)
    assert opened < BEGAN + 6


@pytest.mark.parametrize(("every", "gap"), [(1, 1), (5, 1), (10, 1), (1, 5), (1, 10)])
def test_a_spike_that_is_over_has_not_diverged_however_rarely_it_is_looked_at(every: int, gap: int) -> None:
    """30 steps. `every`: steps from one look to the next; `gap`: from one loss to the next."""
    for seed in range(5):
        eyes, values = Eyes(), losses(2600, seed)
        values[1990:2021] += 4.0
        looked = [step for step in range(2600) if step % every == 0]
        told = [(step, eyes.look(step, None if step % gap else float(values[step]))) for step in looked]
        (opened, suspect), (ended, clean) = changes(told)
        assert (suspect, clean) == (Health.SUSPECT, Health.CLEAN)
        assert 1990 <= opened < ended <= 2021 + 100 + 16 * max(every * gap, 2)


def test_a_single_bad_one_of_few_losses_is_no_divergence() -> None:
    for seed in range(5):
        eyes, values = Eyes(), losses(2600, seed)
        values[2000] += 6.0
        told = [(step, eyes.look(step, None if step % 25 else float(values[step]))) for step in range(2600)]
        assert [health for _, health in changes(told)] == [Health.SUSPECT, Health.CLEAN]


def test_few_losses_that_stay_up_have_diverged_and_are_not_taken_for_calm() -> None:
    eyes, values = Eyes(), losses(2600)
    values[1960:] += 4.0
    told = [(step, eyes.look(step, None if step % 50 else float(values[step]))) for step in range(2600)]
    assert [health for _, health in changes(told)] == [Health.SUSPECT, Health.DIVERGED]
    assert (told[-1][1].onset or 0) <= 1950


def test_one_bad_batch_opens_nothing() -> None:
    values = losses(600)
    values[BEGAN] += 25 * SPREAD
    assert changes(course(values)) == []


@pytest.mark.parametrize("slope", [0.02, 0.05, 0.1, 0.2])
def test_a_slow_drift_opens_a_quarantine_from_before_it(slope: float) -> None:
    for seed in range(5):
        values = losses(900, seed)
        values[BEGAN:] += slope * SPREAD * np.arange(500)
        (opened, health), (_, worse) = changes(told := course(values))
        onset = dict(told)[opened].onset
        assert (health, worse) == (Health.SUSPECT, Health.DIVERGED)
        assert onset is not None
        assert onset < BEGAN


def test_what_is_not_finite_has_diverged_at_once() -> None:
    told = course([*losses(BEGAN), *[float("nan")] * 200])
    assert changes(told) == [(BEGAN, Health.DIVERGED)]
    assert BEGAN - 20 <= (told[-1][1].onset or 0) < BEGAN
    assert told[-1][1].calm == 0


def test_a_suspect_state_that_is_not_finite_has_diverged() -> None:
    values = losses(BEGAN + 20)
    values[BEGAN:] += 1.0
    values[-1] = float("nan")
    told = course(values)
    assert changes(told)[-1] == (BEGAN + 19, Health.DIVERGED)
    assert told[-1][1].why == "the loss is not finite"


def test_overflows_of_a_loss_scale_open_nothing() -> None:
    eyes = Eyes(steps=False)
    for step, loss in enumerate(losses(500)):
        norm = float("inf") if step % 40 < 3 else 1.0
        assert eyes.look(step, float(loss), norm).health is Health.CLEAN


def test_a_gradient_spike_alone_opens_nothing_until_it_lasts() -> None:
    judge = Judge()
    vitals = [Vitals(step=step, at_s=0.0, loss=1.0, loss_z=0.0) for step in range(8)]
    sign = bad(Trouble.GRAD_SPIKE)
    health = [judge.look(one, sign if one.step in (0, 1, 3, 5) else []).health for one in vitals]
    assert health == [Health.CLEAN] * 5 + [Health.SUSPECT] * 3


def test_a_gradient_spike_that_the_loss_confirms_opens_a_quarantine() -> None:
    judge = Judge()
    for step, z in enumerate([0.0, 4.0, 0.0]):
        assert judge.look(Vitals(step=step, at_s=0.0, loss_z=z), []).health is Health.CLEAN
    assert judge.look(Vitals(step=3, at_s=0.0, loss_z=4.0), bad(Trouble.GRAD_SPIKE)).health is Health.SUSPECT


def test_trouble_that_spoils_no_state_opens_nothing() -> None:
    judge = Judge()
    for trouble in (Trouble.MEMORY, Trouble.SLOW, Trouble.HANG, Trouble.HARDWARE, Trouble.OVERFITTING):
        assert judge.look(Vitals(step=1, at_s=0.0), bad(trouble)).health is Health.CLEAN


def test_a_level_that_has_come_to_stay_is_taken_as_normal_and_said() -> None:
    values = losses(BEGAN + 500)
    values[BEGAN:] += 0.6
    told = course(values, Eyes(hold=20))
    (_, suspect), (_, diverged), (ended, clean) = changes(told)
    assert (suspect, diverged, clean) == (Health.SUSPECT, Health.DIVERGED, Health.CLEAN)
    assert BEGAN + 200 <= ended <= BEGAN + 450
    accepted = dict(told)[ended]
    assert accepted.calm == 200
    assert accepted.why.startswith("the loss has stayed at its new level for 200 steps")
    assert told[-1][1] == Diagnosis(hold=20, episode=1)


def test_a_second_trouble_is_another_episode() -> None:
    values = losses(900)
    values[BEGAN : BEGAN + 8] += 1.0
    values[800:] += 1.0
    told = course(values)
    assert [health for _, health in changes(told)] == [Health.SUSPECT, Health.CLEAN, Health.SUSPECT, Health.DIVERGED]
    assert told[-1][1].episode == 2
    assert 780 <= (told[-1][1].onset or 0) < 800


def test_calm_is_counted_by_step_numbers() -> None:
    judge = Judge(hold=100)
    judge.look(Vitals(step=1000, at_s=0.0, finite=False), bad(Trouble.NON_FINITE))
    told = [judge.look(Vitals(step=step, at_s=0.0), []) for step in range(1010, 1121, 10)]
    assert [one.calm for one in told[:9]] == [1, 11, 21, 31, 41, 51, 61, 71, 81]
    assert [one.health for one in told] == [Health.DIVERGED] * 10 + [Health.CLEAN] * 2
    assert told[10].calm == 101


@pytest.mark.parametrize("cut", [100, BEGAN + 1, BEGAN + 20, BEGAN + 120, 700])
def test_a_run_that_goes_on_from_a_state_is_told_the_same(cut: int) -> None:
    values = losses(800)
    values[BEGAN : BEGAN + 70] += 1.0
    values[750:] += 1.0
    whole, before, after = course(values), Eyes(), Eyes()
    told = course(values[:cut], before)
    after.apply(before.state())
    assert told + course(values[cut:], after, cut) == whole


def test_after_a_rollback_the_state_is_clean_and_the_trouble_counted() -> None:
    values = losses(700)
    eyes = Eyes()
    course(values[:380], eyes)
    older = eyes.state()
    values[BEGAN:] += 2.0
    assert course(values[380:480], eyes, 380)[-1][1].health is Health.DIVERGED
    eyes.apply(older)
    again = course(losses(700)[380:600], eyes, 380)
    assert {diagnosis for _, diagnosis in again} == {Diagnosis(hold=100, episode=1)}


def test_steps_that_come_again_without_a_state_replace_what_they_repeat() -> None:
    judge = Judge()
    for step in range(50):
        judge.look(Vitals(step=step, at_s=0.0, loss=2.0), [])
    told = judge.look(Vitals(step=50, at_s=0.0, finite=False, loss_finite=False), bad(Trouble.NON_FINITE))
    assert told.health is Health.DIVERGED
    assert told.onset is not None
    assert judge.look(Vitals(step=told.onset + 1, at_s=0.0, loss=2.0), []).health is Health.DIVERGED
    assert judge.look(Vitals(step=told.onset, at_s=0.0, loss=2.0), []) == Diagnosis(hold=100, episode=1)
    assert len(judge.state()["steps"]) == 8 * (told.onset + 1)


def test_a_trouble_at_the_very_beginning_trusts_nothing() -> None:
    judge = Judge()
    told = judge.look(Vitals(step=1, at_s=0.0, finite=False), bad(Trouble.NON_FINITE))
    assert (told.health, told.onset, told.seen) == (Health.DIVERGED, 0, 1)


def test_without_a_loss_from_before_the_lowest_stands_for_it() -> None:
    judge = Judge(hold=10, confirm=20)
    early = [2.0] * 12
    for step, loss in enumerate(early):
        judge.look(Vitals(step=step, at_s=0.0, loss=loss), [])
    judge.look(Vitals(step=12, at_s=0.0, loss=9.0), bad())
    told = [judge.look(Vitals(step=step, at_s=0.0, loss=9.0), []) for step in range(13, 60)]
    assert told[-1].health is Health.DIVERGED


def test_what_it_remembers_has_a_limit() -> None:
    judge = Judge()
    for step in range(REMEMBERED + 100):
        judge.look(Vitals(step=step, at_s=0.0, loss=1.0), [])
    assert len(judge.state()["steps"]) == 8 * REMEMBERED


def test_a_state_of_another_version_is_passed_by() -> None:
    judge = Judge()
    judge.apply({"version": 99, "rows": []})
    assert judge.state() == Judge().state()
