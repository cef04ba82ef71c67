"""Tests of the places of a task: who works in the background for them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mementum.clearing import USUAL
from mementum.clock import SystemClock
from mementum.config.tiers import Tier
from mementum.decide.filling import give
from mementum.execute.attempts import numbers
from mementum.execute.priority import LOWEST
from mementum.places import open_sites
from services import missing
from tiered import TASK, Training, home_of

OPENED = """
import json, os
from pathlib import Path
from mementum.clock import SystemClock
from mementum.config.tiers import Tier
from mementum.places import open_sites

options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "region": "us-east-1"}
before = set(os.listdir("/proc/self/task"))
open_sites([Tier(url="s3://bucket", options=options)], Path("root"), clock=SystemClock())
new = set(os.listdir("/proc/self/task")) - before
print(json.dumps([os.getpriority(os.PRIO_PROCESS, thread) for thread in [0, *map(int, new)]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_the_threads_of_a_bucket_s_client_step_back_for_the_training(tmp_path: Path) -> None:
    if importlib.util.find_spec("obstore") is None:
        missing("pip install 'mementum[s3]'")
    ran = subprocess.run([sys.executable, "-c", OPENED], cwd=tmp_path, capture_output=True, text=True, check=True)
    training, *clients = json.loads(ran.stdout)
    assert training == os.getpriority(os.PRIO_PROCESS, 0)  # as it was
    assert len(clients) >= 1
    assert set(clients) == {LOWEST}


def test_that_a_tier_has_it_is_said_of_other_tiers_only(tmp_path: Path) -> None:
    """Else all on it counted as copied, and what another tier has went no sooner than what it has alone."""
    root, training = tmp_path / "root", Training()
    every = {"url": str(tmp_path / "a"), "name": "a"}
    second = {"url": str(tmp_path / "b"), "name": "b", "every_steps": 2}
    with training.open(root, every, second, keep_last=None) as run:
        while run.step < 8:
            training.step(run)
            assert run.wait()
            assert run._background._forwarding.drain(10)
    store = home_of(root)
    (site,) = open_sites([Tier(**every)], root, clock=SystemClock())
    home = site.find_home(TASK)
    assert home is not None
    site.join(store, home, task=TASK, own=max(numbers(store)))
    there = site.entries(store)
    site.close()
    told = {entry.manifest.step: [place.tier for place in entry.places] for entry in there}
    assert told == {step: ["b"] if step % 2 else [] for step in range(1, 9)}
    gone = give(there, USUAL, need=1).verdicts
    steps = {entry.manifest.id: entry.manifest.step for entry in there}
    (first,) = [steps[verdict.id] for verdict in gone if not verdict.keep]
    assert first % 2 == 1
