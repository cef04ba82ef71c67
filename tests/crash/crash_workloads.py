"""What the task does while the power is cut: each a few calls that every user of the library makes."""

from __future__ import annotations

from collections.abc import Callable

from crash_saves import Process

from mementum.errors import StoreError
from mementum.records import Manifest

Work = Callable[[Process], None]
DELTA = "delta+planes+zstd:1"


def nothing(process: Process) -> None:
    """A root that nobody has used."""


def one_save(process: Process) -> None:
    process.save(1, step=10)


def two_saves(process: Process) -> None:
    process.save(1, step=10)
    process.save(2, step=20)


def one_step_twice(process: Process) -> None:
    process.save(1, step=10)
    process.save(2, step=10)


def keep_one(process: Process) -> None:
    process.keep(1)


def two_saves_keep_one(process: Process) -> None:
    two_saves(process)
    keep_one(process)


def a_step_saved_again_after_its_removal(process: Process) -> None:
    two_saves_keep_one(process)
    process.save(3, step=10)


def a_sweep_of_leftovers(process: Process) -> None:
    process.save(1, step=10)
    process.leave_parts(2, step=20)
    process.sweep()


def a_journal(process: Process) -> None:
    process.save(1, step=10)
    for number in (1, 2, 3):
        process.note(number)


def claims(process: Process) -> None:
    process.claim()
    process.save(1, step=10)


def sweep_and_save(process: Process) -> None:
    """What a start does after another has died."""
    process.sweep()
    process.save(3, step=30)


def save_again(process: Process) -> None:
    process.save(3, step=30)


def save_until_it_works(process: Process) -> None:
    """A save that meets an error, then another one of the same step, in the same process."""
    try:
        process.save(3, step=30)
    except StoreError:
        process.save(4, step=30)


def raw_and_another(process: Process) -> None:
    process.save(1, step=10)
    process.save(5, step=50)


def settled_and_another(process: Process) -> None:
    process.save(1, step=10)
    process.settle(1)
    process.save(5, step=50)


def one_settled(process: Process) -> None:
    process.save(1, step=10)
    assert isinstance(process.settle(1), Manifest)


def settle_it(process: Process) -> None:
    process.settle(1)


def base_and_another(process: Process) -> None:
    process.save(1, step=10)
    assert isinstance(process.settle(1, codec=DELTA), Manifest)
    process.save(5, step=50)


def settle_it_against_the_base(process: Process) -> None:
    process.settle(5, codec=DELTA)


def settled_against_a_base(process: Process) -> None:
    base_and_another(process)
    after = process.settle(5, codec=DELTA)
    assert isinstance(after, Manifest)
    assert any(file.folder is not None for file in after.files)


def keep_the_delta(process: Process) -> None:
    """Its base has to stay too."""
    process.keep(1)


def drop_the_settled_one(process: Process) -> None:
    process.keep(1)


def settled_then_removed(process: Process) -> None:
    settled_and_another(process)
    keep_one(process)


def sweep_and_keep_one(process: Process) -> None:
    """What a start does after another has died, and its first retention."""
    process.sweep()
    keep_one(process)


def sweep_and_settle_again(process: Process) -> None:
    process.sweep()
    settle_it(process)


def settle_until_it_works(process: Process) -> None:
    """A settling that meets an error, then another one, in the same process."""
    process.settle(1)
    process.settle(1)


FROM_NOTHING: tuple[Work, ...] = (
    two_saves,
    one_step_twice,
    two_saves_keep_one,
    a_step_saved_again_after_its_removal,
    a_sweep_of_leftovers,
    a_journal,
    claims,
    one_settled,
    settled_then_removed,
)

DEATHS: tuple[tuple[Work, Work, Work], ...] = (  # before, what is killed, what the next start does
    (nothing, one_save, sweep_and_save),
    (two_saves, keep_one, sweep_and_save),
    (raw_and_another, settle_it, sweep_and_save),
    (raw_and_another, settle_it, keep_one),
    (raw_and_another, settle_it, sweep_and_keep_one),
    (raw_and_another, settle_it, sweep_and_settle_again),
    (settled_and_another, drop_the_settled_one, sweep_and_save),
    (base_and_another, settle_it_against_the_base, sweep_and_save),
    (settled_against_a_base, keep_the_delta, sweep_and_save),
)

AT_REST: tuple[Work, ...] = (
    one_save,
    two_saves_keep_one,
    one_settled,
    settled_then_removed,
    settled_against_a_base,
)  # nothing may be pending after them

ERRORS: tuple[tuple[Work, Work], ...] = (  # before, what meets an error of the disk
    (one_save, save_again),
    (one_save, save_until_it_works),
    (two_saves, keep_one),
    (raw_and_another, settle_it),
    (raw_and_another, settle_until_it_works),
    (settled_and_another, drop_the_settled_one),
    (base_and_another, settle_it_against_the_base),
)
