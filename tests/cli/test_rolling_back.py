"""`mementum rollback`: a plan is checked, written, done by the next start, taken back; what it marks is marked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mementum
from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.data import ElasticSampler
from mementum.errors import UsageError
from mementum.records import Entry, Fact, Health
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

SAMPLES = 64
EVERY = 10


def train(root: Path, total: int, **wishes: Any) -> tuple[list[float], dict[int, int]]:
    """Learning rate and sample of every step, one sample a step, with a checkpoint every ten steps."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 15)
    samples = TensorDataset(torch.arange(float(SAMPLES)).repeat(2, 1).T / SAMPLES)
    loader = DataLoader(samples, sampler=ElasticSampler(samples, seed=1))
    rates: list[float] = []
    seen: dict[int, int] = {}
    with mementum.open_run(
        root,
        task="t",
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        data=loader,
        every_steps=EVERY,
        keep_last=None,
        **wishes,
    ) as run:
        for step, (batch,) in run.steps(loader, total=total):
            rates.append(optimizer.param_groups[0]["lr"])
            seen[step] = round(batch[0, 0].item() * SAMPLES)
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.record(loss=loss)
            if step % EVERY == 0:
                run.wait()
    return rates, seen


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, int]]:
    """A root with checkpoints of steps 10 to 40. Copied, never changed."""
    root = tmp_path_factory.mktemp("rolled") / "root"
    return root, train(root, 40)[1]


@pytest.fixture
def root(trained: tuple[Path, dict[int, int]], tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(trained[0], tmp_path / "root"))


def store_of(root: Path) -> LocalStore:
    (home,) = root.glob("*/t_*")
    return LocalStore(PosixDisk(), str(home))


def entries(root: Path) -> dict[tuple[int, int], Entry]:
    """By attempt and step, from manifests and facts alone."""
    catalog = open_sqlite(None)
    try:
        refresh(catalog, "t", store_of(root))
        return {(one.manifest.attempt, one.manifest.step): one for one in catalog.entries("t")}
    finally:
        catalog.close()


def tell(root: Path, kind: str, id: str, **values: Any) -> None:
    """A fact from outside, later than all others."""
    fact = Fact(kind=kind, time="2999-01-01T00:00:00.000000Z", checkpoint=id, values=values)
    store_of(root).put(f"facts/test-{kind}-{id}.json", [facts.render(fact)])


def test_the_next_start_does_what_was_planned(root: Path, ask: Any, trained: tuple[Path, dict[int, int]]) -> None:
    answer = ask("rollback", root, "t", "--to", "20", "--skip-batches", "25:28", "--lr-scale", "0.5")
    assert answer.code == 0, answer.err
    assert answer.lines[0].startswith("the next start of t goes on from step 20 (checkpoint c")
    assert "  the batches of 3 steps are left out before step 25" in answer.lines
    assert "  learning rates are 0.5 of those that were stored there" in answer.lines
    assert "  2 checkpoints after these batches become suspect: steps 30, 40" in answer.lines
    assert answer.lines[-1] == (
        f"next: start the training as before; `mementum rollback {root} t --cancel` takes the plan back"
    )
    known = entries(root)
    assert {key: one.health for key, one in known.items()} == {
        (1, 10): Health.CLEAN,
        (1, 20): Health.CLEAN,
        (1, 30): Health.SUSPECT,
        (1, 40): Health.SUSPECT,
    }
    assert [key for key, one in known.items() if one.pinned] == [(1, 20)]
    before = trained[1]
    rates, seen = train(root, 35)
    assert rates == pytest.approx([0.025] * 10 + [0.0025] * 5)  # half of 0.05, then the schedule's next tenth
    expected = {step: before[step] if step < 25 else before.get(step + 3) for step in range(21, 36)}
    assert {step: seen[step] for step, sample in expected.items() if sample is not None} == {
        step: sample for step, sample in expected.items() if sample is not None
    }
    assert min(seen) == 21
    # It is done: the next start goes on from what it has saved.
    assert min(train(root, 37)[1]) == 36
    again = ask("rollback", root, "t", "--cancel")
    assert again.code == 4
    assert "no rollback that is still to be done" in again.err


