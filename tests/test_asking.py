"""What open_run is asked for, by arguments and by a configuration, is settled or refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.asking import Asked, asked_of
from mementum.decide.alarm import BeforeCrash
from mementum.decide.before import BeforeStop
from mementum.decide.budget import Within
from mementum.decide.flight import FlightRecorder, Recording
from mementum.decide.interval import EveryEpoch, EverySeconds, EverySteps
from mementum.decide.policy import First
from mementum.errors import UsageError


def asked(config: Any = None, **arguments: Any) -> Asked:
    own = {"every_steps": None, "every_s": None, "policy": None, "resume": "auto"}
    own |= {"rename": None, "takeover": False, "user": None}
    given = {name: value for name, value in arguments.items() if name not in own}
    return asked_of(config, given, **{**own, **{name: arguments[name] for name in own if name in arguments}})


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [
        (5, None, (EverySteps(steps=5),)),
        (None, 2.5, (EverySeconds(seconds=2.5),)),
        (1, 0.1, (EverySteps(steps=1), EverySeconds(seconds=0.1))),
    ],
)
def test_intervals_become_a_policy(steps: int | None, seconds: float | None, expected: tuple[object, ...]) -> None:
    """A notice that the process will be stopped saves in any case, and so does an alarm that outweighs its cost."""
    policy = asked(every_steps=steps, every_s=seconds).policy
    without = First(policies=(BeforeStop(), BeforeCrash(), *expected))
    assert policy == Recording(policy=without, recorder=Within(policy=FlightRecorder()))
    assert asked({"recorder": "off"}, every_steps=steps, every_s=seconds).policy == without
    off = {"alarms": "off", "recorder": "off"}
    said = asked(off, every_steps=3).policy
    assert said == First(policies=(BeforeStop(), EverySteps(steps=3)))
    limited = asked({**off, "budgets": {"lost_time": "5 %"}}, every_steps=3).policy
    assert limited == Within(policy=said)


def test_a_policy_is_taken_as_it_is_and_alone() -> None:
    policy = EveryEpoch()
    assert asked({"recorder": "off"}, policy=policy).policy == First(policies=(BeforeStop(), policy))
    for steps, seconds in ((1, None), (None, 1.0), (1, 1.0)):
        with pytest.raises(UsageError, match="either a policy or every_steps and every_s"):
            asked(policy=policy, every_steps=steps, every_s=seconds)


@pytest.mark.parametrize(
    ("steps", "seconds", "told"),
    [
        (0, None, "every_steps must be 1 or more, got 0"),
        (-1, None, "every_steps must be 1 or more, got -1"),
        (None, 0, "every_s must be more than 0 seconds, got 0"),
        (None, -1.0, "every_s must be more than 0"),
        (None, float("nan"), "every_s must be more than 0"),
    ],
)
def test_intervals_that_cannot_be_are_refused(steps: int | None, seconds: float | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        asked(every_steps=steps, every_s=seconds)


def test_an_argument_wins_over_the_configuration() -> None:
    config = {"keep_last": 3, "codec": "zstd:1", "policy": ["cost"]}
    assert asked(config).settings.keep_last == 3
    both = asked(config, keep_last=7, every_steps=5)
    assert (both.settings.keep_last, both.settings.codec, both.settings.every_steps) == (7, "zstd:1", 5)
    assert both.retention.last == 7
    assert asked(config, keep_last=None).retention.last is None


@pytest.mark.parametrize(
    ("config", "spread"),
    [
        (None, 3),
        ({"keep_last": None}, 3),
        ({"keep_last": 12}, 3),
        ({"keep_last": 9}, 0),
        ({"keep_last": 2, "keep_spread": 4}, 4),
        ({"keep_spread": 0}, 0),
        ({"preset": "pretrain"}, 3),
        ({"preset": "finetune"}, 0),
    ],
)
def test_older_ones_stay_spread_out_where_there_is_room_or_it_is_said(config: Any, spread: int) -> None:
    assert asked(config).retention.spread == spread
