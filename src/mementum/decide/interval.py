"""Saving at fixed intervals: of steps, of seconds, or at the end of every epoch."""

from __future__ import annotations

from mementum.records import Decision, Granularity, Save, Situation, record


@record
class EverySteps:
    """Save when `steps` steps were done since the last save."""

    steps: int
    granularity: Granularity = Granularity.FULL

    def decide(self, situation: Situation) -> Decision | None:
        if situation.since_save_steps < self.steps:
            return None
        return Save(
            reason=f"{situation.since_save_steps} steps since the last save, interval {self.steps}",
            granularity=self.granularity,
            numbers={"interval_steps": self.steps},
        )


@record
class EverySeconds:
    """Save when `seconds` have passed since the last save."""

    seconds: float
    granularity: Granularity = Granularity.FULL

    def decide(self, situation: Situation) -> Decision | None:
        if situation.since_save_s < self.seconds:
            return None
        return Save(
            reason=f"{situation.since_save_s:.0f} s since the last save, interval {self.seconds:g} s",
            granularity=self.granularity,
            numbers={"interval_s": self.seconds},
        )


@record
class EveryEpoch:
    """Save after the last step of every `every`th epoch, where the data can tell it."""

    every: int = 1
    granularity: Granularity = Granularity.FULL

    def decide(self, situation: Situation) -> Decision | None:
        if not situation.ends_epoch or (situation.epoch + 1) % self.every:
            return None
        return Save(reason=f"the end of epoch {situation.epoch}", granularity=self.granularity, cause="epoch")
