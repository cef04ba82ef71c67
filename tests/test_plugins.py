"""A name finds its factory: ours by a table, others' by entry points, and nobody takes a name of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from mementum import plugins
from mementum.errors import UsageError
from mementum.format.codec import Raw, Zstd, parse
from mementum.format.planes import Planes
from mementum.records import Buffer

GROUP = "mementum.codecs"
Offer = Callable[..., None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Entry points as if packages with them were installed."""

    def offered(**named: str) -> None:
        points = [EntryPoint(name, value, GROUP) for name, value in named.items()]
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: points if group == GROUP else [])

    offered()
    return offered


@pytest.mark.parametrize(("name", "made"), [("raw", Raw), ("zstd", Zstd), ("planes", Planes)])
def test_ours_are_found(offer: Offer, name: str, made: type) -> None:
    assert plugins.factory(GROUP, name) is made


def test_every_name_of_ours_exists(offer: Offer) -> None:
    for group, names in plugins.OURS.items():
        for name in names:
            assert callable(plugins.factory(group, name))


def test_others_are_found_and_imported_only_then(offer: Offer) -> None:
    offer(other="wave:open", broken="no_such_module_of_anybody:Codec")
    sys.modules.pop("wave", None)
    assert plugins.factory(GROUP, "raw") is Raw
    assert "wave" not in sys.modules
    factory = plugins.factory(GROUP, "other")
    assert factory is sys.modules["wave"].open


def test_a_plugin_may_not_take_a_name_of_ours(offer: Offer) -> None:
    offer(zstd="their.package:Zstd")
    with pytest.raises(
        UsageError, match=r"their\.package:Zstd wants the name 'zstd' of mementum\.codecs, which is ours"
    ):
        plugins.factory(GROUP, "zstd")
    assert plugins.factory(GROUP, "raw") is Raw


def test_an_unknown_name_is_told_with_all_that_there_are(offer: Offer) -> None:
    offer(lz4="x:y", brotli="x:z")
    with pytest.raises(UsageError) as caught:
        plugins.factory(GROUP, "lz5")
    assert caught.value.message == "there is no 'lz5' in mementum.codecs; there are: brotli, lz4, planes, raw, zstd"


class Reversed:
    """A codec of somebody's: the bytes from the last to the first."""

    keeps_size = True
    spec = "reversed"

    def encode(self, raw: Buffer) -> Buffer:
        return bytes(raw)[::-1]

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        return bytes(stored)[::-1]


def test_a_codec_of_a_plugin_is_used_by_its_spec(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("codecs_of_somebody")
    module.Reversed = Reversed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    offer(reversed="codecs_of_somebody:Reversed")
    codec = parse("reversed+zstd:1")
    stored = codec.encode(b"abc" * 100)
    assert codec.spec == "reversed+zstd:1"
    assert bytes(codec.decode(stored, 300)) == b"abc" * 100
    assert bytes(parse("zstd:1").decode(stored, 300)) == b"cba" * 100
