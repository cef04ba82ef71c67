"""Restoring: everything live is put back to where a checkpoint was taken, or stays as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.background import Lasting
from mementum.catalog.plans import Plan
from mementum.clock import Clock
from mementum.decide.rollback import Course, course_of, in_force
from mementum.errors import CheckpointDamaged, MementumError, StateMismatch
from mementum.events import RolledBack
from mementum.live import feeds, rates, rng
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.live.modules import ModuleState
from mementum.live.optimizers import OptimizerState
from mementum.live.stateful import StatefulState
from mementum.records import Resumed, record
from mementum.resuming import REFUSALS, Found, put_back, versions_that_differ


@record
class Beginning:
    """Where a run begins, or begins again: at nothing, or at what was put back."""

    resumed: Resumed | None = None
    step: int = 0
    rng: Mapping[str, Any] | None = None
    feed: Mapping[str, Any] | None = None
    partial: bool = False  # whether what does not fit is left out
    iterating: bool = False  # whether the data had an iterator when the state was saved
    values: Mapping[str, Any]
    perceived: Mapping[str, Any] | None = None  # what was remembered of the run's vital signs
    course: Course = Course()  # what rollbacks have made of the run
    unscaled_lr: float | None = None  # the first learning rate as it would be, had a rollback not just scaled it


def restore(
    found: Found,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    fit: Fit,
    *,
    began_s: float,
    clock: Clock,
    tier: str,
    plan: Plan | None = None,
    subset: bool = False,
) -> Beginning:
    """Put everything back: objects, the data's place, generators; with a plan, scale the learning rates as it says.
    With `subset` the checkpoint may hold more than is given.

    StateMismatch or CheckpointDamaged if that cannot be; everything live is then as it was before."""
    try:
        beginning = _put_all_back(found, components, feed, lasting, fit, began_s, clock, tier, subset)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as cause:
        if isinstance(cause, MementumError):
            raise
        id = found.loaded.manifest.id
        what = f"it is no context of ours: {type(cause).__name__}: {cause}"
        raise CheckpointDamaged(id, [(f"{found.folder}/context", what)], kept="all live objects") from cause
    return beginning if plan is None else _as_planned(beginning, plan, components, feed)


def _as_planned(
    beginning: Beginning, plan: Plan, components: Sequence[Component], feed: feeds.Feed | None
) -> Beginning:
    """The same, with the detours and the learning rates of a rollback. Data that cannot tell its place is not where
    these were counted from: nothing of it is left out."""
    own = beginning.course
    skips = plan.skips if feed is None or feeds.tells_place(feed) else ()
    course = Course(
        number=plan.number,
        seen=plan.seen,
        back_to=plan.step,
        detours=in_force(own.detours, skips, step=plan.step),
        thrown=own.thrown,
        lr_scale=own.lr_scale * plan.lr_scale,
    )
    unscaled = first_lr(components) if plan.lr_scale != 1 else None
    optimizers = [one.optimizer for one in components if isinstance(one, OptimizerState)]
    rates.scale(optimizers, [one.thing for one in components if isinstance(one, StatefulState)], plan.lr_scale)
    return replace(beginning, course=course, unscaled_lr=unscaled)


def rolled_back(plan: Plan, course: Course) -> RolledBack:
    """What is told of a plan that was done."""
    return RolledBack(
        checkpoint=plan.target,
        step=plan.step,
        from_step=plan.from_step,
        onset=plan.onset,
        skipped=sum(detour.groups for detour in course.detours if detour.at_step > plan.step),
        lr_scale=course.lr_scale,
        number=plan.number,
        why=plan.why,
    )


def drop_gradients(components: Sequence[Component]) -> None:
    """Gradients are in no checkpoint: those that are there are of the state before."""
    for one in components:
        if isinstance(one, ModuleState):
            for parameter in one.module.parameters():
                parameter.grad = None
        if isinstance(one, OptimizerState):
            for group in one.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None


def first_lr(components: Sequence[Component]) -> float | None:
    """The learning rate of the first group of the first optimizer; None where there is none that is a number."""
    for one in components:
        if isinstance(one, OptimizerState):
            lr = one.optimizer.param_groups[0].get("lr")
            return None if lr is None else float(lr)
    return None


def _put_all_back(
    found: Found,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    fit: Fit,
    began_s: float,
    clock: Clock,
    tier: str,
    subset: bool,
) -> Beginning:
    manifest, context = found.loaded.manifest, found.loaded.context
    course = course_of(context.get("rollback"))  # before anything is changed: it may be no context of ours
    if fit.lr_wins == "new":  # the program's rates hold as they are
        course = replace(course, lr_scale=1.0)
    place = context["feed"] if feed is not None else None
    unfit = feeds.check(feed, place) if feed is not None and place is not None else []
    bring_back = feeds.remember(feed) if feed is not None else None
    generators = rng.read()
    try:
        if context["rng"] is not None:
            rng.apply(context["rng"])
        if feed is not None and place is not None and not unfit:
            _move(feed, place, manifest.id)
        result = put_back(found.loaded, components, fit=fit, also=() if fit.partial else unfit, subset=subset)
    except BaseException:
        if bring_back is not None:
            bring_back()
        rng.apply(generators)
        raise
    if context["rng"] is not None:  # again: an object's own load may have drawn from them
        rng.apply(context["rng"])
    resumed = Resumed(
        checkpoint=manifest.id,
        step=manifest.step,
        epoch=manifest.epoch,
        reason=manifest.reason,
        passed_over=found.passed_over,
        tier=tier,
        rung="exact" if not (result.left_out or unfit) else "partial",
        differs=(
            *versions_that_differ(manifest.versions, lasting.versions),
            *rng.inexact(context["rng"]),
            *result.besides,
        ),
        left_out=(*result.left_out, *unfit),
        duration_s=clock.monotonic() - began_s,
    )
    return Beginning(
        resumed=resumed,
        step=manifest.step,
        rng=context["rng"],
        feed=context["feed"],
        iterating=context["iterating"],
        partial=fit.partial,
        values=context["values"],
        perceived=context.get("perceived"),
        course=course,
    )


def _move(feed: feeds.Feed, place: Mapping[str, Any], id: str) -> None:
    try:
        feeds.apply(feed, place)
    except REFUSALS as cause:
        raise StateMismatch(
            id,
            [f"the data refused its place: {type(cause).__name__}: {cause}"],
            kept="the checkpoint and all live objects, as they were",
            next_command="mend load_state_dict of the loader, or give the data that was stored",
        ) from cause
