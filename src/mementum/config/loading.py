"""Loading: the one door to settings, from a preset's name, a YAML file, or a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from mementum.config.checking import checked, nearest
from mementum.config.contradictions import contradictions
from mementum.config.documents import Documents, translated
from mementum.config.presets import NO_STORE, PRESETS, Said, without_store
from mementum.config.reading import DEPTH_MAX, LOOK, Finding, Path, Tree, read, spelled
from mementum.config.section import Section
from mementum.config.settings import Settings
from mementum.errors import UsageError
from mementum.records import Reach, record

Source = str | os.PathLike[str] | Mapping[str, Any] | None
Besides = Callable[[Settings], Iterable[tuple[Path, str]]]
WORD = re.compile(r"[\w-]+")  # a preset's name; what has a dot or a slash in it is a file's
SHOWN_MAX = 20  # findings in an error; `mementum config check` shows all
# Settings that mean something only where a tier outlives the machine.
WAITING: Mapping[str, str] = {
    "budgets.network": NO_STORE,
    "budgets.bytes_per_day.object_store": NO_STORE,
    "budgets.money.per_gb.object_store": NO_STORE,
}


@record
class Configured:
    """Settings that can be used. `said`: what becomes of keys that are not ours or have no effect yet. `source`: the
    name of the file or preset, "a mapping" or "defaults". `origins`: by the path of a setting where its value is from:
    "default", "preset pretrain", "line 7", "line 2: base_interval", "given"."""

    settings: Settings
    said: tuple[Said, ...]
    source: str
    origins: Mapping[str, str]


@record
class Examined:
    """What was found in a source: settings, or all that is wrong with it."""

    source: str
    configured: Configured | None
    findings: tuple[Finding, ...]


def load(source: Source) -> Configured:
    """The settings of a preset, a YAML file, a mapping, or (None) those that hold where nothing is said.

    A preset's name wins over a file of that name, which `./pretrain` names. UsageError if there is no such thing, or
    with everything that is wrong in it.
    """
    examined = examine(source)
    if examined.configured is None:
        raise refusal(examined)
    return examined.configured


def refusal(examined: Examined) -> UsageError:
    """The error that tells all findings."""
    lines = [told(examined.source, finding) for finding in examined.findings]
    more = f"\n  … and {len(lines) - SHOWN_MAX} more" if len(lines) > SHOWN_MAX else ""
    shown = lines[0] if len(lines) == 1 else "\n".join(f"  {line}" for line in lines[:SHOWN_MAX])
    head = "" if len(lines) == 1 else f"{examined.source} has {len(lines)} findings:\n"
    from_file = any(finding.line is not None for finding in examined.findings)
    following = f"mementum config check {examined.source}" if from_file else "mementum config schema"
    return UsageError(f"{head}{shown}{more}", kept="everything: nothing was changed", next_command=following)


def told(source: str, finding: Finding) -> str:
    """A finding as a line: run.yaml:4: budgets.lost_tme: …"""
    return f"{source}:{finding.line}: {finding}" if finding.line is not None else f"{source}: {finding}"


def examine(source: Source, *, besides: Besides | None = None) -> Examined:
    """What `load` would give, or everything that is wrong. UsageError only if there is nothing to read. `besides`: what
    else cannot be, of settings that can be read, each with its path."""
    name, tree = _opened(source)
    if tree.findings and not tree.values:  # it is no YAML: nothing else can be known
        return Examined(source=name, configured=None, findings=tree.findings)
    theirs = translated(tree.values, tree.line)

    def line(path: Path) -> int | None:
        for length in range(len(path), 0, -1):
            if path[:length] in theirs.source:
                return tree.line(theirs.source[path[:length]])
        return tree.line(path)

    laid = _laid(theirs.values)
    settings, wrong = checked(Settings, _over(laid.values, theirs.values), line)
    findings = (*tree.findings, *theirs.findings, *wrong)
    given = frozenset(_paths(theirs.values, ()))
    if settings is not None:
        findings += tuple(_lined(one, line) for one in contradictions(settings, given))
        more = () if besides is None else besides(settings)
        findings += tuple(Finding(key=spelled(path), what=what, line=line(path)) for path, what in more)
    if settings is None or findings:
        ordered = sorted(findings, key=lambda one: one.line or 0)
        return Examined(source=name, configured=None, findings=tuple(ordered))

    def origin(path: Path) -> str:
        number = line(path)
        from_theirs = theirs.source.get(path)
        where = f"line {number}" if number is not None else "given"
        return f"{where}: {spelled(from_theirs)}" if from_theirs else where

    configured = Configured(
        settings=settings,
        said=(*theirs.said, *_waiting(settings, given, laid.name), *laid.said),
        source=name,
        origins=_origins(settings, given, laid, origin),
    )
    return Examined(source=name, configured=configured, findings=())


def schema() -> dict[str, Any]:
    """The JSON schema of a file: our settings, and the keys of the documents' file."""
    ours, theirs = Settings.model_json_schema(), Documents.model_json_schema()
    return ours | {
        "title": "mementum",
        "properties": ours["properties"] | theirs["properties"],
        "$defs": ours["$defs"] | theirs["$defs"],
    }


