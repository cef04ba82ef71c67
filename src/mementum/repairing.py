"""Repairing: the order of durable effects when a damaged checkpoint is put right from copies elsewhere, told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace

from mementum.errors import MementumError
from mementum.execute.compress import GaveUp, Pause
from mementum.execute.remove import MARK, drop, needed_elsewhere
from mementum.execute.transfer import go_on
from mementum.format import generations, index
from mementum.format import manifest as manifests
from mementum.format.generations import key_of
from mementum.placing import AS_IT_IS, Copied, Form, place
from mementum.records import Damage, Entry, Index, Manifest, record
from mementum.recover.donors import Copy, Donor, Donors
from mementum.recover.verify import INDEX, read_manifest, verify
from mementum.recover.wounds import Changed, Wound, bytes_of, fits, names_of, wound_of
from mementum.storage.store import Store

Look = Callable[[], None]


@record
class Intact:
    """Every byte is as it was written: there was nothing to do."""

    manifest: Manifest


@record
class Repaired:
    """It is whole again, and proved. `keys`: what was put back, or would be; `size`: bytes of that which came from
    elsewhere; `donors`: from where. `anew`: nothing could tell what the bytes here were, and a copy was made anew."""

    manifest: Manifest
    folder: str
    keys: tuple[str, ...]
    donors: tuple[str, ...]
    size: int
    anew: bool = False


@record
class Unrepairable:
    """Nothing was changed. `damage`: the bytes that no place has; `silent`: places that did not answer, and why."""

    damage: tuple[Damage, ...]
    reason: str
    silent: Mapping[str, str] = field(default_factory=dict)


@record
class Text:
    """The manifest that holds, and its file's bytes. `standing`: whether it lies there now, as it should."""

    manifest: Manifest
    data: bytes
    standing: bool


class _Lost(Exception):
    """Of these bytes no place has a good copy. `anew`: what is lost says what all others are."""

    def __init__(self, damage: Sequence[Damage], *, anew: bool = False) -> None:
        super().__init__(damage[0].what)
        self.damage, self.anew = tuple(damage), anew


def repair(
    entry: Entry,
    *,
    store: Store,
    donors: Sequence[Donor],
    require_newest: Look,
    pause: Pause,
    form: Form = AS_IT_IS,
    turn: AbstractContextManager[object] | None = None,
    dry_run: bool = False,
) -> Intact | Repaired | Unrepairable:
    """Data, then indexes and contexts, each put in the place of the damaged one, then the manifest: whatever line we
    die on, nothing good is lost, and what was mended is as its manifest says, bit for bit.

    First all is looked for: of each damaged block a good copy must be had, or nothing is touched. `form`: how copies
    lie in this store, for one that has to be made anew. `turn`: held while a manifest that was lost is put: whoever
    removes or sweeps in the same task holds it too. Superseded from `require_newest`, and a StoreError of this
    store, are raised; a donor that does not answer has nothing."""
    found = Donors(donors, id=entry.manifest.id, folder=entry.folder)
    work = _Work(entry, store, found, pause, turn or nullcontext())
    try:
        return work.mend(require_newest, dry_run=dry_run)
    except GaveUp as stopped:
        return Unrepairable(damage=(), reason=stopped.reason, silent=found.silent)
    except Changed as changed:
        return Unrepairable(damage=(changed.damage,), reason="it changed while it was repaired", silent=found.silent)
    except _Lost as lost:
        why = "no place has a good copy of it"
        if lost.anew:
            try:
                made = _anew(entry, store, tuple(found.copies()), form, require_newest, pause, dry_run=dry_run)
            except GaveUp as stopped:
                return Unrepairable(damage=lost.damage, reason=stopped.reason, silent=found.silent)
            if isinstance(made, Repaired):
                return made
            why = made or why
        return Unrepairable(damage=lost.damage, reason=why, silent=found.silent)


