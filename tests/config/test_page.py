"""The page on configurations: it names every key with its default, and its examples can be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mementum.config.checking import keys
from mementum.config.documents import Documents
from mementum.config.loading import examine, load
from mementum.config.policies import KINDS
from mementum.config.presets import PRESETS
from mementum.config.reading import parse
from mementum.config.section import Section
from mementum.config.showing import plain_settings

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "config.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) ?\|", PAGE, re.MULTILINE))
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def test_the_page_names_every_key_and_no_other() -> None:
    assert sorted(set(ROWS) - set(PRESETS)) == sorted([*keys(), *keys(Documents)])


def test_the_page_tells_what_holds_where_nothing_is_said() -> None:
    known = flat(plain_settings(load(None).settings))
    for kind, policy in KINDS.items():
        fields = policy.model_fields.items()
        known |= {f"policy.{kind}.{name}": field.default for name, field in fields if not field.is_required()}
    told = {key: parse(f"a: {text.strip('`')}").values["a"] for key, text in ROWS.items() if text.startswith("`")}
    assert {key: told[key] for key in known} == known


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_used(example: str) -> None:
    tree = parse(example)
    assert not tree.findings
    assert examine(tree.values).findings == ()


def test_the_example_in_python_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})


def test_every_key_of_the_schema_says_what_it_means() -> None:
    def silent(model: type[Section]) -> list[str]:
        return [name for name, field in model.model_fields.items() if not (field.description or _section(field))]

    def _section(field: Any) -> bool:
        return isinstance(field.default, Section) and bool(type(field.default).__doc__)

    sections = [one for one in Section.__subclasses__() if one.__module__.startswith("mementum.config")]
    assert len(sections) > 20
    assert {one.__name__: silent(one) for one in sections if silent(one)} == {}
