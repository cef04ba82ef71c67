"""What dead processes leave: found whole or not at all, and never taken from the living."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mementum
from mementum.clock import ManualClock, SystemClock
from mementum.events import Event
from mementum.execute.leftovers import LOCK_WAIT_S, LOOK_S, Left, leftovers, stale
from mementum.execute.slot_file import FLAG_AT
from mementum.execute.slots import Slots, name_of

KEY, OTHER = "0123abcd", "ffff"
SIZE = 2 << 20

# It saves as fast as it can, and says which snapshot is whole once it is.
TRAINER = """
import os, sys
from mementum.execute.slots import Slots
slots = Slots(sys.argv[1], sys.argv[2], count=3, emit=lambda event: None, headroom=lambda: None)
if sys.argv[3] == "fork" and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
seq = int(sys.argv[4])
while True:
    seq += 1
    slot = slots.acquire([int(sys.argv[5]), 100])
    for at in range(0, slot.arrays[0].size, 65536):
        slot.arrays[0][at : at + 65536] = seq % 256
        if sys.argv[3] == "half" and seq == 4 and at > slot.arrays[0].size // 2:
            os.write(1, b"half\\n")
            sys.stdin.read()
    slot.arrays[1][:] = seq % 256
    slot.validate(b"head %d" % seq, seq=seq, attempt=1, id=f"step_{seq}", step=seq)
    slot.release()
    os.write(1, b"%d\\n" % seq)
    if sys.argv[3] == "fork" and seq == 3 and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
