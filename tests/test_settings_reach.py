"""Every setting reaches something: what a run is made of changes with it, or a note says why it has no effect."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from changed_settings import BESIDE, CHANGED, NUMBERS, SECTIONS, WITHOUT_EFFECT
from mementum import doors
from mementum.background import Background
from mementum.catalog.shared import SharedCatalog
from mementum.clock import ManualClock
from mementum.config.checking import keys
from mementum.config.loading import load
from mementum.config.section import Section
from mementum.errors import UsageError
from mementum.events import Event, Note
from mementum.execute.capture import BlockingCapture
from mementum.execute.overlap import OverlappedCapture
from mementum.perceive import deadlines
from mementum.perceive.alarms import Detectors
from mementum.perceive.budgets import Budgets
from mementum.perceive.costs import Costs
from mementum.perceive.gradients import Gradients
from mementum.perceive.hang import Watch
from mementum.perceive.hazards import Hazards
from mementum.perceive.health import Judge
from mementum.perceive.memory import Memory
from mementum.perceive.notices import Notices
from mementum.perceive.situation import Perception
from mementum.places import Site
from mementum.policies import came_late
from mementum.rolling import Rolling
from mementum.run import Run
from mementum.slotting import ChosenSlots
from mementum.storage import tiers
from mementum.tending import Tending

FIXTURE = Path(__file__).parent / "fixtures" / "checkpoint_config.yaml"
GB = 10**9

SETTINGS = sorted(set(keys()) - SECTIONS)

Made = list[tuple[Any, ...]]


known: dict[str, Made] = {}  # what is made of a configuration that several settings begin from


def plainly(value: Any) -> Any:
    """What a value says of itself that does not change from run to run; of objects their kind."""
    if isinstance(value, enum.Enum | str | int | float | type(None)):
        return repr(value)
    if isinstance(value, Section):
        return plainly(value.model_dump())
    if isinstance(value, Mapping):
        return [(plainly(key), plainly(one)) for key, one in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(map(repr, map(plainly, value)))
    if is_dataclass(value):
        return [type(value).__name__, *((one.name, plainly(getattr(value, one.name))) for one in fields(value))]
    return type(value).__name__


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, Any]], Made]:
    """Opens a run with a configuration, and tells of what it was made."""
    made: Made = []

    def note(name: str, words: Any, named: Mapping[str, Any]) -> None:
        lead = named.get("lead")
        said = {key: value for key, value in named.items() if key not in ("clock", "began_s")}
        # These are made of the root's path, of addresses, and of the environment.
        kept = () if name in ("ChosenSlots", "Gradients", "slurm_limit") else words
        made.append((name, plainly(kept), plainly(said), lead() if callable(lead) else None))

    def spy_on_class(kind: Any) -> None:
        begin = kind.__init__

        def beginning(self: Any, *words: Any, **named: Any) -> None:
            note(kind.__name__, words, named)
            begin(self, *words, **named)

        monkeypatch.setattr(kind, "__init__", beginning)

    def spy_on(name: str) -> None:
        original = getattr(deadlines, name)

        def making(*words: Any, **named: Any) -> Any:
            note(name, words, named)
            return original(*words, **named)

        monkeypatch.setattr(deadlines, name, making)

    for kind in (Budgets, Costs, Hazards, Detectors, Gradients, Memory, Watch, Notices, Perception, deadlines.Polled):
        spy_on_class(kind)
    for kind in (Background, ChosenSlots, OverlappedCapture, BlockingCapture, Run, Judge, Rolling, Site, SharedCatalog):
        spy_on_class(kind)
    spy_on_class(Tending)
    for name in ("wall_time", "slurm_limit"):
        spy_on(name)
    monkeypatch.setattr(deadlines, "_fetch", lambda *words, **named: None)  # no cloud is asked
    asked_of = doors.asked_of

    def asking(*words: Any, **named: Any) -> Any:
        asked = asked_of(*words, **named)
        late = came_late(asked.settings, 90.0)
        made.append(("asked", plainly(asked.policy), plainly(asked.retention), plainly(asked.fit), late))
        return asked

    monkeypatch.setattr(doors, "asked_of", asking)
    monkeypatch.setattr(tiers, "SHM", tmp_path)  # of a tier ram://
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(1_700_000_000 + 36_000))
    roots = iter(range(100))

    def open_with(config: Any) -> Made:
        made.clear()
        model = torch.nn.Linear(2, 2)

        def heard(event: Event) -> None:
            if isinstance(event, Note):
                made.append(("note", event.text))

        try:
            mementum.open_run(
                tmp_path / str(next(roots)),
                task="t",
                model=model,
                optimizer=torch.optim.AdamW(model.parameters()),
                config=config,
                clock=ManualClock(),
                on_event=heard,
            ).close()
        except UsageError as error:
            made.append(("refused", str(error)))
        return list(made)

    return open_with


def with_(base: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The configuration with one setting more."""
    parts = key.split(".")
    if parts[0] == "policy" and len(parts) < 3:
        return {**base, "policy": value}
    if parts[0] == "policy":
        _, kind, name = parts
        (one,) = base["policy"]
        return {**base, "policy": [{kind: {**one[kind], name: value}}]}
    if parts[0] == "tiers" and len(parts) > 1:
        return {"tiers": [with_(base["tiers"][0], ".".join(parts[1:]), value)]}
    head, *rest = parts
    inner = with_(base.get(head) or {}, ".".join(rest), value) if rest else value
    return {**base, head: inner}


