"""Mirroring: who had a task and what became known, copied to a tier and brought back from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from mementum.catalog import facts
from mementum.errors import KeyMissing, KeyTaken, StoreError, Superseded
from mementum.execute.attempts import KEY, key_of, numbers
from mementum.execute.liveness import who_is
from mementum.records import CLEARS
from mementum.storage.store import Home, Store

PART = re.compile(r"journal/(\d{4,})-(\d{1,18})\.jsonl")
WHOLE = re.compile(r"journal/(\d{4,})\.jsonl")
PREFIXES = ("attempts/", "facts/")  # each object in them is written once
READERS = 8  # small objects that are read at once: most of a reader's time is waiting
BATCH = 256  # of them in memory
FETCH = {"purpose": "fetch"}  # in the file of an attempt that brings a checkpoint home, and trains nothing


def hold_there(near: Store, far: Store, own: int, *, task: str) -> None:
    """Put the attempt's own file where others that use the tier see it. Superseded if a later attempt is there, or
    another one of the same number: then the tier is that one's.

    Two runs with roots of their own may begin at once with the same number: the tier keeps one file of it."""
    claim = bytes(near.get(key_of(own)))
    there = numbers(far)
    later = max(there, default=0)
    if later > own:
        _superseded(far, later, own, task)
    if later < own:
        try:
            far.put(key_of(own), [claim])
            return
        except KeyTaken:  # an answer that was lost, or somebody else
            pass
    if bytes(far.get(key_of(own))) != claim:
        _superseded(far, own, own, task)


def require_newest_there(far: Store, own: int, *, task: str) -> None:
    """Superseded if a later attempt has the tier. Look before every manifest that is put there, and every removal."""
    later = max(numbers(far), default=0)
    if later > own:
        _superseded(far, later, own, task)


def mirror(near: Store, far: Store) -> int:
    """Copy what the tier lacks of attempts, facts and journals; how many objects were sent. Of journals whole lines
    are sent, in parts that each begin where the one before has ended."""
    sent = 0
    for prefix in PREFIXES:
        there = {stat.key for stat in far.list(prefix)}
        for key in [stat.key for stat in near.list(prefix) if stat.key not in there]:
            if prefix != "attempts/" or (KEY.fullmatch(key) and not _is_fetch(near, key)):
                sent += _copy(near, far, key)
    ends = {number: end for number, end, _ in _journals(far)}
    for stat in near.list("journal/"):
        match = WHOLE.fullmatch(stat.key)
        if match and stat.size > ends.get(int(match[1]), 0):
            sent += _next_part(near, far, int(match[1]), ends.get(int(match[1]), 0))
    return sent


def bring_attempts(far: Store, near: Home, own: int) -> None:
    """Bring the files of attempts before `own` that the home has not seen. After the claim of `own`, which is above
    theirs: a holder that lives would take one that comes before for a later attempt."""
    known = set(numbers(near))
    _bring(far, near, [key_of(number) for number in numbers(far) if number < own and number not in known])


def bring_facts(far: Store, near: Home, own: int) -> None:
    """Bring what is known on the tier and not at home. Only the holder of the task may: it writes on journals of
    attempts that have ended, where the home has less of them."""
    there = {stat.key for stat in near.list("facts/")}
    _bring(far, near, [stat.key for stat in far.list("facts/") if stat.key not in there])
    sizes = {stat.key: stat.size for stat in near.list("journal/")}
    for number, end, parts in _journals(far):
        key = facts.journal_key(number)
        if number == own or sizes.get(key, 0) >= end:
            continue
        data = b"".join(part or b"" for _, part in _read_all(far, parts))
        have = bytes(near.get(key)) if key in sizes else b""
        if data.startswith(have):  # else the home has a line of its own, and more of it cannot be told apart
            near.append(key, data[len(have) :])


def _journals(far: Store) -> Iterator[tuple[int, int, list[str]]]:
    """Of each journal there: its attempt, the byte up to which it is there without a gap, and the keys of its parts."""
    found: dict[int, list[tuple[int, int, str]]] = {}
    for stat in far.list("journal/"):
        match = PART.fullmatch(stat.key)
        if match:
            found.setdefault(int(match[1]), []).append((int(match[2]), stat.size, stat.key))
    for number, parts in sorted(found.items()):
        end, keys = 0, []
        for begin, size, key in sorted(parts):
            if begin == end:
                end += size
                keys.append(key)
        yield number, end, keys


def _next_part(near: Store, far: Store, number: int, begin: int) -> int:
    data = bytes(near.get(facts.journal_key(number), begin))
    whole = data[: data.rfind(b"\n") + 1]  # the last line may be in the middle of being written
    if not whole:
        return 0
    key = facts.part_key(number, begin)
    try:
        far.put(key, [whole])
    except KeyTaken:
        # An answer that was lost: the journal may have grown since. What is not a part of ours is somebody else's.
        if not data.startswith(bytes(far.get(key))):
            raise StoreError(
                key,
                f"{key}: the tier has another journal of attempt {number}",
                kept="both; nothing was written over",
                next_command="give each root a tier of its own, or one with another prefix",
            ) from None
        return 0
    return 1


def _copy(source: Store, target: Store, key: str) -> int:
    """An object that is written once. One that is there is left, and one that was taken away meanwhile too."""
    try:
        target.put(key, [bytes(source.get(key))])
    except (KeyTaken, KeyMissing):
        return 0
    return 1


def _bring(far: Store, near: Store, keys: Sequence[str]) -> None:
    """Objects that are written once, by several readers. What was taken away, or brought meanwhile, is left."""
    for key, data in _read_all(far, keys):
        if data is not None:
            with suppress(KeyTaken):
                near.put(key, [data])


def _read_all(far: Store, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """What the keys hold, in their order; None where nothing is any more."""

    def read(key: str) -> bytes | None:
        try:
            return bytes(far.get(key))
        except KeyMissing:
            return None

    if not keys:
        return
    with ThreadPoolExecutor(min(READERS, len(keys)), thread_name_prefix="mementum-read") as pool:
        for first in range(0, len(keys), BATCH):
            some = keys[first : first + BATCH]
            yield from zip(some, pool.map(read, some), strict=True)


def _is_fetch(near: Store, key: str) -> bool:
    """Whether an attempt has trained nothing: on a tier it would seem to have taken it."""
    try:
        fields = json.loads(bytes(near.get(key)))
    except (ValueError, RecursionError, KeyMissing):
        return False
    return isinstance(fields, dict) and (
        fields.get(CLEARS) is True or all(fields.get(name) == value for name, value in FETCH.items())
    )


def _superseded(far: Store, by: int, own: int, task: str) -> None:
    who = who_is(far, by)
    host, pid = (who.host, who.pid) if who is not None else ("an unknown host", 0)
    raise Superseded(task, attempt=own, by=by, host=host, pid=pid)
