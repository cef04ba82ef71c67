"""Resuming: from which checkpoint a run comes back, and in which order its objects are put back, told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mementum.errors import NothingToResume, StateMismatch
from mementum.events import Emit, PassedOver
from mementum.live.component import Component, compare
from mementum.live.tree import join, stored
from mementum.records import Damage, Entry, Manifest, record
from mementum.recover.choose import candidates
from mementum.recover.load import Loaded, load
from mementum.recover.verify import read_manifest
from mementum.storage.store import Store

RISKY_FIRST = {"stateful": 0, "container": 1, "generator": 2, "optimizer": 3, "module": 4}


@record
class Found:
    """The newest checkpoint that could be read whole, and those that could not."""

    loaded: Loaded
    folder: str
    passed_over: tuple[Damage, ...]


def newest_whole(
    entries: Sequence[Entry], store: Store, *, emit: Emit, mark: Callable[[str, str], None]
) -> Found | None:
    """Read the best candidate, falling back over damaged ones, each told and marked. None if there never was one.

    NothingToResume if there are checkpoints and none of them is whole: beginning anew silently would hide it."""
    passed: list[Damage] = []
    tried = candidates(entries)
    for entry in tried:
        result = _read(entry, store)
        if isinstance(result, Loaded):
            return Found(loaded=result, folder=entry.folder, passed_over=tuple(passed))
        passed += result
        mark(entry.manifest.id, f"{result[0].key}: {result[0].what}")
        emit(PassedOver(id=entry.manifest.id, what=f"{result[0].key}: {result[0].what}"))
    if not tried:
        return None
    listed = "\n".join(f"  {damage.key}: {damage.what}" for damage in passed[:10])
    raise NothingToResume(
        f"there are {len(tried)} checkpoints and none is whole:\n{listed}",
        kept="all of them, as they are",
        next_command='mementum verify ROOT --deep shows all damage; resume="never" begins anew beside them',
    )


def _read(entry: Entry, store: Store) -> Loaded | tuple[Damage, ...]:
    manifest = read_manifest(store, entry.folder)  # the catalog is a cache; the file decides
    if isinstance(manifest, Damage):
        return (manifest,)
    if manifest.id != entry.manifest.id:
        return (Damage(key=entry.folder, what=f"its manifest is that of checkpoint {manifest.id}"),)
    return load(store, entry.folder, manifest)


def put_back(loaded: Loaded, components: Sequence[Component], *, also: Sequence[str] = ()) -> None:
    """Check everything, then apply everything, then compare everything bit for bit. `also` says what else was found
    not to fit.

    StateMismatch before the first change if something does not fit; afterwards if something came back different,
    which is a fault of the object's own load and is named."""
    trees = _trees(loaded, components)
    expected = _trees(loaded, components, own=False)  # a load may keep what it is given, or take it apart
    differences = [*also, *_membership(loaded, components)]
    for component in components:
        if component.name in trees:
            differences += component.check(trees[component.name])
    if differences:
        raise StateMismatch(
            loaded.manifest.id,
            differences,
            kept="the live objects and the checkpoint; nothing was loaded",
            next_command='make the program fit the checkpoint, or begin anew with resume="never" or another task name',
        )
    # What may refuse in its own code goes first; models and optimizers, which cannot refuse any more, go last.
    for component in sorted(components, key=lambda component: RISKY_FIRST[component.kind]):
        _apply(component, trees[component.name], loaded.manifest)
    for component in components:
        differences += compare(component.name, expected[component.name], component.read())
    if differences:
        raise StateMismatch(
            loaded.manifest.id,
            differences,
            kept="the checkpoint; the live objects were loaded and are not what was stored",
            next_command="load_state_dict of the named objects loses state: mend it, and start the process again",
        )


def _apply(component: Component, tree: object, manifest: Manifest) -> None:
    try:
        component.apply(tree)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as cause:
        raise StateMismatch(
            manifest.id,
            [f"{component.name} refused its state: {cause}"],
            kept=f"the checkpoint; {component.name} and objects before it may be half loaded",
            next_command="start the process again with objects that fit the checkpoint",
        ) from cause


def _trees(loaded: Loaded, components: Sequence[Component], *, own: bool = True) -> dict[str, Any]:
    """The stored trees, with tensors of their own to give away, or with views to look at."""
    held: Mapping[str, Any] = loaded.context["components"]
    trees: dict[str, Any] = {}
    for component in components:
        if component.name in held:
            tensors = loaded.tensors.get(component.name, {})
            trees[component.name] = join(held[component.name]["state"], stored(tensors, id=loaded.manifest.id, own=own))
    return trees


def _membership(loaded: Loaded, components: Sequence[Component]) -> list[str]:
    held: Mapping[str, Any] = loaded.context["components"]
    live = {component.name: component.kind for component in components}
    differences = [f"{name} was stored and is not given to open_run" for name in held if name not in live]
    differences += [f"{name} is given to open_run and was not stored" for name in live if name not in held]
    differences += [
        f"{name} was stored as {held[name]['kind']} and is {live[name]}"
        for name in held.keys() & live.keys()
        if held[name]["kind"] != live[name]
    ]
    return sorted(differences)


def versions_that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What computes differently from the attempt that saved, in words."""
    names = sorted(before.keys() | now.keys())
    return tuple(
        f"{name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in names
        if before.get(name) != now.get(name)
    )
