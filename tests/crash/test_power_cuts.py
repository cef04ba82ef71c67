"""No power cut damages what is listed or loses what was acknowledged. `kill -9` cannot see any of this."""

from __future__ import annotations

import pytest
from crash_check import checks

CHECKS = checks()


def marked(name: str) -> object:
    """Where names persist in the order of their changes (ext4, xfs), the disks that can be found are among those where
    they persist in any subset: the long checks of the former are soaks."""
    covered = name.endswith(":journaled") and name.replace(":journaled", ":posix") in CHECKS
    return pytest.param(name, marks=pytest.mark.soak) if covered and name.count(":") > 1 else name


@pytest.mark.parametrize("name", [marked(name) for name in CHECKS])
def test_every_promise_holds(name: str, record_property: pytest.RecordProperty) -> None:
    tried = CHECKS[name]()
    record_property("tried", tried)
    assert tried >= 1
