"""How full a place is: looked at, brought down with hysteresis, and told once where nothing may go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mementum.clock import ManualClock
from mementum.config.loading import load
from mementum.config.tiers import Watermarks
from mementum.errors import StoreError
from mementum.events import Emitter, NoRoom, RoomMade
from mementum.records import Usage
from mementum.watermarks import LATE_S, Gave, Level, marks_of
from trips import Told

NEXT = "give it room"
SAID: dict[str, Any] = {"used": 950, "size": 1000, "limit": 900, "freed": 0, "missing": 50, "next_command": NEXT}


class Place:
    """A place of 1000 bytes with some of ours in it, of which `stays` may not go."""

    def __init__(self, *, others: int = 0, ours: int = 0, stays: int = 0, late: bool = False) -> None:
        self.size, self.others, self.ours, self.stays, self.late = 1000, others, ours, stays, late
        self.hidden = 0  # bytes that were removed, and that the place does not show as free yet
        self.asked: list[int] = []
        self.told, self.clock = Told(), ManualClock()
        self.level = Level(
            "here", self.look, marks_of(Watermarks()), next_command=NEXT, clock=self.clock, emit=self.told
        )

    def look(self) -> Usage | None:
        return Usage(used=self.others + self.ours + self.hidden, size=self.size)

    def free(self, need: int) -> Gave:
        """Whole ones of 10."""
        self.asked.append(need)
        freed = max(min(-(-need // 10) * 10, self.ours - self.stays), 0)
        self.ours -= freed
        self.hidden += freed if self.late else 0
        return Gave(freed=freed, missing=max(need - freed, 0))

    def save(self, size: int = 50) -> str | None:
        """What a run does for each save; why it did not."""
        why = self.level.before(size, self.free)
        if why is None:
            self.ours += size
            self.level.after(self.free)
        return why

    @property
    def used(self) -> int:
        return self.others + self.ours


def test_saves_go_up_to_one_mark_and_down_to_the_other() -> None:
    place, seen = Place(), list[int]()
    for _ in range(40):
        assert place.save() is None
        seen.append(place.used)
    assert seen[:16] == [*range(50, 800, 50), 700]
    assert set(seen[15:]) == {700, 750}  # from 800 down to 700, again and again
    assert place.asked == [100] * 13
    assert place.told == [RoomMade(place="here", used=700, size=1000, freed=100)] * 13


def test_one_that_is_large_finds_its_room_before_it_is_written() -> None:
    place, seen = Place(), list[int]()
    for _ in range(8):
        assert place.save(300) is None
        seen.append(place.used)
    assert seen == [300, 600, 700, 700, 700, 700, 700, 700]  # after the third 900: down to 700
    assert place.asked[:3] == [200, 100, 200]


def test_what_others_write_counts_and_stays() -> None:
    place = Place(others=300, ours=400)
    place.others = 480
    assert place.save() is None
    assert (place.others, place.ours) == (480, 270)  # 880: down to 700 before the save
    place.others = 860
    assert place.save() is not None
    assert (place.others, place.ours) == (860, 0)


def test_where_nothing_may_go_it_is_told_once_and_once_more_when_saves_are_skipped() -> None:
    place = Place(others=600, ours=210, stays=1000)
    assert [place.save(20) for _ in range(4)] == [None, None, None, None]
    assert place.told == [
        NoRoom(
            place="here",
            used=810,
            size=1000,
            limit=900,
            freed=0,
            missing=110,
            saves=True,
            next_command=NEXT,
        )
    ]
    place.told.clear()
    why = place.save(20)
    assert why is not None
    more = "2e-08 GB more would be above the mark for emergencies (90%)"
    assert why == f"here is used to 89%: {more}, and nothing of ours there may go"
    assert place.save(20) == why
    (told,) = place.told
    assert (told.saves, told.missing, told.used) == (False, 190, 890)
    assert place.ours == 290  # nothing was taken that must stay


def test_when_there_is_room_again_the_next_time_is_told_anew() -> None:
    place = Place(others=880, ours=10, stays=10)
    assert place.save() is not None
    assert place.save() is not None
    place.others = 100
    assert place.save() is None
    place.others, place.stays = 900, place.ours
    assert place.save() is not None
    assert [event.saves for event in place.told.of(NoRoom)] == [False, False]


def test_a_listener_that_gives_the_place_more_saves_the_save() -> None:
    place = Place(others=880, ours=10, stays=10)
    heard: list[NoRoom] = []

    def expand(event: object) -> None:
        if isinstance(event, NoRoom):
            heard.append(event)
            place.size = 2000

    place.level = Level("here", place.look, marks_of(Watermarks()), next_command=NEXT, clock=place.clock, emit=expand)
    assert place.save() is None
    assert [(event.limit, event.missing) for event in heard] == [(900, 190)]
    assert place.save() is None
    assert len(heard) == 1


def test_a_place_that_gives_room_back_late_loses_nothing_twice() -> None:
    place = Place(ours=800, late=True)
    place.level.after(place.free)
    assert (place.ours, place.hidden, place.asked) == (700, 100, [100])
    place.level.after(place.free)
    assert place.save() is None
    assert (place.ours, place.asked) == (750, [100])
    place.clock.advance(LATE_S)
    place.level.after(place.free)  # it never gave it back: it counts as used from now on
    assert place.asked == [100, 150]


@pytest.mark.parametrize("delay_s", [0.0, 10.0, 20.0, 30.0, 50.0])
def test_however_late_room_comes_back_it_is_counted_once(delay_s: float) -> None:
    """As much goes, and as much stays, as where it comes back at once."""
    place = Place(ours=780, late=delay_s > 0)
    back: list[tuple[float, int]] = []  # when, and bytes
    lowest, hidden = place.ours, 0
    for _ in range(40):
        assert place.save(20) is None
        if place.hidden > hidden:
            back.append((place.clock.monotonic() + delay_s, place.hidden - hidden))
        place.clock.advance(5.0)
        while back and back[0][0] <= place.clock.monotonic():
            place.hidden -= back.pop(0)[1]
        hidden, lowest = place.hidden, min(lowest, place.ours)
    assert (place.asked, lowest, place.ours) == ([100] * 8, 700, 780)
    assert place.told == [RoomMade(place="here", used=700, size=1000, freed=100)] * 8


def test_what_could_not_be_looked_at_is_left_to_the_save() -> None:
    place = Place()

    def fail() -> Usage:
        raise StoreError("", "the disk reports an input/output error")

    for look in (fail, lambda: None):
        level = Level("here", look, marks_of(Watermarks()), next_command=NEXT, clock=place.clock, emit=place.told)
        assert level.before(50, place.free) is None
        level.after(place.free)
        assert level.short_of(50) is None
        assert level.refused(50, place.free) is False
    assert place.told.of(RoomMade) == []


def test_where_a_place_takes_no_more_whatever_it_says_of_itself() -> None:
    """A quota: half of it is free, as it says."""
    place = Place(ours=500)
    assert place.level.refused(50, place.free) is True
    assert (place.ours, place.asked) == (450, [50])
    place.stays = 450
    assert place.level.refused(50, place.free) is True  # it says that there is room: it is tried once
    place.others = 540
    assert place.level.refused(50, place.free) is False
    assert [(event.saves, event.missing) for event in place.told.of(NoRoom)] == [(False, 50)]


def test_what_is_short_is_told_without_removing_anything() -> None:
    place = Place(ours=880)
    assert place.level.short_of(20) is None
    assert place.level.short_of(21) == (
        "here is used to 88%: 2.1e-08 GB more would be above the mark for emergencies (90%)"
    )
    assert (place.ours, place.told) == (880, [])


@pytest.mark.parametrize("step", [10, 30, 70])
def test_whatever_the_size_the_place_stays_below_the_mark(step: int) -> None:
    place = Place()
    for _ in range(200):
        why = place.save(step)
        assert why is None
        assert place.used <= 900


def test_the_log_says_what_may_be_done(caplog: pytest.LogCaptureFixture) -> None:
    emit = Emitter()
    with caplog.at_level("INFO", logger="mementum"):
        emit(RoomMade(place="/data", used=700, size=1000, freed=100))
        emit(NoRoom(place="/data", saves=True, **SAID))
        emit(NoRoom(place="/data", saves=False, **SAID))
    full = "/data is used to 95 %, and nothing of ours in it may go"
    assert [line.getMessage() for line in caplog.records] == [
        "100 bytes came free on /data, used to 70 % now",
        f"{full}: saves go on; next: give it room",
        f"{full}: only saves before a stop and for an alarm are tried; next: give it room",
    ]


def test_the_page_says_what_holds_and_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs/watermarks.md").read_text()
    settings, code = re.findall(r"```(?:yaml|python)\n(.*?)```", page, re.DOTALL)
    assert load(yaml.safe_load(settings)).settings.watermarks == Watermarks()
    ran: list[list[str]] = []
    model = torch.nn.Linear(2, 2)
    names: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    exec(code.replace('"/data/checkpoints", task', f"{str(tmp_path)!r}, task"), names)
    names["run"].close()
    monkeypatch.setattr("subprocess.run", lambda command, timeout: ran.append(command))
    names["expand"](NoRoom(place="/data", saves=False, **SAID))
    assert ran == []
    names["expand"](NoRoom(place="/data/checkpoints", saves=False, **SAID))
    assert [command[0] for command in ran] == ["lvextend"]
