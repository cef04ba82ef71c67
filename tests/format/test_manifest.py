"""The manifest comes back as it was written, and any change of any byte of it is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mementum.errors import NotReadableHere, UnknownFormat, UsageError
from mementum.format import manifest as manifests
from mementum.format.fields import FORMAT, PLAIN
from mementum.records import LEVELS, Granularity, Health, Manifest, StoredFile

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
COUNT = st.integers(0, (1 << 62) - 1)
VALUE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.tuples(TEXT, st.integers())
VALUES = st.dictionaries(TEXT | st.integers(), VALUE, max_size=3)
NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), min_size=1, max_size=10).filter(
    lambda name: name not in (".", "..")
)
FOLDERS = st.from_regex(r"step_[0-9]{10}(-[0-9]{1,3})?", fullmatch=True)
FILE = st.builds(StoredFile, name=NAME, size=COUNT, digest=st.none() | TEXT) | st.builds(
    StoredFile, name=NAME, size=COUNT, folder=FOLDERS
)

MANIFESTS = st.builds(
    Manifest,
    id=TEXT,
    seq=COUNT,
    task=TEXT,
    attempt=COUNT,
    parent=st.none() | TEXT,
    step=COUNT,
    epoch=COUNT,
    time=TEXT,
    reason=TEXT,
    granularity=st.sampled_from(Granularity),
    health=st.sampled_from(Health),
    files=st.lists(FILE, max_size=3).map(tuple),
    world_size=COUNT,
    decision=VALUES,
    metrics=st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=3),
    memory=st.dictionaries(TEXT, COUNT, max_size=2),
    debug_info=st.lists(VALUES, max_size=2).map(tuple),
    versions=st.dictionaries(TEXT, TEXT, max_size=2),
    code=VALUES,
    exactness=st.lists(TEXT, max_size=2).map(tuple),
    user=VALUES,
    generation=st.integers(1, 9999),
    levels=st.sets(st.sampled_from(LEVELS)).map(sorted).map(tuple),
)

ONE = Manifest(
    id="c0123456789abcdef",
    seq=7,
    task="größe",
    attempt=2,
    parent=None,
    step=1200,
    epoch=3,
    time="2026-11-30T06:10:09.000000Z",
    reason="asked",
    granularity=Granularity.FULL,
    health=Health.CLEAN,
    files=(StoredFile(name="model.safetensors", size=10), StoredFile(name="index-00000.json", size=5, digest="ab")),
    metrics={"loss": 0.5},
    user={"digest": "0" * 64, "zeros": "0" * 200},
)


def resealed(fields: dict[str, Any]) -> bytes:
    """Changed fields under a digest that is right: what another version, or an attacker, might write."""
    text = json.dumps({**fields, "digest": manifests.ZEROS}, indent=1, ensure_ascii=True) + "\n"
    return manifests._with_digest(text.encode())


def edited(name: str, value: Any) -> bytes:
    fields = json.loads(manifests.render(ONE))
    if value is ...:
        del fields[name]
    else:
        fields[name] = value
    return resealed(fields)


@given(written=MANIFESTS)
def test_what_was_rendered_is_parsed(written: Manifest) -> None:
    assert manifests.parse(manifests.render(written)) == written


def test_numbers_that_json_lacks_come_back() -> None:
    written = replace(ONE, metrics={"a": float("inf"), "b": float("-inf"), "c": float("nan"), "d": -0.0})
    found = manifests.parse(manifests.render(written)).metrics
    assert {name: repr(value) for name, value in found.items()} == {"a": "inf", "b": "-inf", "c": "nan", "d": "-0.0"}


def test_every_change_of_every_byte_is_noticed() -> None:
    data = manifests.render(ONE)
    for at in range(len(data)):
        for changed in {data[at] ^ 1, data[at] ^ 0x20, data[at] ^ 0x80, 0x20, 0x30} - {data[at]}:
            with pytest.raises(UnknownFormat):
                manifests.parse(data[:at] + bytes([changed]) + data[at + 1 :])


def test_every_missing_and_every_added_byte_is_noticed() -> None:
    data = manifests.render(ONE)
    for at in range(len(data)):
        for changed in (data[:at] + data[at + 1 :], data[:at], data[:at] + b" " + data[at:]):
            with pytest.raises(UnknownFormat):
                manifests.parse(changed)
    for added in (b" ", b"\n", b"\0", data):
        with pytest.raises(UnknownFormat):
            manifests.parse(data + added)


def test_the_digest_is_of_the_bytes_with_zeros_in_its_place() -> None:
    data = manifests.render(ONE)
    claimed = json.loads(data)["digest"]
    assert data.endswith(f'"digest": "{claimed}"\n}}\n'.encode())
    assert claimed == blake3(data.replace(claimed.encode(), b"0" * 64)).hexdigest()


def test_a_change_is_told_as_one() -> None:
    data = manifests.render(ONE).replace(b'"step": 1200', b'"step": 1201')
    with pytest.raises(UnknownFormat, match=r"^x/meta\.json was changed after it was written"):
        manifests.parse(data, "x/meta.json")


def test_fields_of_a_later_version_are_covered_too() -> None:
    data = edited("mesh", {"data": 4})
    assert manifests.parse(data) == ONE
    with pytest.raises(UnknownFormat, match="was changed"):
        manifests.parse(data.replace(b'"data": 4', b'"data": 5'))


def test_a_newer_format_is_refused_with_both_versions() -> None:
    with pytest.raises(NotReadableHere, match=f"has format {FORMAT + 1}, this mementum reads up to {FORMAT}"):
        manifests.parse(edited("format", FORMAT + 1))


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "", ".", "..", "a\0b", "a\\b", "\ud800"])
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UnknownFormat, match=r"files\[0\].name"):
        manifests.parse(edited("files", [{"name": name, "size": 1}]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", None),
        ("id", 5),
        ("id", ...),
        ("task", "half a pair \ud800"),
        ("seq", -1),
        ("seq", 1.0),
        ("attempt", "1"),
        ("parent", 3),
        ("step", True),
        ("step", 1 << 62),
        ("epoch", None),
        ("time", []),
        ("reason", ...),
        ("granularity", 4),
        ("granularity", -1),
        ("health", "dead"),
        ("files", {}),
        ("files", [1]),
        ("files", [{"name": "a", "size": -1}]),
        ("files", [{"name": "a", "size": 1, "blake3": 7}]),
        ("world_size", ...),
        ("decision", []),
        ("decision", {"$tuple": [1, 2]}),
        ("metrics", "loss"),
        ("metrics", {"$no such form": 1}),
        ("memory", 7),
        ("debug_info", {}),
        ("debug_info", [1]),
        ("exactness", [1]),
        ("versions", []),
        ("code", None),
        ("user", [[]]),
        ("generation", 0),
        ("generation", -2),
        ("generation", "2"),
        ("generation", None),
    ],
)
def test_a_field_of_another_kind_is_named(name: str, value: Any) -> None:
    with pytest.raises(UnknownFormat, match=name):
        manifests.parse(edited(name, value))


@pytest.mark.parametrize("digest", ["", "0" * 64, "a", "A" * 64, "\ud800" * 64, None, 5])
def test_a_digest_of_another_kind_is_refused(digest: object) -> None:
    fields = {**json.loads(manifests.render(ONE)), "digest": digest}
    with pytest.raises(UnknownFormat):
        manifests.parse(json.dumps(fields, indent=1).encode())


def test_the_first_generation_is_not_said() -> None:
    """What wrote manifests before there were generations has written the same bytes."""
    assert "generation" not in json.loads(manifests.render(ONE))
    assert json.loads(manifests.render(replace(ONE, generation=2)))["generation"] == 2
    assert manifests.parse(edited("generation", 1)) == ONE


@pytest.mark.parametrize("id", ["c0123456789abcdef", 'c"1', "c\\1", "größe"])
def test_its_first_bytes_tell_whose_it_is(id: str) -> None:
    data = manifests.render(replace(ONE, id=id, generation=9999))
    assert manifests.has_id(data[: manifests.HEAD], id)
    assert manifests.has_id(memoryview(data), id)
    assert not manifests.has_id(data, id[:-1])
    assert not manifests.has_id(data, id + "x")
    assert not manifests.has_id(b"", id)


def test_what_is_too_large_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = manifests.render(ONE)
    monkeypatch.setattr(manifests, "SIZE_MAX", len(data))
    assert manifests.parse(manifests.render(ONE)) == ONE
    with pytest.raises(UsageError, match=rf"of step 1200 would have {len(data) + 1} bytes, at most {len(data)}"):
        manifests.render(replace(ONE, reason="asked "))
    monkeypatch.setattr(manifests, "SIZE_MAX", len(data) - 1)
    with pytest.raises(UnknownFormat, match=r"has over .* bytes, more than any manifest"):
        manifests.parse(data)


def test_it_is_made_for_jq() -> None:
    fields = json.loads(manifests.render(ONE))
    assert fields["format"] == PLAIN
    assert (fields["step"], fields["health"], fields["metrics"], fields["parent"]) == (
        1200,
        "clean",
        {"loss": 0.5},
        None,
    )
    assert fields["files"] == [
        {"name": "model.safetensors", "size": 10},
        {"name": "index-00000.json", "size": 5, "blake3": "ab"},
    ]
    assert "größe" in manifests.render(ONE).decode()
    assert ONE.size == 15


REFERS = replace(ONE, files=(StoredFile(name="optimizer.blocks", size=5, folder="step_0000000007-2"),))


@pytest.mark.parametrize(("manifest", "format"), [(ONE, 1), (REFERS, 2), (replace(ONE, levels=(0, 2)), 2)])
def test_only_what_an_older_version_would_misread_is_newer(manifest: Manifest, format: int) -> None:
    rendered = manifests.render(manifest)
    fields = json.loads(rendered)
    assert (fields["format"], "levels" in fields) == (format, manifest.levels != LEVELS)
    assert manifests.parse(rendered) == manifest


@pytest.mark.parametrize(
    "folder", ["", "step_1", "step_0000000001/..", "../step_0000000001", "step_0000000001-", "step_٠٠٠٠٠٠٠٠٠٠", 7]
)
def test_only_folders_of_checkpoints_are_followed(folder: object) -> None:
    with pytest.raises(UnknownFormat, match=r"folder (is not the folder of a checkpoint|should be)"):
        manifests.parse(edited("files", [{"name": "a", "size": 1, "folder": folder}]))


def test_a_small_file_is_never_another_checkpoints() -> None:
    with pytest.raises(UnknownFormat, match="only files of data are another checkpoint's"):
        manifests.parse(edited("files", [{"name": "a", "size": 1, "folder": "step_0000000001", "blake3": "0"}]))


@pytest.mark.parametrize("levels", [[1, 0], [0, 0], [3], [True], ["0"], 0, None, {}])
def test_levels_are_some_of_three_in_order(levels: object) -> None:
    with pytest.raises(UnknownFormat, match="levels should be"):
        manifests.parse(edited("levels", levels))
