"""The page on deciding, and what others say of it, hold: examples run, figures and sentences are the code's own."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from mementum.config.loading import examine, load
from mementum.config.reading import parse
from mementum.decide.feasibility import Limits, Planned, unmeetable
from mementum.decide.precedence import BEFORE_INTERVALS
from mementum.decide.theory import local_interval
from mementum.events import Event
from mementum.perceive.costs import Costs
from mementum.perceive.hazards import DAY_S, Hazards
from mementum.records import Reach
from mementum.sensing import planned

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/deciding.md").read_text(encoding="utf-8")
REACHES = (Reach.PROCESS, Reach.REBOOT)


def test_the_worked_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_of_a_configuration_can_be_used(example: str) -> None:
    tree = parse(example)
    assert not tree.findings
    assert examine(tree.values).findings == ()


def test_the_sentence_on_what_cannot_be_kept_is_the_codes_own() -> None:
    (said,) = unmeetable(
        600.0,
        limits=Limits(lost_share=load(None).settings.budgets.lost_time),
        planned=[Planned(reach=Reach.REBOOT, cost_s=60.0, durable_s=60.0, size=1)],
    )
    assert said in " ".join(PAGE.split())


def test_the_intervals_of_the_page_are_those_of_the_priors() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) / (\d+) min \| (\d+) / (\d+) min \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    costs = {cost.reach: cost.lost_s for cost in Costs(planned(load(None).settings, 1_200_000_000)).every()}
    for nodes, *told in rows:
        hazards = Hazards(nodes=int(nodes))
        first, later = hazards.rates(0.0, REACHES), hazards.rates(7 * DAY_S, REACHES)
        found = [local_interval(costs[reach], rates[reach]) / 60 for reach in REACHES for rates in (first, later)]
        assert [round(minutes) for minutes in found] == [int(one) for one in told]


def test_the_order_of_the_page_is_that_of_the_policies() -> None:
    heads = re.findall(r"^\d\. \*\*(.+?)\*\*", PAGE, re.MULTILINE)
    words = ("notice", "tolerance", "alarm", "event", "epoch", "metric")
    assert len(heads) == len(BEFORE_INTERVALS) + 1
    assert [word in head for head, word in zip(heads, words, strict=False)] == [True] * len(words)


def test_each_event_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", (ROOT / "docs/loops.md").read_text(encoding="utf-8")))
    assert {kind.__name__ for kind in get_args(Event)} - told == set()


def test_each_cause_of_a_save_is_told() -> None:
    causes = {"interval"}
    for path in (ROOT / "src/mementum").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Save", "replace"):
                causes |= {
                    str(one.value.value)
                    for one in call.keywords
                    if one.arg == "cause" and isinstance(one.value, ast.Constant)
                }
    assert {"notice", "alarm", "asked", "end"} <= causes
    (row,) = [
        line for line in (ROOT / "docs/format.md").read_text(encoding="utf-8").splitlines() if "`cause` (" in line
    ]
    assert causes <= set(re.findall(r"`(\w+)`", row))
