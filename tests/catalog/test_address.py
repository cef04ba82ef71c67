"""Addresses: every form of them, and what is said of those that mean nothing, or several."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.catalog.address import Address, parse, select
from mementum.errors import NoSuchAddress, UsageError
from mementum.records import Entry, Granularity, Health, Manifest


def entry(
    seq: int,
    *,
    task: str = "t",
    step: int | None = None,
    id: str | None = None,
    granularity: Granularity = Granularity.FULL,
    health: Health = Health.CLEAN,
    damaged: str | None = None,
    metrics: dict[str, float] | None = None,
    judged: Health | None = None,
) -> Entry:
    manifest = Manifest(
        id=id or f"c1m8njm{seq:010d}",
        seq=seq,
        task=task,
        attempt=1,
        parent=None,
        step=seq * 10 if step is None else step,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="test",
        granularity=granularity,
        health=health,
        files=(),
    )
    return Entry(manifest=manifest, folder=f"step_{seq:010d}", metrics=metrics or {}, damaged=damaged, judged=judged)


def chosen(entries: list[Entry], text: str) -> int:
    return select(entries, parse(text)).manifest.seq


@pytest.mark.parametrize(
    ("text", "task", "selector"),
    [
        ("byte-gpt", "byte-gpt", None),
        ("byte-gpt@latest", "byte-gpt", "latest"),
        ("byte-gpt@best", "byte-gpt", "best"),
        ("byte-gpt@best:+acc@5", "byte-gpt@best:+acc", "5"),
        ("@exact", None, "exact"),
        ("@clean", None, "clean"),
        ("a@b@12400", "a@b", "12400"),
        ("a b@c1m8", "a b", "c1m8"),
        ("t@best:eval/loss", "t", "best:eval/loss"),
    ],
)
def test_forms(text: str, task: str | None, selector: str | None) -> None:
    assert parse(text) == Address(task=task, selector=selector)


@pytest.mark.parametrize(
    "text", ["", "@", "t@", "t@newest", "t@best:", "t@-1", "t@1.5", "t@x1m8", "t@c1l", "t@" + "9" * 20]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert not isinstance(caught.value, NoSuchAddress)
    assert "latest" in str(caught.value)


def test_a_task_may_be_called_like_an_address() -> None:
    assert parse("a@b", tasks=("a@b",)) == Address(task="a@b")
    assert parse("a@b@7", tasks=("a@b",)) == Address(task="a@b", selector="7")
    with pytest.raises(UsageError, match="'b' selects no checkpoint"):
        parse("a@b", tasks=("c",))


@given(st.text())
def test_parsing_raises_nothing_else(text: str) -> None:
    try:
        address = parse(text)
    except UsageError:
        return
    again = address.task or ""
    assert text == (again if address.selector is None else f"{again}@{address.selector}")


def test_latest_is_by_sequence_number_not_by_step() -> None:
    entries = [entry(3, step=5), entry(1, step=90), entry(2, step=50, damaged="x")]
    assert chosen(entries, "t") == 3
    assert chosen(entries, "@latest") == 3


def test_exact_and_clean() -> None:
    entries = [
        entry(1),
        entry(2),
        entry(3, damaged="model.safetensors: it is missing"),
        entry(4, health=Health.SUSPECT),
        entry(5, granularity=Granularity.WEIGHTS),
    ]
    assert chosen(entries, "@latest") == 5
    assert chosen(entries, "@exact") == 4
    assert chosen(entries, "@clean") == 2


def test_nothing_clean_says_what_there_is() -> None:
    entries = [entry(1, health=Health.DIVERGED), entry(2, granularity=Granularity.WEIGHTS, damaged="x")]
    with pytest.raises(NoSuchAddress, match=r"that is clean; what there is: full, diverged; weights, clean, damaged"):
        chosen(entries, "@clean")


def test_best_is_the_lowest_loss_unless_told() -> None:
    entries = [
        entry(1, metrics={"loss": 0.5, "acc": 0.1}),
        entry(2, metrics={"loss": 0.2, "acc": 0.7, "top": True}),
        entry(3, metrics={"loss": 0.2, "acc": math.inf}),
        entry(4, metrics={"loss": math.nan}),
        entry(5),
    ]
    assert chosen(entries, "@best") == 3  # of equal ones the newest
    assert chosen(entries, "@best:loss") == 3
    assert chosen(entries, "@best:+loss") == 1
    assert chosen(entries, "@best:acc") == 1
    assert chosen(entries, "@best:+acc") == 2
    with pytest.raises(NoSuchAddress, match="with a value of 'f1'; there are values of 'acc', 'loss'"):
        chosen(entries, "@best:f1")
    with pytest.raises(NoSuchAddress, match="with a value of 'loss'; there are values of nothing"):
        chosen([entry(1)], "@best")
    with pytest.raises(NoSuchAddress, match="with a value of 'top'"):
        chosen(entries, "@best:top")


def test_step_is_the_newest_save_of_it() -> None:
    entries = [entry(1, step=100), entry(2, step=200), entry(3, step=100)]
    assert chosen(entries, "t@100") == 3
    assert chosen(entries, "t@0200") == 2
    with pytest.raises(NoSuchAddress, match="'t' has no checkpoint at step 300; there are steps 100, 200"):
        chosen(entries, "t@300")


def test_id_prefix() -> None:
    entries = [entry(1, id="c1aa"), entry(2, id="c1ab"), entry(3, id="c2")]
    assert chosen(entries, "@c2") == 3
    assert chosen(entries, "@c1aa") == 1
    with pytest.raises(UsageError, match="2 checkpoints of task 't' have ids that begin with c1: c1ab, c1aa") as caught:
        chosen(entries, "@c1")
    assert not isinstance(caught.value, NoSuchAddress)
    with pytest.raises(NoSuchAddress, match="whose id begins with c3; there are c2, c1ab, c1aa"):
        chosen(entries, "@c3")
    assert chosen([*entries, entry(4, id="c2")], "@c2") == 4  # a copied folder: the same checkpoint twice


def test_tasks() -> None:
    entries = [entry(1, task="a"), entry(2, task="b")]
    assert select(entries, Address(task="a")).manifest.seq == 1
    with pytest.raises(UsageError, match="there are 2 tasks and the address names none: 'a', 'b'") as caught:
        select(entries, Address())
    assert caught.value.next_command == "write TASK@latest"
    with pytest.raises(NoSuchAddress, match="no checkpoint of task 'c'; there are checkpoints of 'a', 'b'"):
        select(entries, Address(task="c"))
    with pytest.raises(NoSuchAddress, match="none was saved yet"):
        select([], Address())


def test_long_lists_are_cut() -> None:
    with pytest.raises(NoSuchAddress, match=r"steps 250, .*, 160 and 15 more\n") as caught:
        chosen([entry(seq) for seq in range(1, 26)], "@7")
    assert caught.value.next_command == "mementum ls ROOT"


def test_clean_goes_by_what_is_known_by_now() -> None:
    entries = [
        entry(1),
        entry(2, health=Health.SUSPECT, judged=Health.CLEAN),
        entry(3, judged=Health.SUSPECT),
        entry(4, judged=Health.DIVERGED),
    ]
    assert (chosen(entries, "t@clean"), chosen(entries, "t@exact"), chosen(entries, "t")) == (2, 4, 4)
    with pytest.raises(NoSuchAddress, match="has no checkpoint that is clean; what there is: full, suspect"):
        chosen([entry(3, judged=Health.SUSPECT)], "t@clean")


def test_best_is_one_that_is_clean() -> None:
    entries = [
        entry(1, metrics={"loss": 0.3}),
        entry(2, metrics={"loss": 0.2}, health=Health.SUSPECT, judged=Health.CLEAN),
        entry(3, metrics={"loss": 0.1}, judged=Health.SUSPECT),
        entry(4, metrics={"loss": 9.0}, judged=Health.DIVERGED),
    ]
    assert (chosen(entries, "t@best"), chosen(entries, "t@best:+loss")) == (2, 1)
    with pytest.raises(NoSuchAddress) as caught:
        chosen(entries[2:], "t@best")
    assert caught.value.message == (
        "task 't' has no checkpoint that is clean with a value of 'loss'; what there is: full, diverged; full, suspect"
    )
