"""Rollback: to which checkpoint a run that has diverged goes back, which batches it leaves out, when it gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mementum.errors import UnknownFormat
from mementum.records import Detour, Diagnosis, Entry, Granularity, Health, record


@record
class Course:
    """What rollbacks have made of a run so far. `number`: how many the last trouble took, which was seen at step
    `seen`; the last of them went back to step `back_to`. `detours`: all of them, those that are behind the run too,
    for a later rollback may go back behind them. `thrown`: so many groups of the one before the next step are thrown
    away already. The learning rates are `lr_scale` times those of the program."""

    number: int = 0
    seen: int | None = None
    back_to: int | None = None
    detours: tuple[Detour, ...] = ()
    thrown: int = 0
    lr_scale: float = 1.0


@record
class Retreat:
    """Go back to `entry`. `course` is the run's from there on, but for the learning rates."""

    entry: Entry
    course: Course
    reason: str


@record
class Halt:
    """There is no going back: `reason` says why. `kept` is the newest checkpoint that can be trusted, if any."""

    reason: str
    kept: Entry | None


def roll_back(
    diagnosis: Diagnosis, lineage: Sequence[Entry], course: Course, *, step: int, limit: int, skip: bool
) -> Retreat | Halt:
    """The next step down the ladder. `lineage`: checkpoints of this branch of the run, newest first. `step`: where the
    run is.

    The first rollback of a trouble goes to the newest checkpoint that is exact, clean, whole and from before the onset,
    and each further one to one that is older still. Where there is no older one the oldest has to do: what is skipped
    from there is another stretch than before: the first time it ends with the step at which the trouble was seen, from
    then on with the present one, since bad data may go on for longer than it takes to be seen. A trouble is the same
    one until `diagnosis.hold` steps after the step at which the last one was seen have gone well."""
    assert diagnosis.onset is not None
    seen = diagnosis.onset if diagnosis.seen is None else diagnosis.seen
    found = trusted(lineage, diagnosis)
    if not found:
        return Halt(reason=f"no clean checkpoint is from before step {diagnosis.onset}", kept=None)
    again = is_same(diagnosis, course)
    number = course.number + 1 if again else 1
    if number > limit:
        return Halt(
            reason=f"{course.number} rollbacks have not ended the trouble, and {limit} is the limit", kept=found[0]
        )
    bound = course.back_to if again else None
    target = found[0] if bound is None else next((one for one in found if one.manifest.step < bound), found[-1])
    back_to = target.manifest.step
    last = seen if number == 1 else max(seen, step)
    detours = detours_after(course.detours, first=diagnosis.onset, last=last) if skip else course.detours
    left_out = f", without the batches of steps {diagnosis.onset} to {last}" if skip else ""
    return Retreat(
        entry=target,
        course=Course(number=number, seen=seen, back_to=back_to, detours=detours, lr_scale=course.lr_scale),
        reason=f"{diagnosis.why or 'it has diverged'}: back to step {back_to}{left_out} (rollback {number} of {limit})",
    )


def trusted(lineage: Sequence[Entry], diagnosis: Diagnosis) -> tuple[Entry, ...]:
    """Those that a rollback may go to, newest first: exact, clean, from before the onset, and not known as damaged."""
    onset = diagnosis.onset
    return tuple(
        entry
        for entry in lineage
        if entry.manifest.granularity is Granularity.FULL
        and entry.damaged is None
        and entry.health is Health.CLEAN
        and (onset is None or entry.manifest.step < onset)
    )


def is_same(diagnosis: Diagnosis, course: Course) -> bool:
    """Whether a trouble is taken for the one that the last rollback was for."""
    if course.seen is None or diagnosis.onset is None:
        return False
    return diagnosis.onset <= course.seen + diagnosis.hold


def detours_after(detours: Sequence[Detour], *, first: int, last: int) -> tuple[Detour, ...]:
    """The detours that also leave out what steps `first` to `last` took, both included, the run going back to before
    `first`. Steps are numbered as they were; from `first` on they take what the steps after `last` would have taken.

    What lay between those steps is left out with them. A detour that was still ahead stays at the same batches, whose
    steps now come earlier."""
    gone = last - first + 1
    before = [one for one in detours if one.at_step < first]
    within = sum(one.groups for one in detours if first <= one.at_step <= last)
    # One right after the last step is at the same place as the new one.
    ahead = [Detour(at_step=one.at_step - gone, groups=one.groups) for one in detours if one.at_step > last]
    joined = sum(one.groups for one in ahead if one.at_step == first)
    later = [one for one in ahead if one.at_step > first]
    return (*before, Detour(at_step=first, groups=gone + within + joined), *later)


def groups_before(detours: Sequence[Detour], step: int) -> int:
    """How many groups of batches are thrown away before those of `step` are taken."""
    return sum(one.groups for one in detours if one.at_step == step)


def in_force(own: Sequence[Detour], planned: Sequence[Detour], *, step: int) -> tuple[Detour, ...]:
    """Detours after going back to a checkpoint of `step`: its own as far as it had come, then those of the plan."""
    return (
        *(one for one in own if one.at_step <= step),
        *(one for one in planned if one.at_step > step),
    )


def plain(course: Course) -> dict[str, Any]:
    """As it stands in a checkpoint's context."""
    return {
        "number": course.number,
        "seen": course.seen,
        "back_to": course.back_to,
        "detours": [[one.at_step, one.groups] for one in course.detours],
        "thrown": course.thrown,
        "lr_scale": course.lr_scale,
    }


def course_of(stored: Mapping[str, Any] | None) -> Course:
    """The course that a context tells, an untroubled one where it tells none. UnknownFormat if it is none of ours."""
    if stored is None:
        return Course()
    try:
        return Course(
            number=stored["number"],
            seen=stored["seen"],
            back_to=stored["back_to"],
            detours=tuple(Detour(at_step=at_step, groups=groups) for at_step, groups in stored["detours"]),
            thrown=stored["thrown"],
            lr_scale=stored["lr_scale"],
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise UnknownFormat(f"what a checkpoint says of rollbacks is not what mementum writes: {cause!r}") from cause
