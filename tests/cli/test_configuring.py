"""`mementum config`: what it shows, describes and checks, its exit codes, and its section of the page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mementum.cli.main import app
from mementum.cli.text import counted
from mementum.config.loading import load
from mementum.config.reading import parse
from services import missing

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "tests" / "fixtures" / "checkpoint_config.yaml"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("tolerance:\n  max_lost: 10 GB\nkeep_lst: 3\n")
    return path


def test_show_gives_yaml_that_is_read_back(ask: Any) -> None:
    for words in ((), ("pretrain",), (FILE,)):
        answer = ask("config", "show", *words)
        assert (answer.code, answer.err) == (0, "")
        assert load(parse(answer.out).values).settings == load(*words or (None,)).settings


def test_show_as_json(ask: Any) -> None:
    found = json.loads(ask("config", "show", FILE, "--json").out)
    assert found["settings"]["policy"][1]["window"]["base_interval"] == 2000
    assert found["origins"]["codec"] == "line 13: storage_levels.level_1.compression"
    assert found["source"] == str(FILE)
    assert {one["key"]: one["effective"] for one in found["said"]}["recovery_timeout_ms"] is False
    assert len(found["said"]) == 15


def test_show_of_a_wrong_one_is_an_error_that_names_the_lines(ask: Any, wrong: Path) -> None:
    answer = ask("config", "show", wrong)
    assert (answer.code, answer.out) == (2, "")
    assert f"{wrong}:2: tolerance.max_lost: '10 GB' is a size" in answer.err
    assert answer.err.endswith(f"kept: everything: nothing was changed\nnext: mementum config check {wrong}\n")
    error = json.loads(ask("config", "show", wrong, "--json").out)["error"]
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)


def test_check_tells_all_findings(ask: Any, wrong: Path) -> None:
    answer = ask("config", "check", wrong)
    assert (answer.code, answer.err) == (2, "")
    assert answer.lines == [
        f"{wrong}:2: tolerance.max_lost: '10 GB' is a size; expected a duration such as 10m, 60s or 1h30m",
        f"{wrong}:3: keep_lst: there is no such key; the nearest is keep_last",
        f"{wrong}: 2 findings",
    ]
    found = json.loads(ask("config", "check", wrong, "--json").out)
    assert found["findings"][1] == {
        "line": 3,
        "key": "keep_lst",
        "what": "there is no such key",
        "expected": None,
        "nearest": "keep_last",
    }


def test_check_of_one_that_can_be_used_says_what_has_no_effect(ask: Any) -> None:
    answer = ask("config", "check", FILE)
    assert (answer.code, answer.err) == (0, "")
    assert len(answer.lines) == 7
    assert answer.lines[-1] == f"{FILE}: it can be used"
    assert answer.lines[0].startswith("storage_levels.level_0.device: no effect: checkpoints lie in the root folder")
    assert json.loads(ask("config", "check", FILE, "--json").out)["findings"] == []


def tiers_file(tmp_path: Path, *tiers: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("tiers:\n" + "".join(f"  - {{{tier}}}\n" for tier in tiers))
    return path


def require_clients() -> None:
    for package in ("obstore", "redis"):
        if importlib.util.find_spec(package) is None:
            missing(f"pip install {package}")


@pytest.mark.parametrize(
    ("tier", "key", "said"),
    [
        ('url: "s3://b", storage_class: GLACIER', "tiers[1]", "objects of the class GLACIER must be thawed"),
        ('url: "s3://b", options: {regionn: "x y z"}', "tiers[1]", "'regionn' is not valid"),
        ("url: /far, options: {region: x}", "tiers[1]", "a folder has no options, but region was given"),
        ('url: "{here}/a/"', "tiers[1].url", "are the same place: {here}/a"),
        ('url: "file://{here}/b/../a"', "tiers[1].url", "are the same place: {here}/a"),
        ('url: "s3://key:hunter2@b"', "tiers[1]", "keys do not belong in a url, which is printed"),
        ('url: "redis://h/notanumber"', "tiers[1]", "redis://h:6379/notanumber is not like redis://host:6379/0"),
        ('url: "redis://:hunter2@h", options: {nope: "1"}', "tiers[1]", "there is no option 'nope'"),
        ('url: "redis://h:99999/0"', "tiers[1].url", "redis://… cannot be read; expected a port of at most 65535"),
    ],
)
def test_a_tier_that_a_run_could_not_open_is_a_finding(
    ask: Any, tmp_path: Path, tier: str, key: str, said: str
) -> None:
    require_clients()
    tier, said = tier.replace("{here}", str(tmp_path)), said.replace("{here}", str(tmp_path))
    path = tiers_file(tmp_path, f"url: {tmp_path}/a", tier, f"url: {tmp_path}/c, options: {{x: y}}")
    found = json.loads(ask("config", "check", path, "--json").out)["findings"]
    assert (found[0]["line"], found[0]["key"]) == (3, key)
    answer = ask("config", "check", path)
    assert (answer.code, answer.err, answer.lines[-1]) == (2, "", f"{path}: {counted(len(found), 'finding')}")
    assert answer.lines[0].startswith(f"{path}:3: {key}: ")
    assert said in answer.lines[0]
    assert "hunter2" not in answer.out
    assert "x y z" not in answer.out
    assert "password" not in answer.lines[0] or "nope" in answer.lines[0]
    if not key.endswith("].url") or "same place" in said:  # else nothing else of the file is known
        assert (len(found), found[1]["key"]) == (2, "tiers[2]")


def test_tiers_that_a_run_could_open_are_not_held_against_it(ask: Any, tmp_path: Path) -> None:
    require_clients()
    here = tmp_path / "far"
    path = tiers_file(tmp_path, f"url: {here}", 'url: "redis://:pw@h:65535/1"', 'url: "s3://b/p", options: {region: x}')
    answer = ask("config", "check", path)
    assert (answer.code, answer.lines) == (0, [f"{path}: it can be used"])
    assert not here.exists()


def test_a_tier_whose_client_is_not_installed_is_told_and_held_against_nobody(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(name: str) -> None:
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")

    monkeypatch.setattr("mementum.storage.tiers.importlib.import_module", lacks)
    path = tiers_file(tmp_path, 'url: "s3://b"')
    text = "s3://b: obstore is not installed; pip install 'mementum[s3]'"
    answer = ask("config", "check", path)
    assert (answer.code, answer.lines) == (0, [f"tiers[0]: not checked: {text}", f"{path}: it can be used"])
    found = json.loads(ask("config", "check", path, "--json").out)
    assert (found["findings"], found["unchecked"]) == ([], [{"key": "tiers[0]", "text": text}])


def test_what_is_not_there_is_an_error(ask: Any, tmp_path: Path) -> None:
    for words in (("show", tmp_path / "none.yaml"), ("check", tmp_path / "none.yaml"), ("check", "pretran")):
        answer = ask("config", *words)
        assert answer.code == 2
        assert "next: mementum config show pretrain" in answer.err


def test_nothing_that_a_terminal_obeys_is_printed(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text('"\\e[2J": 1\n')
    assert "\x1b" not in ask("config", "check", path).out
    path.write_text('policy: [{event: "\\e[2J"}]\n')
    shown = ask("config", "show", path).out
    assert "\x1b" not in shown
    assert load(parse(shown).values).settings == load(path).settings


def test_the_schema_is_json(ask: Any) -> None:
    answer = ask("config", "schema")
    found = json.loads(answer.out)
    assert (answer.code, found["type"]) == (0, "object")
    assert "base_interval" in found["properties"]


def test_every_word_has_help_and_stands_on_the_page() -> None:
    group: Any = typer.main.get_command(app)
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = text.partition("## `mementum config`")[2].partition("\n## ")[0]
    assert set(group.commands["config"].commands) == {"show", "schema", "check"}
    for name, command in group.commands["config"].commands.items():
        assert command.help
        assert f"`mementum config {name}" in section
        for parameter in command.params:
            assert parameter.help
            word = (
                parameter.opts[0]
                if parameter.opts[0].startswith("--")
                else (parameter.metavar or parameter.name.upper())
            )
            assert f"`{word}" in section


def test_help_reads_no_configuration() -> None:
    code = (
        "import sys; from mementum.cli.main import app\n"
        "try: app(['config', '--help'])\n"
        "except SystemExit: print(sorted({'mementum.config.settings', 'yaml', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
