"""Tests of the places of a task: who works in the background for them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mementum.execute.priority import LOWEST
from services import missing

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