class _Work:
    def __init__(
        self, entry: Entry, store: Store, donors: Donors, pause: Pause, turn: AbstractContextManager[object]
    ) -> None:
        self._entry, self._store, self._donors, self._pause, self._turn = entry, store, donors, pause, turn
        self._folder = entry.folder
        self._from: dict[str, None] = {}  # names of donors, each once
        self._size = 0

    def mend(self, require_newest: Look, *, dry_run: bool) -> Intact | Repaired:
        text = self._text()
        small, indexes = self._small(text.manifest)
        data = self._data(indexes)
        extra = self._above(text.manifest)
        keys = (*(wound.key for wound in data), *(f"{self._folder}/{name}" for name in small))
        if not text.standing:
            keys = (*keys, f"{self._folder}/{generations.manifest_name(text.manifest.generation)}")
        if not keys and not extra:
            return Intact(manifest=text.manifest)
        if not dry_run:
            self._put_back(text, small, data, extra, require_newest)
            self._prove(text.manifest)
        return Repaired(
            manifest=text.manifest, folder=self._folder, keys=keys, donors=tuple(self._from), size=self._size
        )

    def _text(self) -> Text:
        """The manifest: as it lies here, else the one, of donors or of the catalog, to which the files here belong."""
        id, store = self._entry.manifest.id, self._store
        found = read_manifest(store, self._folder)
        if isinstance(found, Manifest):
            if found.id != id:
                raise GaveUp(f"checkpoint {found.id} lies in {self._folder}, and not {id}")
            return Text(manifest=found, data=b"", standing=True)
        known = [(copy.manifest, copy.data, donor.name) for donor, copy in self._donors.copies()]
        mine = self._entry.manifest
        for manifest, data, donor in [*known, (mine, manifests.render(mine), None)]:
            if manifest is not None and fits(manifest, store, self._folder):
                self._given(donor, len(data))
                return Text(manifest=manifest, data=data, standing=False)
        raise _Lost([found], anew=True)

    def _small(self, manifest: Manifest) -> tuple[dict[str, bytes], tuple[Index, ...]]:
        """Indexes and contexts that are to be put back, and what all indexes say."""
        back: dict[str, bytes] = {}
        indexes: list[Index] = []
        lost: list[Damage] = []
        for file in manifest.files:
            if file.digest is None:
                continue
            go_on(self._pause)
            key = f"{self._folder}/{file.name}"
            data: bytes | memoryview | None = bytes_of(self._store, key)
            if data is None or manifests.digest(data) != file.digest:
                what = "it is missing" if data is None else "it does not match its digest"
                given = self._donors.small(file)
                if given is None and INDEX.fullmatch(file.name):
                    given = self._donors.raw_index(manifest, file)
                if given is None:
                    lost.append(Damage(key=key, what=what))
                    continue
                data = back[file.name] = bytes(given.data)
                self._given(given.donor, len(data))
            if INDEX.fullmatch(file.name):
                indexes.append(index.parse(data, file.name))
        if lost:
            raise _Lost(lost, anew=True)
        return back, tuple(indexes)

    def _data(self, indexes: Sequence[Index]) -> list[Wound]:
        """Every byte of every data file is read, those of others that it needs too, and bases before what was coded
        against them; of each damaged block a good copy is found."""
        wounds: list[Wound] = []
        lost: list[Damage] = []
        seen: set[str] = set()
        for each in indexes:
            for file in (*each.bases, *each.files):
                key = key_of(self._folder, file)
                if key in seen:
                    continue
                seen.add(key)
                wound = wound_of(self._store, key, file, each.bases, lambda: go_on(self._pause))
                if wound is None:
                    continue
                wounds.append(wound)
                for number in wound.blocks:
                    go_on(self._pause)
                    given = wound.good(number, self._donors)
                    if given is None:
                        block = file.blocks[number]
                        end = block.offset + block.size
                        lost.append(Damage(key=key, what=f"the bytes from {block.offset} to {end} ({wound.what})"))
                    else:
                        self._given(given.donor, len(given.data))
        if lost:
            raise _Lost(lost)
        return wounds

    def _above(self, manifest: Manifest) -> tuple[str, ...]:
        """Manifests of higher generations that cannot be read, where an earlier one is put back: they would stand in
        its way."""
        names = (stat.key.rpartition("/")[2] for stat in self._store.list(f"{self._folder}/meta"))
        return tuple(
            name for name in generations.standing(names) if (generations.generation_of(name) or 1) > manifest.generation
        )

    def _put_back(
        self, text: Text, small: Mapping[str, bytes], data: Sequence[Wound], extra: Sequence[str], require_newest: Look
    ) -> None:
        try:
            for wound in data:
                self._still(text, require_newest)
                others = names_of(self._store, wound.key)
                self._store.replace(wound.key, wound.chunks(self._donors))
                self._link_again(wound, others)
            for name, content in small.items():
                self._still(text, require_newest)
                self._store.replace(f"{self._folder}/{name}", [content])
            self._still(text, require_newest)
        except GaveUp:
            self._take_back(text, small, data)
            raise
        if not text.standing:
            with self._turn:
                self._still(text, require_newest)
                self._require_all(text.manifest)
                name = generations.manifest_name(text.manifest.generation)
                self._store.replace(f"{self._folder}/{name}", [text.data])  # from here on it is whole
        for name in extra:
            self._store.delete(f"{self._folder}/{name}")

    def _link_again(self, wound: Wound, others: Sequence[str]) -> None:
        """The damaged bytes had other names, of checkpoints that share them: those are the mended ones' from now on."""
        link: Callable[[str, str], bool] | None = getattr(self._store, "link", None)
        for other in others:
            if link is not None:
                self._store.delete(other)
                if link(wound.key, other):
                    continue
            self._store.replace(other, wound.chunks(self._donors))

    def _still(self, text: Text, require_newest: Look) -> None:
        """GaveUp if it was removed or rewritten since we looked: a training may be under way beside us."""
        go_on(self._pause)
        require_newest()
        if text.standing and read_manifest(self._store, self._folder) != text.manifest:
            raise GaveUp("it was removed, or rewritten, while it was repaired")

    def _require_all(self, manifest: Manifest) -> None:
        """GaveUp if a sweep has taken what no manifest named."""
        for folder in dict.fromkeys((self._folder, *(file.folder for file in manifest.files if file.folder))):
            sizes = {stat.key: stat.size for stat in self._store.list(f"{folder}/")}
            for file in manifest.files:
                if (file.folder or self._folder) == folder and sizes.get(key_of(self._folder, file)) != file.size:
                    raise GaveUp(f"{key_of(self._folder, file)} was taken away while it was repaired")

    def _take_back(self, text: Text, small: Mapping[str, bytes], data: Sequence[Wound]) -> None:
        """Of a checkpoint that was removed meanwhile nothing is left behind."""
        names = [stat.key.rpartition("/")[2] for stat in self._store.list(f"{self._folder}/meta")]
        if text.standing and not generations.standing(names):
            keys = [wound.key for wound in data] + [f"{self._folder}/{name}" for name in small]
            for key in keys:
                if key.startswith(f"{self._folder}/"):
                    self._store.delete(key)

    def _prove(self, manifest: Manifest) -> None:
        """What was put back is read once more: a disk that is failing does not give back what it took."""
        wrong = verify(self._store, self._folder, manifest, deep=True)
        if wrong:
            raise Changed(replace(wrong[0], what=f"{wrong[0].what}, after it was put back"))

    def _given(self, donor: str | None, size: int) -> None:
        if donor is not None:
            self._from[donor] = None
            self._size += size


