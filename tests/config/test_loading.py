"""Loading: presets, files and mappings, where each value is from, and all that is wrong at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mementum.config.loading import SHOWN_MAX, examine, load, schema
from mementum.config.policies import BeforeStop, Cost, Epoch, Event
from mementum.config.presets import PRESETS
from mementum.config.settings import Settings
from mementum.errors import UsageError

WRONG = """\
budgets:
  lost_tme: 5 %
tolerance:
  max_lost: 10 GB
polcy: [cost]
keep_last: 3
keep_last: 4
policy:
  - cost
  - cost
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_nothing_said_is_the_defaults() -> None:
    made = load(None)
    assert (made.settings, made.said, made.source) == (Settings(), (), "defaults")
    assert set(made.origins.values()) == {"default"}
    assert load({}).settings == made.settings


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_configuration(name: str) -> None:
    made = load(name)
    assert (made.source, made.settings.preset) == (name, name)
    assert made.settings.policy is not None
    assert made.settings.policy[0] == BeforeStop()
    assert made.origins["policy"] == f"preset {name}"
    assert made.origins["on_error"] == "default"
    assert load({"preset": name}).settings == made.settings


def test_what_the_presets_are_for() -> None:
    pretrain = load("pretrain").settings
    assert pretrain.tolerance.max_lost == 1800.0
    assert pretrain.budgets.bytes_per_day.ssd == 7.5e12
    assert pretrain.policy == (BeforeStop(), Cost())
    # The 87 GB of the documents' run, each half hour, are 4.2 TB a day: both promises can be kept.
    assert load({"preset": "pretrain", "expected": {"checkpoint_size": "87 GB", "durable_after": "60s"}})
    finetune = load("finetune").settings
    assert Epoch() in (finetune.policy or ())
    assert load("inference").settings.policy == (BeforeStop(), Event(name="publish", granularity="weights"))
    assert [one.text.partition(":")[0] for one in load("rlhf").said] == ["rlhf"]


def test_what_is_said_wins_over_the_preset(write: Any) -> None:
    made = load(write("preset: pretrain\nbudgets:\n  lost_time: 2 %\nkeep_last: null\n"))
    assert (made.settings.budgets.lost_time, made.settings.budgets.bytes_per_day.ssd) == (0.02, 7.5e12)
    assert made.settings.keep_last is None
    wanted = {
        "preset": "line 1",
        "budgets.lost_time": "line 3",
        "budgets.bytes_per_day.ssd": "preset pretrain",
        "keep_last": "line 4",
        "slots": "default",
    }
    assert {key: made.origins[key] for key in wanted} == wanted


def test_an_interval_replaces_the_policy_of_a_preset() -> None:
    made = load({"preset": "finetune", "every_steps": 50})
    assert (made.settings.policy, made.settings.every_steps) == (None, 50)
    assert (made.origins["policy"], made.origins["every_steps"]) == ("default", "given")


def test_everything_that_is_wrong_is_told_at_once(write: Any) -> None:
    path = write(WRONG)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.message.splitlines() == [
        f"{path} has 4 findings:",
        f"  {path}:2: budgets.lost_tme: there is no such key; the nearest is lost_time",
        f"  {path}:4: tolerance.max_lost: '10 GB' is a size; expected a duration such as 10m, 60s or 1h30m",
        f"  {path}:5: polcy: there is no such key; the nearest is policy",
        f"  {path}:7: keep_last: the key is given twice, on line 6 and on line 7",
    ]
    assert caught.value.kept == "everything: nothing was changed"
    assert caught.value.next_command == f"mementum config check {path}"


def test_contradictions_have_their_lines(write: Any) -> None:
    (finding,) = examine(write("policy:\n  - cost\n  - cost\n")).findings
    assert (finding.line, finding.key) == (3, "policy[1]")


def test_one_finding_is_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        load({"polcy": 1})
    assert caught.value.message == "a mapping: polcy: there is no such key; the nearest is policy"
    assert caught.value.next_command == "mementum config schema"


def test_many_findings_are_counted() -> None:
    with pytest.raises(UsageError, match=rf"has 30 findings(.|\n)*… and {30 - SHOWN_MAX} more"):
        load({f"zz{number}": 1 for number in range(30)})


def test_what_is_neither_a_preset_nor_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"'pretran' is neither a preset .* nor a file; the nearest preset is pretrain"
    ):
        load("pretran")
    with pytest.raises(UsageError, match=r"'no/such\.yaml' cannot be read: No such file or directory"):
        load("no/such.yaml")
    for thing in (3, b"pretrain", ["pretrain"]):
        with pytest.raises(UsageError, match="a configuration is a preset's name, a file or a mapping, got"):
            load(thing)  # type: ignore[arg-type]
    (tmp_path / "rlhf").write_text("keep_last: 77\n")
    assert load("rlhf").settings.keep_last == 4  # the preset's
    assert load("./rlhf").settings.keep_last == 77


def test_mappings_of_the_program_are_copied_and_walked_with_care() -> None:
    mine: dict[Any, Any] = {"alarms": {"which": ("hang",)}}
    made = load(mine)
    mine["alarms"]["which"] = ()
    assert made.settings.alarms is not None
    assert made.settings.alarms.which == ("hang",)
    assert made.origins["alarms.which"] == "given"
    circle: dict[Any, Any] = {3: 4}
    circle["a"] = circle
    texts = [str(finding) for finding in examine(circle).findings]
    assert "the key 3 is no text" in texts
    assert any("more than 16 levels of nesting" in text for text in texts)


def test_what_waits_for_a_later_part_is_said_if_it_is_given() -> None:
    values = {"budgets": {"network": "1 GB/s", "bytes_per_day": {"object_store": "1 TB", "ssd": "1 TB"}}}
    assert [(one.key, one.effective) for one in load(values).said] == [
        ("budgets.network", False),
        ("budgets.bytes_per_day.object_store", False),
    ]
    assert load({"budgets": {"network": None}}).said == ()


def test_the_schema_is_one_of_files_as_they_are_written() -> None:
    made = schema()
    assert made["additionalProperties"] is False
    assert {"policy", "budgets", "base_interval", "storage_levels"} <= set(made["properties"])
    described = [name for name, one in made["properties"].items() if "description" in one or "$ref" in one]
    assert set(made["properties"]) - set(described) <= {"storage_levels"}
    assert "properties" in made["$defs"]["Window"]