"""


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as folder:
        yield Path(folder)


def start(folder: Path, way: str = "alone", seq: int = 0) -> subprocess.Popen[str]:
    source = Path(mementum.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(folder), KEY, way, str(seq), str(SIZE)],
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ignore(event: Event) -> None:
    return


def slots_in(folder: Path, key: str = KEY) -> Slots:
    return Slots(str(folder), key, count=3, emit=ignore, headroom=lambda: None)


def save(slots: Slots, seq: int, size: int = 100) -> str:
    slot = slots.acquire([size])
    assert slot is not None
    slot.arrays[0][:] = seq
    slot.validate(b"head", seq=seq, attempt=1, id=f"step_{seq}", step=seq)
    slot.release()
    return slot.path


def leave(folder: Path, seq: int, key: str = KEY, size: int = 100) -> str:
    """A slot without an owner."""
    slots = slots_in(folder, key)
    path = save(slots, seq, size)
    slots.close(keep=True)
    return path


def test_kill_9_in_the_middle_never_leaves_a_torn_snapshot(shm: Path, rng: random.Random) -> None:
    for attempt in range(10):
        with start(shm, seq=attempt * 100_000) as trainer:
            assert trainer.stdout is not None
            announced = [int(trainer.stdout.readline()) for _ in range(rng.randrange(1, 40))]
            for _ in range(rng.randrange(20_000)):
                pass  # so that it dies anywhere in a copy
            trainer.send_signal(signal.SIGKILL)
            announced += [int(line) for line in trainer.stdout.read().split()]
        left = leftovers(str(shm), KEY)
        whole = [one for one in left if one.stamp is not None]
        assert whole[0].stamp is not None
        assert whole[0].stamp.seq >= announced[-1]
        assert [one.stamp.seq for one in whole if one.stamp] == sorted(
            (s.stamp.seq for s in whole if s.stamp), reverse=True
        )
        for one in whole:
            assert one.stamp is not None
            assert one.stamp.head == b"head %d" % one.stamp.seq
            assert [np.unique(array).tolist() for array in one.arrays] == [[one.stamp.seq % 256]] * 2
        for one in left:
            one.remove()
        assert os.listdir(shm) == []


def test_a_copy_that_was_half_done_is_known_as_such(shm: Path) -> None:
    with start(shm, "half") as trainer:
        assert trainer.stdout is not None
        assert [trainer.stdout.readline() for _ in range(4)] == ["1\n", "2\n", "3\n", "half\n"]
        trainer.kill()
    left = leftovers(str(shm), KEY)
    assert [one.stamp.seq if one.stamp else one.why for one in left] == [3, 2, "its copy had not ended"]
    for one in left:
        one.remove()


def test_a_forked_worker_that_lives_on_holds_nothing(shm: Path) -> None:
    with start(shm, "fork") as trainer:
        assert trainer.stdout is not None
        while int(trainer.stdout.readline()) < 5:
            pass
        assert leftovers(str(shm), KEY) == ()
        trainer.kill()
        os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)  # its workers wait for the end of our pipe
        left, until_s = list[Left](), time.monotonic() + 20
        while len(left) < 3 and time.monotonic() < until_s:  # the files of the dead are closed a moment later
            left += leftovers(str(shm), KEY)
        assert len(left) == 3
        assert max(one.stamp.seq for one in left if one.stamp is not None) >= 5
        for one in left:
            one.remove()


def test_those_of_the_living_are_passed_over(shm: Path) -> None:
    living = slots_in(shm)
    save(living, 5)
    path = leave(shm, 4)
    (left,) = leftovers(str(shm), KEY)
    assert left.path == path
    assert leftovers(str(shm), KEY) == ()  # nor does a second start take what the first has
    left.release()
    (left,) = leftovers(str(shm), KEY)
    left.remove()
    assert leftovers(str(shm), KEY) == ()
    living.close()
    assert os.listdir(shm) == []


def test_newest_first_and_what_is_not_whole_last(shm: Path) -> None:
    slots = slots_in(shm)
    first, second, third = (save(slots, seq) for seq in (3, 9, 5))
    slots.acquire([100])  # the oldest is given up
    os.truncate(third, 3 * 4096)
    copies = {path: Path(path).read_bytes() for path in (first, second, third)}
    slots.close()
    for path, data in copies.items():
        Path(path).write_bytes(data)
        os.chmod(path, 0o600)
    Path(shm / name_of(KEY, 7)).touch(mode=0o600)
    garbage = Path(leave(shm, 6))
    data = bytearray(garbage.read_bytes())
    data[FLAG_AT] ^= 1
    garbage.write_bytes(data)
    left = leftovers(str(shm), KEY)
    assert [one.stamp.seq if one.stamp else one.why for one in left] == [
        9,
        5,
        "its copy had not ended",
        "its flag is garbage",
        "it is not a slot of mementum",
    ]
    assert left[0].arrays[0].tolist() == [9] * 100
    left[1].arrays[0][:] = 1  # what is written to it does not reach the slot
    assert bytes([5] * 100) in Path(left[1].path).read_bytes()
    assert left[2].arrays == ()
    kept = left[0].arrays[0]
    for one in left:
        one.remove()
        one.remove()
    assert kept.tolist() == [9] * 100
    assert os.listdir(shm) == []


def test_one_with_holes_is_not_whole(shm: Path) -> None:
    path = leave(shm, 1, size=20_000)
    whole = Path(path).read_bytes()
    os.truncate(path, 0)
    with open(path, "r+b") as file:
        file.write(whole[:4096])
        file.seek(6 * 4096)
        file.write(whole[6 * 4096 :])
    (left,) = leftovers(str(shm), KEY)
    assert left.why == "it has holes: 8192 of 24576 bytes have memory"
    left.remove()


def test_all_tasks_are_shown_and_none_is_touched(shm: Path) -> None:
    living = slots_in(shm)
    save(living, 5)
    paths = [leave(shm, 4), leave(shm, 8, OTHER)]
    os.truncate(paths[1], 100)
    seen = list(stale(str(shm)))
    assert [(one.path, one.key) for one in seen] == [(paths[0], KEY), (paths[1], OTHER)]
    assert not isinstance(seen[0].found, str)
    assert seen[0].found.seq == 4
    assert (seen[1].found, seen[1].size) == ("it is not a slot of mementum", 100)
    assert len(os.listdir(shm)) == 3
    living.close()
    assert list(stale(str(shm / "none"))) == []


def locked_by_a_child(shm: Path, path: str, *, for_s: float) -> subprocess.Popen[bytes]:
    """A process that was forked with the slot's lock, and has it until it ends."""
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return subprocess.Popen(("sleep", str(for_s)), pass_fds=(file.fileno(),))


def test_a_moment_is_waited_for_a_child_of_the_dead_that_has_their_lock(shm: Path) -> None:
    path, clock = leave(shm, 4), SystemClock()
    with locked_by_a_child(shm, path, for_s=0.5):
        assert leftovers(str(shm), KEY) == ()
        assert leftovers(str(shm), KEY, is_dead=lambda attempt: False, clock=clock) == ()
        (left,) = leftovers(str(shm), KEY, is_dead=lambda attempt: attempt == 1, clock=clock)
    assert left.stamp is not None
    left.remove()


def test_no_longer_than_that_is_waited_for_all_of_them(shm: Path) -> None:
    """By a clock that only the waiting moves."""
    path, clock = leave(shm, 4), ManualClock()
    with locked_by_a_child(shm, path, for_s=60.0) as child:
        assert leftovers(str(shm), KEY, is_dead=lambda attempt: True, clock=clock) == ()
        child.kill()
    assert LOCK_WAIT_S <= clock.monotonic() < LOCK_WAIT_S + 2 * LOOK_S
    (left,) = leftovers(str(shm), KEY)
    left.remove()
