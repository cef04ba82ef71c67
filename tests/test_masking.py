"""Passwords and keys of places are in no message, no table, no fact and no repr."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mementum.cli.main import app
from mementum.config.loading import examine, load
from mementum.config.tiers import Tier
from mementum.errors import UsageError
from mementum.masking import masked, shown
from mementum.opening import root_folder
from mementum.storage.tiers import open_store
from tiered import Training, entries

SECRET = "hunter2"
OPTIONS = {"region": "eu-1", "endpoint": f"https://me:{SECRET}@host:9000", "secret_access_key": SECRET, "new": SECRET}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host:6379/0", "redis://host:6379/0"),
        ("rediss://me:secret@host/1?password=secret&ssl_ca_certs=x", "rediss://me@host/1"),
        ("postgresql://me:secret@host:5432/name?password=secret", "postgresql://me@host:5432/name"),
        ("postgresql+psycopg://me:se%40cret@[::1]:5432/name", "postgresql+psycopg://me@[::1]:5432/name"),
        ("redis://secret@host/1", "redis://host/1"),
        ("postgresql://me@host/name", "postgresql://me@host/name"),
        ("redis://:sec@ret@host/0", "redis://host/0"),
        ("redis://:sec/ret@host/0", "redis://…"),
        ("redis://:12/ret@host/0", "redis://…"),
        ("redis://:sec#ret@host/0", "redis://…"),
        ("redis://:12#ret@host/0", "redis://…"),
        ("redis://:sec?ret@host/0", "redis://…"),
        ("redis://:12?ret@host/0", "redis://…"),
        ("redis://host:secret/0", "redis://…"),
        ("redis://[secret/0", "redis://…"),
        ("s3://bucket/a@b/c:d", "s3://bucket/a@b/c:d"),
        ("s3://bucket/a?secret=1#secret", "s3://bucket/a"),
        ("s3://me:secret@bucket/a", "s3://me@bucket/a"),
        ("s3://me:sec/ret@bucket/a", "s3://…"),
        ("me:secret@host/0", "…"),
        ("/a@b/c", "/a@b/c"),
        ("file:///a@b", "file:///a@b"),
        ("host", "host"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_of_options_is_shown_what_is_known_to_open_nothing() -> None:
    expected = {"region": "eu-1", "endpoint": "https://me@host:9000", "secret_access_key": "…", "new": "…"}
    assert masked(OPTIONS) == expected
    assert masked({"AWS_REGION": "r", "AWS_SESSION_TOKEN": "t"}) == {"AWS_REGION": "r", "AWS_SESSION_TOKEN": "…"}


@pytest.mark.parametrize(
    "values",
    [
        {"tiers": [{"url": f"postgres://me:{SECRET}@host/x"}]},
        {"tiers": [{"url": f"me:{SECRET}@host"}]},
        {"tiers": [{"url": f"redis://:{SECRET}/x@host"}]},
        {"tiers": [{"url": 5, "options": {"password": {SECRET: SECRET}}}]},
        {"tiers": [{"url": "s3://b", "options": SECRET}]},
        {"catalog": f"mysql://me:{SECRET}@host/x"},
        {"catalog": f"postgresql://me:{SECRET}#x@host/x"},
        {"catalog": [SECRET]},
    ],
)
def test_a_wrong_setting_is_refused_without_its_secret(values: dict[str, Any]) -> None:
    found = examine(values).findings
    assert found
    assert SECRET not in "".join(map(str, found))


def test_a_password_that_is_cut_in_two_is_told(tmp_path: Path) -> None:
    (finding,) = examine({"catalog": f"redis://:{SECRET}/x@host/0"}).findings
    assert str(finding) == "catalog: redis://… cannot be read; expected in its password %40 for @, %2F for /, %23 for #"


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    tier = f"{{url: 'redis://me:{SECRET}@host/0', options: {{password: {SECRET}, replicas: '1'}}}}"
    (tmp_path / "c.yaml").write_text(f"catalog: postgresql://me:{SECRET}@db/x\ntiers:\n  - {tier}\n")
    plain, as_json = (
        CliRunner().invoke(app, ["config", "show", str(tmp_path / "c.yaml"), *more]) for more in ([], ["--json"])
    )
    assert (plain.exit_code, as_json.exit_code) == (0, 0)
    settings = load(tmp_path / "c.yaml").settings
    for text in (plain.output, as_json.output, repr(settings), str(settings.tiers), f"{settings.tiers[0]}"):
        assert SECRET not in text
        assert "me@host" in text
    told = json.loads(as_json.output)["settings"]
    assert told["catalog"] == "postgresql://me@db/x"
    assert told["tiers"] == [{"url": "redis://me@host/0", "options": {"password": "…", "replicas": "1"}}]
    assert (settings.catalog, settings.tiers[0].options["password"]) == (f"postgresql://me:{SECRET}@db/x", SECRET)


@pytest.mark.parametrize(
    "url", [f"s3://b/x?key={SECRET}", f"s3://me:{SECRET}/x@b/p", f"redis://{SECRET}#x@host/0", f"redis://:{SECRET}@/0"]
)
def test_a_place_that_cannot_be_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in Tier.model_construct(url=url, name=None).called


def test_a_root_that_is_no_folder_is_named_without_its_password() -> None:
    with pytest.raises(UsageError) as caught:
        root_folder(f"redis://:{SECRET}@host/0")
    assert str(caught.value).startswith("redis://host/0: a training has its root in a folder of its own machine")
    assert SECRET not in str(caught.value)


def test_nothing_that_a_run_leaves_or_tells_has_a_secret(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Manifests, journals, facts and attempts, here and on the tier, events and the log."""
    url = redis_url.replace("redis://", f"redis://:{SECRET}@", 1)  # of which a server without a password takes none
    training, caught = Training(), tmp_path / "root"
    with caplog.at_level(logging.DEBUG, logger="mementum"):
        training.run(caught, 2, {"url": url}, {"url": str(tmp_path / "far")}, config={"catalog": url})
    assert sorted(entries(tmp_path / "far")) == [1, 2]
    for file in (*caught.rglob("*"), *(tmp_path / "far").rglob("*")):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in "".join(map(repr, training.told))
    assert SECRET not in caplog.text
