"""Tiers as settings: further places that keep checkpoints, what goes there, and what stays there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from mementum.config.codecs import Codec
from mementum.config.quantities import Duration, Rate, Share, Size
from mementum.config.section import Count, Name, Section
from mementum.masking import HIDDEN, shown
from mementum.records import Reach

DAYS_MAX = 36_500  # a century; beyond it nothing ages
CLEAN_FROM, CLEAN_TO, EMERGENCY = 0.80, 0.70, 0.90  # of a disk; the documents' first, and what kubelet and others use
SCRUB_SHARE = 0.005  # of the time: a tenth of what saves may cost
URL = re.compile(r"(s3|gs|az|redis|rediss|ram|file)://.*|/.+|~/.+|\./.+", re.DOTALL)
CATALOG = re.compile(r"(postgresql|redis|rediss)(\+[a-z]+)?://.+", re.DOTALL)
PORT, PORT_MAX = re.compile(r"[0-9]{1,9}", re.ASCII), 65535

FOLDERS = ("", "file")  # schemes of folders

Days = Annotated[float, Field(strict=True, gt=0, le=DAYS_MAX)]


def _url(value: object) -> str:
    if isinstance(value, str) and URL.fullmatch(value) and "\0" not in value:
        return _quoted(value)
    fields = {
        "what": f"{_repeated(value)} is no place",
        "expected": "s3://bucket/prefix, redis://host, ram:// or a folder",
    }
    raise PydanticCustomError("url", "{what}; expected {expected}", fields)


def _catalog(value: object) -> str:
    if isinstance(value, str) and CATALOG.fullmatch(value):
        return _quoted(value)
    fields = {
        "what": f"{_repeated(value)} is no catalog",
        "expected": "postgresql://user@host/name or redis://host:6379/0",
    }
    raise PydanticCustomError("catalog", "{what}; expected {expected}", fields)


def _quoted(url: str) -> str:
    """The url, in which every part ends where it was meant to."""
    if _has_high_port(url):
        fields = {"what": f"{shown(url)} cannot be read", "expected": f"a port of at most {PORT_MAX}"}
        raise PydanticCustomError("port", "{what}; expected {expected}", fields)
    if shown(url).endswith(f"://{HIDDEN}"):
        fields = {"what": f"{shown(url)} cannot be read", "expected": "in its password %40 for @, %2F for /, %23 for #"}
        raise PydanticCustomError("quoted", "{what}; expected {expected}", fields)
    return url


def _has_high_port(url: str) -> bool:
    """Whether what is wrong is its port, and cannot be a password that was cut in two: no user stands in it."""
    port = url.partition("://")[2].partition("/")[0].rpartition(":")[2]
    return "@" not in url and bool(PORT.fullmatch(port)) and int(port) > PORT_MAX


def _repeated(value: object) -> str:
    """What a message says of a value that is no url: it may hold a password all the same."""
    return f"{shown(value)!r:.60}" if isinstance(value, str) else f"a value of type {type(value).__name__}"


CatalogUrl = Annotated[str, BeforeValidator(_catalog)]


class Ageing(Section):
    """After how many days each level of a checkpoint is dropped. What must stay keeps all of its levels."""

    level_0: Days | None = None
    """Weights. Without them nothing of it can be loaded. Null: never."""
    level_1: Days | None = None
    """Optimizer state. Without it no resume is exact. Null: never."""
    level_2: Days | None = None
    """Context: generators, data position, schedule. Null: never. After the last level the checkpoint goes."""


class Tier(Section):
    """A place besides the root's own disk."""

    url: Annotated[str, BeforeValidator(_url)]
    """s3://bucket/prefix (also gs:// and az://), redis://host:port/number, ram:// or a folder of another disk."""
    name: Name | None = None
    """What it is called in facts, tables and commands. Null: made of the url."""
    reach: Literal["process", "reboot", "machine"] | None = None
    """The loss that it outlives. Null: `machine` for object stores and Redis, `process` for ram, else `reboot`."""
    levels: Annotated[tuple[Literal[0, 1, 2], ...], Field(min_length=1)] = (0, 1, 2)
    """What of a checkpoint goes there: 0 weights, 1 optimizer, 2 context. A resume needs all three."""
    codec: Codec | None = None
    """Of optimizer state there. Null: as it lies in the root."""
    take: Literal["all", "due"] = "all"
    """`all`: every checkpoint, a newer one first; `due`: those that were saved for a loss that it outlives."""
    every_steps: Count | None = None
    """Steps from one checkpoint that goes there to the next. Null: all that it takes."""
    rate: Rate | None = None
    """Bytes a second that are sent at most. Null: as fast as it goes."""
    budget: Size | None = None
    """Bytes that it may hold; the watermarks are parts of it. Null: the whole place."""
    storage_class: Name | None = None
    """Of objects of data, where the store has classes: STANDARD_IA, GLACIER_IR."""
    keep_last: Count | None = None
    """How many of the newest checkpoints stay there. Null: all."""
    keep_every_steps: Count | None = None
    """Checkpoints whose step is a multiple of it stay there too."""
    keep_best: Count | None = None
    """How many of the best by keep_best_of stay there too."""
    retention_days: Ageing = Ageing()
    scrub: Literal["bytes", "sizes"] | None = None
    """What is read back there, where `scrub` is not off: every byte, or sizes, indexes and contexts. Null: `bytes` of
    folders and ram, and `sizes` of object stores and Redis, where requests and bytes cost."""
    options: Mapping[str, str] = Field(default_factory=dict)
    """For the client of the place: endpoint, region, allow_http, access_key_id, …. Secrets belong in its own files or
    in the environment."""

    @property
    def called(self) -> str:
        """Its name; where none was given, what its url tells without a prefix, a port and a password."""
        scheme, host = _parts(self.url)
        if self.name is not None:
            return self.name
        if scheme in FOLDERS:
            return self.url.removeprefix("file://")
        return f"{scheme}:{host}" if host not in ("", HIDDEN) else scheme

    @property
    def outlives(self) -> Reach:
        """The loss that it outlives."""
        if self.reach is not None:
            return Reach[self.reach.upper()]
        scheme, _ = _parts(self.url)
        return Reach.PROCESS if scheme == "ram" else Reach.REBOOT if scheme in FOLDERS else Reach.MACHINE


def _parts(url: str) -> tuple[str, str]:
    """Scheme and host, or bucket; both are empty of a folder."""
    scheme, mark, rest = shown(url).partition("://")
    return (scheme, (urlsplit(f"//{rest}").netloc.rpartition("@")[2]).partition(":")[0]) if mark else ("", "")


class Watermarks(Section):
    """Parts of a disk, or of a tier's budget, that may be used before something is done."""

    clean_from: Share = CLEAN_FROM
    """From here on what is worth least is removed, beyond what retention removes."""
    clean_to: Share = CLEAN_TO
    """Down to here."""
    emergency: Share = EMERGENCY
    """From here on only saves before a stop and for an alarm are made."""


class Scrub(Section):
    """Checkpoints are read back and proved while the training goes on."""

    share: Share = SCRUB_SHARE
    """The part of the time that it may take."""
    every: Duration = 7 * 86_400.0
    """From one proof of a checkpoint to the next; a plain number is in seconds."""
