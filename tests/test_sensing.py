"""What of a run is watched, and what its saves are expected to cost, by its settings and its live state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum import ram, sensing
from mementum.config.loading import load
from mementum.config.settings import Settings
from mementum.deciding import Watchers
from mementum.execute.room import Room
from mementum.live.stateful import components_in
from mementum.records import Reach
from mementum.sensing import expected_size, planned

GB = 10**9


def settings_of(**said: Any) -> Settings:
    return load(said).settings


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """A machine with 100 GB of memory, half of which may be shared."""
    made = Room(host_available=100 * GB, shm_folder=ram.FOLDER, shm_size=50 * GB, shm_free=50 * GB, shm_usable=True)
    monkeypatch.setattr("mementum.execute.room.look", lambda *, shm: made)
    return made


@pytest.mark.usefixtures("room")
def test_what_saves_are_planned_to_cost() -> None:
    plans = planned(Settings(), 2 * GB)
    memory, disk = plans[Reach.PROCESS], plans[Reach.REBOOT]
    assert sorted(plans) == [Reach.PROCESS, Reach.REBOOT]
    assert memory.lost_s == pytest.approx(0.005 + 2 * 0.05)
    assert disk.lost_s == pytest.approx(0.005 + 2 * 0.27)
    assert memory.durable_s == memory.snapshot_s == disk.snapshot_s == pytest.approx(0.5)
    assert disk.durable_s == pytest.approx(0.5 + 1.8)
    assert (memory.size, disk.size) == (0, 2 * GB)
    assert memory.memory == disk.memory == 2 * GB


@pytest.mark.usefixtures("room")
def test_what_is_expected_wins_over_what_was_measured_elsewhere() -> None:
    expected = {"lost_per_save": 0.03, "durable_after": "2m", "checkpoint_size": "87 GB"}
    plans = planned(settings_of(expected=expected), 2 * GB)
    disk = plans[Reach.REBOOT]
    assert (disk.lost_s, disk.durable_s, disk.size) == (0.03, 120.0, 87 * GB)
    assert plans[Reach.PROCESS].lost_s == 0.03  # what is kept in memory costs no more than what is written as well


@pytest.mark.parametrize(
    ("slots", "size", "changed"),
    [
        (0, GB, {}),
        (3, 13 * GB, {}),  # not even two fit into half of what is free
        (3, GB, {"shm_free": GB}),
        (3, GB, {"shm_usable": False}),
        (2, GB, {"host_available": GB}),
    ],
)
def test_without_room_no_snapshot_in_memory_is_offered(
    room: Room, monkeypatch: pytest.MonkeyPatch, slots: int, size: int, changed: dict[str, Any]
) -> None:
    monkeypatch.setattr("mementum.execute.room.look", lambda *, shm: replace(room, **changed))
    assert sorted(planned(settings_of(slots=slots), size)) == [Reach.REBOOT]


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("slots", [2, 3])
def test_with_room_for_two_one_is_offered(slots: int) -> None:
    assert sorted(planned(settings_of(slots=slots), 12 * GB)) == [Reach.PROCESS, Reach.REBOOT]


def watched(root: Path, **said: Any) -> Watchers:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with mementum.open_run(root, task="t", model=model, optimizer=optimizer, config=said) as run:
        return run._deciding._watchers


def test_all_is_watched_where_nothing_is_said(tmp_path: Path) -> None:
    watchers = watched(tmp_path)
    assert None not in (watchers.perception, watchers.recorder, watchers.notices, watchers.hang)
    senses = watchers.perception._senses
    assert None not in (senses.signs, senses.gradients, senses.detectors, senses.memory, senses.notices)
    assert senses.lr() == 0.25


@pytest.mark.parametrize(
    ("said", "absent", "there"),
    [
        ({"vitals": "off"}, {"signs", "gradients", "detectors", "memory"}, {"notices"}),
        ({"alarms": "off"}, {"detectors"}, {"signs", "gradients", "memory", "notices"}),
        ({"notices": "off"}, {"notices", "deadlines"}, {"signs", "gradients", "detectors", "memory"}),
    ],
)
def test_what_is_switched_off_is_not_made(
    tmp_path: Path, said: dict[str, Any], absent: set[str], there: set[str]
) -> None:
    watchers = watched(tmp_path, **said)
    senses = watchers.perception._senses
    assert {name for name in absent if getattr(senses, name) is not None} == set()
    assert {name for name in there if getattr(senses, name) is None} == set()
    assert (watchers.recorder is None) == ("vitals" in said)
    assert (watchers.hang is None) == ("alarms" in said)
    assert (watchers.notices is None) == ("notices" in said)


def test_each_layer_has_a_name(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with mementum.open_run(tmp_path, task="t", model=model, every_steps=1) as run:
        components = run._taker._components
    assert set(sensing._layers(components).values()) == {"model.0", "model.1"}


def test_a_learning_rate_that_is_no_plain_number(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    with mementum.open_run(tmp_path, task="t", model=model, optimizer=optimizer, every_steps=1) as run:
        lr = run._deciding._watchers.perception._senses.lr
        assert lr() == 0.5
        optimizer.param_groups.clear()
        assert lr() is None


def test_a_state_is_as_large_as_its_optimizer_will_make_it() -> None:
    model = torch.nn.Linear(10, 10)
    model.bias.requires_grad_(False)
    for optimizer, numbers in ((torch.optim.AdamW(model.parameters()), 2), (torch.optim.SGD(model.parameters()), 0)):
        components = components_in({"model": model, "optimizer": optimizer})
        assert expected_size(440, components) == 440 + numbers * 400
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert expected_size(1240, components_in({"model": model, "optimizer": optimizer})) == 1240
