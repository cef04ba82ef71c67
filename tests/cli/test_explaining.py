"""`mementum why`: for a save, a skip, an alarm, a refusal and a notice: cause, value, limit, effect and next."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cli import recorded
from mementum.catalog import noted
from mementum.records import Manifest

SEEN = """\
seen before
  step     loss    z  grad  grad z  layer    lr  memory  left  step s
     1        1  0.5     2       -      -  0.01     25%     -     0.5
     2      0.5  0.5     2       -      -  0.01     25%     -     0.5
     3  0.33333  0.5     2       -      -  0.01     25%     -     0.5
     4     0.25  0.5     2       -      -  0.01     25%     -     0.5
     5      0.2  0.5     2       -      -  0.01     25%     -     0.5
     6  0.16667  0.5     2       -      -  0.01     25%     -     0.5
     7  0.14286  0.5     2       -      -  0.01     25%     -     0.5
     8    0.125  0.5     2       -      -  0.01     25%     -     0.5
""".splitlines()
CHEAP = "too little is lost on average so far for what a save costs"


@pytest.fixture
def seen(root: Path) -> Path:
    """An attempt that came to step 8, with checkpoints of 2, 4 and 6, and nothing told yet."""
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(step) for step in range(1, 9)])
    return root


def told(ask: Any, root: Path, address: str, expected: str, *, id: str = "", near: str = "") -> None:
    """`why` says what is expected, before and after the table of what was seen up to the step of `@STEP`."""
    answer = ask("why", root, address)
    assert (answer.code, answer.err) == (0, "")
    text = answer.out.replace(str(root), "ROOT").replace(id or "\0", "ID")
    table = SEEN[: 2 + int(address.rpartition("@")[2])]
    told_before = ["told before", *textwrap.indent(textwrap.dedent(near), "  ").splitlines()] if near else []
    assert text.splitlines() == [*textwrap.dedent(expected).splitlines(), *table, *told_before]


def saved(root: Path, step: int, reason: str, **decision: Any) -> Manifest:
    return recorded.decide(root, step, reason, {"blocked_s": 0.002, **decision}, exactness=())


def test_a_save(ask: Any, seen: Path) -> None:
    numbers = {"reach": 2.0, "exposure_s": 0.41, "cost_s": 0.4, "at_risk_s": 31.0, "interval_s": 600.0}
    manifest = saved(seen, 4, "0.41 s lost on average so far >= 0.4 s that a save costs", cause="interval", **numbers)
    recorded.tell(seen, 1, "skip", 1, reason=CHEAP, exposure_s=0.1, cost_s=0.4)
    recorded.tell(
        seen, 1, "cost", 4, manifest.id, blocked_s=0.002, lost_s=0.16, snapshot_s=0.1, durable_s=0.9, bytes=1 << 30
    )
    told(
        ask,
        seen,
        "@4",
        """\
        step 4 of byte-gpt was saved: checkpoint ID, 2026-11-30 06:10:09 UTC, attempt 1
          cause     interval: 0.41 s lost on average so far >= 0.4 s that a save costs
          measured  exposure 0.41 s, at risk 31 s; 2 steps and 1 s since the checkpoint of step 2
          limit     cost 0.4 s, interval 10 min
          effect    a full checkpoint, from which a run resumes bit for bit
          cost      the loop stood still for 0.002 s; 0.16 s of training lost in all; durable after 0.9 s; 1.0 GiB \
written
          next      mementum show ROOT byte-gpt@ID
        """,
        id=manifest.id,
        near=f"step 1  skip: {CHEAP}",
    )


def test_a_skip(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "skip", 5, reason=CHEAP, reach=2.0, exposure_s=0.1, cost_s=0.4)
    told(
        ask,
        seen,
        "@7",
        f"""\
        step 7 of byte-gpt was not saved
          cause     skip: {CHEAP} (told at step 5, and nothing else since)
          measured  exposure 0.1 s; 1 step and 0.5 s since the checkpoint of step 6
          limit     cost 0.4 s
          effect    Had the process ended here, the run would go on from step 6 and do 1 step again; no checkpoint \
