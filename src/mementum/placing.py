"""Placing: the order of durable effects when a checkpoint is copied from one store to another, told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from mementum.basing import Wanted
from mementum.errors import KeyTaken
from mementum.execute.compress import GaveUp, Pause
from mementum.execute.halves import Half, TakenOver, mark_name
from mementum.execute.remove import drop, needed_elsewhere
from mementum.execute.transfer import Copy, NotWhole, Owners, Proved, go_on, small
from mementum.format import generations, index, levels
from mementum.format import manifest as manifests
from mementum.format.codec import is_delta
from mementum.format.manifest import digest
from mementum.lodging import FROZEN, find_room, require_there
from mementum.recoding import Recoded, counted, is_coded
from mementum.records import LEVELS, Damage, DataFile, Entry, Index, Manifest, StoredFile, record
from mementum.recover.verify import CONTEXT, INDEX, read_manifest, verify
from mementum.storage.store import Store, size_of

TRIES = 3  # with a checkpoint that is compressed or dropped a level while it is copied: that takes seconds to do
Look = Callable[[], None]


@record
class Form:
    """In what a copy differs from its source. `codec`: of optimizer state; None: as it lies there. One with a delta is
    of weights too where there is something to code them against: others stay standard files."""

    levels: tuple[int, ...] = LEVELS
    codec: str | None = None


AS_IT_IS = Form()


@record
class Copied:
    """A checkpoint is whole in the target, in `folder`. `sent`: bytes; none of them where it was there already."""

    manifest: Manifest
    folder: str
    sent: int


@record
class Uncopied:
    """Why it is not there. `damage`: what is wrong with the source, if that is the reason."""

    reason: str
    damage: Damage | None = None


@record
class Job:
    """What is copied, from where and to where."""

    copy: Copy
    source: Store
    folder: str  # in the source
    before: Manifest
    form: Form
    owners: Owners | None
    pause: Pause
    others: Sequence[Entry] = ()
    below: Manifest | None = None  # what stands there already, with fewer levels
    frozen: list[DataFile] = field(
        default_factory=list
    )  # weights that the target has with this copy, once that is there
    bases: dict[str, DataFile] = field(default_factory=dict)  # what files of the copy were coded against, by its key

    @property
    def generation(self) -> int:
        """Of a copy that differs."""
        return (self.below or self.before).generation + 1


def place(
    entry: Entry,
    *,
    source: Store,
    target: Store,
    form: Form = AS_IT_IS,
    owners: Owners | None = None,
    others: Sequence[Entry] = (),
    require_newest: Look,
    pause: Pause,
    tell: Callable[[int], None] | None = None,
) -> Copied | Uncopied:
    """A mark that says whose copy it is, then data, index, context, then a look for a later attempt, then the manifest,
    then the mark goes: whatever line we die on, what is listed in the target is whole, and who comes later goes on.

    `others`: the checkpoints of the target, oldest first, for a codec with a delta to code files against. `owners`:
    which checkpoints of the target have which frozen weights, for whoever copies several: those are not sent again.
    `tell` hears of each file that was sent how many bytes it has, also where nothing comes of the copy.
    Several may copy it at once, and know nothing of each other: what stands in the end is whole. Where it stands with
    fewer levels, those that it lacks come back.
    Superseded from `require_newest`, and a StoreError of either side, are raised and leave the half copy."""
    for _ in range(TRIES):
        try:
            return _place(entry, source, target, form, owners, others, require_newest, pause, tell)
        except GaveUp as stopped:
            return Uncopied(reason=stopped.reason)
        except TakenOver as taken:
            return Uncopied(reason=str(taken))
        except NotWhole as found:
            if not generations.newest(stat.key for stat in source.list(f"{entry.folder}/meta")):
                return Uncopied(reason="it was removed meanwhile")
            now = read_manifest(source, entry.folder)
            same = isinstance(now, Manifest) and now.id == entry.manifest.id
            if not isinstance(now, Manifest) or not same or now.generation <= entry.manifest.generation:
                return Uncopied(reason=str(found), damage=found.damage)
            entry = replace(entry, manifest=now)  # the next try reads no older one
    return Uncopied(reason="it was rewritten again and again while it was copied")


def _place(
    entry: Entry,
    source: Store,
    target: Store,
    form: Form,
    owners: Owners | None,
    others: Sequence[Entry],
    require_newest: Look,
    pause: Pause,
    tell: Callable[[int], None] | None,
) -> Copied:
    before, indexes = _read(entry, source)
    room = find_room(target, entry.folder, before.id)
    if room.stands is not None:
        require_there(room, room.stands)
        if not _lacks(room.stands, before, form):
            if mark_name(before.id) in room.there:  # who put the manifest has died before the mark was gone
                target.delete(f"{room.folder}/{mark_name(before.id)}")
            return Copied(manifest=room.stands, folder=room.folder, sent=0)
    half = Half(target, room.folder, before.id)
    copy = Copy(half, half.take({"step": before.step, "attempt": before.attempt}), tell)
    job = Job(
        copy=copy,
        source=source,
        folder=entry.folder,
        before=before,
        form=form,
        owners=owners,
        pause=pause,
        others=[other for other in others if other.manifest.id != before.id],
        below=room.stands,
    )
    try:
        after = _copy_parts(job, indexes)
    except NotWhole:
        if half.is_ours():
            half.clear()
        raise
    half.remove(copy.names - _named(after) - _manifests(copy))  # what an earlier try sent of another generation
    go_on(pause)
    require_newest()
    _put_manifest(job, after)  # from here on it exists there
    ours = _require_whole(job, after)
    _require_owners(job, after)
    _drop_below(job, after)
    if owners is not None:
        for file in job.frozen:  # not before: what others name must be a checkpoint's
            owners.know(file, room.folder)
    if ours:
        half.end()
    return Copied(manifest=after, folder=room.folder, sent=copy.sent)


def _lacks(stands: Manifest, before: Manifest, form: Form) -> bool:
    """Whether a copy that stands there has fewer levels than would come, and none besides."""
    return set(stands.levels) < {level for level in before.levels if level in form.levels}


def _read(entry: Entry, source: Store) -> tuple[Manifest, tuple[Index, ...]]:
    """The manifest that holds, and what its indexes say, proved."""
    found = read_manifest(source, entry.folder)
    if isinstance(found, Damage):
        raise NotWhole(found)
    if found.id != entry.manifest.id:
        raise GaveUp(f"checkpoint {found.id} lies in its folder now")
    files = [file for file in found.files if INDEX.fullmatch(file.name)]
    return found, tuple(index.parse(small(source, entry.folder, file), file.name) for file in files)


def _copy_parts(job: Job, indexes: tuple[Index, ...]) -> Manifest:
    """Data, then indexes and contexts; the manifest that names them, which is the source's where nothing differs."""
    before, wanted = job.before, job.form.levels
    data: dict[str, DataFile] = {}  # by the name at the source
    for each in indexes:
        for held in levels.index_left(each, wanted).files:
            data[held.name] = _copy_data(job, held, each)
    left = tuple(level for level in before.levels if level in wanted)
    same = job.below is None and left == before.levels
    same = same and all(data.get(held.name) == held for each in indexes for held in each.files)
    made: list[StoredFile] = []
    proofs = iter(indexes)
    for file in before.files:
        if file.digest is None:
            continue
        name, content = file.name, bytes(small(job.source, job.folder, file))
        if not same and INDEX.fullmatch(name):
            name, content = _index(next(proofs), data, job)
        elif left != before.levels and CONTEXT.fullmatch(name):
            content = levels.context_left(content, indexes[0], left, name)
            name = _name(name, job)
        elif job.below is not None:  # under its old name another one may be named there
            name = _name(name, job)
        made.append(StoredFile(name=name, size=len(content), digest=digest(content)))
        job.copy.put_small(name, content)
    if same:
        return before
    return replace(
        before,
        generation=job.generation,
        granularity=levels.granularity_left(before.granularity, left),
        levels=left,
        files=(
            *(StoredFile(name=one.name, size=one.size, folder=one.folder) for one in data.values()),
            *made,
            *(StoredFile(name=one.name, size=one.size, folder=one.folder) for one in job.bases.values()),
        ),
    )


