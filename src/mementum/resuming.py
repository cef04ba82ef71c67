"""Resuming: from which checkpoint a run comes back, and in which order its objects are put back, told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.errors import CheckpointDamaged, NothingToResume, StateMismatch
from mementum.events import Emit, PassedOver
from mementum.live import rng
from mementum.live.component import Component, compare
from mementum.live.fitting import LEFT, STRICT, Fit
from mementum.live.tree import given, join, proved, stored
from mementum.records import Damage, Entry, Manifest, record
from mementum.recover.choose import candidates
from mementum.recover.load import Loaded, load
from mementum.recover.verify import read_manifest
from mementum.storage.store import Store

REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)  # of a user's object
RISKY_FIRST = {"stateful": 0, "value": 1, "container": 2, "generator": 3, "optimizer": 4, "module": 5}


@record
class Found:
    """The newest checkpoint that could be read whole, and those that could not."""

    loaded: Loaded
    folder: str
    passed_over: tuple[Damage, ...]


def newest_whole(
    entries: Sequence[Entry],
    store: Store,
    *,
    emit: Emit,
    mark: Callable[[str, str], None],
    mend: Callable[[Entry], Entry | None] = lambda entry: None,
    inexact: bool = False,
) -> Found | None:
    """Read the best candidate, falling back over damaged ones, each told and marked. None if there never was one.
    `mend` may put a damaged one right, and says how it is then. With `inexact`, those that hold only a part of a run's
    state are candidates too.

    NothingToResume if there are checkpoints and none of them is whole: beginning anew silently would hide it."""
    passed: list[Damage] = []
    tried = candidates(entries, inexact=inexact)
    for entry in tried:
        result = read_entry(entry, store)
        if isinstance(result, Loaded):
            return Found(loaded=result, folder=entry.folder, passed_over=tuple(passed))
        passed += result
        mark(entry.manifest.id, f"{result[0].key}: {result[0].what}")
        mended = mend(entry)
        again = None if mended is None else read_entry(mended, store)
        if mended is not None and isinstance(again, Loaded):
            if again.manifest.id != entry.manifest.id:  # another one takes its place
                emit(PassedOver(id=entry.manifest.id, what=f"{result[0].key}: {result[0].what}"))
            return Found(loaded=again, folder=mended.folder, passed_over=tuple(passed))
        emit(PassedOver(id=entry.manifest.id, what=f"{result[0].key}: {result[0].what}"))
    if not tried:
        return None
    listed = "\n".join(f"  {damage.key}: {damage.what}" for damage in passed[:10])
    raise NothingToResume(
        f"there are {len(tried)} checkpoints and none is whole:\n{listed}",
        kept="all of them, as they are",
        next_command='mementum verify ROOT --deep shows all damage; resume="never" begins anew beside them',
    )


def read_entry(entry: Entry, store: Store) -> Loaded | tuple[Damage, ...]:
    """One checkpoint, read and proved, or its damage."""
    manifest = read_manifest(store, entry.folder)  # the catalog is a cache; the file decides
    if isinstance(manifest, Damage):
        return (manifest,)
    if manifest.id != entry.manifest.id:
        return (Damage(key=entry.folder, what=f"its manifest is that of checkpoint {manifest.id}"),)
    result = load(store, entry.folder, manifest)
    if isinstance(result, Loaded):
        return result
    # Another process may have compressed it meanwhile: then its files have other names, and nothing is damaged.
    now = read_manifest(store, entry.folder)
    if isinstance(now, Manifest) and now.id == manifest.id and now.generation > manifest.generation:
        return load(store, entry.folder, now)
    return result


@record
class PutBack:
    """What a load has left out (of a partial one), and what is there besides what was stored."""

    left_out: tuple[str, ...]
    besides: tuple[str, ...]


def put_back(
    loaded: Loaded,
    components: Sequence[Component],
    *,
    fit: Fit = STRICT,
    also: Sequence[str] = (),
    subset: bool = False,
) -> PutBack:
    """Fit everything, then apply everything and compare it bit for bit. `also` says what else was found not to fit;
    with `subset` the checkpoint may hold more than is asked for.

    StateMismatch if something does not fit, if an object refuses its state, or if something comes back different:
    in every case all live objects are as they were before."""
    fitted, problems, left_out = _fit(loaded, components, fit, subset=subset)
    problems = [*also, *problems]
    if problems:
        raise StateMismatch(
            loaded.manifest.id,
            problems,
            kept="the live objects and the checkpoint; nothing was loaded",
            next_command='make the program fit the checkpoint, load what fits with fit="partial" (a change of names: '
            'rename={...}), or begin anew with resume="never"',
        )
    generators = rng.read()
    undo = {component.name: component.remember() for component in components if component.name in fitted}
    begun: list[str] = []
    besides: list[str] = []
    try:
        # What may refuse goes first, in order of its kind; what cannot fail, and has no copy, goes last.
        for component in sorted(components, key=lambda one: (undo.get(one.name) is None, RISKY_FIRST[one.kind])):
            if component.name in fitted:
                begun.append(component.name)
                besides += _apply(component, fitted[component.name], loaded.manifest.id)
    except BaseException as cause:
        stuck = _bring_back({name: undo[name] for name in reversed(begun)})
        rng.apply(generators)
        if not stuck:
            raise
        raise StateMismatch(
            loaded.manifest.id,
            [str(cause), *stuck],
            kept="the checkpoint, and the live objects that are not named here",
            next_command="start the process again: a load failed, and what it had changed could not be undone",
        ) from cause
    return PutBack(left_out=tuple(left_out), besides=tuple(besides))


def _bring_back(undo: Mapping[str, Callable[[], None] | None]) -> list[str]:
    """Undo what was begun; one that refuses does not keep the others from it, and is named."""
    stuck: list[str] = []
    for name, bring_back in undo.items():
        try:
            if bring_back is not None:
                bring_back()
        except REFUSALS as error:
            stuck.append(f"{name} could not be brought back: {type(error).__name__}: {error}")
    return stuck


def _apply(component: Component, tree: object, id: str) -> list[str]:
    """Apply one tree, and compare. What is there besides what was stored comes back in words."""
    # The bits before they are given away, or, where only torch has them, the very tensors.
    expected = given(tree) if getattr(component, "takes_as_given", False) else proved(tree)
    try:
        component.apply(tree)
        wrong, besides = compare(component.name, expected, component.read())
    except REFUSALS as cause:
        raise StateMismatch(
            id,
            [f"{component.name} refused its state: {type(cause).__name__}: {cause}"],
            kept="the checkpoint and all live objects, as they were",
            next_command=f"mend load_state_dict of {component.name}, or give objects that fit the checkpoint",
        ) from cause
    if wrong:
        raise StateMismatch(
            id,
            wrong,
            kept="the checkpoint and all live objects, as they were",
            next_command=f"load_state_dict of {component.name} loses state: mend it, and start the process again",
        )
    return besides


def _fit(
    loaded: Loaded, components: Sequence[Component], fit: Fit, *, subset: bool
) -> tuple[dict[str, object], list[str], list[str]]:
    """The trees to apply by component, what forbids it, and what is left out."""
    held: Mapping[str, Any] = loaded.context["components"]
    stored_name = {new: old for old, new in fit.rename.items() if old in held}
    fitted: dict[str, object] = {}
    problems: list[str] = []
    left_out: list[str] = []
    fresh: frozenset[str] = frozenset()
    for component in sorted(components, key=lambda component: component.kind != "module"):
        name = stored_name.get(component.name, component.name)
        if name not in held:
            (left_out if fit.partial else problems).append(f"{component.name} is given and was not stored")
            continue
        if held[name]["kind"] != component.kind:
            told = f"{component.name} was stored as {held[name]['kind']} and is {component.kind}"
            (left_out if fit.partial else problems).append(told)
            continue
        result = component.fit(_tree(loaded, name), replace(fit, fresh=fresh))
        fresh |= result.fresh
        problems += result.problems
        left_out += result.left_out
        if result.tree is not LEFT:
            fitted[component.name] = result.tree
    given = {stored_name.get(component.name, component.name) for component in components}
    more = [f"{name} was stored and is not given" for name in held if name not in given]
    if not subset:
        (left_out if fit.partial else problems).extend(more)
    problems += [f"rename: nothing that was stored is called {rule!r}" for rule in _unused(loaded, fit)]
    if not fitted and components and not problems:
        problems.append("nothing of what was stored fits what is given")
    return fitted, problems, left_out


def _unused(loaded: Loaded, fit: Fit) -> list[str]:
    """The rules of `rename` that speak of nothing in the checkpoint: most likely typing errors."""
    held: Mapping[str, Any] = loaded.context["components"]
    states = {name: held[name]["state"] for name in held if held[name]["kind"] == "module"}
    names = [f"{component}.{key}" for component, tree in states.items() for key in tree["state"]]
    optimizers = [held[name]["state"] for name in held if held[name]["kind"] == "optimizer"]
    names += [name for tree in optimizers for group in tree["groups"] for name in group["params"]]
    return [
        rule
        for rule in fit.rename
        if rule not in held
        and not any(fit.renamed_component(name).startswith(rule) or name.startswith(rule) for name in names)
    ]


def _tree(loaded: Loaded, name: str) -> object:
    try:
        tree: object = join(
            loaded.context["components"][name]["state"], stored(loaded.tensors.get(name, {}), id=loaded.manifest.id)
        )
    except (RuntimeError, ValueError, TypeError, LookupError) as cause:  # parts that make no tensor
        what = f"a tensor of {name} cannot be put together: {cause}"
        raise CheckpointDamaged(loaded.manifest.id, [("context", what)], kept="all live objects") from cause
    return tree


def versions_that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What computes differently from the attempt that saved, in words."""
    names = sorted(before.keys() | now.keys())
    return tuple(
        f"{name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in names
        if before.get(name) != now.get(name)
    )
