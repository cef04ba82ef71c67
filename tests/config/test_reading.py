"""Reading: values and their lines, and everything that a file can be instead of a configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.config.reading import DEPTH_MAX, FILE_MAX, parse, plain, read, spelled
from mementum.errors import UsageError

TEXT = """\
# a comment
observe: yes
tolerance:
  max_lost: 10m

policy:
  - cost
  - window:
      base_interval: 1_000
"""


def test_values_come_with_their_lines() -> None:
    tree = parse(TEXT)
    assert tree.values == {
        "observe": "yes",  # whoever reads it knows whether a word or a truth is wanted
        "tolerance": {"max_lost": "10m"},
        "policy": ["cost", {"window": {"base_interval": 1000}}],
    }
    assert not tree.findings
    assert [tree.line(path) for path in (("observe",), ("tolerance", "max_lost"), ("policy", 0))] == [2, 4, 7]
    assert tree.line(("policy", 1, "window", "base_interval")) == 9
    assert tree.line(("policy", 1, "window", "nothing")) == 8  # of what stands above it
    assert tree.line(("nothing",)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("no", "no"),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("1_000_000", 1_000_000),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("2026-11-30", "2026-11-30"),
        ("9" * 5000, "9" * 5000),  # Python refuses to make a number of it
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = plain(text)
    assert (found, type(found)) == (value, type(value))
    assert parse(f'a: "{text}"').values == {"a": text}  # quotes make a text of anything


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~", "\ufeff"])
def test_an_empty_file_says_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text, encoding="utf-8")
    assert (read(path).values, read(path).findings) == ({}, ())


@pytest.mark.parametrize(
    ("data", "line", "what"),
    [
        (b"- 1\n- 2\n", 1, "the file is no mapping"),
        (b"\njust words\n", 2, "the file is no mapping"),
        (b"a: 1\nb:\n\tc: 2\n", 3, "a tab stands where spaces are expected"),
        (b"a: &x 1\nb: *x\n", 1, "anchors and aliases (&, *) are not read"),
        (b"a: 1\nb: *x\n", 2, "anchors and aliases (&, *) are not read"),
        (b"a: !!binary aGk=\n", 1, "tags (!) are not read"),
        (b"!!python/object/apply:os.system [ls]\n", 1, "tags (!) are not read"),
        (b"a: 1\n---\nb: 2\n", 2, "expected a single document"),
        (b"a: b: c\n", 1, "mapping values are not allowed here"),
        (b"a: [1,\n", 2, "while parsing a flow node"),
        (b"a: 'x\n", 2, "while scanning a quoted scalar"),
        (b"? [1]\n: 2\n", 1, "a list or a mapping stands where a key is expected"),
        (b"a: 1\n" + b"[" * 50_000, 2, "could not find expected ':'"),
        (b"a: " + b"[" * 50_000, 1, f"more than {DEPTH_MAX} levels of nesting"),
        (b"a: 1\nb: \xff\n", 2, "byte 0xff is not UTF-8"),
        ("a: ü\n".encode("utf-16"), 1, "byte 0xff is not UTF-8"),
        (b"\x7fELF\0\0\n", 1, "a character that no text has: this is a binary file"),
        (b"a: 1\nb: \x1b[2J\n", 2, "a character that no text has: this is a binary file"),
    ],
)
def test_what_is_no_configuration_is_told_with_its_line(data: bytes, line: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(data)
    (finding,) = read(path).findings
    assert finding.line == line
    assert what in finding.what


def test_a_key_that_is_given_twice_is_told_with_both_lines() -> None:
    tree = parse("a:\n  b: 1\n  c: 2\n  b: 3\n")
    (finding,) = tree.findings
    assert (finding.key, finding.line) == ("a.b", 4)
    assert finding.what == "the key is given twice, on line 2 and on line 4"
    assert tree.values == {"a": {"b": 1, "c": 2}}


def test_a_file_of_64_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    (finding,) = read(path).findings
    assert finding.what == "the file is larger than 64 KiB: that is no configuration"
    path.write_bytes(b"#" * FILE_MAX)
    assert read(path).findings == ()


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("none.yaml", "No such file"), (".", "is no file"), ("pipe", "is no file"), ("a\0b", "null")):
        with pytest.raises(UsageError, match=why):
            read(tmp_path / name)


def test_a_path_is_spelled_as_people_write_it() -> None:
    assert spelled(("policy", 2, "window", "base_interval")) == "policy[2].window.base_interval"


@given(st.text(alphabet=st.sampled_from("ab:-[]{}#&*!|>'\"%@`,? \n\t0.~"), max_size=60))
def test_any_text_gives_values_or_findings(text: str) -> None:
    tree = parse(text)
    assert all(finding.line is not None for finding in tree.findings)
