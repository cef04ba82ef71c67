"""Tasks in a root: the folder of each, and the name it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from blake3 import blake3

from mementum.clock import day
from mementum.errors import MementumError
from mementum.records import record
from mementum.storage.disk import Disk
from mementum.storage.local import LocalStore

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


def find(disk: Disk, root: str, task: str) -> str | None:
    """The folder of a task, relative to the root, or None if the root does not have it. The oldest day wins."""
    wanted = folder_name(task)
    for name in _days(disk, root):
        if disk.has_folder(f"{root}/{name}/{wanted}"):
            return f"{name}/{wanted}"
    return None


def new_home(task: str, now_s: float) -> str:
    return f"{day(now_s)}/{folder_name(task)}"


def tasks(disk: Disk, root: str) -> Iterator[TaskHome]:
    """All tasks of a root, by day and name. Folders that are not a task's are passed over."""
    for name in _days(disk, root):
        for folder in disk.listdir(f"{root}/{name}"):
            home = f"{name}/{folder.rstrip('/')}"
            if folder.endswith("/") and HOME.fullmatch(folder.rstrip("/")):
                task = _name(LocalStore(disk, f"{root}/{home}"))
                if task is not None:
                    yield TaskHome(task=task, home=home)


def _days(disk: Disk, root: str) -> list[str]:
    return [name.rstrip("/") for name in disk.listdir(root) if name.endswith("/") and DAY.fullmatch(name.rstrip("/"))]


def _name(store: LocalStore) -> str | None:
    for stat in store.list("attempts/"):
        try:
            task = json.loads(bytes(store.get(stat.key)))["task"]
        except (ValueError, KeyError, TypeError, RecursionError, MementumError):
            continue
        if isinstance(task, str):
            return task
    return None
