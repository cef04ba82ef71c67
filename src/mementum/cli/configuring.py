"""Configuring: `mementum config`, which shows, describes and checks configurations."""

from __future__ import annotations

from mementum.cli.failing import OK, USAGE
from mementum.cli.text import as_json as as_json_text
from mementum.cli.text import counted, printable
from mementum.config.loading import examine, load, schema, told
from mementum.config.presets import Said
from mementum.config.reading import Finding
from mementum.config.showing import plain_settings, rendered


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
    examined = examine(source)
    configured = examined.configured
    said = configured.said if configured is not None else ()
    if as_json:
        findings = [_finding(one) for one in examined.findings]
        print(as_json_text({"source": examined.source, "findings": findings, "said": _said(said)}))
        return USAGE if configured is None else OK
    for finding in examined.findings:
        print(printable(told(examined.source, finding)))
    for one in said:
        if not one.effective:
            print(printable(f"{one.key}: no effect: {one.text}"))
    found = counted(len(examined.findings), "finding") if configured is None else "it can be used"
    print(printable(f"{examined.source}: {found}"))
    return USAGE if configured is None else OK


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
