"""A run tells a catalog that many share of its checkpoints, and trains just the same where that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from loops import train
from mementum.catalog.servers import open_server
from mementum.catalog.shared import shared_name
from mementum.catalog.sql import open_sqlite
from mementum.errors import UsageError
from mementum.events import Event, Failed, Note
from mementum.records import Entry
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from services import Server, free_port, start_redis

SECRET = "s3cret-w0rd"
STEPS = 4


def trained(root: Path, url: str, *, steps: int = STEPS, **wishes: object) -> list[Event]:
    events: list[Event] = []
    config = {"catalog": url, **wishes}
    outcome = train(root, steps, config=config, on_event=events.append, keep_last=None, slots=0)
    assert outcome.losses[steps] == pytest.approx(train(root.with_name("alone"), steps, slots=0).losses[steps])
    return [
        event for event in events if isinstance(event, Failed) or (isinstance(event, Note) and "atalog" in event.text)
    ]


def listed(root: Path) -> tuple[str, tuple[Entry, ...]]:
    """The task's folder, and what the root's own catalog says of it."""
    catalog = open_sqlite(root / "catalog.db")
    (home,) = catalog.homes()
    entries = tuple(catalog.entries(home))
    catalog.close()
    return home, entries


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_run_and_the_next_one_are_told(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    root = tmp_path / "root"
    assert trained(root, url) == []
    assert trained(root, url, steps=STEPS + 2) == []
    home, entries = listed(root)
    assert {STEPS, STEPS + 2} <= {entry.manifest.step for entry in entries}
    other = open_server(url)
    name = shared_name(home, LocalStore(PosixDisk(), f"{root}/{home}"))
    assert other.homes() == (name,)
    assert [one.manifest for one in other.entries(name)] == [one.manifest for one in entries]
    assert [start.number for start in other.starts(name)] == [1, 2]
    other.close()


def test_a_server_that_is_gone_is_told_once_and_the_training_goes_on(tmp_path: Path) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"
    (told,) = trained(tmp_path / "root", url)
    assert isinstance(told, Failed)
    assert told.what.startswith("telling the catalog redis://127.0.0.1:")
    assert "does not answer" in told.error
    assert SECRET not in repr(told)
    _, entries = listed(tmp_path / "root")
    assert entries[-1].manifest.step == STEPS


def test_wrong_credentials_are_told_once_and_never_shown(tmp_path: Path) -> None:
    server: Server = start_redis(password="another")
    try:
        (told,) = trained(tmp_path / "root", f"redis://:{SECRET}@127.0.0.1:{server.port}/0")
    finally:
        server.stop()
    assert isinstance(told, Failed)
    assert "refuses us" in told.error
    assert told.kept == "all checkpoints, and the run's own catalog; this run tells the other one nothing more"
    assert SECRET not in repr(told)
    assert listed(tmp_path / "root")[1][-1].manifest.step == STEPS


def test_an_address_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="catalog: redis://… cannot be read") as refused:
        trained(tmp_path / "root", f"redis://:{SECRET}@host:port/0")
    assert SECRET not in str(refused.value)
    assert not (tmp_path / "root").exists()