def _opened(source: Source) -> tuple[str, Tree]:
    if source is None:
        return "defaults", Tree(values={}, lines={})
    if isinstance(source, Mapping):
        findings: list[Finding] = []
        values = _plain(source, (), findings)
        return "a mapping", Tree(values=values, lines={}, findings=tuple(findings))
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        raise UsageError(
            f"a configuration is a preset's name, a file or a mapping, got {type(source).__name__}", next_command=LOOK
        )
    name = os.fspath(source)
    if source in PRESETS:
        return name, Tree(values={"preset": name}, lines={})
    if WORD.fullmatch(name) and not os.path.exists(name):
        near = nearest(name, PRESETS)
        likely = f"; the nearest preset is {near}" if near else ""
        known = ", ".join(PRESETS)
        raise UsageError(f"{name!r:.60} is neither a preset ({known}) nor a file{likely}", next_command=LOOK)
    return name, read(name)


def _plain(value: Any, path: Path, findings: list[Finding]) -> Any:
    """Mappings and lists of a caller as our own, so that nobody changes them later, and no circle is walked."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    if len(path) >= DEPTH_MAX:
        findings.append(Finding(key=spelled(path[:3]), what=f"more than {DEPTH_MAX} levels of nesting"))
        return None
    if not isinstance(value, Mapping):
        return [_plain(one, (*path, number), findings) for number, one in enumerate(value)]
    values: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(key, str):
            values[key] = _plain(inner, (*path, key), findings)
        else:
            findings.append(Finding(key=spelled(path), what=f"the key {key!r:.60} is no text"))
    return values


@record
class Laid:
    """What of a preset lies under the values that were given."""

    name: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[Said, ...] = ()


def _laid(values: Mapping[str, Any]) -> Laid:
    name = values.get("preset")
    if not isinstance(name, str) or name not in PRESETS:
        return Laid()  # a name that is none is found when the values are checked
    below = dict(PRESETS[name].values)
    if values.get("every_steps") is not None or values.get("every_s") is not None:
        below.pop("policy")  # who names an interval wants that one
    return Laid(name=name, values=below, said=PRESETS[name].said)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings joined key by key; of anything else the upper one counts."""
    joined = dict(below)
    for key, value in above.items():
        under = joined.get(key)
        joined[key] = _over(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return joined


def _lined(finding: Finding, line: Callable[[Path], int | None]) -> Finding:
    path = tuple(int(one) if one.isdigit() else one for one in re.findall(r"[^.\[\]]+", finding.key))
    return Finding(key=finding.key, what=finding.what, line=line(path), expected=finding.expected)


def _paths(value: Any, path: Path) -> Iterator[Path]:
    """The paths to everything in `value`, sections too."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))


def _waiting(settings: Settings, given: frozenset[Path], preset: str | None) -> tuple[Said, ...]:
    """What was given, and waits for a tier that outlives the machine."""
    if any(tier.outlives is Reach.MACHINE for tier in settings.tiers):
        return ()
    held = {spelled(path): value_at(settings, path) for path in leaves(settings) if path in given}
    idle = (Said(key=key, text=text, effective=False) for key, text in WAITING.items() if held.get(key))
    return (*idle, *(() if preset is None else without_store(preset)))


def _origins(settings: Settings, above: frozenset[Path], preset: Laid, origin: Callable[[Path], str]) -> dict[str, str]:
    """Where each value of the settings is from, by its path."""
    below = frozenset(_paths(preset.values, ()))
    origins: dict[str, str] = {}
    for path in leaves(settings):
        by_preset = f"preset {preset.name}" if path in below else "default"
        origins[spelled(path)] = origin(path) if path in above else by_preset
    return origins


def value_at(section: Section, path: Path) -> Any:
    """The value of the settings at a path of `leaves`."""
    value: Any = section
    for name in path:
        value = getattr(value, str(name))
    return value


def leaves(section: Section, above: Path = ()) -> Iterator[Path]:
    """The paths to all values of the settings; the list of policies is one."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name)