def _anew(
    entry: Entry,
    store: Store,
    copies: Sequence[tuple[Donor, Copy]],
    form: Form,
    require_newest: Look,
    pause: Pause,
    *,
    dry_run: bool,
) -> Repaired | str | None:
    """What lies here belongs to nothing that can be read. Once a whole copy is found it is cleared away, under a mark
    that says that it is nobody's, and the copy is brought here; None, or why not."""
    wanted = {level for level in entry.manifest.levels if level in form.levels}
    for donor, copy in copies:
        manifest = copy.manifest
        if manifest is None or not wanted <= set(manifest.levels):
            continue
        try:
            if verify(donor.store, copy.folder, manifest, deep=True):
                continue
        except MementumError:  # it does not answer, or has a codec that is not here
            continue
        keys = tuple(f"{copy.folder}/{file.name}" for file in manifest.files)
        if not dry_run:
            needed = needed_elsewhere(store)
            if needed is None:
                return "a newer mementum has saved there, and what its checkpoints need cannot be known"
            require_newest()
            _clear(store, entry, needed)
            there = Entry(manifest=manifest, folder=copy.folder)
            done = place(there, source=donor.store, target=store, form=form, require_newest=require_newest, pause=pause)
            if not isinstance(done, Copied):
                return done.reason
            keys = tuple(f"{done.folder}/{file.name}" for file in done.manifest.files)
            manifest, folder = done.manifest, done.folder
        else:
            folder = entry.folder
        return Repaired(
            manifest=manifest, folder=folder, keys=keys, donors=(donor.name,), size=manifest.size, anew=True
        )
    return None


def _clear(store: Store, entry: Entry, needed: frozenset[str]) -> None:
    """Manifests first, as with every removal. A mark that is no checkpoint's lets whoever comes clear the rest, if we
    die."""
    names = [stat.key.partition("/")[2] for stat in store.list(f"{entry.folder}/")]
    mark = f"{entry.folder}/{MARK}{entry.manifest.id}0.json"
    if not any(f"{entry.folder}/{name}" in needed for name in names):
        store.replace(mark, [b"{}"])
    for name in generations.standing(names):
        store.delete(f"{entry.folder}/{name}")
    drop(store, entry.folder, [name for name in names if generations.generation_of(name) is None], needed)
    store.delete(mark)
