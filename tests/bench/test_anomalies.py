"""The benchmark of anomalies: twins differ by the fault only, harm is judged against them, policies are told apart."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from mementum.perceive.vitals import VitalSigns
from mementum.records import Vitals

BENCH = Path(__file__).resolve().parents[2] / "bench"
ONSET = 12


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports one of the benchmark's modules."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def tiny(bench: Any, family: str, number: int = 0) -> Any:
    """A run of a family that is over in a moment."""
    setup = bench("_setups").setup(family, number)
    return replace(setup, onset=ONSET, steps=30, width=16, context=16, batch=4, lasts=100, severity=1.0, warm_up=4)


FAMILIES = [
    *("lr jump", "corrupted batches", "repeated batches", "label noise", "bit flips in weights", "clip off"),
    *("loss-scale overflow", "NaN", "summed gradients", "shifted targets", "lost layer", "bad rank", "slow drift"),
    *("bit flips in moments", "lost moments", "missing warm-up"),
]


def test_every_family_is_tested(bench: Any) -> None:
    assert sorted(bench("_faults").FAULTS) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_twin_is_the_same_but_for_the_fault(bench: Any, family: str) -> None:
    runs, setup = bench("_runs"), tiny(bench, family)
    hurt, twin = runs.train(setup, faulty=True), runs.train(setup, faulty=False)
    assert np.isfinite(twin["losses"]).all()
    assert twin["state_finite"].all()
    assert hurt["losses"][: ONSET - 1].tolist() == twin["losses"][: ONSET - 1].tolist()
    assert not np.array_equal(hurt["losses"], twin["losses"])
    assert hurt["state_finite"][: ONSET - 1].all()


def test_a_run_is_kept_and_used_again_until_its_setup_is_another(bench: Any, tmp_path: Path) -> None:
    runs, setup = bench("_runs"), tiny(bench, "NaN")
    assert runs.stored(setup, tmp_path, faulty=True) is None
    runs.run(setup, tmp_path, faulty=True)
    (tmp_path / ".NaN-0-1.part.npz").write_bytes(b"of one that was killed")
    found = runs.stored(setup, tmp_path, faulty=True)
    seen = runs.vitals_of(found)
    assert [one.step for one in seen] == list(range(1, 31))
    assert seen[ONSET - 2].loss == found["losses"][ONSET - 2]
    assert seen[0].loss_z is None
    assert not seen[ONSET].finite
    assert seen[ONSET].loss is None
    assert runs.stored(setup, tmp_path, faulty=False) is None
    assert runs.stored(replace(setup, lr=1.0), tmp_path, faulty=True) is None


def test_harm_is_what_stays_above_the_twin(bench: Any) -> None:
    judging, setup = bench("_judging"), bench("_setups").setup("lr jump", 0)
    setup = replace(setup, onset=200, steps=460)
    dice = np.random.default_rng(5)
    twin = 2.0 + 0.1 * dice.standard_normal(460)
    assert judging.spread_of(twin) == pytest.approx(0.1, rel=0.2)

    def harm(lasts: int, rise: float, **more: Any) -> Any:
        hurt = 2.0 + 0.1 * dice.standard_normal(460)
        hurt[199 : 199 + lasts] += rise
        return judging.harm_of(replace(setup, **more), hurt, twin, whole=True)

    assert harm(260, 0.6).harmful
    assert not harm(260, 0.15).harmful
    assert not harm(30, 0.6).harmful
    assert not harm(60, 0.6, drift=True).harmful
    assert harm(260, 0.6, drift=True).excess == pytest.approx(6.0, rel=0.25)
    assert judging.harm_of(setup, twin, twin, whole=False).harmful
    assert not judging.harm_of(setup, twin, twin, whole=True).harmful
    assert judging.harm_of(setup, np.where(np.arange(460) > 300, np.nan, twin), twin, whole=True).excess == math.inf


def test_capture_poison_and_bounds(bench: Any) -> None:
    judging, setup = bench("_judging"), replace(bench("_setups").setup("NaN", 0), onset=300)
    low, high = judging.wilson(95, 100)
    assert (low, high) == (pytest.approx(0.8882, abs=1e-4), pytest.approx(0.9785, abs=1e-4))
    assert judging.wilson(0, 0) == (0.0, 1.0)
    assert [judging.is_captured(setup, [100, step]) for step in (249, 250, 299, 300)] == [False, True, True, False]
    assert judging.is_captured(replace(setup, drift=True), [100])
    assert not judging.is_captured(setup, [])
    assert [judging.is_poisoned(setup, [step]) for step in (299, 300)] == [False, True]
    assert judging.is_there(setup, [100, 260, 400])
    assert not judging.is_there(setup, [100, 400])


def test_policies_are_told_apart_by_a_step_up(bench: Any) -> None:
    keeping, judging = bench("_keeping"), bench("_judging")
    setup = replace(bench("_setups").setup("lr jump", 0), onset=330)
    dice = np.random.default_rng(6)
    signs = VitalSigns()
    vitals: list[Vitals] = [
        signs.observe(step, at_s=float(step), loss=2.0 + 0.05 * dice.standard_normal() + (1.0 if step >= 331 else 0.0))
        for step in range(1, 601)
    ]
    seen = keeping.looks(vitals)
    detected = next(look.step for look in seen if look.diagnosis.seen is not None)
    assert 331 <= detected <= 345
    ours = keeping.play(keeping.Ours([True] * 600), seen, detected + 100)
    assert ours.kept == [325]
    assert judging.is_captured(setup, ours.clean())
    assert not judging.is_poisoned(setup, ours.clean())
    for name, one in keeping.others(ours, seen, detected + 100).items():
        assert one.written <= ours.written, name
        assert judging.is_poisoned(setup, one.clean()), name
    calm = bench("anomalies").calm_of(seen[:300])
    assert calm.quarantines == 0
    assert calm.alarm_saves["ours"] == 0


def test_without_runs_there_is_nothing_to_replay(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stopped:
        bench("anomalies").main(folder=tmp_path / "none", recorded=True)
    assert stopped.value.exit_code == 2
    assert "no recorded runs" in capsys.readouterr().out
