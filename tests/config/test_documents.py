"""The documents' own file: it loads as it stands, and each of its keys has an effect or a reason why it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mementum.config.documents import LEVEL_2, NO_LADDER, NO_TIER
from mementum.config.loading import examine, load
from mementum.config.policies import BeforeStop, Window
from mementum.config.reading import read
from mementum.config.tiers import Ageing

FILE = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoint_config.yaml"


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key


def said(values: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    return {one.key: (one.effective, one.text) for one in load(values).said}


def test_it_loads_as_it_stands() -> None:
    made = load(FILE)
    assert made.settings.policy == (
        BeforeStop(),
        Window(base_interval=2000, stability_window=100, risk_threshold=0.68),
    )
    assert made.settings.codec == "zstd:3"
    changed = {key: origin for key, origin in made.origins.items() if origin != "default"}
    assert changed == {
        "policy": "line 2: base_interval",
        "codec": "line 13: storage_levels.level_1.compression",
        "retention_days.level_0": "line 11: storage_levels.level_0.retention_days",
        "retention_days.level_1": "line 16: storage_levels.level_1.retention_days",
        "retention_days.level_2": "line 20: storage_levels.level_2.retention_days",
    }
    assert made.settings.retention_days == Ageing(level_0=30, level_1=7, level_2=90)


def test_every_key_has_an_effect_or_a_reason() -> None:
    made = load(FILE)
    values = read(FILE).values
    assert sorted(one.key for one in made.said) == sorted(leaves(values))
    assert all(one.text for one in made.said)
    assert {one.key for one in made.said if one.effective} == {
        "base_interval",
        "stability_window",
        "risk_threshold",
        "storage_levels.level_0.compression",
        "storage_levels.level_1.compression",
        "storage_levels.level_1.compression_level",
        *(f"storage_levels.level_{level}.retention_days" for level in range(3)),
    }
    reasons = {one.key: one.text for one in made.said if not one.effective}
    assert reasons.pop("storage_levels.level_2.compression") == LEVEL_2
    assert {reasons.pop("recovery_timeout_ms"), reasons.pop("fallback_strategy")} == {NO_LADDER}
    assert set(reasons.values()) == {NO_TIER}


def test_other_values_of_its_keys() -> None:
    levels: dict[str, Any] = {
        "level_0": {"compression": "zstd", "compression_level": 1},
        "level_1": {"compression": "none"},
        "level_2": {"compression": "none"},
    }
    made = load({"storage_levels": levels, "fallback_strategy": "exact"})
    assert made.settings.codec == "raw"
    assert {one.key: one.effective for one in made.said} == {
        "storage_levels.level_0.compression": False,
        "storage_levels.level_0.compression_level": False,
        "storage_levels.level_1.compression": True,
        "storage_levels.level_2.compression": True,
        "fallback_strategy": True,
    }
    gzip = load({"storage_levels": {"level_1": {"compression": "gzip"}}, "codec": "zstd:1"})
    assert (gzip.settings.codec, gzip.said[0].effective) == ("zstd:1", False)
    assert load({"storage_levels": {"level_1": {"compression": "zstd"}}}).settings.codec == "zstd:3"


def test_they_stand_beside_ours_and_over_a_presets() -> None:
    made = load({"preset": "pretrain", "risk_threshold": 0.5, "keep_last": 7})
    assert made.settings.policy == (BeforeStop(), Window(risk_threshold=0.5))
    assert (made.settings.keep_last, made.settings.tolerance.max_lost) == (7, 1800.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_interval": 5, "policy": ["cost"]}, "base_interval: it chooses the policy, and policy does too"),
        ({"risk_threshold": 0.5, "every_s": 5}, "risk_threshold: it chooses the policy, and every_s does too"),
        (
            {"storage_levels": {"level_1": {"compression": "zstd"}}, "codec": "raw"},
            "storage_levels.level_1.compression: it chooses the codec, and codec does too",
        ),
        ({"base_interval": "soon"}, "base_interval: 'soon' does not fit; expected a whole number"),
        ({"risk_threshold": 68}, "risk_threshold: 68 does not fit; expected less than or equal to 1"),
        (
            {"storage_levels": {"level_3": {}}},
            "storage_levels.level_3: there is no such key; the nearest is level_2",
        ),
        (
            {"storage_levels": {"level_1": {"compression": "lz4"}}},
            "storage_levels.level_1.compression: 'lz4' is none of its values; expected none, zstd or gzip",
        ),
        (
            {"fallback_strategy": "level_0"},
            "fallback_strategy: 'level_0' is none of its values; the nearest is level_0_1; expected exact, full,",
        ),
    ],
)
def test_a_wrong_one_is_told(values: dict[str, Any], message: str) -> None:
    (text,) = map(str, examine(values).findings)
    assert text.startswith(message)
