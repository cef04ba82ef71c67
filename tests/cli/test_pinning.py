"""`mementum pin` and `mementum unpin`: each owner takes back its own, and a training that lives is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog.noted import person
from mementum.cli.pinning import pin, unpin
from mementum.clock import ManualClock


def pins(ask: Any, root: Path) -> dict[int, tuple[str | None, list[str]]]:
    return {one["step"]: (one["pinned"], one["pinned_by"]) for one in json.loads(ask("ls", root, "--json").out)}


def test_a_pin_is_seen_everywhere(ask: Any, root: Path) -> None:
    answer = ask("pin", root, "@4", "--why", "figure 3")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(f"of step 4 (byte-gpt) is pinned by {person()}: figure 3\n")
    assert pins(ask, root) == {6: (None, []), 4: (f"figure 3 ({person()})", [person()]), 2: (None, [])}
    assert "not exact, pinned" in ask("ls", root).lines[2]
    assert f"  pinned  figure 3 ({person()})" in ask("show", root, "@4").lines
    assert f"  kept      figure 3 ({person()})" in ask("why", root, "@4").lines
    assert [row.split()[1] for row in ask("ls", root, "--filter", "pinned").lines[1:-1]] == ["4"]


def test_a_tier_takes_no_pins(ask: Any, root: Path, tmp_path: Path) -> None:
    assert ask("place", root, "@4", "--to", tmp_path / "nas").code == 0
    refused = ask("pin", tmp_path / "nas", "@4", "--why", "figure 3")
    assert (refused.code, "nas is a tier: neither the training" in refused.err) == (2, True)
    assert pins(ask, tmp_path / "nas") == {4: (None, [])}
    (tmp_path / "new").mkdir()
    assert ask("place", tmp_path / "new", "byte-gpt@4", "--from", tmp_path / "nas").code == 0  # as it says
    assert ask("pin", tmp_path / "new", "@4", "--why", "figure 3").code == 0


def test_each_owner_takes_back_its_own(ask: Any, root: Path) -> None:
    for owner in ("alice@lab", "release:v1"):
        assert ask("pin", root, "@4", "--why", "needed", "--by", owner).code == 0
    refused = ask("unpin", root, "@4")
    assert refused.code == 2
    assert f"is not pinned by {person()}; it is by 'alice@lab', 'release:v1'" in refused.err
    taken = json.loads(ask("unpin", root, "@4", "--by", "alice@lab", "--json").out)
    assert (taken["step"], taken["by"], taken["pinned_by"]) == (4, "alice@lab", ["release:v1"])
    assert "it stays" not in ask("unpin", root, "@4", "--by", "release:v1").out
    assert pins(ask, root)[4] == (None, [])
    nobody = ask("unpin", root, "@4", "--by", "alice@lab")
    assert (nobody.code, "nor by anybody" in nobody.err) == (2, True)


def test_a_rebuild_knows_of_it(ask: Any, root: Path) -> None:
    assert ask("pin", root, "@2", "--why", "x", "--by", "me").code == 0
    for file in root.glob("catalog.db*"):
        file.unlink()
    assert pins(ask, root)[2] == ("x (me)", ["me"])
    (fact,) = root.glob("*/*/facts/*.json")
    assert json.loads(fact.read_bytes())["kind"] == "pin"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["@4", "--why", ""], 2, "--why: '' is not a text"),
        (["@4", "--why", "a\nb"], 2, "--why"),
        (["@4", "--why", "x" * 201], 2, "1 to 200 printable characters"),
        (["@4", "--why", "x", "--by", "\x1b[31m"], 2, "--by"),
        (["@5", "--why", "x"], 4, "has no checkpoint at step 5"),
        (["nobody@4", "--why", "x"], 4, "there is no task 'nobody'"),
        (["@nonsense!", "--why", "x"], 2, "selects no checkpoint"),
    ],
)
def test_bad_words_write_nothing(ask: Any, root: Path, words: list[str], code: int, said: str) -> None:
    answer = ask("pin", root, *words)
    assert (answer.code, said in answer.err) == (code, True)
    assert not list(root.glob("*/*/facts/*"))


def test_a_clock_that_was_set_back_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mementum.errors import StoreError

    late, early = ManualClock(2_000_000_000.0), ManualClock(1_999_999_000.0)
    assert pin(str(root), "@4", why="x", by="me", as_json=False, clock=late) == 0
    with pytest.raises(StoreError, match="has a later time than this machine's clock"):
        unpin(str(root), "@4", by="me", as_json=False, clock=early)
    assert "is pinned by me: x" in capsys.readouterr().out


def test_a_root_that_cannot_be_written(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mementum.errors import StoreError

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("facts/x.json", "facts/x.json: the file system is read-only", kept="older checkpoints")

    monkeypatch.setattr("mementum.storage.local.LocalStore.put", refuse)
    answer = ask("pin", root, "@4", "--why", "x", "--json")
    assert (answer.code, json.loads(answer.out)["error"]["kind"]) == (1, "StoreError")