follows yet.
          next      mementum trace ROOT byte-gpt --from 0 --to 17
        """,
        near=f"step 5  skip: {CHEAP}",
    )


def test_an_alarm_that_ends_no_process(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "skip", 2, reason=CHEAP)
    text = "the loss is 9 spreads above its trend"
    recorded.tell(seen, 1, "alarm", 3, trouble="loss spike", value=9.0, limit=6.0, text=text, chance=0.0)
    told(
        ask,
        seen,
        "byte-gpt@3",
        f"""\
        step 3 of byte-gpt was not saved
          cause     alarm: loss spike: {text}
          measured  loss spike 9; 1 step and 0.5 s since the checkpoint of step 2
          limit     loss spike 6
          effect    It ends no process, but spoils what is computed: a save would have kept the spoiled state, so \
none was \
made. Had the process ended here, the run would go on from step 2 and do 1 step again; the next checkpoint is of step 4.
          next      mementum trace ROOT byte-gpt --from 0 --to 13
        """,
        near=f"step 2  skip: {CHEAP}\nstep 3  alarm: loss spike: {text}",
    )


def test_a_save_for_an_alarm(ask: Any, seen: Path) -> None:
    text = "memory at 94 % of its limit"
    recorded.tell(seen, 1, "alarm", 6, trouble="memory", value=0.94, limit=0.92, text=text, chance=0.3)
    manifest = saved(
        seen, 6, f"{text}: 30 % chance x 600 s = 3 min > 0.4 s", cause="alarm", chance=0.3, worth_s=180.0, cost_s=0.4
    )
    told(
        ask,
        seen,
        "@6",
        f"""\
        step 6 of byte-gpt was saved: checkpoint ID, 2026-11-30 06:10:09 UTC, attempt 1
          cause     alarm: {text}: 30 % chance x 600 s = 3 min > 0.4 s
          measured  memory 0.94; chance 30 %, worth 3 min; 2 steps and 1 s since the checkpoint of step 4
          limit     memory 0.92; cost 0.4 s
          effect    a full checkpoint, from which a run resumes bit for bit
          cost      the loop stood still for 0.002 s
          next      mementum show ROOT byte-gpt@ID
        """,
        id=manifest.id,
        near=f"step 6  alarm: memory: {text} (chance that it ends the process: 30 %)",
    )


def test_an_alarm_that_no_save_followed(ask: Any, seen: Path) -> None:
    text = "memory at 98 % of its limit"
    recorded.tell(seen, 1, "alarm", 5, trouble="memory", value=0.98, limit=0.97, text=text, chance=0.9)
    told(
        ask,
        seen,
        "@5",
        f"""\
        step 5 of byte-gpt was not saved
          cause     alarm: memory: {text} (chance that it ends the process: 90 %)
          measured  memory 0.98; 1 step and 0.5 s since the checkpoint of step 4
          limit     memory 0.97
          effect    No save followed the alarm at this step. Had the process ended here, the run would go on from \
step \
4 and do 1 step again; the next checkpoint is of step 6.
          next      mementum trace ROOT byte-gpt --from 0 --to 15
        """,
        near=f"step 5  alarm: memory: {text} (chance that it ends the process: 90 %)",
    )


def test_a_refusal(ask: Any, seen: Path) -> None:
    reason = (
        "refused by the budget bytes a day (reboot): a save needs 87 GB, 40 GB of 100 GB left; saved as soon as that "
        "covers it; raise budgets.bytes_per_day to save sooner (wanted: 0.41 s lost)"
    )
    recorded.tell(seen, 1, "alarm", 5, trouble="memory", value=0.94, limit=0.92, text="memory at 94 %", chance=0.0)
    recorded.tell(
        seen, 1, "refused", 5, reason=reason, exposure_s=0.41, cost_s=0.4, need=87e9, left=40e9, limit=1e11, kept=0.0
    )
    told(
        ask,
        seen,
        "@5",
        f"""\
        step 5 of byte-gpt was not saved
          cause     {reason}
          measured  exposure 0.41 s, need 87,000,000,000, left 40,000,000,000, kept 0; 1 step and 0.5 s since the \
checkpoint of step 4
          limit     cost 0.4 s, limit 100,000,000,000
          effect    A save was due, and was not made. Had the process ended here, the run would go on from step 4 and \