def test_a_dry_run_writes_nothing(root: Path, ask: Any, listing: Callable[[Path], Any]) -> None:
    ask("ls", root)  # the catalog is made
    before = listing(next(root.glob("*/t_*")))
    dry = ask("rollback", root, "--to", "20", "--dry-run", "--json")
    assert listing(next(root.glob("*/t_*"))) == before
    assert json.loads(dry.out)["written"] is False
    real = json.loads(ask("rollback", root, "--to", "20", "--json").out)
    planned = json.loads(dry.out)
    for plan in (planned["plan"], real["plan"]):
        del plan["time"]
    assert {**planned, "written": True} == real
    assert real["plan"]["by_hand"] is True
    assert real["plan"]["step"] == 20
    assert real["plan"]["skips"] == []
    text = ask("rollback", root, "--to", "20", "--dry-run")
    assert text.lines[-1] == "nothing was written; the same without --dry-run writes it"


def test_a_plan_that_is_taken_back_leaves_no_trace(root: Path, ask: Any) -> None:
    known = entries(root)
    ask("rollback", root, "--to", "20")
    first = ask("rollback", root, "--to", "10", "--skip-batches", "35:36", "--skip-batches", "15:17")
    assert "  the batches of 2 steps are left out before step 15" in first.lines
    assert "  the batch of a step is left out before step 33" in first.lines
    assert [key for key, one in entries(root).items() if one.pinned] == [(1, 10)]
    answer = ask("rollback", root, "--cancel", "--json")
    assert json.loads(answer.out)["cancelled"]["step"] == 10
    now = entries(root)
    assert {key: one.health for key, one in now.items()} == {key: one.health for key, one in known.items()}
    assert [key for key, one in now.items() if one.pinned] == [(1, 20)]  # as before that plan
    assert min(train(root, 41)[1]) == 41


def test_a_later_plan_takes_the_place_of_an_earlier_one(root: Path, ask: Any) -> None:
    ask("rollback", root, "--to", "30", "--skip-batches", "31:32")
    ask("rollback", root, "--to", "10")
    rates, seen = train(root, 11)
    assert list(seen) == [11]
    assert rates == [0.5]


def test_going_further_back_keeps_the_batches_out_that_were_left_out_before(
    root: Path, ask: Any, trained: tuple[Path, dict[int, int]]
) -> None:
    ask("rollback", root, "--to", "20", "--skip-batches", "25:28")
    _, second = train(root, 40)
    answer = ask("rollback", root, "--to", "20", "--skip-batches", "23:24", "--json")
    assert json.loads(answer.out)["plan"]["skips"] == [[23, 1], [24, 3]]
    _, third = train(root, 40)
    assert [third[step] for step in range(21, 40)] == [second[step] for step in (21, 22, *range(24, 41))]
    # A target on the branch that was left first counts batches as that branch did.
    answer = ask("rollback", root, "--to", entries(root)[1, 30].manifest.id, "--force", "--json")
    assert json.loads(answer.out)["plan"]["skips"] == []
    _, fourth = train(root, 40)
    assert [fourth[step] for step in range(31, 41)] == [trained[1][step] for step in range(31, 41)]


def test_what_is_not_clean_needs_force(root: Path, ask: Any) -> None:
    id = entries(root)[1, 40].manifest.id
    tell(root, "health", id, health="diverged", why="the loss is not finite", onset=35)
    refused = ask("rollback", root, "--to", "40")
    assert refused.code == 2
    assert f"step 40 (checkpoint {id}) is diverged: the loss is not finite" in refused.err
    assert "--force" in refused.err
    assert ask("rollback", root, "--to", "clean", "--json").code == 0
    forced = ask("rollback", root, "--to", "40", "--force")
    assert forced.lines[0] == f"the next start of t goes on from step 40 (checkpoint {id}, diverged)"


