"""A task's folder can be found by its name, whatever the name is made of, and strangers' folders are passed over."""

from __future__ import annotations

import json
import re

import pytest

from mementum.catalog.tasks import SLUG_MAX, TaskHome, find, folder_name, new_home, tasks
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

NAMES = ("byte-gpt", "a/b", "../../etc", "größe", "层", "🙂", ".", "a b", "a.b", "-", "A", "a", "x" * 500, "\ud800")


def begin(disk: SimDisk, home: str, content: bytes | None = None, *, task: str = "") -> None:
    data = json.dumps({"task": task}).encode() if content is None else content
    LocalStore(disk, f"root/{home}").put("attempts/0001.json", [data])


@pytest.mark.parametrize("name", NAMES)
def test_the_folders_name_is_safe_everywhere(name: str) -> None:
    folder = folder_name(name)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*_[0-9a-f]{6}", folder)
    assert len(folder) <= SLUG_MAX + 7
    assert folder == folder_name(name)


def test_the_name_can_be_recognised() -> None:
    assert folder_name("byte-gpt").startswith("byte-gpt_")
    assert folder_name("exp 3/lr=0.1").startswith("exp-3-lr-0.1_")
    assert folder_name("层").startswith("task_")


def test_different_names_have_different_folders() -> None:
    assert len({folder_name(name) for name in NAMES}) == len(NAMES)
    assert folder_name("a b") != folder_name("a-b")
    assert folder_name("x" * 500) != folder_name("x" * 501)


def test_a_new_home_has_its_day() -> None:
    assert new_home("t", 1_764_000_000.0) == f"20251124/{folder_name('t')}"


def test_a_task_is_found_on_its_oldest_day() -> None:
    disk = SimDisk()
    assert find(LocalStore(disk, "root"), "t") is None
    for day in ("20261130", "20250101", "20261201"):
        begin(disk, f"{day}/{folder_name('t')}", task="t")
    assert find(LocalStore(disk, "root"), "t") == f"20250101/{folder_name('t')}"
    assert find(LocalStore(disk, "root"), "T") is None


def test_folders_that_are_no_days_are_not_looked_into() -> None:
    disk = SimDisk()
    for day in ("2026", "backup", "20261130x", "202611300"):
        begin(disk, f"{day}/{folder_name('t')}", task="t")
    assert find(LocalStore(disk, "root"), "t") is None
    assert list(tasks(LocalStore(disk, "root"))) == []


def test_all_tasks_by_day_and_name() -> None:
    disk = SimDisk()
    homes = [("20261201", "a"), ("20261130", "größe"), ("20261130", "b/c")]
    for day, task in homes:
        begin(disk, f"{day}/{folder_name(task)}", task=task)
    assert list(tasks(LocalStore(disk, "root"))) == [
        TaskHome(task="b/c", home=f"20261130/{folder_name('b/c')}"),
        TaskHome(task="größe", home=f"20261130/{folder_name('größe')}"),
        TaskHome(task="a", home=f"20261201/{folder_name('a')}"),
    ]


@pytest.mark.parametrize("content", [b"", b"torn {", b"[]", b"{}", b'{"task": 3}', b"\xff"])
def test_an_attempt_that_cannot_be_read_does_not_hide_the_task(content: bytes) -> None:
    disk = SimDisk()
    home = f"20261130/{folder_name('t')}"
    begin(disk, home, content)
    assert list(tasks(LocalStore(disk, "root"))) == []
    LocalStore(disk, f"root/{home}").put("attempts/0002.json", [b'{"task": "t"}'])
    assert list(tasks(LocalStore(disk, "root"))) == [TaskHome(task="t", home=home)]


def test_strangers_folders_are_passed_over() -> None:
    disk = SimDisk()
    for folder in ("notes", "t_12345", "t_abcdeg", "t_123456"):
        LocalStore(disk, f"root/20261130/{folder}").put("readme", [b"x"])
    assert list(tasks(LocalStore(disk, "root"))) == []
