"""`mementum why` and `trace` tell of steps whose states were not trusted, of what was kept for that, of rollbacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import recorded
from mementum.catalog import plans
from mementum.catalog.plans import Plan
from mementum.cli.doubting import Doubt, doubt_at, doubts, plan_told
from mementum.cli.recalling import Attempt, Recollection
from mementum.records import Detour, Fact, Health
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HIGH = "the loss is 9 spreads above its trend"
BACK = f"{HIGH}: back to step 2, without the batches of steps 4 to 5 (rollback 1 of 3)"
WORSE = f"{HIGH}; it has stayed there for 50 steps"


@pytest.fixture
def seen(root: Path) -> Path:
    """An attempt that came to step 8, with checkpoints of 2, 4 and 6, and nothing told yet."""
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(step) for step in range(1, 9)])
    return root


def ids(root: Path) -> dict[int, str]:
    manifests = (json.loads(path.read_bytes()) for path in recorded.home(root).glob("step_*/meta.json"))
    return {one["step"]: one["id"] for one in manifests}


def diagnose(root: Path, step: int, health: str, onset: int | None, why: str, attempt: int = 1) -> None:
    known = {} if onset is None else {"onset": onset, "seen": step}
    recorded.tell(root, attempt, "diagnosis", step, health=health, why=why, episode=1, **known)


def quarantine(root: Path) -> dict[int, str]:
    """At step 5 a trouble is seen that began with the state of step 4; the checkpoint of step 2 is kept."""
    found = ids(root)
    diagnose(root, 5, "suspect", 4, HIGH)
    for step in (4, 6):
        recorded.tell(root, 1, "health", step, found[step], health="suspect", why=HIGH, onset=4)
    recorded.tell(root, 1, "pin", None, found[2], why=f"the newest state before step 4, where {HIGH}", by="recorder")
    return found


def explained(ask: Any, root: Path, address: str) -> dict[str, Any]:
    answer = ask("why", root, address, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_why_of_a_checkpoint_in_quarantine(ask: Any, seen: Path) -> None:
    id = quarantine(seen)[6]
    recorded.decide(seen, 6, "an interval", {"cause": "interval"}, exactness=())
    answer = ask("why", seen, "@6")
    assert (answer.code, answer.err) == (0, "")
    text = answer.out.replace(str(seen), "ROOT").replace(id, "ID").replace(ids(seen)[2], "KEPT").splitlines()
    assert text[1:7] == [
        "  cause     interval: an interval",
        "  measured  2 steps and 1 s since the checkpoint of step 4",
        "  limit     none: nothing had to be exceeded",
        "  effect    a checkpoint: exact, suspect; a resume prefers one that was saved in good health",
        f"  health    suspect: {HIGH}",
        "  next      mementum show ROOT byte-gpt@ID",
    ]
    assert text[text.index("told before") :] == [
        "told before",
        f"  step 5  diagnosis: suspect from step 4 on: {HIGH}",
        f"  step 5  pin: checkpoint KEPT stays: the newest state before step 4, where {HIGH} (recorder)",
    ]


def test_why_of_what_was_kept(ask: Any, seen: Path) -> None:
    quarantine(seen)
    found = explained(ask, seen, "@2")
    assert (found["health"], found["doubt"]) == ("clean", "")
    assert found["kept"] == f"the newest state before step 4, where {HIGH} (recorder)"
    assert f"  kept      the newest state before step 4, where {HIGH} (recorder)" in ask("why", seen, "@2").lines


def test_why_of_a_step_that_was_not_saved(ask: Any, seen: Path) -> None:
    quarantine(seen)
    found = explained(ask, seen, "@7")
    assert (found["health"], found["doubt"]) == ("suspect", f"suspect from step 4 on, seen at step 5: {HIGH}")
    assert explained(ask, seen, "@3")["health"] is None
    diagnose(seen, 8, "diverged", 3, WORSE)
    assert explained(ask, seen, "@3")["doubt"] == f"diverged from step 3 on, seen at step 8: {WORSE}"


def test_why_of_what_is_not_finite(ask: Any, seen: Path) -> None:
    decision = {"cause": "interval", "non_finite": "model.weight"}
    recorded.decide(seen, 6, "an interval", decision, health=Health.DIVERGED)
    recorded.tell(seen, 1, "health", 8, ids(seen)[6], health="clean", why="calm")
    found = explained(ask, seen, "@6")
    assert (found["health"], found["doubt"]) == ("diverged", "diverged: model.weight is not finite")
    assert found["numbers"] == {}


def test_a_trouble_that_ended(ask: Any, seen: Path) -> None:
    quarantine(seen)
    recorded.tell(seen, 1, "diagnosis", 8, health="clean", calm=2, why="", episode=1)
    assert [explained(ask, seen, f"@{step}")["health"] for step in (3, 5, 7)] == [None, "suspect", None]
    lines = ask("trace", seen).lines
    assert [line.partition("0.5  ")[2].rpartition("0.5")[2].strip() for line in lines[1:9]] == [
        "",
        "saved: 2 steps since the last save, interval 2",
        "",
        "suspect; saved: 2 steps since the last save, interval 2",
        f"suspect; diagnosis: suspect from step 4 on: {HIGH}; pin: checkpoint {ids(seen)[2]} stays: the newest state "
        f"before step 4, where {HIGH} (recorder)",
        "suspect; saved: 2 steps since the last save, interval 2",
        "",
        "diagnosis: the state is clean again",
    ]


def went_back(root: Path, **changes: Any) -> Plan:
    """From step 8 to the checkpoint of step 2, without the batches of steps 4 and 5."""
    fields: dict[str, Any] = {
        "target": ids(root)[2],
        "step": 2,
        "from_step": 8,
        "onset": 4,
        "seen": 5,
        "skips": (Detour(at_step=4, groups=2),),
        "lr_scale": 0.5,
        "after_seq": 3,
        "attempt": 1,
        "why": BACK,
        "time": recorded.WHEN,
        **changes,
    }
    plan = Plan(**fields)
    plans.write(LocalStore(PosixDisk(), str(recorded.home(root))), f"c{len(changes)}plan", plan)
    return plan


def test_a_rollback(ask: Any, seen: Path) -> None:
    quarantine(seen)
    plan = went_back(seen)
    told = f"{BACK}; checkpoint {plan.target}; learning rates are 0.5 of those that were stored"
    assert plan_told(plan) == told
    for step in (2, 3, 8):
        assert explained(ask, seen, f"@{step}")["rollback"] == told
    assert explained(ask, seen, "@1")["rollback"] == ""
    assert f"  rollback  {told}" in ask("why", seen, "@7").lines
    found = json.loads(ask("trace", seen, "--json").out)
    assert [(one["step"], one["text"]) for one in found["marks"] if one["kind"] == "rollback"] == [(8, told)]
    (doubt,) = found["doubts"]
    assert (doubt["first"], doubt["last"], doubt["left"]) == (4, 8, True)
    assert "suspect;" not in ask("trace", seen).out  # what stands there is of the branch that the run is on


def test_a_rollback_that_was_taken_back_is_not_told(ask: Any, seen: Path) -> None:
    plan = went_back(seen, by_hand=True, why="a bad shard")
    assert explained(ask, seen, "@5")["rollback"] == (
        f"back to step 2 (checkpoint {plan.target}), by hand: a bad shard; the batches of 2 steps are left out; "
        "learning rates are 0.5 of those that were stored"
    )
    store = LocalStore(PosixDisk(), str(recorded.home(seen)))
    plans.write(store, "c9cancelled", plans.Cancelled(attempt=1, time="2026-11-30T06:10:10.000000Z", by_hand=True))
    assert explained(ask, seen, "@5")["rollback"] == ""


def recollection(*attempts: Attempt, made: tuple[Plan, ...] = ()) -> Recollection:
    return Recollection(task="t", home="t", attempts=attempts, plans=made, damage=(), torn=())


def attempt(number: int, first: int, last: int, *facts: tuple[int, str, int | None]) -> Attempt:
    """With rows of the steps, and a diagnosis a step: its health and its onset."""
    told = [
        Fact(
            kind="diagnosis",
            time=f"{number}{step:09d}",
            step=step,
            values={"health": health, "onset": onset, "why": "w"},
        )
        for step, health, onset in facts
    ]
    rows = {step: recorded.row(step) for step in range(first, last + 1)}
    return Attempt(number=number, rows=rows, facts=tuple(told))


def spans(found: tuple[Doubt, ...]) -> list[tuple[int, int, int | None, str]]:
    return [(one.attempt, one.first, one.last, one.health.value) for one in found]


def test_a_doubt_grows_and_ends() -> None:
    one = attempt(1, 1, 99, (20, "suspect", 15), (30, "diverged", 17), (60, "clean", None), (80, "suspect", 78))
    found = doubts(recollection(one))
    assert spans(found) == [(1, 15, 59, "diverged"), (1, 78, None, "suspect")]
    assert [doubt_at(found, 1, step) is not None for step in (14, 15, 59, 60, 78, 99)] == [
        False,
        True,
        True,
        False,
        True,
        True,
    ]
    assert doubt_at(found, 2, 20) is None


def test_a_doubt_goes_on_in_an_attempt_that_resumes_within_it() -> None:
    first = attempt(1, 1, 40, (20, "suspect", 15))
    assert spans(doubts(recollection(first, attempt(2, 16, 60, (50, "clean", None))))) == [
        (1, 15, 40, "suspect"),
        (2, 16, 49, "suspect"),
    ]
    before = doubts(recollection(first, attempt(2, 15, 60)))  # from the state of step 14, which is trusted
    assert spans(before) == [(1, 15, 40, "suspect")]
    silent = Attempt(number=2, rows={}, facts=())
    assert spans(doubts(recollection(first, silent, attempt(3, 31, 33)))) == [
        (1, 15, 40, "suspect"),
        (3, 31, None, "suspect"),
    ]


def test_facts_with_anything_in_them(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "diagnosis", 5, health="\x1b[31m", onset="soon", why=None, seen=float("nan"))
    recorded.tell(seen, 1, "diagnosis", 6, health=3, onset=float("inf"), calm=float("nan"), why=["\x1b[31m"])
    recorded.tell(seen, 1, "pin", 6, None, why=["\x1b"])
    recorded.tell(seen, 1, "diagnosis", 7, health="clean", calm=float("inf"))
    for words in (("why", seen, "@7"), ("why", seen, "@6"), ("trace", seen)):
        answer = ask(*words)
        assert (answer.code, answer.err) == (0, "")
        assert "\x1b" not in answer.out
        assert ask(*words, "--json").code == 0


def test_a_picture_shades_what_was_in_doubt(ask: Any, seen: Path, tmp_path: Path) -> None:
    quarantine(seen)
    path = tmp_path / "trace.png"
    assert ask("trace", seen, "--plot", path).code == 0
    from matplotlib.image import imread

    pixels = np.unique((imread(path)[..., :3].reshape(-1, 3) * 255).round().astype(int), axis=0)
    olive = 0.25 * np.array((0xBC, 0xBD, 0x22)) + 0.75 * 255
    assert np.abs(pixels - olive).max(axis=1).min() <= 2
