"""Calibration: what the chance that an alarm claims has turned out to be worth."""

from __future__ import annotations

from collections.abc import Mapping

from mementum.records import Trouble, record

CLAIM_ALARMS = 4.0  # as many alarms of its kind as a claim counts for: four that were wrong halve it


@record
class Seen:
    """How many alarms of one trouble were raised, and after how many the process ended within their horizon."""

    raised: int = 0
    right: int = 0


class Calibration:
    """Believes alarms by how often those of their trouble were right.

    The chance that the process ends within the horizon is Beta distributed: the claim counts for CLAIM_ALARMS alarms,
    beside those that were raised. What would come in that time without any alarm is taken off, so that alarms that
    know nothing come to weigh nothing. Alarms of one trouble within the horizon of another are one warning: where
    memory grows towards its limit, the last, which claims most, counts instead of those before it; an alarm that rings
    again and claims no more adds nothing, else one that rings all the time would always be right in the end.

    `seen` are the counts of the attempts before this one. An alarm of this attempt was wrong once its horizon has
    passed: the process is still there."""

    def __init__(self, seen: Mapping[Trouble, Seen] | None = None) -> None:
        self._seen = dict(seen or {})
        self._undecided: dict[Trouble, tuple[float, float]] = {}  # when it will have been wrong, and what it claimed

    def chance(self, trouble: Trouble, claimed: float, *, horizon_s: float, rate: float) -> float:
        """The excess probability, 0 to 1, that the process ends within `horizon_s` of an alarm that claims so much.

        `rate`: of the failures, a second, that come without any sign. A claim of 0 stays 0."""
        if not 0.0 < claimed <= 1.0:
            return 0.0
        seen = self._seen.get(trouble, Seen())
        right = (claimed * CLAIM_ALARMS + seen.right) / (CLAIM_ALARMS + seen.raised)
        return min(1.0, max(0.0, right - max(0.0, rate) * max(0.0, horizon_s)))

    def raised(self, trouble: Trouble, claimed: float, *, at_s: float, horizon_s: float) -> None:
        """An alarm was raised. Times are seconds since the attempt began, and those that have `passed` come first."""
        before = self._undecided.get(trouble)
        if before is None or claimed > before[1]:
            self._undecided[trouble] = (at_s + max(0.0, horizon_s), claimed)

    def passed(self, at_s: float) -> None:
        """The process is alive at that time."""
        for trouble in [one for one, (until_s, _) in self._undecided.items() if until_s < at_s]:
            del self._undecided[trouble]
            seen = self._seen.get(trouble, Seen())
            self._seen[trouble] = Seen(raised=seen.raised + 1, right=seen.right)
