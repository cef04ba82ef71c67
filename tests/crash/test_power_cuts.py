"""No power cut damages what is listed or loses what was acknowledged. `kill -9` cannot see any of this."""

from __future__ import annotations

import pytest
from crash_check import checks

CHECKS = checks()


@pytest.mark.parametrize("name", CHECKS)
def test_every_promise_holds(name: str, record_property: pytest.RecordProperty) -> None:
    tried = CHECKS[name]()
    record_property("tried", tried)
    assert tried >= 1
