"""What every store must do, as test classes for authors of stores."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken, UsageError
from mementum.storage.store import Buffer, Home, Stat, Store

CHUNK_SHAPES: dict[str, tuple[Buffer, ...]] = {
    "no chunk": (),
    "one empty chunk": (b"",),
    "one chunk": (b"weights",),
    "empty chunks in between": (b"", b"we", b"", b"ights", b""),
    "bytearray": (bytearray(b"weights"),),
    "memoryview": (memoryview(b"weights"),),
    "part of a view": (memoryview(b"__weights__")[2:9],),
    "view of wider numbers": (memoryview(bytes(range(64))).cast("i"),),
    "view of two dimensions": (memoryview(bytes(range(64))).cast("B", (8, 8)),),
    "many small chunks": tuple(bytes([n]) for n in range(256)),
    "over a megabyte": (random.Random(1).randbytes(1_200_001), b"tail"),
}

HOSTILE_KEYS = (
    "",
    "/",
    "/absolute",
    ".",
    "..",
    "../outside",
    "a/../../outside",
    "a/..",
    "a/./b",
    "a//b",
    "a/",
    "a\\b",
    "a\0b",
    "unfinished.tmp",
    "unfinished.tmp/a",
    "n" * 201,
    "é" * 101,
    "/".join(["folder"] * 200),
    "\ud800",
)

ODD_KEYS = (
    " ",
    " leading/trailing ",
    "...",
    ".hidden/.file",
    "-rf",
    "~",
    "a%2Fb%",
    "a+b&c=d?e#f",
    "C:/name",
    "*?[!a]",
    "'\"$(name)`",
    "new\nline/tab\tstop",
    "{a}:b;c,d|e<f>",
    "é/e\u0301",  # composed, and decomposed: they are not one key
    "\N{SNOWMAN}/\N{GRINNING FACE}",
    "unfinished.tmp.not",
    "UPPER/lower",
)

KEYS_IN_ORDER = ("a", "b-c", "b.c", "b/c", "b/d/e", "b0", "bé", "c/x/y/z", "c/x0", "ключ/имя")


class StoreContract:
    """Subclass it in your tests as `class TestMyStore(StoreContract)` and give it a `make_store`."""

    def make_store(self, tmp_path: Path) -> Store:
        """A new, empty store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make_store(tmp_path)

    @pytest.mark.parametrize("shape", CHUNK_SHAPES)
    def test_what_was_put_is_got(self, store: Store, shape: str) -> None:
        chunks = CHUNK_SHAPES[shape]
        data = b"".join(memoryview(chunk).tobytes() for chunk in chunks)
        assert store.put("folder/object", iter(chunks)) == Stat(key="folder/object", size=len(data))
        assert bytes(store.get("folder/object")) == data
        assert list(store.list()) == [Stat(key="folder/object", size=len(data))]

    def test_a_chunk_may_be_used_again_by_its_owner(self, store: Store) -> None:
        def chunks() -> Iterator[Buffer]:
            buffer = bytearray(4)
            for n in range(3):
                buffer[:] = bytes([n] * 4)
                yield buffer

        store.put("a", chunks())
        assert bytes(store.get("a")) == bytes([0] * 4 + [1] * 4 + [2] * 4)

    def test_ranges(self, store: Store) -> None:
        data = random.Random(2).randbytes(1000)
        store.put("a", [data])
        for start, size in itertools.product((0, 1, 500, 999, 1000, 2000), (0, 1, 499, 1000, 5000)):
            assert bytes(store.get("a", start, size)) == data[start : start + size]
        assert bytes(store.get("a", 10)) == data[10:]
        assert bytes(store.get("a", size=10)) == data[:10]
        assert isinstance(store.get("a"), memoryview)

    @pytest.mark.parametrize(("start", "size"), [(-1, None), (0, -1)])
    def test_negative_ranges_are_refused(self, store: Store, start: int, size: int | None) -> None:
        store.put("a", [b"data"])
        with pytest.raises(UsageError):
            store.get("a", start, size)

    def test_a_taken_key_keeps_its_bytes(self, store: Store) -> None:
        store.put("a/b", [b"old"])
        with pytest.raises(KeyTaken) as caught:
            store.put("a/b", [b"new"])
        assert caught.value.key == "a/b"
        assert bytes(store.get("a/b")) == b"old"
        assert list(store.list()) == [Stat(key="a/b", size=3)]

    def test_a_missing_key(self, store: Store) -> None:
        store.put("a/b", [b"data"])
        for key in ("c", "a", "a/c", "a/b/c"):
            with pytest.raises(KeyMissing) as caught:
                store.get(key)
            assert caught.value.key == key
            assert store.locate(key) is None

    def test_list_is_in_key_order(self, store: Store) -> None:
        assert list(store.list()) == []
        for key in random.Random(3).sample(KEYS_IN_ORDER, len(KEYS_IN_ORDER)):
            store.put(key, [key.encode()])
        assert [stat.key for stat in store.list()] == sorted(KEYS_IN_ORDER)
        assert [stat.size for stat in store.list()] == [len(key.encode()) for key in sorted(KEYS_IN_ORDER)]

    @pytest.mark.parametrize("prefix", ["b", "b/", "b/d", "b/d/e", "b/d/e/f", "c/x", "ключ", "none", "/", "..", "../"])
    def test_list_by_prefix(self, store: Store, prefix: str) -> None:
        for key in KEYS_IN_ORDER:
            store.put(key, [b"1"])
        assert [stat.key for stat in store.list(prefix)] == [k for k in sorted(KEYS_IN_ORDER) if k.startswith(prefix)]

    def test_folders_are_the_names_right_below(self, store: Store) -> None:
        assert store.folders() == ()
        for key in KEYS_IN_ORDER:
            store.put(key, [b"1"])
        assert store.folders() == ("b", "c", "ключ")
        assert store.folders("b/") == ("d",)
        assert store.folders("c/x/") == ("y",)
        for prefix in ("b/d/", "a/", "b-c/", "none/", "ключ/"):
            assert store.folders(prefix) == ()
        store.delete("b/d/e")
        store.delete("b/c")  # what has nothing left may be named, since nobody looks inside
        assert set(store.folders()) - {"b"} == {"c", "ключ"}

    @pytest.mark.parametrize("prefix", ["b", "/", "../", "b/../", "b//", "b\\/", "left.tmp/"])
    def test_what_is_no_folder_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(UsageError):
            store.folders(prefix)

    @pytest.mark.parametrize("shape", CHUNK_SHAPES)
    def test_what_was_replaced_is_got(self, store: Store, shape: str) -> None:
        chunks = CHUNK_SHAPES[shape]
        data = b"".join(memoryview(chunk).tobytes() for chunk in chunks)
        store.put("folder/old", [b"damaged weights"])
        for key in ("folder/none", "folder/old"):
            assert store.replace(key, chunks) == Stat(key=key, size=len(data))
            assert bytes(store.get(key)) == data
        assert list(store.list()) == [Stat(key=key, size=len(data)) for key in ("folder/none", "folder/old")]
        with pytest.raises(KeyTaken):
            store.put("folder/none", [b"new"])

    @pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_a_replace_that_fails_leaves_the_old(self, store: Store, error: type[BaseException], after: int) -> None:
        def chunks() -> Iterator[Buffer]:
            yield from [b"chunk"] * after
            raise error("no more")

        store.put("a/b", [b"old"])
        for key in ("a/b", "a/c"):
            with pytest.raises(BaseException, match="no more") as caught:
                store.replace(key, chunks())
            assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error)
        assert list(store.list()) == [Stat(key="a/b", size=3)]
        assert store.sweep() == ()
        assert bytes(store.get("a/b")) == b"old"
        store.replace("a/b", [b"whole"])
        assert bytes(store.get("a/b")) == b"whole"

    def test_a_reader_finds_the_old_or_the_new(self, store: Store) -> None:
        store.put("a", [bytes(1000)])
        seen: list[bytes] = []

        def chunks() -> Iterator[Buffer]:
            for _ in range(4):
                seen.append(bytes(store.get("a")))
                yield b"1" * 250

        store.replace("a", chunks())
        assert seen == [bytes(1000)] * 4
        assert bytes(store.get("a")) == b"1" * 1000

    def test_delete_may_be_repeated(self, store: Store) -> None:
        for key in ("a/b", "a/c", "d"):
            store.put(key, [key.encode()])
        for _ in range(2):
            store.delete("a/b")
            assert [stat.key for stat in store.list()] == ["a/c", "d"]
        store.delete("a/c")
        store.delete("never/was")
        store.delete("a")
        assert [stat.key for stat in store.list()] == ["d"]
        store.put("a/b", [b"again"])
        assert bytes(store.get("a/b")) == b"again"

    @pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_a_put_that_fails_leaves_nothing(self, store: Store, error: type[BaseException], after: int) -> None:
        def chunks() -> Iterator[Buffer]:
            yield from [b"chunk"] * after
            raise error("no more")

        with pytest.raises(BaseException, match="no more") as caught:
            store.put("a/b", chunks())
        assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error)
        assert list(store.list()) == []
        assert store.sweep() == ()
        store.put("a/b", [b"whole"])
        assert bytes(store.get("a/b")) == b"whole"

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_hostile_keys_are_refused(self, store: Store, key: str) -> None:
        with pytest.raises(UsageError):
            store.put(key, [b"data"])
        with pytest.raises(UsageError):
            store.replace(key, [b"data"])
        with pytest.raises(UsageError):
            store.get(key)
        with pytest.raises(UsageError):
            store.delete(key)
        with pytest.raises(UsageError):
            store.locate(key)
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_taken(self, store: Store, key: str) -> None:
        store.put(key, [b"old"])
        assert bytes(store.get(key)) == b"old"
        assert list(store.list()) == list(store.list(key)) == [Stat(key=key, size=3)]
        store.replace(key, [b"newer"])
        folder, slash, _ = key.rpartition("/")
        assert bytes(store.get(key)) == b"newer"
        assert store.folders() == ((folder,) if slash else ())
        with pytest.raises(KeyTaken):
            store.put(key, [b"old"])
        store.delete(key)
        assert list(store.list()) == []

    def test_the_longest_names_are_taken(self, store: Store) -> None:
        key = "é" * 100 + "/" + "n" * 200
        store.put(key, [b"data"])
        assert list(store.list()) == [Stat(key=key, size=4)]

    def test_of_two_puts_of_one_key_one_wins(self, store: Store) -> None:
        together = threading.Barrier(2, timeout=10)
        outcomes: dict[int, Stat | KeyTaken] = {}

        def put(writer: int) -> None:
            def chunks() -> Iterator[Buffer]:
                together.wait()  # both have begun before either writes
                yield from [bytes([writer]) * 1000] * 20

            try:
                outcomes[writer] = store.put("a/b", chunks())
            except KeyTaken as error:
                outcomes[writer] = error

        threads = [threading.Thread(target=put, args=(writer,)) for writer in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [writer for writer, outcome in outcomes.items() if isinstance(outcome, Stat)]
        assert len(outcomes) == 2
        assert len(winners) == 1
        assert bytes(store.get("a/b")) == bytes(winners) * 20_000
        assert store.sweep() == ()

    def test_a_sweep_leaves_a_put_in_progress_alone(self, store: Store) -> None:
        swept: list[tuple[str, ...]] = []

        def chunks() -> Iterator[Buffer]:
            for part in (b"first", b"second"):
                swept.append(store.sweep())
                assert list(store.list()) == []  # unfinished, hence not an object
                yield part

        store.put("a/b", chunks())
        assert swept == [(), ()]
        assert store.sweep() == ()
        assert bytes(store.get("a/b")) == b"firstsecond"

    def test_a_located_file_has_the_bytes(self, store: Store) -> None:
        data = random.Random(4).randbytes(10_000)
        store.put("a/b", [data])
        path = store.locate("a/b")
        assert path is None or path.read_bytes() == data


class HomeContract(StoreContract):
    """The same for a store in which tasks live. `links` is whether it can give bytes a second name."""

    links = True

    def make_store(self, tmp_path: Path) -> Home:
        """A new, empty home."""
        raise NotImplementedError

    @pytest.fixture
    def home(self, tmp_path: Path) -> Home:
        return self.make_store(tmp_path)

    def test_a_link_is_another_name_of_the_bytes(self, home: Home) -> None:
        data = random.Random(5).randbytes(10_000)
        home.put("old/a", [data])
        assert home.link("old/a", "new/b") is self.links
        names = ["new/b", "old/a"] if self.links else ["old/a"]
        assert list(home.list()) == [Stat(key=key, size=len(data)) for key in names]
        assert all(bytes(home.get(key)) == data for key in names)
        assert home.taken("new/b") is self.links

    @pytest.mark.parametrize("gone", ["old/a", "new/b"])
    def test_the_bytes_stay_until_the_last_name_is_deleted(self, home: Home, gone: str) -> None:
        home.put("old/a", [b"weights"])
        if home.link("old/a", "new/b"):
            (left,) = {"old/a", "new/b"} - {gone}
            home.delete(gone)
            assert [stat.key for stat in home.list()] == [left]
            assert bytes(home.get(left)) == b"weights"
            assert home.link(left, gone)
            home.delete(left)
            assert bytes(home.get(gone)) == b"weights"

    def test_a_link_replaces_nothing(self, home: Home) -> None:
        for key in ("old/a", "new/b"):
            home.put(key, [key.encode()])
        for new_key in ("new/b", "old/a"):
            with pytest.raises(KeyTaken) as caught:
                home.link("old/a", new_key)
            assert caught.value.key == new_key
        assert bytes(home.get("new/b")) == b"new/b"

    def test_a_link_needs_an_object(self, home: Home) -> None:
        home.put("old/a", [b"weights"])
        for key in ("none", "old", "old/b", "old/a/b"):
            with pytest.raises(KeyMissing) as caught:
                home.link(key, "new/b")
            assert caught.value.key == key
        assert [stat.key for stat in home.list()] == ["old/a"]

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_hostile_keys_are_not_linked(self, home: Home, key: str) -> None:
        home.put("a", [b"weights"])
        for old, new in ((key, "b"), ("a", key)):
            with pytest.raises(UsageError):
                home.link(old, new)
        assert [stat.key for stat in home.list()] == ["a"]
