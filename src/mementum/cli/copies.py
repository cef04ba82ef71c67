"""Copies: which place the name or the url of a tier means, and where a task lies there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mementum.catalog import tasks
from mementum.cli.reading import Contents
from mementum.config.tiers import Tier
from mementum.errors import NoSuchAddress, UsageError
from mementum.records import record
from mementum.rooting import Root, open_root, part_of
from mementum.storage.store import Store
from mementum.storage.tiers import absolute, kind_of


@record
class Copies:
    """A tier: as facts call it, where it is, and all that lies there."""

    name: str
    url: str
    root: Root

    def part(self, task: str) -> Store | None:
        """The task's part of it; None where it has none."""
        home = tasks.find(self.root.store, task)
        return None if home is None else part_of(self.root, home)


def known_tiers(contents: Contents) -> Mapping[str, str]:
    """Urls by names, of the tiers on which copies of a root's checkpoints lie."""
    return {place.tier: place.url for held in contents.held for place in held.entry.places}


def copies_in(contents: Contents, text: str) -> Copies:
    """The tier that is meant. UsageError, or NoSuchAddress, if it is none."""
    known = known_tiers(contents)
    url = known.get(text)
    if url is None and "/" not in text and not Path(text).is_dir():
        named = ", ".join(repr(name) for name in sorted(known)) or "none"
        raise NoSuchAddress(
            f"there is no tier {text!r}; copies lie on: {named}", next_command="give its url, or look with mementum ls"
        )
    url = absolute(text) if url is None else url
    root = open_root(url)
    if kind_of(url) == "folder" and root.folder == contents.root.folder:
        raise UsageError(f"{root.name} is the root itself, and no tier of it")
    name = next((name for name, where in known.items() if where in (url, root.name)), Tier(url=url).called)
    return Copies(name=name, url=root.name, root=root)
