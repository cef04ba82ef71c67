"""Rooting: from the text that names a root, a folder or the url of a tier, to a root that can be read."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mementum.errors import UsageError
from mementum.masking import shown
from mementum.records import record
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.storage.tiers import open_store
from mementum.storage.within import Within

LOCAL_SCHEME = "file"
ALLOW_HTTP = "AWS_ALLOW_HTTP"  # all else of S3 (AWS_ENDPOINT_URL, keys, region) its client itself takes from there


@record
class Root:
    """`name` is its absolute path, or its url without secrets. `folder` is None where no folder of this machine has
    it: then it is a tier's copy of a root, and no training lives in it."""

    name: str
    store: Store
    folder: Path | None


def open_root(text: str) -> Root:
    """The root that is meant; how a far one is reached, and by which keys, stands in the environment. UsageError if it
    is none; whether it answers shows when it is first read."""
    if _is_far(text):
        http = os.environ.get(ALLOW_HTTP) if text.startswith("s3://") else None
        options = {} if http is None else {"allow_http": http.lower()}
        return Root(name=shown(text), store=open_store(text, options), folder=None)
    folder = local_folder(text)
    return Root(name=str(folder), store=LocalStore(PosixDisk(), str(folder)), folder=folder)


def local_folder(text: str) -> Path:
    """The local folder that is meant. UsageError if it is none."""
    if _is_far(text):
        raise UsageError(
            "this needs the folder in which the task lives, on a disk of this machine; what was given is a tier's url",
            next_command="give the folder that open_run was given",
        )
    path = unquote(urlsplit(text).path) if "://" in text else text
    if "\0" in path or not os.path.isdir(path):
        raise UsageError(f"there is no folder {text!r}", next_command="give the folder that open_run was given")
    return Path(path).resolve()


def part_of(root: Root, home: str) -> Store:
    """A task's part of a root."""
    if root.folder is not None:
        return LocalStore(PosixDisk(), f"{root.folder}/{home}")
    return Within(root.store, home)


def _is_far(text: str) -> bool:
    return "://" in text and not text.startswith(f"{LOCAL_SCHEME}://")
