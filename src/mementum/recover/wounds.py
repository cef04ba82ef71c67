"""Wounds: which bytes of a checkpoint's files are not what was written, and the files as they are with good ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mementum.errors import AccessRefused, KeyMissing, StoreError, Unreachable
from mementum.format import blocks
from mementum.format.generations import key_of
from mementum.format.manifest import digest
from mementum.records import Buffer, Damage, DataFile, Manifest
from mementum.recover.donors import Donors, Given
from mementum.recover.verify import INDEX, base_of, raw_block, tells_of_this_process
from mementum.storage.store import Store

FROZEN = ".frozen.safetensors"  # only such files ever have two names
HELD_MAX = 64 << 20  # bytes of good blocks of a file that are kept from the look to the writing; others are asked again


class Changed(Exception):
    """What was good when it was looked at is not good any more."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage.key}: {damage.what}")
        self.damage = damage


class Wound:
    """A data file that is not what was written. `blocks`: the numbers of those that are not; none where it only has
    bytes too many."""

    def __init__(
        self, store: Store, key: str, file: DataFile, bases: Sequence[DataFile], numbers: Sequence[int], what: str
    ) -> None:
        self.key, self.file, self.blocks, self.what = key, file, tuple(numbers), what
        self._store, self._base = store, base_of(file, bases)
        self._held: dict[int, Given] = {}
        self._room = HELD_MAX

    def good(self, number: int, donors: Donors) -> Given | None:
        """The bytes of a damaged block as they were written."""
        given = self._held.get(number) or donors.block(self.file, number, lambda: self._counted(number, donors))
        if given is not None and number not in self._held and len(given.data) <= self._room:
            self._held[number] = given
            self._room -= len(given.data)
        return given

    def chunks(self, donors: Donors) -> Iterable[Buffer]:
        """The whole file, good blocks from where it lies. It may be gone through again."""
        return _Mended(self, donors)

    def here(self, number: int) -> Buffer | None:
        return _good_block(self._store, self.key, self.file, number)

    def _counted(self, number: int, donors: Donors) -> Buffer | None:
        """What a block was coded against: here, or where a donor has it."""
        if self._base is None:
            return None
        found = raw_block(self._store, key_of("", self._base), self._base.blocks[number])
        return donors.raw(self._base, number) if isinstance(found, Damage) else found


class _Mended:
    def __init__(self, wound: Wound, donors: Donors) -> None:
        self._wound, self._donors = wound, donors

    def __iter__(self) -> Iterator[Buffer]:
        wound = self._wound
        for number, block in enumerate(wound.file.blocks):
            if number in wound.blocks:
                given = wound.good(number, self._donors)
                data = None if given is None else given.data
            else:
                data = wound.here(number)
            if data is None:
                raise Changed(Damage(key=wound.key, what=f"the block at {block.offset} cannot be had any more"))
            yield bytes(data)


def wound_of(
    store: Store, key: str, file: DataFile, bases: Sequence[DataFile], go_on: Callable[[], None]
) -> Wound | None:
    """Read every byte of a file; what is wrong with it, or None. `go_on` is called before each block."""
    bad: list[int] = []
    size = next((stat.size for stat in store.list(key) if stat.key == key), None)
    for number in range(len(file.blocks)):
        go_on()
        if size is None or _good_block(store, key, file, number) is None:
            bad.append(number)
    if not bad and size == file.size:
        return None
    what = "it is missing" if size is None else "they do not match their digest"
    if not bad:
        what = f"it should have {file.size} bytes and has {size}"
    return Wound(store, key, file, bases, bad, what)


def bytes_of(store: Store, key: str, start: int = 0, size: int | None = None) -> memoryview | None:
    """None where there are none, or the disk does not give them. What tells of this process is raised, and that a place
    does not answer."""
    try:
        return store.get(key, start, size)
    except KeyMissing:
        return None
    except StoreError as error:
        if isinstance(error, Unreachable | AccessRefused) or tells_of_this_process(error):
            raise
        return None


def fits(manifest: Manifest, store: Store, folder: str) -> bool:
    """Whether what lies in a folder belongs to this manifest: its index, or, if that is lost, all of its data."""
    proofs = [file for file in manifest.files if INDEX.fullmatch(file.name)]
    for file in proofs:
        data = bytes_of(store, f"{folder}/{file.name}")
        if data is not None and digest(data) == file.digest:
            return True
    sizes = {stat.key: stat.size for stat in store.list(f"{folder}/")}
    own = [file for file in manifest.files if file.digest is None and file.folder is None]
    return bool(own) and all(sizes.get(f"{folder}/{file.name}") == file.size for file in own)


def names_of(store: Store, key: str) -> tuple[str, ...]:
    """Other keys of the very same bytes on a disk: frozen weights that checkpoints share."""
    name = key.rpartition("/")[2]
    path = store.locate(key) if name.endswith(FROZEN) else None
    if path is None:
        return ()
    found: list[str] = []
    for stat in store.list("step_"):
        other = store.locate(stat.key) if stat.key != key and stat.key.endswith(f"/{name}") else None
        try:
            if other is not None and other.samefile(path):
                found.append(stat.key)
        except OSError:  # it was removed since it was listed
            continue
    return tuple(found)


def _good_block(store: Store, key: str, file: DataFile, number: int) -> memoryview | None:
    block = file.blocks[number]
    data = bytes_of(store, key, block.offset, block.size)
    return data if data is not None and blocks.damage(block, data) is None else None
