"""Settings: what holds where nothing is said, the forms of policies and switches, and that they cannot be changed."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mementum.config import policies
from mementum.config.checking import checked, keys
from mementum.config.policies import Best, Cost, Epoch, Event, Seconds, Steps, Window
from mementum.config.settings import Settings, Thresholds
from mementum.records import Trouble

ROOT = Path(__file__).resolve().parent.parent.parent


def found(values: dict[str, Any]) -> list[str]:
    _, findings = checked(Settings, values, lambda path: None)
    return [str(finding) for finding in findings]


def settings(**values: Any) -> Settings:
    made, findings = checked(Settings, values, lambda path: None)
    assert made is not None, findings
    return made


def test_arguments_of_open_run_leave_it_to_the_settings() -> None:
    """An argument that is a setting too has no default of its own. Read from the source: importing it would import
    torch."""
    tree = ast.parse((ROOT / "src/mementum/doors.py").read_text(encoding="utf-8"))
    (door,) = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "open_run"]
    given = zip(door.args.kwonlyargs, door.args.kw_defaults, strict=True)
    written = {one.arg: ast.unparse(value) for one, value in given if value is not None}
    names = set(Settings.model_fields) & set(written)
    assert {"keep_last", "codec", "capture", "slots", "on_error", "fit", "lr_wins", "write_rate"} <= names
    assert {name: written[name] for name in names if written[name] != "UNSAID"} == dict.fromkeys(
        ("every_steps", "every_s", "policy"),
        "None",  # None of these says something too: nothing
    )


def test_thresholds_are_those_of_the_detectors() -> None:
    from mementum.perceive.hang import FACTOR, FLOOR_S
    from mementum.perceive.signs import Limits

    said = Thresholds().model_dump()
    assert (said.pop("hang_factor"), said.pop("hang_floor")) == (FACTOR, FLOOR_S)
    limits = Limits()
    assert said == {name: getattr(limits, name) for name in said}


def test_the_forms_of_a_policy() -> None:
    made = settings(
        policy=[
            "cost",
            {"window": 500},
            {"window": {"decay": 0.5}},
            {"steps": 1000},
            {"seconds": "10m"},
            {"epoch": None},
            {"epoch": {"every": 2, "granularity": "weights"}},
            {"event": "evaluated"},
            {"best": {"metric": "acc", "mode": "max"}},
        ]
    )
    assert made.policy == (
        Cost(),
        Window(base_interval=500),
        Window(decay=0.5),
        Steps(every=1000),
        Seconds(every=600.0),
        Epoch(),
        Epoch(every=2, granularity="weights"),
        Event(name="evaluated"),
        Best(metric="acc", mode="max"),
    )
    assert settings(policy=made.policy).policy == made.policy  # models are taken as they are


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("coost", "policy[0]: 'coost' is no policy; the nearest is cost; expected a policy: one of before_stop, "),
        (None, "policy[0]: 'None' is no policy; expected a policy"),
        ({"cost": {}, "epoch": 2}, "policy[0]: 2 policies in one item of the list; expected a policy"),
        ({1: 2}, "policy[0]: '{1: 2}' is no policy; expected a policy"),
        ("steps", "policy[0].steps.every: it is not given, and has no default"),
        ({"steps": 0}, "policy[0].steps.every: 0 does not fit; expected greater than or equal to 1"),
        ({"steps": 1.5}, "policy[0].steps.every: 1.5 does not fit; expected a whole number"),
        ({"seconds": "5 GB"}, "policy[0].seconds.every: '5 GB' is a size; expected a duration such as 10m"),
        ({"cost": 5}, "policy[0].cost: 5 does not fit; expected a mapping of its settings"),
        ({"event": ""}, "policy[0].event.name: '' does not fit; expected a text that is not empty"),
        (
            {"window": {"base_intervall": 5}},
            "policy[0].window.base_intervall: there is no such key; the nearest is base_interval",
        ),
        (
            {"best": {"metric": "a", "granularity": "weight"}},
            "policy[0].best.granularity: 'weight' is none of its values; the nearest is weights; expected full, ",
        ),
    ],
)
def test_what_is_no_policy(policy: object, message: str) -> None:
    (text,) = found({"policy": [policy]})
    assert text.startswith(message)


@pytest.mark.parametrize("section", ["alarms", "vitals", "notices"])
def test_a_section_that_can_be_switched_off(section: str) -> None:
    assert [getattr(settings(**{section: word}), section) for word in ("off", False, "no", None)] == [None] * 4
    whole = getattr(settings(), section)
    assert [getattr(settings(**{section: word}), section) for word in ("on", True, {})] == [whole] * 3
    assert found({section: 3}) == [f"{section}: 3 is no section; expected off, on, or a mapping of its settings"]


def test_words_for_true_and_false() -> None:
    words = ["yes", "on", "True", True, "no", "Off", "false", False]
    assert [settings(observe=word).observe for word in words] == [True] * 4 + [False] * 4
    assert found({"observe": 1}) == ["observe: 1 is neither true nor false; expected true or false"]


def test_troubles_are_known_by_their_words() -> None:
    made = settings(alarms={"which": ["non_finite", "Loss-Spike", "hang"]})
    assert made.alarms is not None
    assert made.alarms.which == (Trouble.NON_FINITE, Trouble.LOSS_SPIKE, Trouble.HANG)
    (text,) = found({"alarms": {"which": ["memry"]}})
    assert text.startswith("alarms.which[0]: 'memry' is no trouble that is watched; the nearest is memory;")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"polcy": []}, "polcy: there is no such key; the nearest is policy"),
        ({"lost_time": 3}, "lost_time: there is no such key; the nearest is budgets.lost_time"),
        ({"budgets": {"lost_tme": 1}}, "budgets.lost_tme: there is no such key; the nearest is lost_time"),
        (
            {"budgets": {"bytes_per_day": {"s3": 1}}},
            "budgets.bytes_per_day.s3: there is no such key; expected one of ssd, object_store",
        ),
        ({"xyzzy": 1}, "xyzzy: there is no such key"),
        ({"resume": "auto"}, "resume: it is an argument of open_run, and no setting"),
        (
            {"verify": True},
            "verify: reading saves back comes with a later part: until then `mementum verify ROOT --deep`",
        ),
        ({"on_divergence": "kep"}, "on_divergence: 'kep' is none of its values; the nearest is keep; expected keep, "),
        ({"tolerance": {"max_lost": "10 GB"}}, "tolerance.max_lost: '10 GB' is a size; expected a duration such as"),
        ({"budgets": {"lost_time": 5}}, "budgets.lost_time: 5 is out of reach; expected a share such as"),
        ({"budgets": {"bytes_per_day": "2 TB"}}, "budgets.bytes_per_day: '2 TB' does not fit; expected a mapping"),
        ({"budgets": None}, "budgets: None does not fit; expected a mapping of its settings"),
        ({"policy": []}, "policy: [] does not fit; expected at least one item; leave the key out for the default"),
        ({"policy": "cost"}, "policy: 'cost' does not fit; expected a list"),
        ({"slots": False}, "slots: False is no whole number; expected 0, 2 or 3"),
        ({"slots": 1}, "slots: 1 is none of its values; expected 0, 2 or 3"),
        ({"keep_last": True}, "keep_last: True does not fit; expected a whole number"),
        ({"keep_last": "3"}, "keep_last: '3' does not fit; expected a whole number"),
        ({"codec": "zst:3"}, "codec: there is no 'zst' in mementum.codecs; there are: planes, raw, zstd; expected"),
        ({"codec": "zstd:99"}, "codec: zstd level must be a whole number from 1 to 22, got '99'; expected a codec"),
        ({"codec": "delta"}, "codec: there is no 'delta' in mementum.codecs"),
        ({"codec": "zstd:1+delta"}, "codec: there is no 'delta' in mementum.codecs"),
        ({"codec": 3}, "codec: 3 is no codec; expected a codec such as raw, zstd:1 or planes+zstd:1"),
        ({"alarms": {"thresholds": {"loss_z": float("nan")}}}, "alarms.thresholds.loss_z: nan does not fit; expected"),
        ({"alarms": {"thresholds": {"loss_z": True}}}, "alarms.thresholds.loss_z: True does not fit; expected a num"),
        (
            {"notices": {"signals": {"stop": ["SIGTERN"]}}},
            "notices.signals.stop[0]: 'SIGTERN': there is no such signal; the nearest is SIGTERM; expected the name",
        ),
        (
            {"notices": {"signals": {"stop": ["SIGKILL"]}}},
            "notices.signals.stop[0]: 'SIGKILL': no process can catch it; expected the name of a signal",
        ),
    ],
)
def test_a_wrong_value_is_told_by_its_key(values: dict[str, Any], message: str) -> None:
    (text,) = found(values)
    assert text.startswith(message)


def test_nothing_can_be_changed() -> None:
    said = settings()
    with pytest.raises(ValidationError, match="frozen"):
        said.budgets.lost_time = 0.5  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        said.keep_last = 3  # type: ignore[misc]


def test_every_policy_has_a_name_and_a_page_of_settings() -> None:
    classes = {
        one for _, one in inspect.getmembers(policies, inspect.isclass) if getattr(one, "kind", None) in policies.KINDS
    }
    assert set(policies.KINDS.values()) == classes
    assert all(one.kind == name for name, one in policies.KINDS.items())  # type: ignore[attr-defined]
    assert "policy.window.base_interval" in keys()


@pytest.mark.parametrize("codec", ["delta+planes+zstd:1", "delta:2+planes:2+zstd:1", "delta+zstd:1"])
def test_a_delta_stands_before_a_codec(codec: str) -> None:
    loaded = Settings.model_validate({"codec": codec, "tiers": [{"url": "/elsewhere", "codec": codec}]})
    assert (loaded.codec, loaded.tiers[0].codec) == (codec, codec)