def _copy_data(job: Job, file: DataFile, of: Index) -> DataFile:
    """A data file as it is in the target."""
    codec = job.form.codec if levels.level_of(file.name) == levels.OPTIMIZER else None
    tensors = [tensor for tensor in of.tensors if tensor.file == file.name]
    coded = _counted(job, file, of)
    if coded is not None:
        return coded
    if file.base is not None or (codec is not None and not is_coded(file, tensors, codec)):
        chunks = Recoded(file, tensors, of.bases, source=job.source, folder=job.folder, codec=codec, pause=job.pause)
        stat = job.copy.put(_name(file.name, job), chunks)
        return DataFile(name=_name(file.name, job), size=stat.size, blocks=tuple(chunks.made))
    own, owners = replace(file, folder=None), job.owners if file.name.endswith(FROZEN) else None
    owner = None if owners is None else owners.find(own)
    if owner is not None and owner != job.copy.folder:
        if job.copy.link(owner, file.name, file.size):
            return own
        if not job.copy.links:
            return replace(file, folder=owner)
    plain = generations.brought_by(file.name) == 1  # as it was saved: what is under this name never changes
    if job.below is not None and not plain:  # under its name another one may be named there
        own = replace(own, name=_name(file.name, job))
    proved = Proved(job.source, generations.key_of(job.folder, file), file, job.pause)
    job.copy.put(own.name, proved, file.size if plain else None)
    if owners is not None:
        job.frozen.append(own)
    return own


