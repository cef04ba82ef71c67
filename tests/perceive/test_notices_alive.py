"""Signals that announce an end, sent for real to processes that take small steps, hang or have forked."""

from __future__ import annotations

import os
import subprocess
import sys

TIMEOUT_S = 60.0  # a test that hangs, not one that is slow

PRELUDE = """
import multiprocessing, os, random, signal, subprocess, sys, threading, time
from mementum.clock import SystemClock
from mementum.perceive.notices import Notices

def opened(**settings):
    notices = Notices(clock=SystemClock(), tell=print, **{"same_s": 0.0, **settings})
    notices.install()
    return notices

def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

def child(work):  # what became of a forked process that did this
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os._exit(error.code if isinstance(error, SystemExit) else 99)
        os._exit(98)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def play(scene: str) -> list[str]:
    """Run a scene in a process of its own; the lines that it prints."""
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + scene]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


RANDOM_INSTANTS = """
import torch
torch.set_num_threads(1)
weight = torch.zeros(32, 32, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.zeros(32, 32)
optimizer.step()  # what is imported at the first step is imported once, not in every child

def flag(number, frame):
    flags.append(number)

def leave(number, frame):
    raise SystemExit(7)

def train(handler, ready, report):
    signal.signal(signal.SIGTERM, handler)
    notices = opened()
    for step in range(100_000):
        for _ in range(3):
            optimizer.zero_grad()
            (weight @ weight - 1).square().sum().backward()
            optimizer.step()
        if step == 2:
            os.write(ready, b"r")
        seen = notices.pending()
        if seen:
            os.write(report, f"{step} {seen[0].source} {weight.isfinite().all()} {len(flags)}".encode())
            notices.answered()
            notices.let_go()  # within a step it would have written nothing
            os._exit(5)

flags = []
draw = random.Random(20)
for at in range(20):
    name, handler = (("flag", flag), ("leave", leave), ("default", signal.SIG_DFL))[at % 3]
    begun, ready = os.pipe()
    told, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            train(handler, ready, report)
        except SystemExit as error:
            os._exit(error.code)
    os.close(ready), os.close(report)
    assert os.read(begun, 1) == b"r"
    time.sleep(draw.uniform(0.0, 0.02))
    os.kill(pid, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    step, source, finite, flagged = os.read(told, 100).decode().split()
    print(name, code, source, finite, flagged, int(step) >= 2)
    os.close(begun), os.close(told)
"""


def test_at_twenty_random_instants_a_boundary_comes_first() -> None:
    ends = {
        "flag": "flag 5 SIGTERM True 1 True",
        "leave": "leave 7 SIGTERM True 0 True",
        "default": "default -15 SIGTERM True 0 True",
    }
    wanted = [ends[("flag", "leave", "default")[at % 3]] for at in range(20)]
    assert play(RANDOM_INSTANTS) == wanted


SECOND_SIGNAL = """
def default():
    notices = opened()
    send()
    assert notices.pending()
    print("lives", flush=True)
    send()

def after_the_save():
    notices = opened()
    send()
    notices.answered()
    send()

def by_another_thread():  # a training thread that is not the main one
    notices = opened()
    send()
    notices.answered()
    thread = threading.Thread(target=notices.let_go)
    thread.start()
    thread.join()
    time.sleep(30)

def after_closing():
    notices = opened()
    send()
    notices.close()
    notices.let_go()

def wish():
    notices = opened()
    for _ in range(3):
        send(signal.SIGUSR1)
    notices.answered()
    notices.let_go()
    os._exit(5)

def two_runs():
    outer, inner = opened(), opened()
    send()
    inner.answered()
    inner.let_go()

def two_runs_the_inner_closed():
    outer, inner = opened(), opened()
    send()
    inner.close()
    inner.let_go()
    outer.answered()
    print("outer saves", flush=True)
    outer.let_go()

for work in (default, after_the_save, by_another_thread, after_closing, wish, two_runs, two_runs_the_inner_closed):
    print(work.__name__, child(work), flush=True)
"""


def test_the_default_action_comes_when_it_may_and_at_once_when_asked_twice() -> None:
    assert play(SECOND_SIGNAL) == [
        "lives",
        "default -15",
        "after_the_save -15",
        "by_another_thread -15",
        "after_closing -15",
        "wish 5",
        "two_runs -15",
        "outer saves",
        "two_runs_the_inner_closed -15",
    ]


HANG = """
def leave(number, frame):
    raise SystemExit(7)

def hang(handler):
    signal.signal(signal.SIGTERM, handler)
    opened(give_in_s=0.1)
    send()
    try:
        time.sleep(30)
    finally:
        print("unwinds", flush=True)

def late(handler):  # a boundary was reached: the save may take longer than that
    signal.signal(signal.SIGTERM, handler)
    notices = opened(give_in_s=0.1)
    send()
    notices.pending()
    time.sleep(0.5)
    os._exit(5)

def flag(handler):  # nothing was put off, so nothing is sent again
    calls = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    opened(give_in_s=0.1)
    send()
    time.sleep(0.5)
    os._exit(len(calls))

print(child(lambda: hang(leave)), child(lambda: hang(signal.SIG_DFL)), flush=True)
print(child(lambda: late(leave)), child(lambda: late(signal.SIG_DFL)), child(lambda: flag(None)))
"""


def test_a_hang_gives_in() -> None:
    assert play(HANG) == ["unwinds", "7 -15", "5 5 1"]


FORKED = """
def flag(number, frame):
    print("flag", flush=True)

def wait(started):
    started.set()
    time.sleep(30)

fork = multiprocessing.get_context("fork")
notices = opened()
started = fork.Event()
process = fork.Process(target=wait, args=(started,))
process.start()
started.wait(30)
process.terminate()
process.join(30)
print("process", process.exitcode)

pool = fork.Pool(2)
print(pool.map(abs, [-1, -2]))
workers = list(pool._pool)
pool.terminate()
pool.join()
print("pool", [worker.is_alive() for worker in workers])

print("wish", child(lambda: send(signal.SIGUSR1)))
notices.close()
signal.signal(signal.SIGTERM, flag)
notices = opened()
print("handler", child(send))
print("program", subprocess.run(["/bin/sh", "-c", "kill -TERM $$"]).returncode)
print(notices.pending())
"""


def test_forked_children_die_as_before() -> None:
    assert play(FORKED) == [
        "process -15",
        "[1, 2]",
        "pool [False, False]",
        "wish -10",
        "flag",
        "handler 98",
        "program -15",
        "()",
    ]
