"""Whatever happens to a task, each catalog says the same of it: the best one to come back to, and all entries."""

from __future__ import annotations

import contextlib
import random
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mementum.catalog.sql import open_sqlite
from mementum.records import Entry
from mementum.testing.recovery_contract import STEPS, happen, history, require_best

pytest.importorskip("redis")
EXAMPLES = 40
HOMES = count()  # each example has a task of its own in one database


@given(choose=st.randoms(use_true_random=False), many=st.integers(1, 40))
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_redis_and_sqlite_agree(redis_url: str, choose: random.Random, many: int) -> None:
    from mementum.catalog.redis import open_redis

    home = f"home-{next(HOMES)}"
    happenings = history(choose, many)
    with contextlib.closing(open_redis(redis_url)) as shared, contextlib.closing(open_sqlite(None)) as local:
        for catalog in (shared, local):
            happen(catalog, home, happenings)
            require_best(catalog, home, (None, STEPS // 2))
        # A copy of a folder has the id of its original, and nothing else tells their order.
        assert sorted(shared.entries(home), key=by_folder) == sorted(local.entries(home), key=by_folder)
        assert shared.read_sizes(home) == local.read_sizes(home)


def by_folder(entry: Entry) -> str:
    return entry.folder
