"""What every test gets: one thread per process, a seed that is printed, Hypothesis without chance."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The fixtures s3_url, redis_url and postgres_url, what belongs to them, and `mount`.
pytest_plugins = ("services", "mounts")

# Before anything imports torch or numpy: parallel test processes would fight over the cores, and sums would be split
# over threads differently from machine to machine.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Processes that tests start would each compile all of the package again, half a second for each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SEED = 20261130

# Derandomized: a red test is red again on the next run. No deadline: shared cores make any example slow at times.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=SEED, help=f"seed of every random choice in tests (default {SEED})")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')} (another one by --seed)"


def pytest_collection_finish() -> None:
    """What was imported stays: a full collection need not look at its millions of objects again, several hundred times
    in all tests, and a forked worker need not copy their pages because it did."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_slots_stay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests have killed leave their snapshots in shared memory, as they should."""
    yield
    from deaths import give_back  # late: it imports torch, after the threads are set

    give_back(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run."""
    value: int = request.config.getoption("seed")
    return value


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    """Random numbers of this test's own: the same alone, in another order and in another process."""
    return random.Random(f"{seed} {request.node.nodeid}")  # Random hashes a string with SHA-512, not with hash()