do \
1 step again; the next checkpoint is of step 6.
          next      raise the setting that the cause names, and ask: mementum config check FILE
        """,
        near=f"step 5  alarm: memory: memory at 94 %\nstep 5  refused: {reason}",
    )


def test_a_notice(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "notice", 6, source="SIGTERM", left_s=30.0)
    reason = "SIGTERM: 30 s left; a save is durable in 0.9 s"
    manifest = saved(seen, 6, reason, cause="notice", left_s=30.0, durable_s=0.9)
    told(
        ask,
        seen,
        "@6",
        f"""\
        step 6 of byte-gpt was saved: checkpoint ID, 2026-11-30 06:10:09 UTC, attempt 1
          cause     notice: {reason}
          measured  30 s left; durable 0.9 s; 2 steps and 1 s since the checkpoint of step 4
          limit     the end of the process, 30 s after the notice
          effect    a full checkpoint, from which a run resumes bit for bit
          cost      the loop stood still for 0.002 s
          next      mementum show ROOT byte-gpt@ID
        """,
        id=manifest.id,
        near="step 6  notice: SIGTERM, 30 s left",
    )


def test_a_notice_that_no_save_followed(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "notice", 7, source="Slurm time limit")
    told(
        ask,
        seen,
        "@7",
        """\
        step 7 of byte-gpt was not saved
          cause     notice: Slurm time limit, how long is left is not known
          measured  the notice, which told no time; 1 step and 0.5 s since the checkpoint of step 6
          limit     the end of the process, at an unknown time
          effect    No save followed the notice at this step. Had the process ended here, the run would go on from \
