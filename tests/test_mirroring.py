"""Who had a task and what became known goes to a tier, in parts that fit together, and comes back from there."""

from __future__ import annotations

from typing import Any

import pytest

from copies import content
from mementum.errors import KeyTaken, StoreError, Superseded
from mementum.mirroring import bring_attempts, bring_facts, hold_there, mirror, require_newest_there
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

LINES = [b'{"kind":"ended","time":"1"}\n', b'{"kind":"health","time":"2"}\n', b'{"kind":"pin","time":"3"}\n']


def store(name: str = "near") -> LocalStore:
    return LocalStore(SimDisk(), name)


def home() -> LocalStore:
    near = store()
    near.put("attempts/0001.json", [b'{"host": "a", "pid": 1}'])
    near.put("attempts/0001.lease-17", [b"now"])
    near.put("facts/f1.json", [LINES[2]])
    near.append("journal/0001.jsonl", LINES[0])
    return near


def test_a_journal_goes_in_parts_of_whole_lines() -> None:
    near, far = home(), store("far")
    assert mirror(near, far) == 3
    near.append("journal/0001.jsonl", LINES[1] + b'{"kind":"pi')
    assert mirror(near, far) == 1
    assert mirror(near, far) == 0
    near.append("journal/0001.jsonl", b'n"}\n')
    mirror(near, far)
    assert content(far, "") == {
        "attempts/0001.json": b'{"host": "a", "pid": 1}',
        "facts/f1.json": LINES[2],
        "journal/0001-000000000000.jsonl": LINES[0],
        f"journal/0001-{len(LINES[0]):012d}.jsonl": LINES[1],
        f"journal/0001-{len(LINES[0] + LINES[1]):012d}.jsonl": b'{"kind":"pin"}\n',
    }


def test_all_of_it_comes_back() -> None:
    near, far, new = home(), store("far"), store("new")
    mirror(near, far)
    near.append("journal/0001.jsonl", LINES[1])
    mirror(near, far)
    bring_attempts(far, new, own=2)
    bring_facts(far, new, own=2)
    wanted = {key: data for key, data in content(near, "").items() if "lease" not in key}
    assert content(new, "") == wanted


def test_a_shorter_journal_at_home_is_lengthened_and_one_of_its_own_is_left() -> None:
    near, far = home(), store("far")
    near.append("journal/0001.jsonl", LINES[1])
    mirror(near, far)
    shorter, other = store("shorter"), store("other")
    shorter.append("journal/0001.jsonl", LINES[0])
    other.append("journal/0001.jsonl", LINES[2])
    for behind in (shorter, other):
        bring_facts(far, behind, own=2)
    assert bytes(shorter.get("journal/0001.jsonl")) == LINES[0] + LINES[1]
    assert bytes(other.get("journal/0001.jsonl")) == LINES[2]
    own = store("own")
    own.append("journal/0001.jsonl", LINES[0])
    bring_facts(far, own, own=1)  # it is being written
    assert bytes(own.get("journal/0001.jsonl")) == LINES[0]


def test_a_part_that_is_missing_hides_those_behind_it() -> None:
    near, far, new = home(), store("far"), store("new")
    mirror(near, far)
    for line in LINES[1:]:
        near.append("journal/0001.jsonl", line)
        mirror(near, far)
    far.delete(f"journal/0001-{len(LINES[0]):012d}.jsonl")
    bring_facts(far, new, own=2)
    assert bytes(new.get("journal/0001.jsonl")) == LINES[0]
    mirror(near, far)  # and it is sent again
    bring_facts(far, new, own=2)
    assert bytes(new.get("journal/0001.jsonl")) == b"".join(LINES)


def test_another_ones_journal_is_not_written_over() -> None:
    near, far = home(), store("far")
    far.put("journal/0001-000000000000.jsonl", [b"something else\n"])
    far.delete("journal/0001-000000000000.jsonl")

    class Late:
        """Another root's part comes between the look and the put."""

        def put(self, key: str, chunks: Any) -> Any:
            if key.startswith("journal/"):
                far.put(key, [b"something else\n"])
            return far.put(key, chunks)

        def __getattr__(self, name: str) -> Any:
            return getattr(far, name)

    late: Any = Late()
    with pytest.raises(StoreError, match="another journal of attempt 1"):
        mirror(near, late)
    assert bytes(far.get("journal/0001-000000000000.jsonl")) == b"something else\n"


def test_an_attempt_holds_a_tier_until_a_later_one_comes() -> None:
    near, far = home(), store("far")
    hold_there(near, far, 1, task="t")
    hold_there(near, far, 1, task="t")  # once more is the same
    require_newest_there(far, 1, task="t")
    far.put("attempts/0002.json", [b'{"host": "b", "pid": 2}'])
    for look in (lambda: hold_there(near, far, 1, task="t"), lambda: require_newest_there(far, 1, task="t")):
        with pytest.raises(Superseded) as caught:
            look()
        assert caught.value.by == 2


def test_of_two_that_claim_one_number_the_first_has_the_tier() -> None:
    near, far = home(), store("far")
    far.put("attempts/0001.json", [b'{"host": "b", "pid": 2}'])
    with pytest.raises(Superseded, match="attempt 1"):
        hold_there(near, far, 1, task="t")
    assert bytes(far.get("attempts/0001.json")) == b'{"host": "b", "pid": 2}'


def test_a_lost_answer_of_a_claim_is_ours() -> None:
    near, far = home(), store("far")

    class Lost:
        def put(self, key: str, chunks: Any) -> Any:
            far.put(key, chunks)
            raise KeyTaken(key)

        def __getattr__(self, name: str) -> Any:
            return getattr(far, name)

    lost: Any = Lost()
    hold_there(near, lost, 1, task="t")
    assert bytes(far.get("attempts/0001.json")) == bytes(near.get("attempts/0001.json"))
