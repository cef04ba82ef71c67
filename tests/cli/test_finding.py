"""The exit code of findings is that of the gravest problem."""

from __future__ import annotations

from mementum.cli.finding import Finding, Severity, exit_code


def test_the_gravest_decides() -> None:
    def problem(kind: str) -> Finding:
        return Finding(severity=Severity.PROBLEM, kind=kind, what="")

    assert exit_code([problem("space"), problem("nothing"), problem("damaged")]) == 3
    assert exit_code([problem("space"), problem("nothing")]) == 4
    assert exit_code([problem("space")]) == 1
    assert exit_code([Finding(severity=Severity.WARNING, kind="damaged", what="")]) == 0
