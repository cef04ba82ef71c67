"""A loop of the program's own, that never uses `run.steps`: what is not kept of its data is said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import mementum
from loops import parts
from mementum.assemble import NO_DATA, OWN_LOOP
from mementum.events import Note
from trips import Told


def manifests(run: Any) -> list[tuple[str, ...]]:
    return [entry.manifest.exactness for entry in run._opened.catalog.entries(run._opened.home)]


def test_the_place_in_the_data_is_not_kept_and_that_is_said_once(tmp_path: Path) -> None:
    made, told = parts(), Told()
    with mementum.open_run(tmp_path, task="t", model=made.model, data=made.loader, every_steps=2, on_event=told) as run:
        assert run.exactness.exact
        for _ in made.loader:
            run.record()
            run.wait()
        assert run.exactness.reasons == (OWN_LOOP,)
        assert not run.exactness.exact
    assert [note.text for note in told.of(Note)] == [f"a resume will be not exact: {OWN_LOOP}"]
    fresh = parts()
    with mementum.open_run(tmp_path, task="t", model=fresh.model, data=fresh.loader) as run:
        assert set(manifests(run)) == {(OWN_LOOP,)}
        assert (run.step, fresh.loader.sampler.position) == (6, 0)


def test_a_loop_over_steps_says_nothing_even_if_something_was_recorded_before_or_after(tmp_path: Path) -> None:
    made = parts()
    with mementum.open_run(tmp_path, task="t", model=made.model, data=made.loader, every_steps=1) as run:
        run.record(step=0, loss=1.0)  # how the model does before it is trained
        run.wait()
        assert run.exactness.reasons == (OWN_LOOP,)
        for _ in run.steps(made.loader, 3):
            run.record()
            run.wait()
        run.record()
        assert run.exactness.reasons == ()
        run.wait()
        assert manifests(run) == [(), (), (), ()]


def test_without_data_there_is_one_reason_and_no_note(tmp_path: Path) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(1, 1), on_event=told) as run:
        run.record()
        assert run.exactness.reasons == (NO_DATA,)
    assert told.of(Note) == []
