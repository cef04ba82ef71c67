"""Which version of the tables a database has, and how it comes to have ours."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mementum.catalog import sql_writing
from mementum.catalog.entry import manifest_of
from mementum.catalog.sql_tables import CONTENTS, SCHEMA, checkpoints, facts_table, journals, schema, tables
from mementum.errors import StoreError
from mementum.records import Manifest

OLD = "old_"  # before the name of a table whose contents are on their way into a new one


def is_ours(connection: sa.Connection, where: str) -> bool:
    """Whether the database has our tables. StoreError if a newer mementum has made them: they are left alone."""
    found = _version(connection)
    if found is not None and found > SCHEMA:
        raise StoreError(
            where,
            f"the catalog {where} was made by a newer mementum: it has version {found}, here {SCHEMA} is known",
            kept="all checkpoints, and the catalog as it is",
            next_command="pip install --upgrade mementum",
        )
    return found == SCHEMA


def prepare(connection: sa.Connection, where: str) -> None:
    """Make our tables, in one transaction that nobody else is in: of nothing, or of what an older version knew."""
    if is_ours(connection, where):  # somebody was faster
        return
    if _version(connection) is not None:
        _migrate(connection)
    else:
        tables.create_all(connection)
    connection.execute(sa.insert(schema), {"version": SCHEMA})


def anew(connection: sa.Connection) -> None:
    """Drop what is there, which is a cache, and make our tables."""
    for name in sa.inspect(connection).get_table_names():
        if name.removeprefix(OLD) in tables.tables:
            connection.execute(sa.schema.DropTable(sa.Table(name, sa.MetaData())))
    tables.create_all(connection)
    connection.execute(sa.insert(schema), {"version": SCHEMA})


def _version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(schema.name):
        return None
    found = connection.execute(sa.select(sa.func.max(schema.c.version))).scalar()
    return 0 if found is None else int(found)


def _migrate(connection: sa.Connection) -> None:
    """All versions hold the manifests and the facts, and all else is made of them, so that one way leads from each of
    them to ours. Attempts come from files that are read at every start, and are not carried over."""
    inspector = sa.inspect(connection)
    for table in CONTENTS:
        if inspector.has_table(table.name):
            for index in inspector.get_indexes(table.name):
                connection.execute(sa.text(f'DROP INDEX "{index["name"]}"'))
            connection.execute(sa.text(f'ALTER TABLE "{table.name}" RENAME TO "{OLD}{table.name}"'))
    connection.execute(sa.delete(schema))
    tables.create_all(connection)
    for table in (facts_table, journals):
        old = sa.table(f"{OLD}{table.name}", *(sa.column(column.name) for column in table.c))
        connection.execute(sa.insert(table).from_select([column.name for column in table.c], sa.select(*old.c)))
    for home, found in _by_home(connection):
        sql_writing.enter(connection, home, found)
    for table in CONTENTS:
        connection.execute(sa.text(f'DROP TABLE IF EXISTS "{OLD}{table.name}"'))


def _by_home(connection: sa.Connection) -> Iterator[tuple[str, Iterator[tuple[Manifest, str, str]]]]:
    old = sa.table(f"{OLD}{checkpoints.name}", *(sa.column(name) for name in ("home", "folder", "manifest")))
    for home in connection.execute(sa.select(old.c.home).distinct()).scalars().all():
        yield home, _manifests(connection, old, home)


def _manifests(connection: sa.Connection, old: sa.TableClause, home: str) -> Iterator[tuple[Manifest, str, str]]:
    """What cannot be read is left out: a refresh reads the file itself."""
    folders = connection.execute(sa.select(old.c.folder).where(old.c.home == home)).scalars().all()
    for folder in folders:
        text = connection.execute(sa.select(old.c.manifest).where(old.c.home == home, old.c.folder == folder)).scalar()
        manifest = manifest_of(text or "")
        if manifest is not None:
            yield manifest, folder, str(text)