step \
6 and do 1 step again; no checkpoint follows yet.
          next      mementum trace ROOT byte-gpt --from 0 --to 17
        """,
        near="step 7  notice: Slurm time limit, how long is left is not known",
    )


def explained(ask: Any, root: Path, address: str) -> dict[str, Any]:
    answer = ask("why", root, address, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_json_says_the_same(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "skip", 5, reason=CHEAP, exposure_s=0.1, cost_s=0.4)
    found = explained(ask, seen, "@7")
    assert [row["step"] for row in found.pop("seen")] == list(range(1, 8))
    assert found == {
        "task": "byte-gpt",
        "step": 7,
        "saved": False,
        "checkpoint": None,
        "attempt": 1,
        "kind": "skip",
        "cause": f"skip: {CHEAP} (told at step 5, and nothing else since)",
        "measured": "exposure 0.1 s; 1 step and 0.5 s since the checkpoint of step 6",
        "limit": "cost 0.4 s",
        "numbers": {"exposure_s": 0.1, "cost_s": 0.4},
        "effect": "Had the process ended here, the run would go on from step 6 and do 1 step again; no checkpoint "
        "follows yet.",
        "health": None,
        "doubt": "",
        "kept": "",
        "rollback": "",
        "cost": {},
        "next": f"mementum trace {seen} byte-gpt --from 0 --to 17",
        "before": 6,
        "after": None,
        "near": [{"step": 5, "kind": "skip", "text": CHEAP}],
    }
    saved_ = explained(ask, seen, "byte-gpt@latest")
    assert (saved_["saved"], saved_["step"], saved_["kind"], saved_["before"]) == (True, 6, "interval", 4)
    assert explained(ask, seen, f"@{saved_['checkpoint']}")["cause"] == saved_["cause"]


def test_a_run_that_recorded_nothing_still_has_its_manifests(ask: Any, root: Path) -> None:
    recorded.forget(root)
    recorded.decide(root, 4, "2 steps since the last save, interval 2", {"interval_steps": 2, "blocked_s": 0.5})
    found = explained(ask, root, "@4")
    assert (found["measured"], found["limit"]) == ("2 steps since the checkpoint of step 2", "interval 2 steps")
    assert (found["seen"], found["near"], found["cost"]) == ([], [], {"blocked_s": 0.5})
    between = explained(ask, root, "@3")
    assert between["cause"] == "no decision is recorded: nothing asked for a save, or the run recorded none"
    assert (between["before"], between["after"], between["attempt"]) == (2, 4, None)
    first = explained(ask, root, "@1")
    assert first["measured"] == "1 step since the beginning, with no checkpoint before"
    assert "would go on from its beginning and do 1 step again" in first["effect"]


def test_a_checkpoint_that_retention_took_away(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "cost", 5, "c1gone", blocked_s=0.25)
    recorded.tell(seen, 1, "removed", None, "c1gone", reason="older than the newest two")
    found = explained(ask, seen, "@5")
    assert found["cause"] == "retention took it away, 2026-11-30 06:10:09 UTC: older than the newest two"
    assert (found["kind"], found["saved"], found["cost"]) == ("removed", False, {"blocked_s": 0.25})
    headline = ask("why", seen, "@5").lines[0]
    assert headline == "step 5 of byte-gpt was saved as checkpoint c1gone, which is there no more"


@pytest.mark.parametrize(
    ("by", "who"), [(noted.AGE, "ageing"), (noted.ROOM, "the search for room"), (noted.POLICY, "retention")]
)
def test_what_took_a_checkpoint_away_is_named(ask: Any, seen: Path, by: str, who: str) -> None:
    recorded.tell(seen, 1, "cost", 5, "c1gone", blocked_s=0.25)
    recorded.tell(seen, 1, "removed", None, "c1gone", **noted.removed("it is old", by=by))
    assert explained(ask, seen, "@5")["cause"] == f"{who} took it away, 2026-11-30 06:10:09 UTC: it is old"


def test_a_checkpoint_that_a_person_took_away(ask: Any, seen: Path) -> None:
    """Of two that removed it, as after one that failed, the later one answers, whichever file it stands in."""
    recorded.tell(seen, 1, "cost", 2, recorded.decide(seen, 2, "asked", {}).id, blocked_s=0.25)
    assert ask("forget", seen, "--keep-last", "1").code == 0
    who = noted.person()
    found = explained(ask, seen, "@2")
    assert (found["kind"], found["saved"]) == ("removed", False)
    assert found["cause"].startswith(f"{who} took it away, 20")
    assert found["cause"].endswith(" UTC: older than the newest 1")
    recorded.tell(seen, 1, "removed", None, found["checkpoint"], **noted.removed("it is old", by=noted.AGE))
    assert explained(ask, seen, "@2")["cause"] == found["cause"]


def test_the_newest_attempt_that_saw_the_step_answers(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "skip", 7, reason="of the first")
    recorded.write(seen, 2, [recorded.row(step) for step in (7, 8, 9)])
    recorded.tell(seen, 2, "skip", 7, reason="of the second")
    assert (explained(ask, seen, "@7")["attempt"], explained(ask, seen, "@7")["cause"]) == (2, "skip: of the second")
    assert explained(ask, seen, "@9")["cause"] == "skip: of the second (told at step 7, and nothing else since)"
    assert [row["step"] for row in explained(ask, seen, "@9")["seen"]] == [7, 8, 9]
    assert explained(ask, seen, "@5")["attempt"] == 1


def test_a_damaged_or_doubtful_checkpoint_has_another_effect(ask: Any, seen: Path) -> None:
    from mementum.records import Health

    recorded.decide(seen, 4, "asked", {}, health=Health.SUSPECT, exactness=())
    effect = explained(ask, seen, "@4")["effect"]
    assert effect == "a checkpoint: exact, suspect; a resume prefers one that was saved in good health"
    (path,) = recorded.home(seen).glob("step_0000000006/model.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    assert ask("verify", seen, "@6").code == 3
    found = explained(ask, seen, "@6")
    assert found["effect"].startswith("none to rely on: it is damaged (step_0000000006/model.safetensors: ")
    assert found["next"].startswith(f"mementum verify {seen} byte-gpt@c")


def test_vital_signs_that_are_damaged_are_told(ask: Any, seen: Path) -> None:
    path = recorded.home(seen) / "vitals/0001.vitals"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    answer = ask("why", seen, "@6", "--json")
    assert answer.code == 3
    assert "vitals/0001.vitals: bytes " in answer.err
    assert [row["step"] for row in json.loads(answer.out)["seen"]] == [1, 2, 3, 4, 5, 6]


def test_facts_with_anything_in_them(ask: Any, seen: Path) -> None:
    recorded.tell(seen, 1, "alarm", 7, trouble=3, value="much", limit=None, text=["\x1b[31m"], chance=float("nan"))
    recorded.tell(seen, 1, "refused", 8, reason=None, need=float("inf"), left=10**400, size_bytes=float("nan"))
    recorded.tell(seen, 1, "notice", 8, left_s="soon")
    for step in (7, 8):
        answer = ask("why", seen, f"@{step}")
        assert (answer.code, answer.err) == (0, "")
        assert "\x1b" not in answer.out
        assert explained(ask, seen, f"@{step}")["step"] == step


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("@9", 4, "task 'byte-gpt' has not come to step 9: the newest that is known of it is 8"),
        ("other@2", 4, "there is no task 'other'"),
        ("@newest", 2, "'newest' selects no checkpoint"),
        ("@best:f1", 4, "no checkpoint with a value of 'f1'"),
    ],
)
def test_what_cannot_be_explained(ask: Any, seen: Path, address: str, code: int, said: str) -> None:
    answer = ask("why", seen, address)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
