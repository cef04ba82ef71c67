"""What another process pins or judges while a run goes on counts from the run's next save on."""

from __future__ import annotations

from pathlib import Path

import mementum
from mementum.catalog import facts
from mementum.events import Removed
from mementum.records import Fact
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Told


def test_a_pin_from_outside_keeps_and_its_end_lets_go(tmp_path: Path) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, keep_last=1, on_event=told) as run:

        def save() -> str:
            run.record()
            run.wait()
            return str(run._background.parent)

        def outside(kind: str, name: str, time: str) -> None:
            fact = Fact(kind=kind, time=time, checkpoint=first, values={"why": "mine"} if kind == "pin" else {})
            (home,) = {path.parent.parent for path in tmp_path.glob("*/*/attempts/0001.json")}
            LocalStore(PosixDisk(), str(home)).put(f"facts/{name}.json", [facts.render(fact)])

        first = save()
        outside("pin", "a", "2099-01-01T00:00:00.000000Z")
        second, third = save(), save()
        assert [event.id for event in told.of(Removed)] == [second]
        outside("unpin", "b", "2099-01-02T00:00:00.000000Z")
        save()
        assert [event.id for event in told.of(Removed)] == [second, first, third]
