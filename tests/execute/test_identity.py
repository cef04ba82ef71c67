"""Which process an attempt is: what its file says comes back, and which restarts are recognised."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mementum.execute import identity
from mementum.execute.identity import (
    LEASE_S_MAX,
    Identity,
    Incarnation,
    identify,
    incarnations,
    lives,
    one_kernel,
    parse,
    rebooted,
    render,
    started,
    succeeds,
)

SLURM = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "r1"}


def one(**fields: Any) -> Identity:
    return Identity(**{"host": "a", "pid": 1, **fields})


def started_with(environ: dict[str, str]) -> Identity:
    return one(incarnations=incarnations(environ))


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ({}, {}, None),
        ({}, SLURM, None),
        (SLURM, {}, None),
        (SLURM, SLURM, None),  # two ranks of one step
        (SLURM, {**SLURM, "SLURM_RESTART_COUNT": "1"}, "slurm has restarted c/7"),
        ({**SLURM, "SLURM_RESTART_COUNT": "1"}, {**SLURM, "SLURM_RESTART_COUNT": "1"}, None),
        ({**SLURM, "SLURM_RESTART_COUNT": "1"}, SLURM, None),
        ({**SLURM, "SLURM_STEP_ID": "0"}, {**SLURM, "SLURM_STEP_ID": "1"}, "slurm has restarted c/7"),
        ({**SLURM, "SLURM_STEP_ID": "3"}, {**SLURM, "SLURM_RESTART_COUNT": "1"}, "slurm has restarted c/7"),
        (SLURM, {**SLURM, "SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, None),
        (SLURM, {**SLURM, "SLURM_CLUSTER_NAME": "d", "SLURM_RESTART_COUNT": "1"}, None),
        ({**SLURM, "SLURM_RESTART_COUNT": "x"}, {**SLURM, "SLURM_RESTART_COUNT": "²"}, None),
        (
            {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "0"},
            {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"},
            "torchrun has restarted r1",
        ),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}, None),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "0"}, TORCHRUN, None),
        (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"},
            None,
        ),
        (POD, POD, "kubernetes runs 10.0.0.1/train-0 in one place at a time"),
        (POD, {**POD, "HOSTNAME": "train-1"}, None),
        ({**SLURM, **POD}, {**SLURM, "SLURM_RESTART_COUNT": "2", **POD}, "slurm has restarted c/7"),
    ],
)
def test_restarts_are_recognised(before: dict[str, str], now: dict[str, str], why: str | None) -> None:
    assert succeeds(started_with(now), started_with(before)) == why


def test_this_process_is_known_and_comes_back_from_its_file() -> None:
    me = identify({**SLURM, **POD, **TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, lease_s=60.0)
    assert (me.host, me.pid, me.lease_s, len(me.incarnations)) == (platform.node(), os.getpid(), 60.0, 3)
    assert parse(render(me)) == me
    nobody = one()
    assert render(nobody) == {"host": "a", "pid": 1}
    assert parse(render(nobody)) == nobody


def test_a_process_lives_under_its_number_and_its_start() -> None:
    own = started(os.getpid())
    assert own is not None
    assert lives(one(pid=os.getpid(), started=own))
    assert not lives(one(pid=os.getpid(), started=own - 1))  # the number was given away anew
    assert not lives(one(pid=os.getpid()))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = started(child.pid)
    assert ticks is not None
    assert ticks >= own
    child.communicate(b"\n")
    assert started(child.pid) is None


def test_one_kernel_and_a_reboot() -> None:
    me = one(boot="x")
    assert one_kernel(me, one(boot="x", host="container"))
    assert not one_kernel(me, one(boot="y"))
    assert rebooted(me, one(boot="y"))
    assert not rebooted(me, one(boot="x"))
    assert not rebooted(me, one(boot="y", host="b"))
    assert not rebooted(one(boot="x", host="localhost"), one(boot="y", host="localhost"))
    assert one_kernel(one(), one())  # systems without a boot id: the name is all there is
    assert one_kernel(me, one())
    assert not one_kernel(one(), one(host="b"))


def test_a_system_that_tells_neither_boot_nor_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "BOOT_ID", tmp_path / "none")
    assert identify({}, lease_s=None).boot is None


@pytest.mark.parametrize(
    "fields", [None, [], "x", {}, {"host": "a"}, {"host": 1, "pid": 1}, {"host": "a", "pid": "1"}, {"pid": 1}]
)
def test_what_says_nobody_is_nobody(fields: Any) -> None:
    assert parse(fields) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boot", 3),
        ("boot", ""),
        ("started", "1"),
        ("lease_s", -1),
        ("lease_s", "60"),
        ("lease_s", float("nan")),
        ("incarnations", 3),
        ("incarnations", [{"scheduler": "slurm"}, 1, {"scheduler": "slurm", "id": "7", "count": ["1"]}]),
    ],
)
def test_damaged_fields_are_passed_over(field: str, value: Any) -> None:
    found = parse({"host": "a", "pid": 1, "attempt": 1, field: value})
    assert found is not None
    assert [each.count for each in found.incarnations] in ([], [None])
    assert one(incarnations=found.incarnations) == found


@pytest.mark.parametrize("value", [10**400, float("inf"), 1e9])
def test_no_promise_makes_anybody_wait_for_long(value: Any) -> None:
    found = parse({"host": "a", "pid": -5, "lease_s": value})
    assert found == one(pid=0, lease_s=LEASE_S_MAX)


def test_an_incarnation_without_a_count_is_kept() -> None:
    pod = Incarnation(scheduler="kubernetes", id="10.0.0.1/train-0")
    assert incarnations(POD) == (pod,)
    assert parse(render(one(incarnations=(pod,)))) == one(incarnations=(pod,))