def _counted(job: Job, file: DataFile, of: Index) -> DataFile | None:
    """The file, coded against one that the target has; None where none pays, or the codec has no delta."""
    codec = job.form.codec
    if codec is None or not is_delta(codec) or file.name.endswith(FROZEN):
        return None
    entry = Entry(manifest=job.before, folder=job.folder)
    wanted = Wanted(entry=entry, proof=of, file=file, codec=codec, source=job.source)
    name = _name(levels.coded_name(file.name), job)
    found = counted(wanted, job.others, job.copy.target, job.pause, lambda chunks: job.copy.put(name, chunks), name)
    if found is None:
        return None
    job.bases.update({generations.key_of("", base): base for base in found[1:]})
    return found[0]


def _name(name: str, job: Job) -> str:
    """Of a part that the copy's own generation brings."""
    return generations.part_name(generations.part_name(name, 1), job.generation)


def _named(manifest: Manifest) -> frozenset[str]:
    """The names of its own files."""
    return frozenset(file.name for file in manifest.files if file.folder is None)


def _manifests(copy: Copy) -> frozenset[str]:
    return frozenset(generations.standing(copy.names))


def _index(before: Index, data: Mapping[str, DataFile], job: Job) -> tuple[str, bytes]:
    """The name and the bytes of the index of a copy that differs."""
    left = levels.index_left(before, job.form.levels)
    tensors = tuple(replace(tensor, file=data[tensor.file].name) for tensor in left.tensors)
    files = tuple(data[file.name] for file in left.files)
    used = {file.base for file in files}
    bases = tuple(base for key, base in job.bases.items() if key in used)
    made = Index(rank=before.rank, files=files, tensors=tensors, bases=bases)
    return _name(index.name(before.rank), job), index.render(made)


def _put_manifest(job: Job, after: Manifest) -> None:
    """The source's own bytes where nothing differs. Where somebody has put one, it must be this one."""
    name = generations.manifest_name(after.generation)
    data = manifests.render(after)
    if after is job.before:
        data = bytes(job.source.get(f"{job.folder}/{name}", 0, manifests.READ_MAX))
        if generations.parse(data, name) != after:
            raise GaveUp("another checkpoint came into its folder while it was copied")
    key = f"{job.copy.folder}/{name}"
    try:
        job.copy.target.put(key, [data])
    except KeyTaken:
        if bytes(job.copy.target.get(key, 0, manifests.READ_MAX)) != data:
            raise


def _require_whole(job: Job, after: Manifest) -> bool:
    """Whether nobody has touched the copy. Where somebody has, who copies the same and knows nothing of us, it is read
    back, and withdrawn unless it is whole all the same: TakenOver."""
    copy = job.copy
    if copy.half.is_ours():
        return True
    if verify(copy.target, copy.folder, after, deep=True):
        copy.target.delete(f"{copy.folder}/{generations.manifest_name(after.generation)}")
        raise TakenOver
    return False


def _drop_below(job: Job, after: Manifest) -> None:
    """Take away what stood there with fewer levels, but for files that other checkpoints name. Who removed it meanwhile
    may not have seen our manifest, which goes then: GaveUp."""
    below, copy = job.below, job.copy
    if below is None:
        return
    key = f"{copy.folder}/{generations.manifest_name(below.generation)}"
    if size_of(copy.target, key) is None:
        copy.target.delete(f"{copy.folder}/{generations.manifest_name(after.generation)}")
        raise GaveUp("it was removed there meanwhile")
    copy.target.delete(key)
    needed = needed_elsewhere(copy.target)
    if needed is not None:
        drop(copy.target, copy.folder, sorted(_named(below) - _named(after)), needed)


def _require_owners(job: Job, after: Manifest) -> None:
    """Withdraw the copy if a checkpoint whose files it names is on its way out: who removes one takes its manifest away
    and then looks who names its files, we put ours and then look for that manifest, so that one of us sees it."""
    target = job.copy.target
    for folder in {file.folder for file in after.files if file.folder is not None}:
        sizes = {stat.key: stat.size for stat in target.list(f"{folder}/")}
        lacks = any(
            sizes.get(generations.key_of("", file)) != file.size for file in after.files if file.folder == folder
        )
        if lacks or not generations.newest(sizes):
            target.delete(f"{job.copy.folder}/{generations.manifest_name(after.generation)}")
            if job.owners is not None:
                job.owners.forget(folder)
            raise GaveUp(f"the checkpoint in {folder}, whose files it needs, was removed there")
