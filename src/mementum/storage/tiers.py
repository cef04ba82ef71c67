"""Which store a tier's url means."""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from mementum.errors import UsageError
from mementum.masking import shown
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store

Kind = Literal["folder", "ram", "objects", "redis"]
Reach = Literal["process", "reboot", "machine"]

KINDS: Mapping[str, Kind] = {
    "": "folder",
    "file": "folder",
    "ram": "ram",
    "s3": "objects",
    "gs": "objects",
    "az": "objects",
    "redis": "redis",
    "rediss": "redis",
}
REACHES: Mapping[Kind, Reach] = {"folder": "reboot", "ram": "process", "objects": "machine", "redis": "machine"}
EXTRAS = {"objects": ("mementum.storage.objects", "s3"), "redis": ("mementum.storage.redis", "redis")}
SHM = Path("/dev/shm")
REDIS_PORT = 6379
NAMESPACE = "mementum"  # in a Redis, where the url has no prefix
MEANING = re.compile(r"[%?#\s\x00-\x1f\x7f]")
EXAMPLES = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, redis://host:6379/0, ram://name or a folder"


def kind_of(url: str) -> Kind:
    """What stands behind the url. UsageError for a scheme that is none of ours."""
    scheme = _scheme(url)
    if scheme not in KINDS:
        raise UsageError(f"{scheme}:// is no place for checkpoints; there are {EXAMPLES}")
    return KINDS[scheme]


def default_reach(url: str) -> Reach:
    """The loss that a place outlives, unless its settings say otherwise."""
    return REACHES[kind_of(url)]


def is_remote_url(text: str) -> bool:
    """Whether it is a url of a server, not a folder's path."""
    return "://" in text and kind_of(text) in ("objects", "redis")


def absolute(url: str) -> str:
    """The same place in one spelling, whatever the current folder is: `./checkpoints`, `~/checkpoints` and `file://`
    become paths; of others slashes at the end go, and what is left out of a Redis is said. One that is no url of its
    kind stays as it is: `open_store` says what is wrong."""
    kind = kind_of(url)
    if kind == "folder":
        path = unquote(urlsplit(url).path) if url.startswith("file:") else url
        return os.path.abspath(os.path.expanduser(path))
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        return url
    if split.query or split.fragment:
        return url
    if kind == "ram":
        return f"ram://{_quoted(_name_in_memory(url))}"
    if kind == "objects":
        prefix = _quoted(unquote(split.path).strip("/"))
        return f"{split.scheme}://{split.netloc}" + (f"/{prefix}" if prefix else "")
    user = split.netloc.rpartition("@")[0]
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname or ""
    number, _, rest = split.path.strip("/").partition("/")
    prefix = _quoted(unquote(rest))
    where = f"{f'{user}@' if user else ''}{host}:{port or REDIS_PORT}/{number or 0}"
    return f"{split.scheme}://{where}" + ("" if prefix in ("", NAMESPACE) else f"/{prefix}")


def is_same(url: str, other: str) -> bool:
    """Whether two urls mean one place, whoever asks for it there."""
    return _without_user(absolute(url)) == _without_user(absolute(other))


def _without_user(url: str) -> str:
    if kind_of(url) != "redis":
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _quoted(text: str) -> str:
    """Signs by which a url would be read otherwise, and none else, so that it stays readable."""
    return MEANING.sub(lambda found: quote(found[0], safe=""), text)


def open_store(url: str, options: Mapping[str, str] | None = None) -> Store:
    """The store of a tier. Nothing is sent to a server yet, and no folder is made, but for ram.

    UsageError: an unknown scheme, an option that does not exist, a package that is not installed.
    """
    kind, options = kind_of(url), options or {}
    if kind in EXTRAS:
        module, extra = EXTRAS[kind]
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{shown(url)}: {error.name} is not installed", next_command=f"pip install 'mementum[{extra}]'"
            ) from error
        store: Store = loaded.open_objects(url, options) if kind == "objects" else loaded.RedisStore(url, options)
        return store
    if options:
        raise UsageError(f"{shown(url)}: a folder has no options, but {', '.join(sorted(options))} was given")
    return LocalStore(PosixDisk(), absolute(url) if kind == "folder" else str(_in_memory(url)))


def _in_memory(url: str) -> Path:
    """A folder in shared memory that is ours alone. Anybody may make one there, so whose it is is looked at."""
    name = _name_in_memory(url)
    own = SHM / f"mementum-tier-{os.geteuid()}"
    path = own / name
    if ".." in Path(name).parts:
        raise UsageError(f"{url!r:.200} leaves the memory of tiers")
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        status = own.lstat()
    except OSError as error:
        raise UsageError(f"{url}: {own} cannot be made: {error.strerror}", next_command=f"ls -ld {SHM}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UsageError(f"{url}: {own} is not ours", next_command=f"ls -ld {own}")
    return path


def _name_in_memory(url: str) -> str:
    split = urlsplit(url)
    return unquote(f"{split.netloc}{split.path}").strip("/") or "checkpoints"


def _scheme(url: str) -> str:
    return urlsplit(url).scheme if "://" in url else ""
