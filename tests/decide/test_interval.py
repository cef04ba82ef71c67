"""Intervals save at their limit and not before, and say by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.interval import EveryEpoch, EverySeconds, EverySteps
from mementum.records import Granularity, Reach, Save, Situation

NOW = Situation(step=100, epoch=2, since_save_steps=0, since_save_s=0.0)


@pytest.mark.parametrize(("since", "saves"), [(0, False), (6, False), (7, True), (8, True), (10_000, True)])
def test_steps(since: int, saves: bool) -> None:
    decision = EverySteps(steps=7).decide(replace(NOW, since_save_steps=since))
    expected = Save(reason=f"{since} steps since the last save, interval 7", numbers={"interval_steps": 7})
    assert decision == (expected if saves else None)


@pytest.mark.parametrize(("since_s", "saves"), [(0.0, False), (89.999, False), (90.0, True), (200.0, True)])
def test_seconds(since_s: float, saves: bool) -> None:
    decision = EverySeconds(seconds=90).decide(replace(NOW, since_save_s=since_s))
    expected = Save(reason=f"{since_s:.0f} s since the last save, interval 90 s", numbers={"interval_s": 90})
    assert decision == (expected if saves else None)


def test_steps_and_seconds_do_not_mix() -> None:
    assert EverySteps(steps=7).decide(replace(NOW, since_save_s=1e9)) is None
    assert EverySeconds(seconds=7).decide(replace(NOW, since_save_steps=10**9)) is None


def test_epochs() -> None:
    assert EveryEpoch().decide(NOW) is None
    assert EveryEpoch().decide(replace(NOW, ends_epoch=True)) == Save(reason="the end of epoch 2", cause="epoch")


def test_intervals_ask_for_what_resumes_exactly() -> None:
    decision = EverySteps(steps=1).decide(replace(NOW, since_save_steps=1))
    assert decision is not None
    assert (decision.granularity, decision.reach) == (Granularity.FULL, Reach.REBOOT)
