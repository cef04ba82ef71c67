"""Tiers on servers: copies go there, come back, and a server that is gone ends no training and holds none up."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from mementum.events import Failed, Placed, Unplaced
from services import Server, free_port, start_redis
from tiered import Training, entries, far_home

PROMPT_S = 60.0  # far less than the background's patience of ten minutes, far more than a loaded machine needs


def goes_there_and_comes_back(tmp_path: Path, tier: dict[str, Any]) -> None:
    first = Training()
    first.run(tmp_path / "root", 3, {**tier, "keep_last": 2})
    far, near = entries(far_home(tier["url"], tier.get("options", {}))), entries(tmp_path / "root")
    assert far[3].manifest == near[3].manifest
    assert near[3].places[0].tier == "far"
    shutil.rmtree(tmp_path / "root")
    second = Training()
    with second.open(tmp_path / "root", tier) as run:
        assert run.resumed is not None
        assert (run.resumed.step, run.resumed.tier) == (3, "far")
        assert second.state() == first.state()


def test_s3(tmp_path: Path, s3_url: str, s3_options: dict[str, str]) -> None:
    goes_there_and_comes_back(tmp_path, {"url": s3_url, "name": "far", "options": s3_options})


def test_redis(tmp_path: Path, redis_url: str) -> None:
    goes_there_and_comes_back(tmp_path, {"url": redis_url, "name": "far"})


def test_a_server_that_is_not_there_holds_nothing_up(tmp_path: Path) -> None:
    training, began_s = Training(), time.monotonic()
    training.run(tmp_path / "root", 3, {"url": f"redis://127.0.0.1:{free_port()}/0", "name": "far"})
    assert time.monotonic() - began_s < PROMPT_S
    assert max(entries(tmp_path / "root")) == 3
    failures = [event for event in training.told.of(Failed) if "far" in event.what]
    assert [event.what for event in failures] == ["asking the tier far"]
    assert failures[0].kept == "all checkpoints; the training goes on"
    assert [event.reason for event in training.told.of(Unplaced)][-1] == "the run ends; the next start goes on with it"


def test_a_server_that_dies_and_comes_back(tmp_path: Path, redis_url: str, redis_server: Server) -> None:
    training = Training()
    with training.open(tmp_path / "root", {"url": redis_url, "name": "far"}) as run:
        forwarding = run._background._forwarding

        def steps(until: int) -> None:
            while run.step < until:
                training.step(run)
                run.wait()

        steps(1)
        assert forwarding.drain(PROMPT_S)
        redis_server.kill()
        steps(2)
        line = forwarding._lines[0]
        while not line.site.silent:
            time.sleep(0.01)
        redis_server.start()  # and has forgotten all
        assert line.placer.drain(PROMPT_S)
        steps(3)
    assert [event.step for event in training.told.of(Placed)] == [1, 2, 3]
    assert [event.error for event in training.told.of(Failed)] == [
        "copies that were there are gone, which nobody was told of: 1 (of step 1)"
    ]
    assert sorted(entries(far_home(redis_url, {}))) == [2, 3]


def test_a_server_that_refuses_us_is_told_with_what_to_do(tmp_path: Path) -> None:
    server = start_redis(password="right")
    try:
        training = Training()
        training.run(tmp_path / "root", 2, {"url": f"redis://:wrong@127.0.0.1:{server.port}/0", "name": "far"})
    finally:
        server.stop()
    failures = [event for event in training.told.of(Failed) if "far" in event.what]
    assert [event.what for event in failures] == ["asking the tier far", *[event.what for event in failures[1:2]]]
    assert all("next: " in event.error and "wrong" not in event.error for event in failures)
    assert max(entries(tmp_path / "root")) == 2


def test_a_bucket_that_is_not_there(tmp_path: Path, s3_options: dict[str, str]) -> None:
    training = Training()
    training.run(tmp_path / "root", 2, {"url": "s3://nobody-has-it/prefix", "name": "far", "options": s3_options})
    failures = [event for event in training.told.of(Failed) if "far" in event.what]
    assert 1 <= len(failures) <= 2
    assert all("next: " in event.error for event in failures)
    assert max(entries(tmp_path / "root")) == 2
