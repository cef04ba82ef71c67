"""Spacing: how far back checkpoints reach, counted in steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mementum.records import Entry


def ages(newest_first: Sequence[Entry]) -> list[int]:
    """How many steps ago each was saved. Where a run went back to an earlier step, that itself took none."""
    found = [0] if newest_first else []
    for newer, older in pairwise(newest_first):
        found.append(found[-1] + max(newer.manifest.step - older.manifest.step, 0))
    return found
