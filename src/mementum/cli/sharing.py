"""Sharing: `mementum ls --catalog`, what a catalog that many runs share knows of all their roots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from mementum.catalog import filters
from mementum.catalog.catalog import Catalog
from mementum.catalog.servers import open_server
from mementum.cli.listing import listed
from mementum.cli.reading import Held
from mementum.errors import NoSuchAddress, UsageError
from mementum.masking import shown

NOWHERE = "give the folder that open_run was given, or --catalog redis://host:6379/0"


def ls(root: str | None, url: str | None, *, task: str | None, as_json: bool, wanted: Sequence[str] = ()) -> int:
    """Print what a root holds, or what the catalog at `url` knows; the exit code."""
    if url is None and root is not None:
        from mementum.cli.listing import ls as of_root

        return of_root(root, task=task, as_json=as_json, wanted=wanted)
    if url is None or root is not None:
        both = "there is a root and a catalog" if url is not None else "there is neither a root nor a catalog"
        raise UsageError(f"{both}: one of them is listed", next_command=NOWHERE)
    chosen = [filters.parse(text) for text in wanted]
    with closing(open_server(url)) as catalog:
        held = _known(catalog)
    if not held:
        raise NoSuchAddress(
            f"the catalog {shown(url)} knows of no checkpoint",
            next_command="start a run with `catalog` set to its url: it tells what its root has",
        )
    if task is not None:
        tasks = sorted({one.entry.manifest.task for one in held})
        held = [one for one in held if one.entry.manifest.task == task]
        if not held:
            raise NoSuchAddress(
                f"the catalog {shown(url)} knows of no task {task!r}; there are: {', '.join(map(repr, tasks))}",
                next_command="mementum ls --catalog URL",
            )
    return listed(held, chosen, wanted, as_json=as_json, path=lambda one: None)


def _known(catalog: Catalog) -> list[Held]:
    """All checkpoints. Tasks of one name that lie in several roots are told apart by their folders there."""
    homes = {home: catalog.entries(home) for home in catalog.homes()}
    names = {home: entries[-1].manifest.task for home, entries in homes.items() if entries}
    count = Counter(names.values())
    return [
        Held(task=name if count[name] == 1 else f"{name} {home}", home=home, entry=entry)
        for home, name in names.items()
        for entry in homes[home]
    ]
