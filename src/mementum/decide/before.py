"""Saving because somebody has told us that the process will be stopped, or wants a save."""

from __future__ import annotations

from mementum.decide.amounts import seconds
from mementum.decide.standing import deepest_first, ready_s
from mementum.records import Decision, Notice, Reach, Save, Situation, Standing, record

AT_ONCE_S = 120.0  # the longest warning that spot markets give; they take the machine earlier at times
MARGIN = 2.0  # a save beside others that end at the same time may take twice as long as usual
LEFT_S_ASSUMED = 30.0  # after a signal that names no time: what Kubernetes gives unless told otherwise, and Slurm too


@record
class BeforeStop:
    """Save when a notice asks for it: at once if it leaves `at_once_s` or less, or none is known; a later end (wall
    time) is awaited until a save just fits, `margin` times over.

    Notices in a situation are those that no save has answered yet, so none is answered twice. The save gets the
    deepest reach that is durable in time; where none is, the quickest is tried."""

    margin: float = MARGIN
    at_once_s: float = AT_ONCE_S

    def decide(self, situation: Situation) -> Decision | None:
        for notice in situation.notices:
            if not notice.stops:
                return _asked(notice, situation)
            chosen = _fitting(notice, situation)
            needs_s = 0.0 if chosen is None else self.margin * ready_s(chosen) + (situation.step_s or 0.0)
            if notice.left_s is None or notice.left_s <= max(self.at_once_s, needs_s):
                return _save(notice, chosen)
        return None


def _asked(notice: Notice, situation: Situation) -> Save:
    deepest = max((standing.reach for standing in situation.standings), default=Reach.REBOOT)
    return Save(reason=f"{notice.source} asked for a save", reach=deepest, cause="asked")


def _fitting(notice: Notice, situation: Situation) -> Standing | None:
    left_s = LEFT_S_ASSUMED if notice.left_s is None else notice.left_s
    standings = deepest_first(situation)
    for standing in standings:
        if ready_s(standing) <= left_s:
            return standing
    return min(standings, key=ready_s, default=None)


def _save(notice: Notice, chosen: Standing | None) -> Save:
    numbers = {} if notice.left_s is None else {"left_s": notice.left_s}
    said = "how long is left is not known" if notice.left_s is None else f"{seconds(notice.left_s)} left"
    if chosen is None:
        return Save(reason=f"{notice.source}: {said}", numbers=numbers, cause="notice")
    needs_s = ready_s(chosen)
    late = notice.left_s is not None and needs_s > notice.left_s
    tried = ", so it may be too late; tried all the same" if late else ""
    return Save(
        reason=f"{notice.source}: {said}; a save is durable in {seconds(needs_s)}{tried}",
        reach=chosen.reach,
        numbers={**numbers, "durable_s": needs_s},
        cause="notice",
    )