def beside(key: str) -> Mapping[str, Any]:
    return next((said for head, said in BESIDE.items() if key.startswith(head)), {})


def test_each_setting_is_looked_at() -> None:
    assert sorted({*CHANGED, *NUMBERS}) == SETTINGS


def test_the_same_is_made_of_the_same(observed: Callable[[Mapping[str, Any]], Made]) -> None:
    first = observed({"nodes": 2})
    assert observed({"nodes": 2}) == first
    assert {"Budgets", "Detectors", "Notices", "Background", "asked", "slurm_limit"} <= {one[0] for one in first}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_reaches_something(key: str, observed: Callable[[Mapping[str, Any]], Made]) -> None:
    base = beside(key)
    value = {**CHANGED, **NUMBERS}[key]
    if repr(base) not in known:
        known[repr(base)] = observed(base)
    plain, changed = known[repr(base)], observed(with_(base, key, value))
    if key == "policy.before_stop":  # it is asked in any case, and first
        plain = observed({"policy": [{"steps": 7}]})
        assert changed == plain
        assert "BeforeStop" in repr(plain)
    elif key in WITHOUT_EFFECT:
        notes = [one for one in changed if one[0] == "note" and one[1].startswith(f"{key}: ")]
        assert len(notes) == 1
        assert [one for one in changed if one not in notes] == plain
    else:
        assert [one for one in changed if one[0] != "note"] != [one for one in plain if one[0] != "note"]


def test_the_documents_file_chooses_the_window_policy_and_the_codec(
    observed: Callable[[Any], Made],
) -> None:
    """Each of its keys has an effect, or a note names it with the reason why not."""
    made = observed(FIXTURE)
    (asked,) = [one for one in made if one[0] == "asked"]
    said = "['Window', ('base_steps', '2000'), ('risk_threshold', '0.68'), ('decay', '0.0')]"
    assert said in repr(asked).replace('"', "")
    (background,) = [dict(one[2]) for one in made if one[0] == "Background"]
    assert background["'settle_with'"] == "'zstd:3'"
    (perception,) = [one[1] for one in made if one[0] == "Perception"]
    assert "('loss_window', '100')" in repr(perception).replace('"', "")
    idle = {one.key: one.text for one in load(FIXTURE).said if not one.effective}
    assert {f"{key}: {text}" for key, text in idle.items()} <= {one[1] for one in made if one[0] == "note"}
    assert set(idle) == {
        *(f"storage_levels.level_{level}.device" for level in (0, 1, 2)),
        "storage_levels.level_2.compression",
        "recovery_timeout_ms",
        "fallback_strategy",
    }


def test_where_memory_is_urgent_it_is_for_the_alarm_and_for_the_save(observed: Callable[[Any], Made]) -> None:
    made = observed({"alarms": {"thresholds": {"memory_urgent": 0.99}}})
    told = {one[0]: repr(one) for one in made}
    assert "('memory_urgent', '0.99')" in told["asked"].replace('"', "")
    assert "('memory_urgent', '0.99')" in told["Detectors"].replace('"', "")


def test_a_resume_that_took_too_long_is_told() -> None:
    said = load({"tolerance": {"max_restore": "1m"}}).settings
    assert came_late(said, 60.0) is None
    assert came_late(load(None).settings, 1e6) is None
    text = came_late(said, 200.0)
    assert text is not None
    assert text.startswith("coming back took 3.33 min, and max_restore is 60 s: ")


class Slow(ManualClock):
    """Every look at it takes long."""

    def monotonic(self) -> float:
        self.advance(50.0)
        return super().monotonic()


def test_open_run_tells_it(tmp_path: Path) -> None:
    told: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Note):
            told.append(event.text)

    def begin(clock: ManualClock) -> None:
        model = torch.nn.Linear(2, 2)
        config = {"tolerance": {"max_restore": "10s"}}
        with mementum.open_run(tmp_path, task="t", model=model, config=config, clock=clock, on_event=heard) as run:
            run.save()

    begin(Slow())
    assert not [text for text in told if text.startswith("coming back took")]
    begin(Slow())
    (text,) = [text for text in told if text.startswith("coming back took")]
    assert "and max_restore is 10 s: " in text
