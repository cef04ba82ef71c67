"""Configuring: `mementum config`, which shows, describes and checks configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as Folder

from mementum.cli.failing import OK, USAGE
from mementum.cli.text import as_json as as_json_text
from mementum.cli.text import counted, printable
from mementum.config.loading import examine, load, schema, told
from mementum.config.presets import Said
from mementum.config.reading import Finding, Path, spelled
from mementum.config.showing import plain_settings, rendered
from mementum.config.tiers import Tier
from mementum.errors import UsageError
from mementum.masking import shown
from mementum.storage.tiers import absolute, is_same, kind_of, open_store


def show(source: str | None, *, as_json: bool) -> int:
    """Print the effective settings with where each is from; the exit code. UsageError tells what is wrong."""
    configured = load(source)
    if as_json:
        fields = {
            "source": configured.source,
            "settings": plain_settings(configured.settings),
            "origins": dict(configured.origins),
            "said": _said(configured.said),
        }
        print(as_json_text(fields))
    else:
        for line in rendered(configured).splitlines():
            print(printable(line))
    return OK


def describe() -> int:
    """Print the JSON schema of a configuration; the exit code."""
    print(as_json_text(schema()))
    return OK


def check(source: str, *, as_json: bool) -> int:
    """Print everything that is wrong with a configuration; the exit code."""
    unchecked: list[tuple[Path, str]] = []
    examined = examine(source, besides=lambda settings: refused_tiers(settings.tiers, unchecked))
    configured = examined.configured
    said = configured.said if configured is not None else ()
    if as_json:
        findings = [_finding(one) for one in examined.findings]
        hints = [{"key": spelled(path), "text": text} for path, text in unchecked]
        fields = {"source": examined.source, "findings": findings, "said": _said(said), "unchecked": hints}
        print(as_json_text(fields))
        return USAGE if configured is None else OK
    for finding in examined.findings:
        print(printable(told(examined.source, finding)))
    for one in said:
        if not one.effective:
            print(printable(f"{one.key}: no effect: {one.text}"))
    for path, text in unchecked:
        print(printable(f"{spelled(path)}: not checked: {text}"))
    found = counted(len(examined.findings), "finding") if configured is None else "it can be used"
    print(printable(f"{examined.source}: {found}"))
    return USAGE if configured is None else OK


def refused_tiers(tiers: Sequence[Tier], unchecked: list[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    """What keeps a run from opening its tiers, each with its path; nothing is asked of them. `unchecked` takes those
    whose client is not installed here: the run may be elsewhere."""
    seen: dict[str, Tier] = {}
    for number, tier in enumerate(tiers):
        path: Path = ("tiers", number)
        is_of_objects = kind_of(tier.url) == "objects"  # else a class is refused already
        with_class = {"storage_class": tier.storage_class} if tier.storage_class is not None and is_of_objects else {}
        url = absolute(tier.url)
        url = str(Folder(url).resolve()) if kind_of(url) == "folder" else url
        same = next((other for place, other in seen.items() if is_same(place, url)), None)
        if same is not None and same.called != tier.called:  # else they are told apart by their names already
            yield (*path, "url"), f"tiers {same.called} and {tier.called} are the same place: {shown(url)}"
        seen[url] = tier
        try:
            open_store(url, {**tier.options, **with_class})
        except UsageError as error:
            following = "" if error.next_command is None else f"; {error.next_command}"
            if isinstance(error.__cause__, ModuleNotFoundError):
                unchecked.append((path, f"{error.message}{following}"))
            else:
                yield path, f"{error.message}{following}"


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "line": finding.line,
        "key": finding.key,
        "what": finding.what,
        "expected": finding.expected,
        "nearest": finding.nearest,
    }


def _said(said: tuple[Said, ...]) -> list[dict[str, object]]:
    return [{"key": one.key, "effective": one.effective, "text": one.text} for one in said]
