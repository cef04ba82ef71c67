"""What a run writes is what `mementum why` reads: a refusal, an alarm, a wish by a signal and a skip of a real run."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.clock import ManualClock

STEPS = 200
REFUSED, SPIKE, WISHED = 50, 150, 170
STEP_S = 0.5
CONFIG = {
    "policy": ["cost", {"steps": REFUSED}],
    "budgets": {"bytes_per_day": {"ssd": "40 kB"}},
    "expected": {"lost_per_save": "20s"},
    "slots": 0,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose day's bytes hold no save, with a loss that jumps once, and SIGUSR1 at a step."""
    root = tmp_path_factory.mktemp("why") / "root"
    dice, clock = random.Random(11), ManualClock()
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with mementum.open_run(root, task="net", model=model, optimizer=optimizer, config=CONFIG, clock=clock) as run:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            model(torch.ones(1, 100)).pow(2).mean().backward()
            optimizer.step()
            clock.advance(STEP_S)
            if step == WISHED:
                os.kill(os.getpid(), signal.SIGUSR1)
            run.record(loss=900.0 if step == SPIKE else 1.0 + dice.gauss(0.0, 0.05))
            run.wait()
    return root


@pytest.fixture
def why(ask: Any, seen: Path) -> Callable[[str], dict[str, Any]]:
    def explain(address: str) -> dict[str, Any]:
        answer = ask("why", seen, address, "--json")
        assert (answer.code, answer.err) == (0, "")
        found: dict[str, Any] = json.loads(answer.out)
        return found

    return explain


def test_a_refusal(why: Callable[[str], dict[str, Any]]) -> None:
    found = why(f"@{REFUSED}")
    assert (found["saved"], found["kind"], found["before"], found["after"]) == (False, "refused", None, WISHED)
    assert found["cause"].startswith("refused by the budget bytes a day (reboot): a save needs ")
    assert " kB to the ssd, 40 kB of 40 kB left; saved as soon as that covers it; " in found["cause"]
    assert "raise budgets.bytes_per_day to save sooner" in found["cause"]
    assert found["cause"].endswith("(wanted: 50 steps since the last save, interval 50)")
    assert found["numbers"]["limit"] == 4e4
    assert found["measured"].endswith(f"{REFUSED} steps since the beginning, with no checkpoint before")
    assert "interval 50 steps" in found["limit"]
    assert found["effect"].startswith("A save was due, and was not made. Had the process ended here")
    assert [row["step"] for row in found["seen"]] == list(range(REFUSED - 9, REFUSED + 1))


def test_an_alarm(why: Callable[[str], dict[str, Any]]) -> None:
    found = why(f"@{SPIKE}")
    assert (found["saved"], found["kind"]) == (False, "alarm")
    assert found["cause"].startswith("alarm: loss spike: ")
    assert found["limit"] == "loss spike 40"
    assert float(found["measured"].partition(";")[0].removeprefix("loss spike ")) > 1000
    assert "spoils what is computed" in found["effect"]
    assert found["seen"][-1]["loss"] == 900.0


def test_a_save_that_somebody_asked_for(why: Callable[[str], dict[str, Any]]) -> None:
    found = why(f"@{WISHED}")
    assert (found["saved"], found["kind"], found["cause"]) == (True, "asked", "asked: SIGUSR1 asked for a save")
    assert found["effect"] == "a checkpoint: not exact, suspect; a resume prefers one that was saved in good health"
    assert [(one["kind"], one["step"]) for one in found["near"]][-1] == ("notice", WISHED)
    assert found["cost"]["durable_s"] >= 0.0


def test_a_skip(why: Callable[[str], dict[str, Any]]) -> None:
    found = why("@10")
    assert (found["saved"], found["kind"]) == (False, "skip")
    assert (
        found["cause"]
        == "skip: less would be lost on average than a save costs (told at step 1, and nothing else since)"
    )
    assert "cost 20 s" in found["limit"]
    assert found["measured"].endswith("10 steps since the beginning, with no checkpoint before")


def test_in_words(ask: Any, seen: Path) -> None:
    """Each names its cause, what was measured, the limit, the effect and the next command."""
    for step in (10, REFUSED, SPIKE, WISHED):
        answer = ask("why", seen, f"@{step}")
        heads = [line.split()[0] for line in answer.lines[1:9]]
        assert heads[:4] == ["cause", "measured", "limit", "effect"]
        assert "next" in heads
        assert f"step {step} of net was" in answer.lines[0]
