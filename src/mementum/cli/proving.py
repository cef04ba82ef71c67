"""Proving: `mementum verify`, which looks for damage and records what it found."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from mementum.catalog import facts
from mementum.cli.copies import Copies, copies_in
from mementum.cli.failing import ERROR, INTEGRITY, NOTHING, OK, warn
from mementum.cli.listing import newest_first
from mementum.cli.reading import Contents, Held, address_in, exists, find, look, manifest_damage, settled_since
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.clock import Clock, SystemClock, timestamp
from mementum.errors import MementumError, StoreError, UnknownFormat
from mementum.execute.commit import new_id
from mementum.records import Damage, Fact, record
from mementum.recover import verify as recover
from mementum.rooting import part_of
from mementum.storage.around import Around
from mementum.storage.store import Store


@record
class Checked:
    """What was found out about a checkpoint. `unchecked` says why nothing was: no damage, and no proof either."""

    held: Held
    damage: tuple[Damage, ...] = ()
    unchecked: str | None = None


class Counted(Around):
    """A `Store` around a store, that tells how many bytes were read."""

    def __init__(self, inner: Store, read: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._read = read

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        data = super().get(key, start, size)
        self._read(data.nbytes)
        return data


def verify(
    root: str,
    address: str | None,
    *,
    deep: bool,
    as_json: bool,
    keep: bool,
    tier: str | None = None,
    clock: Clock | None = None,
) -> int:
    """Check what the address means and print it; the exit code. With `keep`, findings are recorded as facts. `tier`:
    the name or url of the one whose copies are checked; then those say it of the copies there."""
    contents = known = look(root)
    copies = None if tier is None else copies_in(contents, tier)
    if copies is not None:
        contents = look(copies.url)
    meant = address_in(contents, address)
    nameless = contents.nameless
    if meant.selector is not None:
        for damage in nameless:
            warn(f"warning: {damage.key}: {damage.what}")
        chosen, nameless = [find(contents, meant)], ()
    else:
        if meant.task is not None:
            contents = contents.of(meant.task)
            nameless = contents.nameless
        chosen = newest_first(contents.held)
    checked: list[Checked] = []
    recorded: list[bool] = []
    near = known.root.folder is not None
    notes = Notes(contents, known, clock or SystemClock(), copies) if keep and near else None
    with closing(_check(contents, chosen, deep=deep, quiet=as_json)) as findings:
        for one in findings:
            checked.append(one)
            recorded.append(notes is not None and notes.take(one, deep=deep))
            if not as_json:
                print("\n".join(printable(line) for line in _lines(one, deep=deep)), flush=True)
    if keep and not near and any(one.damage for one in checked):
        warn("what was found is not recorded: facts are of the root in which the task lives, and this is a tier's copy")
    if as_json:
        print(rendered(_fields(checked, recorded, nameless, deep=deep)))
    else:
        _print_end(checked, nameless, deep=deep)
    return _exit_code(contents, checked, nameless)


def _exit_code(contents: Contents, checked: Sequence[Checked], nameless: Sequence[Damage]) -> int:
    if nameless or any(one.damage for one in checked):
        return INTEGRITY
    if any(one.unchecked is not None for one in checked):
        return ERROR
    if not checked:
        warn(f"{contents.root.name}: there is no checkpoint to verify")
        return NOTHING
    return OK


def _check(contents: Contents, chosen: Sequence[Held], *, deep: bool, quiet: bool) -> Generator[Checked]:
    total = sum(held.entry.manifest.size for held in chosen)
    with _progress(total, shown=deep and not quiet and sys.stderr.isatty()) as read:
        for held in chosen:
            store = part_of(contents.root, held.home)
            found = _check_one(held, Counted(store, read), deep=deep)
            if (found.damage or found.unchecked is not None) and not exists(store, held.entry):
                warn(f"{held.place} was removed while it was verified, as its training does not keep it any more")
                continue
            yield found


def _check_one(held: Held, store: Store, *, deep: bool) -> Checked:
    entry = held.entry
    try:
        wrong = manifest_damage(store, entry)
        damage = (wrong,) if wrong is not None else recover.verify(store, entry.folder, entry.manifest, deep=deep)
        later = settled_since(store, entry) if damage else None
        if later is not None:  # what is missing was taken away, and stands in a newer generation
            return _check_one(replace(held, entry=later), store, deep=deep)
    except UnknownFormat as error:
        return Checked(held=held, damage=(Damage(key=entry.folder, what=error.message),))
    except MementumError as error:  # it may be whole, but not for this user, version or program: that is no damage
        return Checked(held=held, unchecked=error.message)
    return Checked(held=held, damage=damage)


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that moves with the bytes read."""
    if not shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    parts = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    # Lines on stdout go through it where that is the same terminal: otherwise the bar would stand in them.
    with Progress(*parts, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda count: bar.advance(task, count)


class Notes:
    """Records what was found beside the checkpoints, as far as the root can be written."""

    def __init__(self, contents: Contents, known: Contents, clock: Clock, copies: Copies | None) -> None:
        """`known`: the root in which the task lives, whose facts they are."""
        self._known, self._clock, self._copies = known, clock, copies
        self._folders = Counter((held.home, held.id) for held in contents.held)
        self._refused = False

    def take(self, checked: Checked, *, deep: bool) -> bool:
        """Whether it stands in the facts afterwards. Only a deep verification proves that a checkpoint is whole."""
        fact = self._fact(checked, deep=deep)
        if fact is None or self._refused:
            return False
        if self._folders[checked.held.home, checked.held.id] > 1:
            warn(f"{checked.held.place}: not recorded, as another folder holds a checkpoint with the same id")
            return False
        lives = next((held for held in self._known.held if held.id == checked.held.id), None)
        if lives is None:
            warn(f"{checked.held.place}: not recorded, as the root has no such checkpoint any more")
            return False
        if fact.kind == "damaged" and self._damaged(lives) == fact.values["what"]:
            return True  # it is known: a nightly verification does not say it again every night
        store = part_of(self._known.root, lives.home)
        try:
            store.put(f"facts/{new_id(self._clock.now())}.json", [facts.render(fact)])
        except StoreError as error:
            self._refused = True
            warn(f"what was found is not recorded: {error.message}")
            return False
        return True

    def _fact(self, checked: Checked, *, deep: bool) -> Fact | None:
        now = timestamp(self._clock.now())
        if checked.damage:
            first = checked.damage[0]
            more = f" ({len(checked.damage)} findings in all)" if len(checked.damage) > 1 else ""
            what = f"{first.key}: {first.what}{more}"
            return Fact(kind="damaged", time=now, checkpoint=checked.held.id, values={**self._where, "what": what})
        if deep and checked.unchecked is None:
            return Fact(kind="verified", time=now, checkpoint=checked.held.id, values=self._where)
        return None

    @property
    def _where(self) -> dict[str, str]:
        """Of which copy it is said."""
        return {} if self._copies is None else {"tier": self._copies.name}

    def _damaged(self, lives: Held) -> str | None:
        """What is known already."""
        if self._copies is None:
            return lives.entry.damaged
        return next((place.damaged for place in lives.entry.places if place.tier == self._copies.name), None)


def _keyed(checked: Checked) -> list[Damage]:
    """The damage with keys relative to the root."""
    return [Damage(key=f"{checked.held.home}/{damage.key}", what=damage.what) for damage in checked.damage]


def _lines(checked: Checked, *, deep: bool) -> Iterator[str]:
    manifest = checked.held.entry.manifest
    name = f"{checked.held.task}@{manifest.step} {manifest.id}"
    if checked.unchecked is not None:
        yield f"unchecked  {name}: {checked.unchecked}"
    elif checked.damage:
        yield f"damaged    {name}"
        yield from (f"{damage.key}: {damage.what}" for damage in _keyed(checked))
    else:
        yield f"{'whole' if deep else 'complete':<9}  {name}"


def _print_end(checked: Sequence[Checked], nameless: Sequence[Damage], *, deep: bool) -> None:
    for damage in nameless:
        print(printable(f"{damage.key}: {damage.what}"))
    damaged = sum(bool(one.damage) for one in checked)
    said = [f"{counted(len(checked), 'checkpoint')} verified", f"{damaged} damaged"]
    unchecked = sum(one.unchecked is not None for one in checked)
    if unchecked:
        said.append(f"{unchecked} could not be checked")
    if nameless:
        said.append(f"{counted(len(nameless), 'manifest')} unreadable")
    by = "every byte was compared" if deep else "sizes, indexes and contexts were compared; --deep reads every byte"
    print(f"{', '.join(said)} ({by})")


def _fields(
    checked: Sequence[Checked], recorded: Sequence[bool], nameless: Sequence[Damage], *, deep: bool
) -> dict[str, Any]:
    return {
        "deep": deep,
        "checkpoints": [
            {
                "task": one.held.task,
                "step": one.held.entry.manifest.step,
                "id": one.held.id,
                "folder": one.held.place,
                "damage": [{"key": damage.key, "what": damage.what} for damage in _keyed(one)],
                "unchecked": one.unchecked,
                "recorded": was,
            }
            for one, was in zip(checked, recorded, strict=True)
        ],
        "unreadable": [{"key": damage.key, "what": damage.what} for damage in nameless],
    }
