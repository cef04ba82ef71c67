"""Rewriting: the order of durable effects when a checkpoint is written anew in part, told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mementum.catalog.catalog import Catalog
from mementum.errors import KeyTaken, MementumError, StoreError, Superseded
from mementum.events import Emit, Failed
from mementum.execute.commit import commit, require_owners
from mementum.execute.compress import GaveUp
from mementum.execute.remove import drop, needed_elsewhere, refusal
from mementum.format import generations, index
from mementum.format.manifest import digest
from mementum.records import Entry, Index, Manifest, StoredFile, record
from mementum.recover.verify import INDEX, read_manifest
from mementum.storage.store import Store

SEE = "mementum verify ROOT --deep shows all damage"
GONE = "it was removed while it was rewritten"
NEEDED = "another checkpoint needs files that it would lose"
UNKNOWN = "a newer mementum wrote a checkpoint here, and which files that needs cannot be known"
Look = Callable[[], None]


@record
class Unsettled:
    """Why a checkpoint stays as it is."""

    reason: str


@record
class Rewritten:
    """A checkpoint's manifest as it was, and as it is now."""

    before: Manifest
    after: Manifest


class Rewriting:
    """A checkpoint as it lies there now, and what its next generation has put that nothing names yet."""

    def __init__(self, store: Store, folder: str, before: Manifest) -> None:
        self.store, self.folder, self.before = store, folder, before
        self.generation = before.generation + 1
        self.unnamed: list[str] = []

    def put_index(self, made: Index) -> StoredFile:
        """Make the next generation's index durable; the file, for its manifest."""
        return self.put_small(index.name(made.rank), index.render(made))

    def put_small(self, name: str, data: bytes) -> StoredFile:
        """The same for any small file, of whatever generation the name is that it had."""
        name = generations.part_name(generations.part_name(name, 1), self.generation)
        self.store.put(f"{self.folder}/{name}", [data])
        self.unnamed.append(name)
        return StoredFile(name=name, size=len(data), digest=digest(data))


Write = Callable[[Rewriting, Index], Manifest]  # puts new parts; the next manifest, all of whose files are durable


def _nothing() -> None:
    """Whoever rewrites loses nothing by it that somebody could want."""


def rewrite(
    entry: Entry,
    write: Write,
    *,
    doing: str,
    home: str,
    store: Store,
    catalog: Catalog,
    emit: Emit,
    require_newest: Look,
    turn: AbstractContextManager[object] | None = None,
    still: Look = _nothing,
) -> Rewritten | Unsettled:
    """New data and index, then a look for a later attempt and for whoever needs the old parts, then the next
    generation's manifest, then a look whether another process has removed the old one meanwhile, then catalog, then the
    old manifest, then the old parts: whatever line we die on, the checkpoint is listed and whole in one generation.

    `still`: a last look, when the next generation is there and before anything of the old one goes: GaveUp where it is
    not wanted any more, which takes the next one back.

    `doing`: what is done to it, for people, as in "compressing". `turn` is held from the look on: whoever removes or
    sweeps in the same task holds it too. What goes wrong before the manifest takes the new parts away again and leaves
    the checkpoint as it was; what a disk or a damaged file has caused is told as an event, and never raised."""
    try:
        work = _begin(entry, store)
        with _taken_back(work):
            after = write(work, _read_index(work))
            with turn or nullcontext():
                require_newest()
                _require_whole(work, after)
                _require_unneeded(work, after, home, catalog)
                _commit(work, after, still)  # from here on the next generation holds
                _enter(after, work.folder, home=home, catalog=catalog, emit=emit)
                _remove_old(work, after, doing, emit=emit)
    except GaveUp as stopped:
        return Unsettled(reason=stopped.reason)
    except Superseded as superseded:
        return Unsettled(reason=superseded.message)
    except MementumError as error:
        if _is_gone(entry, store):
            return Unsettled(reason=GONE)
        emit(Failed(what=f"{doing} {entry.manifest.id}", error=error.message, kept="the checkpoint, as it is"))
        return Unsettled(reason=error.message)
    return Rewritten(before=work.before, after=after)


def _begin(entry: Entry, store: Store) -> Rewriting:
    manifest = read_manifest(store, entry.folder)
    if not isinstance(manifest, Manifest):
        raise StoreError(manifest.key, f"{manifest.key}: {manifest.what}", next_command=SEE)
    if manifest.id != entry.manifest.id:
        raise GaveUp(f"checkpoint {manifest.id} lies there now")
    if manifest.generation >= generations.GENERATION_MAX:
        raise GaveUp("it was rewritten as often as it can be")
    return Rewriting(store, entry.folder, manifest)


def _read_index(work: Rewriting) -> Index:
    """What the index says, proved. Of all else the digests go over as they are, so that no damage is hidden."""
    names = [file for file in work.before.files if INDEX.fullmatch(file.name)]
    if len(names) != 1:
        raise GaveUp(f"it has {len(names)} indexes")
    return index.parse(proved(work, names[0]), names[0].name)


