"""Settling: the order of durable effects when a checkpoint that landed raw is compressed, told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from mementum.catalog.catalog import Catalog
from mementum.clock import Clock
from mementum.errors import KeyTaken, MementumError, StoreError, Superseded
from mementum.events import Emit, Failed, Settled
from mementum.execute.commit import commit
from mementum.execute.compress import GaveUp, Pause, compress, is_raw
from mementum.execute.remove import refusal
from mementum.format import generations, index
from mementum.format.manifest import digest
from mementum.records import DataFile, Entry, Index, Manifest, StoredFile, record
from mementum.recover.verify import INDEX, read_manifest
from mementum.storage.store import Store

LEVEL_1 = ".blocks"  # weights stay a standard file, and context and index are small
SEE = "mementum verify ROOT --deep shows all damage"
GONE = "it was removed while it was compressed"
Look = Callable[[], None]


@record
class Unsettled:
    """Why a checkpoint stays as it is."""

    reason: str


class Rewriting:
    """A checkpoint as it lies there now, and what its next generation has put that nothing names yet."""

    def __init__(self, store: Store, folder: str, before: Manifest) -> None:
        self.store, self.folder, self.before = store, folder, before
        self.generation = before.generation + 1
        self.unnamed: list[str] = []


def settle(
    entry: Entry,
    *,
    home: str,
    store: Store,
    catalog: Catalog,
    codec: str,
    emit: Emit,
    require_newest: Look,
    clock: Clock,
    pause: Pause,
    turn: AbstractContextManager[object] | None = None,
) -> Manifest | Unsettled:
    """New data and index, then a look for a later attempt, then the next generation's manifest, then catalog, then the
    old manifest, then the old parts: whatever line we die on, the checkpoint is listed and whole in one generation.

    `turn` is held from the look on: whoever removes or sweeps in the same task holds it too. What goes wrong before
    the manifest takes the new parts away again and leaves the checkpoint as it was; what a disk or a damaged file has
    caused is told as an event, and never raised."""
    began_s = clock.monotonic()
    try:
        work = _begin(entry, store)
        with _taken_back(work):
            after = _write_parts(work, _read_index(work), codec, pause)
            with turn or nullcontext():
                require_newest()
                _require_whole(work, after)
                _commit(work, after)  # from here on the next generation holds
                _enter(after, work.folder, home=home, catalog=catalog, emit=emit)
                _remove_old(work, after, emit=emit)
    except GaveUp as stopped:
        return Unsettled(reason=stopped.reason)
    except Superseded as superseded:
        return Unsettled(reason=superseded.message)
    except MementumError as error:
        if _is_gone(entry, store):
            return Unsettled(reason=GONE)
        emit(Failed(what=f"compressing {entry.manifest.id}", error=error.message, kept="the checkpoint, as it is"))
        return Unsettled(reason=error.message)
    duration_s = clock.monotonic() - began_s
    size_before = work.before.size
    emit(Settled(id=after.id, step=after.step, size_before=size_before, size=after.size, duration_s=duration_s))
    return after


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
    data = work.store.get(f"{work.folder}/{names[0].name}")
    if digest(data) != names[0].digest:
        raise StoreError(
            names[0].name, f"{work.folder}/{names[0].name}: it does not match its digest", next_command=SEE
        )
    return index.parse(data, names[0].name)


def _write_parts(work: Rewriting, proof: Index, codec: str, pause: Pause) -> Manifest:
    """The next generation's manifest, all of whose files are durable."""
    made: dict[str, DataFile] = {}
    for file in proof.files:
        if file.name.endswith(LEVEL_1) and is_raw(file):
            name = generations.part_name(file.name, work.generation)
            held = [tensor for tensor in proof.tensors if tensor.file == file.name]
            made[file.name] = compress(
                file, held, store=work.store, folder=work.folder, name=name, codec=codec, pause=pause
            )
            work.unnamed.append(name)
    if not made:
        raise GaveUp("nothing of it is raw that could be compressed")
    tensors = tuple(
        replace(tensor, file=made[tensor.file].name) if tensor.file in made else tensor for tensor in proof.tensors
    )
    files = tuple(made.get(file.name, file) for file in proof.files)
    rendered = index.render(Index(rank=proof.rank, files=files, tensors=tensors))
    name = generations.part_name(index.name(proof.rank), work.generation)
    work.store.put(f"{work.folder}/{name}", [rendered])
    work.unnamed.append(name)
    small = StoredFile(name=name, size=len(rendered), digest=digest(rendered))
    stored = {old: StoredFile(name=new.name, size=new.size) for old, new in made.items()}
    return replace(
        work.before,
        generation=work.generation,
        files=tuple(small if INDEX.fullmatch(file.name) else stored.get(file.name, file) for file in work.before.files),
    )


def _require_whole(work: Rewriting, after: Manifest) -> None:
    """GaveUp unless the checkpoint is still there, and all that the next generation names: while we were at work a
    retention may have taken the one, and a sweep the other."""
    found = read_manifest(work.store, work.folder)
    if found != work.before:
        raise GaveUp(GONE)
    sizes = {stat.key: stat.size for stat in work.store.list(f"{work.folder}/")}
    for file in after.files:
        if sizes.get(f"{work.folder}/{file.name}") != file.size:
            raise GaveUp(f"{file.name} is not there any more")


def _commit(work: Rewriting, after: Manifest) -> None:
    """Put the manifest, and withdraw it if the folder turns out to be another checkpoint's now: who stood still
    between the last look and this line may find that a later attempt has gone back and saved in this very folder."""
    work.unnamed.insert(0, generations.manifest_name(work.generation))  # a put that fails may leave its name
    commit(after, work.store, work.folder)
    wrong = refusal(after, work.store, work.folder)
    if wrong is not None:
        raise GaveUp(wrong)
    work.unnamed.clear()


def _enter(manifest: Manifest, folder: str, *, home: str, catalog: Catalog, emit: Emit) -> None:
    try:
        catalog.add(home, manifest, folder)
    except StoreError as error:  # a cache: a rebuild will find the generation
        emit(Failed(what=f"entering {manifest.id} in the catalog", error=error.message, kept="the checkpoint"))


def _remove_old(work: Rewriting, after: Manifest, *, emit: Emit) -> None:
    """The old manifest, then what it alone has named. What stays is taken by the next start's sweep."""
    named = {file.name for file in after.files}
    old = [file.name for file in work.before.files if file.name not in named]
    try:
        for name in (generations.manifest_name(work.before.generation), *old):
            work.store.delete(f"{work.folder}/{name}")
    except StoreError as error:
        what = f"removing the uncompressed files of {after.id}"
        emit(Failed(what=what, error=error.message, kept="the checkpoint, compressed"))


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
