"""Tasks in a root: the folder of each, and the name it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from blake3 import blake3

from mementum.clock import day
from mementum.errors import MementumError
from mementum.records import record
from mementum.storage.store import Store

DAY = re.compile(r"\d{8}")
HOME = re.compile(r".+_[0-9a-f]{6}")
SLUG_MAX = 60  # characters of a task's name in its folder's name; the hash tells longer ones apart


@record
class TaskHome:
    """A task and its folder, relative to the root."""

    task: str
    home: str


def folder_name(task: str) -> str:
    """`byte-gpt_3fa9c1`: what of the name is safe in a path, and six digits of the whole name's blake3."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", task).strip("-.")[:SLUG_MAX] or "task"
    return f"{slug}_{blake3(task.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def find(root: Store, task: str) -> str | None:
    """The folder of a task, relative to the root, or None if the root does not have it. The oldest day wins."""
    wanted = folder_name(task)
    for name in _days(root):
        if wanted in root.folders(f"{name}/"):
            return f"{name}/{wanted}"
    return None


def new_home(task: str, now_s: float) -> str:
    return f"{day(now_s)}/{folder_name(task)}"


def tasks(root: Store) -> Iterator[TaskHome]:
    """All tasks of a root, by day and name. Folders that are not a task's are passed over."""
    for name in _days(root):
        for folder in root.folders(f"{name}/"):
            home = f"{name}/{folder}"
            if HOME.fullmatch(folder):
                task = _name(root, home)
                if task is not None:
                    yield TaskHome(task=task, home=home)


def _days(root: Store) -> list[str]:
    return [name for name in root.folders() if DAY.fullmatch(name)]


def _name(root: Store, home: str) -> str | None:
    for stat in root.list(f"{home}/attempts/"):
        try:
            task = json.loads(bytes(root.get(stat.key)))["task"]
        except (ValueError, KeyError, TypeError, RecursionError, MementumError):
            continue
        if isinstance(task, str):
            return task
    return None
