"""Pinning: `mementum pin` and `mementum unpin`, by which a person says what must stay."""

from __future__ import annotations

from mementum.catalog.noted import from_outside, person
from mementum.cli.failing import OK
from mementum.cli.reading import Contents, Held, address_in, find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import printable
from mementum.clock import Clock, SystemClock, timestamp
from mementum.errors import NoSuchAddress, StoreError, UsageError
from mementum.execute.commit import new_id
from mementum.records import Fact
from mementum.rooting import local_folder, part_of

WHY_MAX = 200  # characters of a reason; it stands in a column of a table
OWNER_MAX = 100  # characters of a name


def pin(root: str, address: str, *, why: str, by: str | None, as_json: bool, clock: Clock | None = None) -> int:
    """Write down that a checkpoint must stay, and why; the exit code."""
    _require_words("--why", why, WHY_MAX)
    contents, held, owner = _meant(root, address, by)
    _tell(contents, held, "pin", {"why": why, "by": owner}, clock or SystemClock())
    now = _again(root, held)
    if owner not in now.entry.pinned_by:
        raise _overruled(now, owner)
    if as_json:
        print(rendered(_fields(now, owner)))
    else:
        print(printable(f"{_name(now)} is pinned by {owner}: {why}"))
    return OK


def unpin(root: str, address: str, *, by: str | None, as_json: bool, clock: Clock | None = None) -> int:
    """Take one owner's pin back; the exit code. What others have pinned stays pinned."""
    contents, held, owner = _meant(root, address, by)
    if owner not in held.entry.pinned_by:
        others = ", ".join(repr(one) for one in sorted(held.entry.pinned_by))
        raise UsageError(
            f"{_name(held)} is not pinned by {owner}" + (f"; it is by {others}" if others else ", nor by anybody"),
            next_command="name whose pin it is with --by" if others else "`mementum ls ROOT --filter pinned`",
        )
    _tell(contents, held, "unpin", {"by": owner}, clock or SystemClock())
    now = _again(root, held)
    if owner in now.entry.pinned_by:
        raise _overruled(now, owner)
    if as_json:
        print(rendered(_fields(now, owner)))
    else:
        rest = "" if now.entry.pinned is None else f"; it stays pinned: {now.entry.pinned}"
        print(printable(f"{_name(now)} is not pinned by {owner} any more{rest}"))
    return OK


def _meant(root: str, address: str, by: str | None) -> tuple[Contents, Held, str]:
    """The checkpoint, and whose the pin is."""
    local_folder(root)  # a pin counts where the training looks for it
    owner = person() if by is None else by
    _require_words("--by", owner, OWNER_MAX)
    contents = look(root)
    held = find(contents, address_in(contents, address))
    require_readable(held)
    _require_lives(contents, held)
    return contents, held, owner


def _require_lives(contents: Contents, held: Held) -> None:
    """UsageError for a tier in a folder, where journals lie in parts: a training looks for pins in its root alone."""
    names = [stat.key for stat in part_of(contents.root, held.home).list("journal/")]
    if names and all("-" in name for name in names):
        raise UsageError(
            f"{contents.root.name} is a tier: neither the training nor the tier's retention looks for pins there",
            next_command="give the folder that open_run was given; where that is lost, `mementum place ROOT ADDRESS "
            "--from TIER` brings it back",
        )


def _require_words(option: str, text: str, most: int) -> None:
    if not (0 < len(text.strip()) <= len(text) <= most and text.isprintable()):
        raise UsageError(f"{option}: {text[:60]!r} is not a text of 1 to {most} printable characters")


def _tell(contents: Contents, held: Held, kind: str, values: dict[str, str], clock: Clock) -> None:
    now_s = clock.now()
    fact = Fact(kind=kind, time=timestamp(now_s), checkpoint=held.id, values=values)
    from_outside(part_of(contents.root, held.home), new_id(now_s), [fact])


def _again(root: str, held: Held) -> Held:
    """The checkpoint as it is known now. To look at the root is also what tells the catalog, by which a training that
    is under way decides what it removes."""
    for one in look(root).held:
        if (one.home, one.id) == (held.home, held.id):
            return one
    raise NoSuchAddress(
        f"{_name(held)} was removed by its training at this moment", next_command="mementum ls ROOT shows what is left"
    )


def _overruled(held: Held, owner: str) -> StoreError:
    return StoreError(
        held.place,
        f"what {owner} said of {_name(held)} before has a later time than this machine's clock, and holds",
        kept="all checkpoints",
        next_command="set the clock of this machine, and say it again",
    )


def _name(held: Held) -> str:
    return f"checkpoint {held.id} of step {held.entry.manifest.step} ({held.task})"


def _fields(held: Held, owner: str) -> dict[str, object]:
    return {
        "task": held.task,
        "checkpoint": held.id,
        "step": held.entry.manifest.step,
        "by": owner,
        "pinned": held.entry.pinned,
        "pinned_by": sorted(held.entry.pinned_by),
    }
