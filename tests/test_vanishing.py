"""Copies that somebody takes away on a tier behind our back are found out, told, and no more counted on."""

from __future__ import annotations

import shutil
from pathlib import Path

from mementum.events import Failed
from tiered import Training, entries, home_of


def test_what_was_taken_away_on_a_tier_is_found_out_and_told_once(tmp_path: Path) -> None:
    training, far = Training(), {"url": str(tmp_path / "far"), "name": "far"}
    with training.open(tmp_path / "root", far, keep_last=9) as run:
        for _ in range(2):
            training.step(run)
            run.wait()
            assert run._background._forwarding.drain(20)
        shutil.rmtree(tmp_path / "far")
        for _ in range(2):
            training.step(run)
            run.wait()
            assert run._background._forwarding.drain(20)
    (failed,) = training.told.of(Failed)
    assert (failed.what, failed.error.endswith("2 (of step 1, 2)")) == ("looking at the tier far", True)
    assert {step: len(entry.places) for step, entry in entries(tmp_path / "root").items()} == {1: 0, 2: 0, 3: 1, 4: 1}
    home = home_of(tmp_path / "far")
    assert bytes(home.get("attempts/0001.json")) == bytes(home_of(tmp_path / "root").get("attempts/0001.json"))
    for key in [stat.key for stat in home.list("step_0000000003/")]:
        home.delete(key)
    later = Training()
    with later.open(tmp_path / "root", far, keep_last=9) as run:  # one alone is found out at the next start
        later.step(run)
        run.wait()
        assert run._background._forwarding.drain(20)
    assert [event.error for event in later.told.of(Failed)] == [
        "copies that were there are gone, which nobody was told of: 1 (of step 3)"
    ]
    assert sorted(step for step, entry in entries(tmp_path / "root").items() if entry.places) == [4, 5]
