"""Showing: what is shown is read back as the same settings, and says where each of them is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mementum.config.loading import load
from mementum.config.presets import PRESETS
from mementum.config.reading import parse
from mementum.config.showing import rendered

FILE = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoint_config.yaml"
SOURCES: list[Any] = [
    None,
    *PRESETS,
    {"alarms": "off", "vitals": "off", "notices": "off", "codec": "zstd:3"},
    {"preset": "pretrain", "every_s": "1m30.5s", "keep_last": None},
    {"policy": [{"event": 'a "quoted": name # ü'}, {"best": "yes"}, {"best": "1"}, {"best": "null"}, {"best": "off"}]},
    {"policy": [{"window": {"decay": 0.25}}, {"epoch": {"every": 3}}, {"seconds": 0.001}], "write_rate": 123456789},
    {"budgets": {"lost_time": 1 / 3, "money": {"per_day": 3, "per_gb": {"ssd": 0.02}}, "memory": 87_123_456_789}},
    {"notices": {"signals": {"stop": [], "save": ["SIGUSR2"]}, "spot": "aws", "spot_file": "/a b/c: d"}},
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source)[:30])
def test_what_is_shown_is_read_back(source: Any) -> None:
    made = load(source)
    tree = parse(rendered(made))
    assert not tree.findings
    assert load(tree.values).settings == made.settings


def test_a_line_says_where_its_value_is_from() -> None:
    lines = rendered(load(FILE)).splitlines()
    assert lines[0] == f"# {FILE}"
    assert f"{'policy:'.ljust(40)}  # line 2: base_interval" in lines
    assert "  - window: {base_interval: 2000, stability_window: 100, risk_threshold: 0.68, decay: 0.0}" in lines
    quoted = 'codec: "zstd:3"'
    assert f"{quoted.ljust(40)}  # line 13: storage_levels.level_1.compression" in lines
    assert f"{'  lost_time: 5 %'.ljust(40)}  # default" in lines
    assert lines[-2].startswith("# recovery_timeout_ms: no effect: the ladder of recovery comes with a later part")
    assert "# risk_threshold: the risk from which on the window policy saves at once" in lines