def test_what_is_damaged_is_refused_also_with_force(root: Path, ask: Any) -> None:
    (step,) = root.glob("*/t_*/step_0000000020")
    weights = next(step.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    refused = ask("rollback", root, "--to", "20", "--force")
    assert refused.code == 3
    assert "it should have" in refused.err
    tell(root, "damaged", entries(root)[1, 30].manifest.id, what="a bit has flipped")
    assert ask("rollback", root, "--to", "30").code == 3
    assert not any(one.pinned for one in entries(root).values())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "one of the two"),
        (("--to", "20", "--cancel"), 2, "one of the two"),
        (("--cancel", "--dry-run"), 2, "takes no other option"),
        (("--cancel",), 4, "no rollback that is still to be done"),
        (("--to", "21"), 4, "there are steps 40, 30, 20, 10"),
        (("--to", "nonsense"), 2, "selects no checkpoint"),
        (("--to", "20", "--skip-batches", "20:22"), 2, "begin with step 21"),
        (("--to", "20", "--skip-batches", "25:25"), 2, "25:25 are no steps"),
        (("--to", "20", "--skip-batches", "28:25"), 2, "28:25 are no steps"),
        (("--to", "20", "--skip-batches", "-3:25"), 2, "names no steps"),
        (("--to", "20", "--skip-batches", "all"), 2, "write --skip-batches A:B"),
        (("--to", "20", "--skip-batches", "25:28", "--skip-batches", "27:30"), 2, "step 27 is to be left out twice"),
        (("--to", "20", "--skip-batches", "25:99999999"), 2, "more than 10000000 steps"),
        (("--to", "20", "--lr-scale", "0"), 2, "a number above 0, got 0.0"),
        (("--to", "20", "--lr-scale", "nan"), 2, "a number above 0, got nan"),
        (("--to", "20", "--lr-scale", "inf"), 2, "a number above 0, got inf"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(
    trained: tuple[Path, dict[int, int]], ask: Any, words: tuple[str, ...], code: int, said: str
) -> None:
    answer = ask("rollback", trained[0], *words)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert not list(trained[0].glob("*/t_*/facts/*"))


def test_a_task_that_is_not_there_is_named(trained: tuple[Path, dict[int, int]], ask: Any) -> None:
    answer = ask("rollback", trained[0], "u", "--to", "20")
    assert answer.code == 4
    assert "there is no task 'u'; there are: 't'" in answer.err
    with pytest.raises(mementum.errors.NoSuchAddress, match="has no task 'u'"):
        mementum.rollback(trained[0], "u", to=20)


def test_a_running_training_is_told_of_and_not_disturbed(root: Path, ask: Any) -> None:
    model = torch.nn.Linear(2, 1)
    with mementum.open_run(root, task="t", model=model, resume="never", every_steps=5, keep_last=1) as run:
        answer = ask("rollback", root, "--to", "20")
        assert answer.code == 0
        assert "note: it is being trained by attempt 2" in answer.err
        assert "the plan is for the start after it" in answer.err
        for _ in range(2):
            for _ in range(5):
                run.record(loss=1.0)
            run.wait()
    assert (1, 20) in entries(
        root
    )  # and its retention spares what is pinned, though it is older than all that it keeps
    assert (1, 10) in entries(root)  # the best by loss
    assert (1, 30) not in entries(root)
    # What the running one has saved meanwhile does not count as having done it.
    assert min(train(root, 22)[1]) == 21


def test_the_function_takes_ranges(root: Path) -> None:
    branch = mementum.rollback(root, "t", to="exact", why="a shard was bad")
    assert (branch.plan.step, branch.plan.why, branch.plan.from_step) == (40, "a shard was bad", None)
    branch = mementum.rollback(root, "t", to=20, skip_batches=[range(30, 31), range(22, 24)])
    assert [(detour.at_step, detour.groups) for detour in branch.plan.skips] == [(22, 2), (28, 1)]
    assert mementum.cancel_rollback(root, "t") == branch.plan
    for nonsense in (range(25, 30, 2), range(30, 25), [(25, 27)], range(25, 25)):
        with pytest.raises(UsageError, match="no steps whose batches"):
            mementum.rollback(root, "t", to=20, skip_batches=nonsense)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="100 is the limit"):
        mementum.rollback(root, "t", to=20, skip_batches=[range(100 + one, 101 + one) for one in range(101)])


def test_weights_alone_are_no_place_to_go_back_to(root: Path, ask: Any) -> None:
    from dataclasses import replace

    from mementum.format import manifest as manifests
    from mementum.records import Granularity

    (path,) = root.glob("*/t_*/step_0000000030/meta.json")
    path.write_bytes(manifests.render(replace(manifests.parse(path.read_bytes()), granularity=Granularity.WEIGHTS)))
    answer = ask("rollback", root, "--to", "30", "--force")
    assert answer.code == 2
    assert "holds weights only: no training goes on from it" in answer.err