def proved(work: Rewriting, file: StoredFile) -> memoryview:
    """A small file of the checkpoint, whole."""
    data = work.store.get(f"{work.folder}/{file.name}")
    if digest(data) != file.digest:
        raise StoreError(file.name, f"{work.folder}/{file.name}: it does not match its digest", next_command=SEE)
    return data


def _require_whole(work: Rewriting, after: Manifest) -> None:
    """GaveUp unless the checkpoint is still there, and all that the next generation names: while we were at work a
    retention may have taken the one, and a sweep the other."""
    found = read_manifest(work.store, work.folder)
    if found != work.before:
        raise GaveUp(GONE)
    _require_all(work, after)


def _require_all(work: Rewriting, after: Manifest) -> None:
    folders = {work.folder, *(file.folder for file in after.files if file.folder is not None)}
    sizes = {stat.key: stat.size for folder in folders for stat in work.store.list(f"{folder}/")}
    for file in after.files:
        if sizes.get(generations.key_of(work.folder, file)) != file.size:
            raise GaveUp(f"{file.name} is not there any more")


def _require_unneeded(work: Rewriting, after: Manifest, home: str, catalog: Catalog) -> None:
    """GaveUp if a checkpoint of another folder names what would go. The manifests themselves are asked: a catalog may
    not have been told of the one that does. Of a far place it tells which need not be read."""
    stays = {generations.key_of(work.folder, file) for file in after.files}
    goes = {generations.key_of(work.folder, file) for file in work.before.files if file.folder is None} - stays
    far = any(work.store.locate(key) is None for key in goes)
    manifests = _manifests(home, catalog) if far else {}
    known = {f"{folder}/{generations.manifest_name(one.generation)}": one for folder, one in manifests.items()}
    needed = needed_elsewhere(work.store, known)
    if needed is None:
        raise GaveUp(UNKNOWN)
    if goes & needed:
        raise GaveUp(NEEDED)


def _manifests(home: str, catalog: Catalog) -> dict[str, Manifest]:
    try:
        return {entry.folder: entry.manifest for entry in catalog.entries(home)}
    except StoreError:  # then all of them are read
        return {}


def _commit(work: Rewriting, after: Manifest, still: Look) -> None:
    """Put the manifest, and withdraw it if the folder turns out to be another checkpoint's now: who stood still
    between the last look and this line may find that a later attempt has gone back and saved in this very folder.
    The same where another process removes the checkpoint, or one whose files it names: who removes takes the old
    manifest first, and when that is gone looks for a next one."""
    work.unnamed.insert(0, generations.manifest_name(work.generation))  # a put that fails may leave its name
    commit(after, work.store, work.folder)
    wrong = refusal(after, work.store, work.folder)
    if wrong is not None:
        raise GaveUp(wrong)
    old = f"{work.folder}/{generations.manifest_name(work.before.generation)}"
    if all(stat.key != old for stat in work.store.list(f"{work.folder}/meta")):
        raise GaveUp(GONE)
    require_owners(after, work.store)
    _require_all(work, after)  # a put that was late may come after the sweep of a later attempt
    still()
    work.unnamed.clear()


def _enter(manifest: Manifest, folder: str, *, home: str, catalog: Catalog, emit: Emit) -> None:
    try:
        catalog.add(home, manifest, folder)
    except StoreError as error:  # a cache: a rebuild will find the generation
        emit(Failed(what=f"entering {manifest.id} in the catalog", error=error.message, kept="the checkpoint"))


def _remove_old(work: Rewriting, after: Manifest, doing: str, *, emit: Emit) -> None:
    """The old manifest, then what it alone has named of its own. What stays is taken by the next start's sweep."""
    named = {generations.key_of(work.folder, file) for file in after.files}
    old = tuple(file.name for file in work.before.files if file.folder is None)
    try:
        work.store.delete(f"{work.folder}/{generations.manifest_name(work.before.generation)}")
        drop(work.store, work.folder, old, named)
    except StoreError as error:
        what = f"removing the old files after {doing} {after.id}"
        emit(Failed(what=what, error=error.message, kept="the checkpoint, in its new form"))


@contextmanager
def _taken_back(work: Rewriting) -> Iterator[None]:
    """Take away what was put and is not named, where something goes wrong."""
    try:
        yield
    except KeyTaken:  # somebody else writes here, and what lies there may be theirs
        raise
    except Superseded:
        if read_manifest(work.store, work.folder) == work.before:  # else its holder may use the folder
            _take_back(work)
        raise
    except (GaveUp, MementumError):
        _take_back(work)
        raise


def _take_back(work: Rewriting) -> None:
    """The manifest first, where there is one; at the first error the rest stays, for the next start's sweep."""
    try:
        for name in work.unnamed:
            work.store.delete(f"{work.folder}/{name}")
    except StoreError:
        return


def _is_gone(entry: Entry, store: Store) -> bool:
    """Whether the checkpoint was removed meanwhile, so that what went wrong is no fault."""
    try:
        names = [stat.key.rpartition("/")[2] for stat in store.list(f"{entry.folder}/")]
        if not generations.standing(names):
            return True
        found = read_manifest(store, entry.folder)
    except MementumError:
        return False
    return isinstance(found, Manifest) and found.id != entry.manifest.id
