"""The tables of a catalog in SQL, and which version of them this is."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA = 3  # of the tables; those of an earlier one are made again of the manifests and facts that they hold

# Order by code points everywhere: of ids it is the order of time, and PostgreSQL's usual order passes over some signs.
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Whole = sa.BigInteger()

tables = sa.MetaData()
schema = sa.Table("schema", tables, sa.Column("version", sa.Integer, primary_key=True))

# Everything but `home`, `folder` and `manifest` is made of the manifest and of facts, so that it can be asked for.
checkpoints = sa.Table(
    "checkpoints",
    tables,
    sa.Column("home", Text, primary_key=True),
    sa.Column("folder", Text, primary_key=True),
    sa.Column("id", Text, nullable=False),
    sa.Column("task", Text, nullable=False),
    sa.Column("seq", Whole, nullable=False),
    sa.Column("attempt", Whole, nullable=False),
    sa.Column("parent", Text),
    sa.Column("step", Whole, nullable=False),
    sa.Column("epoch", Whole, nullable=False),
    sa.Column("time", Text, nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("granularity", sa.Integer, nullable=False),
    sa.Column("generation", Whole, nullable=False),
    sa.Column("levels", Text, nullable=False),  # JSON
    sa.Column("world_size", Whole, nullable=False),
    sa.Column("size", Whole, nullable=False),  # bytes
    sa.Column("metrics", Text, nullable=False),  # JSON, as the manifest says; late ones are facts of its step
    sa.Column("gpu_mem_percent", sa.Double),
    sa.Column("saved_health", Text, nullable=False),
    sa.Column("non_finite", sa.Boolean, nullable=False),
    sa.Column("health", Text, nullable=False),  # as far as it is known by now; from here on facts count
    sa.Column("judged", Text),
    sa.Column("judged_why", Text),
    sa.Column("damaged", Text),
    sa.Column("verified", Text),
    sa.Column("pinned", Text),
    sa.Column("pinned_by", Text, nullable=False),  # JSON
    sa.Column("places", Text, nullable=False),  # JSON
    sa.Column("restore_s", sa.Double),
    sa.Column("band", Whole),  # see `sql_columns.band`; null: nothing to come back to
    sa.Column("manifest", Text, nullable=False),
    sa.Index("checkpoints_by_id", "home", "id"),
    # All that the choice of a recovery point looks at, so that it reads no manifest but the one that it has chosen.
    sa.Index("checkpoints_by_band", "home", "band", "step", "seq", "attempt", "restore_s", "id", "folder"),
)
facts_table = sa.Table(
    "facts",
    tables,
    sa.Column("home", Text, primary_key=True),
    sa.Column("source", Text, primary_key=True),
    sa.Column("number", Whole, primary_key=True),
    sa.Column("kind", Text, nullable=False),
    sa.Column("time", Text, nullable=False),
    sa.Column("checkpoint", Text),
    sa.Column("step", Whole),
    sa.Column("data", Text, nullable=False),
    sa.Index("facts_by_checkpoint", "home", "checkpoint", "kind"),
    sa.Index("facts_by_step", "home", "step", "kind"),
)
journals = sa.Table(
    "journals",
    tables,
    sa.Column("home", Text, primary_key=True),
    sa.Column("source", Text, primary_key=True),
    sa.Column("size", Whole, nullable=False),
)
attempts = sa.Table(
    "attempts",
    tables,
    sa.Column("home", Text, primary_key=True),
    sa.Column("number", Whole, primary_key=True),
    sa.Column("time", Text, nullable=False),
    sa.Column("host", Text, nullable=False),
    sa.Column("pid", Whole, nullable=False),
    sa.Column("came_from", Text),
    sa.Column("told_from", Text),  # the same, as its journal says
    sa.Column("ended", Text),  # why, as its journal says
)
CONTENTS = (checkpoints, facts_table, journals, attempts)
