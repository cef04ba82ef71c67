"""Contradictions: each rule with settings that break it, and with ones that just do not."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.config.loading import examine

BIG = {"checkpoint_size": "87 GB"}


def found(values: dict[str, Any]) -> list[str]:
    return [str(finding) for finding in examine(values).findings]


@pytest.mark.parametrize(
    ("values", "well", "message"),
    [
        (
            {"policy": ["cost"], "every_steps": 5},
            {"every_s": "5m", "every_steps": 5},
            "every_steps: a policy is given too: put it into the list, as steps or seconds",
        ),
        (
            {"policy": ["cost", {"steps": 5}, "cost"]},
            {"policy": ["cost", {"event": "a"}, {"event": "b"}, {"best": "a"}, {"best": "b"}]},
            "policy[2]: cost stands in the list already: the second one would never be asked",
        ),
        (
            {"policy": [{"event": "a"}, {"event": "a"}]},
            {"policy": [{"event": "a"}, {"best": "a"}]},
            "policy[1]: event stands in the list already: the second one would never be asked",
        ),
        (
            {"policy": ["window", "before_stop", "cost"]},
            {"policy": ["window", {"steps": 5}, {"seconds": 60}]},
            "policy[2]: window stands in the list too, is asked before it and always has an opinion: cost would never "
            "be asked",
        ),
        (
            {"policy": ["window"], "vitals": "off"},
            {"policy": ["window"]},
            "policy[0].window: window judges by the losses, and vitals are off",
        ),
        (
            {"policy": ["cost", "before_stop"], "notices": "off"},
            {"policy": ["cost"], "notices": "off"},
            "policy[1]: before_stop waits for notices, and notices are off",
        ),
        (
            {"notices": {"signals": {"save": ["SIGUSR2", "SIGTERM"]}}},
            {"notices": {"signals": {"save": ["SIGTERM"], "stop": []}}},
            "notices.signals: SIGTERM stands under stop and under save",
        ),
        (
            {"notices": {"walltime": "2m"}},
            {"notices": {"walltime": "2m1s"}},
            "notices.lead: the process ends after 2m, before a notice of 2m can be given",
        ),
        (
            {"alarms": {"thresholds": {"memory_high": "97 %"}}},
            {"alarms": {"thresholds": {"memory_high": "96.9 %"}}},
            "alarms.thresholds.memory_high: memory_high (97 %) must be less than memory_urgent (97 %)",
        ),
        (
            {"alarms": {"which": ["drift", "hang"]}, "vitals": "off"},
            {"alarms": {"which": ["hang", "slow"]}, "vitals": "off"},
            "alarms.which: drift: seen in the vital signs, and vitals are off",
        ),
        (
            {"verify_capture": True, "capture": "blocking"},
            {"verify_capture": True},
            "verify_capture: nothing can change the state while it is copied: capture is blocking",
        ),
        (
            {"tolerance": {"max_lost": "10m"}, "expected": {"lost_per_save": "60s"}},
            {"tolerance": {"max_lost": "20m"}, "expected": {"lost_per_save": "60s"}},
            "tolerance.max_lost: 10m cannot be kept: a save costs 1m, and at 5 % of lost time there is one every 20m "
            "at the most",
        ),
        (
            {"tolerance": {"max_lost": "20m"}, "expected": {"lost_per_save": "60s", "durable_after": "30s"}},
            {"tolerance": {"max_lost": "21m"}, "expected": {"lost_per_save": "60s", "durable_after": "30s"}},
            "tolerance.max_lost: 20m cannot be kept: a save costs 1m, and at 5 % of lost time there is one every 20m "
            "at the most, and a save is durable 30s after it begins",
        ),
        (
            {"tolerance": {"max_lost": "1h"}, "expected": BIG, "budgets": {"bytes_per_day": {"ssd": "2 TB"}}},
            {"tolerance": {"max_lost": "63m"}, "expected": BIG, "budgets": {"bytes_per_day": {"ssd": "2 TB"}}},
            "tolerance.max_lost: 1h cannot be kept: a save writes 87 GB, and at 2 TB a day there is one every 1h2m38s "
            "at the most",
        ),
        (
            {
                "tolerance": {"max_lost": "1h"},
                "expected": BIG,
                "budgets": {"money": {"per_day": 10, "per_gb": {"ssd": 0.01}}},
            },
            {
                "tolerance": {"max_lost": "1h"},
                "expected": BIG,
                "budgets": {"money": {"per_day": 21, "per_gb": {"ssd": 0.01}}},
            },
            "tolerance.max_lost: 1h cannot be kept: a save costs 0.87, and at 10 a day there is one every 2h5m17s "
            "at the most",
        ),
        (
            {"tolerance": {"max_lost": "1m"}, "expected": {"durable_after": "1m"}},
            {"tolerance": {"max_lost": "61s"}, "expected": {"durable_after": "1m"}},
            "tolerance.max_lost: 1m cannot be kept: a save is durable only after 1m",
        ),
        (
            {"tolerance": {"max_lost": "5m"}, "every_s": "10m"},
            {"tolerance": {"max_lost": "10m"}, "every_s": "10m"},
            "tolerance.max_lost: 5m is less than every_s, 10m",
        ),
        (
            {"tolerance": {"max_restore": "60s"}, "expected": {"restore": "90s"}},
            {"tolerance": {"max_restore": "90s"}, "expected": {"restore": "90s"}},
            "tolerance.max_restore: 1m is less than the 1m30s that a restore takes (expected.restore)",
        ),
        (
            {"budgets": {"money": {"per_day": 5}}},
            {"budgets": {"money": {"per_day": 5, "per_gb": {"ssd": 0.1}}}},
            "budgets.money: there is a limit of money, and no price: give per_gb.ssd",
        ),
        (
            {"budgets": {"memory": "100 GB"}, "expected": BIG},
            {"budgets": {"memory": "100 GB"}, "expected": BIG, "slots": 0},
            "budgets.memory: 100 GB do not hold 3 slots of 87 GB: less slots, or slots: 0",
        ),
        (
            {"budgets": {"bytes_per_day": {"ssd": "80 GB"}}, "expected": BIG},
            {"budgets": {"bytes_per_day": {"ssd": "87 GB"}}, "expected": BIG},
            "budgets.bytes_per_day.ssd: 80 GB a day do not hold one checkpoint of 87 GB",
        ),
    ],
)
def test_what_cannot_be_kept_is_told(values: dict[str, Any], well: dict[str, Any], message: str) -> None:
    assert found(values) == [message]
    assert found(well) == []


def test_what_holds_by_itself_is_held_against_nobody() -> None:
    assert found({"vitals": "off"}) == []  # all troubles are watched where nothing is said
    assert found({"notices": "off"}) == []
