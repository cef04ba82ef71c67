"""Steps until a limit: on ramps of many shapes the forecast is right, and what only goes up and down raises none."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from statistics import median

import pytest

from mementum.perceive.forecast import KEPT, Forecast

LIMIT = 1000.0
EVERY = 5
Shape = Callable[[int, random.Random], float]

RAMPS: dict[str, Shape] = {
    "linear": lambda step, _: 100 + step,
    "slow": lambda step, _: 300 + 0.3 * step,
    "noisy": lambda step, chance: 100 + step + chance.gauss(0, 20),
    "stepped, of 20": lambda step, _: 100 + step // 20 * 20,
    "stepped, of 60": lambda step, _: 100 + step // 60 * 60,
    "saw of 40 on a ramp": lambda step, _: 100 + 0.8 * step + step % 40 * 4,
    "saw of 83 on a ramp": lambda step, _: 100 + 0.8 * step + step % 83 * 1.8,
    "flat, then a ramp": lambda step, chance: 300 + max(0, step - 500) * 2 + chance.gauss(0, 3),
    "a jump, then a ramp": lambda step, chance: 100 if step < 12 else 300 + 1.2 * step + chance.gauss(0, 2),
    "a drop, then a ramp": lambda step, _: 800 if step < 300 else 200 + 2 * (step - 300),
    "a ramp that becomes five times as steep": lambda step, chance: (
        100 + 0.2 * step + max(0, step - 600) + chance.gauss(0, 2)
    ),
}
BEGINS = {"flat, then a ramp": 500, "a drop, then a ramp": 300, "a ramp that becomes five times as steep": 600}
QUIET: dict[str, Shape] = {
    "flat": lambda step, _: 500,
    "noisy": lambda step, chance: 500 + chance.gauss(0, 30),
    "filled by the first steps": lambda step, chance: 100 if step < 7 else 700 + chance.gauss(0, 2),
    "saw of 7": lambda step, _: 300 + step % 7 * 50,
    "saw of 40": lambda step, _: 300 + step % 40 * 10,
    "saw of 83": lambda step, _: 300 + step % 83 * 4,
    "falling": lambda step, _: 900 - step * 0.1,
}


def errors(shape: Shape, begins: int) -> list[float]:
    """Relative errors of every forecast from 50 steps after the ramp's beginning until the limit is met."""
    chance, forecast, said, step = random.Random(5), Forecast(), [], 0
    while (amount := shape(step, chance)) < LIMIT:
        if step % EVERY == 0:
            forecast.add(step, amount)
            said.append((step, forecast.steps_left(LIMIT)))
        step += 1
    late = [(at, left) for at, left in said if at >= begins + 50]
    return [abs(left - (step - at)) / (step - at) for at, left in late]


def test_ramps() -> None:
    found = {name: median(errors(shape, BEGINS.get(name, 0))) for name, shape in RAMPS.items()}
    print("\n" + "\n".join(f"{name}: median error {error:.1%}" for name, error in found.items()))
    assert median(found.values()) <= 0.05
    assert max(found.values()) <= 0.20, found


@pytest.mark.parametrize("name", QUIET)
def test_what_does_not_grow(name: str) -> None:
    """After the first window, in which a first rise looks like any ramp, hardly any forecast comes near."""
    chance, forecast, near = random.Random(5), Forecast(), 0
    for look in range(600):
        forecast.add(look * EVERY, QUIET[name](look * EVERY, chance))
        near += look >= KEPT and forecast.steps_left(LIMIT) < 500
    assert near <= 3


def test_a_new_ramp_is_noticed_within_fifty_steps() -> None:
    assert median(errors(RAMPS["flat, then a ramp"], 500)[:10]) <= 0.15


def test_at_the_limit_and_with_little_known() -> None:
    forecast = Forecast()
    assert forecast.steps_left(10) == math.inf
    forecast.add(0, 5)
    assert forecast.steps_left(10) == math.inf
    assert forecast.steps_left(5) == 0.0
    for step in (1, 2, 3):
        forecast.add(step, 5 + step)
    assert forecast.steps_left(10) == pytest.approx(2)


def test_training_that_goes_back_forgets_what_came_after() -> None:
    forecast, plain = Forecast(), Forecast()
    for step in range(20):
        forecast.add(step, 100 + step)
        plain.add(step, 100 + step)
    for step in range(20, 40):
        forecast.add(step, 900)
    for step in range(20, 30):
        forecast.add(step, 100 + step)
        plain.add(step, 100 + step)
    assert forecast.steps_left(LIMIT) == plain.steps_left(LIMIT) == pytest.approx(LIMIT - 129)


LEAK = """
import itertools, mmap, random, resource
from mementum.clock import SystemClock
from mementum.perceive.memory import Memory

memory, chance, kept = Memory(tell=print, clock=SystemClock()), random.Random(int(SEED)), []
size = (1 << 30) + int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    for step in itertools.count(1):
        kept.append(mmap.mmap(-1, chance.randrange(1 << 20, 9 << 20)))
        reading = memory.look(step)
        if reading is not None and reading.step == step:
            print(step, reading.steps_left, reading.nearest)
except OSError as error:
    print("ended", step, error.strerror)
"""


def test_a_process_that_runs_into_its_real_limit() -> None:
    """It takes 1 to 9 MiB more a step, until the kernel refuses it more than 1 GiB over what it began with."""
    found = []
    for seed in range(4):
        program = [sys.executable, "-c", LEAK.replace("SEED", str(seed))]
        run = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
        *lines, last = run.stdout.splitlines()
        _, ended, why = last.split(" ", 2)
        assert why == "Cannot allocate memory"
        said = [line.split(" ", 2) for line in lines]
        assert said[-1][2] == "the process's limit 'Max address space'"
        left = [(int(ended) - int(step), float(left)) for step, left, _ in said if int(step) >= 25]
        assert len(left) >= 40
        found.append(median(abs(forecast - truth) / truth for truth, forecast in left))
    print(f"median errors against RLIMIT_AS: {[f'{error:.1%}' for error in found]}")
    assert median(found) <= 0.20
