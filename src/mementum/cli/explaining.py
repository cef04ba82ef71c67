"""Explaining: `mementum why`, what made a run save at a step or not, and what was seen there."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.catalog import noted
from mementum.catalog.address import STEP, Address
from mementum.catalog.tasks import TaskHome
from mementum.cli.doubting import doubt_at, doubts, in_words, plan_at, plan_told
from mementum.cli.failing import INTEGRITY, OK
from mementum.cli.listing import state
from mementum.cli.reading import Contents, Held, address_in, find, look, require_readable
from mementum.cli.reasons import Cause, cause_of_fact, cause_of_save, cost_words, silent
from mementum.cli.recalling import (
    ALARM,
    NOTICE,
    REFUSED,
    SKIP,
    Attempt,
    Recollection,
    home_of,
    number,
    ordered,
    recall,
    told,
    warn_of,
)
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, moment, printable
from mementum.cli.tracing import ABSENT, SEEN, fields
from mementum.decide.amounts import seconds
from mementum.errors import NoSuchAddress
from mementum.format import typed_json
from mementum.records import NON_FINITE, Entry, Fact, Health, Vitals, record
from mementum.recover.choose import candidates

INDENT = "  "
SEEN_STEPS = 10  # of vital signs before the decision
NEAR_STEPS = 50  # how far before the step an alarm or a notice may have been to matter to it
NEAR_MAX = 10  # of these, the newest
HEAD = ("step", *(head for head, _, _ in SEEN))
FIRST_TO_TELL = (REFUSED, ALARM, NOTICE, SKIP)  # of several at one step, which one is the cause


@record
class Explanation:
    """`before` and `after` are the steps of the checkpoints next to it, `cost` what the save has cost. `health`: what
    is known of the state of the step, and `doubt` what speaks against it; `kept`: why a checkpoint must stay;
    `rollback`: the newest one that left the step behind, or went back to it."""

    task: str
    step: int
    headline: str
    cause: Cause
    effect: str
    next_command: str
    checkpoint: str | None = None
    cost: Mapping[str, float]
    before: int | None
    after: int | None
    attempt: int | None
    health: Health | None = None
    doubt: str = ""
    kept: str = ""
    rollback: str = ""
    seen: tuple[Vitals, ...] = ()
    near: tuple[Fact, ...] = ()


def why(root: str, address: str, *, as_json: bool) -> int:
    """Print the explanation; the exit code."""
    contents = look(root)
    meant = address_in(contents, address)
    step = _unsaved(contents, meant)
    if step is None:
        held = find(contents, meant)
        require_readable(held)
        recollection = recall(contents, TaskHome(task=held.task, home=held.home))
        explained = _of_checkpoint(root, contents, recollection, held)
    else:
        recollection = recall(contents, home_of(contents, meant.task))
        explained = _of_step(root, contents, recollection, step)
    warn_of(recollection)
    print(rendered(_fields(explained)) if as_json else "\n".join(map(printable, _lines(explained))))
    return INTEGRITY if recollection.damage else OK


def _unsaved(contents: Contents, address: Address) -> int | None:
    """The step that the address names, if no checkpoint is of it."""
    if address.selector is None or not STEP.fullmatch(address.selector):
        return None
    step, home = int(address.selector), home_of(contents, address.task)
    saved = any(held.task == home.task and held.entry.manifest.step == step for held in contents.held)
    return None if saved else step


def _of_checkpoint(root: str, contents: Contents, recollection: Recollection, held: Held) -> Explanation:
    manifest = held.entry.manifest
    one = recollection.attempt(manifest.attempt)
    here = _decisions_at(one, manifest.step)
    before, after = _neighbours(contents, recollection, manifest.step)
    cause = cause_of_save(manifest, here, _since(one, before, manifest.step))
    words = _words(root, f"{held.task}@{manifest.id}")
    if held.damaged is not None:
        effect = f"none to rely on: it is damaged ({held.damaged}), and a resume tries it last"
        next_command = f"mementum verify {words} --deep"
    else:
        kept = {"exact": "a full checkpoint, from which a run resumes bit for bit"}
        word = state(replace(manifest, health=held.entry.health))
        effect = kept.get(word, f"a checkpoint: {word}")
        if held.entry.health is not Health.CLEAN:
            effect += "; a resume prefers one that was saved in good health"
        next_command = f"mementum show {words}"
    headline = (
        f"step {manifest.step} of {held.task} was saved: checkpoint {manifest.id}, "
        f"{moment(manifest.time)} UTC, attempt {manifest.attempt}"
    )
    return Explanation(
        task=held.task,
        step=manifest.step,
        headline=headline,
        cause=cause,
        effect=effect,
        next_command=next_command,
        checkpoint=manifest.id,
        cost=_cost(recollection, manifest.id, manifest.decision),
        before=before,
        after=after,
        attempt=manifest.attempt,
        health=held.entry.health,
        doubt=_doubt_of(recollection, held.entry),
        kept=held.entry.pinned or "",
        rollback=_rollback(recollection, manifest.step),
        seen=_seen(one, manifest.step),
        near=_near(one, manifest.step),
    )


def _of_step(root: str, contents: Contents, recollection: Recollection, step: int) -> Explanation:
    """Of a step of which there is no checkpoint. NoSuchAddress if the task has not come so far."""
    newest = _newest_step(contents, recollection)
    if newest is None or step > newest:
        known = "nothing is recorded of it yet" if newest is None else f"the newest that is known of it is {newest}"
        raise NoSuchAddress(
            f"task {recollection.task!r} has not come to step {step}: {known}", next_command="mementum ls ROOT"
        )
    one = _attempt_at(recollection, step)
    doubt = doubt_at(doubts(recollection), None if one is None else one.number, step)
    before, after = _neighbours(contents, recollection, step)
    span = f"--from {max(0, step - NEAR_STEPS)} --to {step + SEEN_STEPS}"
    trace = f"mementum trace {_words(root, recollection.task)} {span}"
    gone = _removed(recollection, step)
    headline = f"step {step} of {recollection.task} was not saved"
    if gone is not None:
        id, cause = gone
        headline = f"step {step} of {recollection.task} was saved as checkpoint {id}, which is there no more"
    else:
        fact = _decisive(one, step)
        since = _since(one, before, step)
        cause = silent(since) if fact is None else cause_of_fact(fact, step, since)
    return Explanation(
        task=recollection.task,
        step=step,
        headline=headline,
        cause=cause,
        effect=" ".join(filter(None, (cause.effect, _at_risk(step, _back_to(contents, recollection, step), after)))),
        next_command=cause.next_command or trace,
        cost={} if gone is None else _cost(recollection, gone[0], {}),
        before=before,
        after=after,
        attempt=None if one is None else one.number,
        health=None if doubt is None else doubt.health,
        doubt="" if doubt is None else in_words(doubt),
        rollback=_rollback(recollection, step),
        seen=_seen(one, step),
        near=_near(one, step),
    )


def _doubt_of(recollection: Recollection, entry: Entry) -> str:
    """What speaks against the state of a checkpoint: what was told of it last, else what was the matter at its step."""
    if entry.health is Health.CLEAN:
        return ""
    health, name = entry.health.value, entry.manifest.decision.get(NON_FINITE)
    if name is not None:
        return f"{health}: {name} is not finite"
    if entry.judged_why is not None:
        return f"{health}: {entry.judged_why}"
    doubt = doubt_at(doubts(recollection), entry.manifest.attempt, entry.manifest.step)
    return f"{health} when it was saved" if doubt is None else in_words(doubt)


def _rollback(recollection: Recollection, step: int) -> str:
    plan = plan_at(recollection, step)
    return "" if plan is None else plan_told(plan)


def _words(root: str, address: str) -> str:
    return f"{shlex.quote(root)} {shlex.quote(address)}"


def _newest_step(contents: Contents, recollection: Recollection) -> int | None:
    steps = [held.entry.manifest.step for held in contents.held if held.home == recollection.home]
    for one in recollection.attempts:
        steps += [*one.rows, *(fact.step for fact in one.facts if fact.step is not None)]
    return max(steps, default=None)


def _attempt_at(recollection: Recollection, step: int) -> Attempt | None:
    """The newest attempt that has the step's vital signs, else the newest that told anything up to then."""
    newest_first = recollection.attempts[::-1]
    for one in newest_first:
        if step in one.rows:
            return one
    return next((one for one in newest_first if any((fact.step or 0) <= step for fact in one.decisions)), None)


def _neighbours(contents: Contents, recollection: Recollection, step: int) -> tuple[int | None, int | None]:
    steps = {held.entry.manifest.step for held in contents.held if held.home == recollection.home}
    return max((one for one in steps if one < step), default=None), min(
        (one for one in steps if one > step), default=None
    )


def _since(one: Attempt | None, before: int | None, step: int) -> str:
    """How far the step is from the checkpoint before it, in steps and, where both were seen, in seconds."""
    if before is None:
        return f"{counted(step, 'step')} since the beginning, with no checkpoint before"
    words = counted(step - before, "step")
    if one is not None and before in one.rows and step in one.rows:
        words += f" and {seconds(one.rows[step].at_s - one.rows[before].at_s)}"
    return f"{words} since the checkpoint of step {before}"


def _back_to(contents: Contents, recollection: Recollection, step: int) -> int | None:
    """The step of the checkpoint from which a run that ended there would go on: the healthiest comes first."""
    held = [one.entry for one in contents.held if one.home == recollection.home]
    usable = candidates([entry for entry in held if entry.manifest.step < step], inexact=True)
    return usable[0].manifest.step if usable else None


def _at_risk(step: int, back_to: int | None, after: int | None) -> str:
    back = "from its beginning" if back_to is None else f"from step {back_to}"
    lost = step if back_to is None else step - back_to
    follows = "no checkpoint follows yet" if after is None else f"the next checkpoint is of step {after}"
    return f"Had the process ended here, the run would go on {back} and do {counted(lost, 'step')} again; {follows}."


def _decisions_at(one: Attempt | None, step: int) -> list[Fact]:
    return [] if one is None else [fact for fact in one.decisions if fact.step == step]


def _decisive(one: Attempt | None, step: int) -> Fact | None:
    """What was told at the step itself; else the newest reason not to save, which holds until another is told; else
    the newest alarm or notice."""
    if one is None:
        return None
    here = _decisions_at(one, step)
    if here:
        return min(reversed(here), key=lambda fact: FIRST_TO_TELL.index(fact.kind))
    earlier = [fact for fact in ordered(one.decisions) if (fact.step or 0) < step]
    standing = [fact for fact in earlier if fact.kind in (SKIP, REFUSED)]
    return next(iter(reversed(standing or earlier)), None)


def _who(fact: Fact) -> str:
    by = str(fact.values.get("by", noted.POLICY))
    return {noted.POLICY: "retention", noted.AGE: "ageing", noted.ROOM: "the search for room"}.get(by, by)


def _removed(recollection: Recollection, step: int) -> tuple[str, Cause] | None:
    """The id of a checkpoint of the step that was taken away, by whom and why."""
    facts = [fact for one in recollection.attempts for fact in one.facts]
    ids = {fact.checkpoint for fact in facts if fact.kind == "cost" and fact.step == step}
    for fact in sorted((*facts, *recollection.outside), key=lambda fact: fact.time, reverse=True):
        if fact.kind == "removed" and fact.checkpoint is not None and fact.checkpoint in ids:
            reason = str(fact.values.get("reason", "no reason was told"))
            return fact.checkpoint, Cause(
                kind="removed",
                text=f"{_who(fact)} took it away, {moment(fact.time)} UTC: {reason}",
                measured="nothing besides",
                limit="what retention keeps",
            )
    return None


def _cost(recollection: Recollection, id: str, decision: Mapping[str, Any]) -> dict[str, float]:
    known = {"blocked_s": decision["blocked_s"]} if "blocked_s" in decision else {}
    for one in recollection.attempts:
        for fact in one.facts:
            if fact.kind == "cost" and fact.checkpoint == id:
                known |= fact.values
    amounts = {name: number(value) for name, value in known.items()}
    return {name: amount for name, amount in amounts.items() if amount is not None and math.isfinite(amount)}


def _seen(one: Attempt | None, step: int) -> tuple[Vitals, ...]:
    if one is None:
        return ()
    return tuple(one.rows[place] for place in sorted(place for place in one.rows if place <= step)[-SEEN_STEPS:])


def _near(one: Attempt | None, step: int) -> tuple[Fact, ...]:
    if one is None:
        return ()
    near = [fact for fact in (*one.decisions, *one.doubts) if step - NEAR_STEPS <= (fact.step or 0) <= step]
    return tuple(ordered(near)[-NEAR_MAX:])


def _lines(explained: Explanation) -> Iterator[str]:
    yield explained.headline
    pairs = {
        "cause": explained.cause.text,
        "measured": explained.cause.measured,
        "limit": explained.cause.limit,
        "effect": explained.effect,
        "health": explained.doubt,
        "kept": explained.kept,
        "rollback": explained.rollback,
        "cost": cost_words(explained.cost),
        "next": explained.next_command,
    }
    width = max(map(len, pairs))
    yield from (f"{INDENT}{name:<{width}}  {text}" for name, text in pairs.items() if text)
    if explained.seen:
        yield "seen before"
        yield from (INDENT + line for line in _table(explained.seen))
    if explained.near:
        yield "told before"
        yield from (f"{INDENT}step {fact.step}  {fact.kind}: {told(fact)}" for fact in explained.near)


def _table(rows: Sequence[Vitals]) -> list[str]:
    cells = [(str(row.step), *(_cell(getattr(row, name), form) for _, name, form in SEEN)) for row in rows]
    return columns(HEAD, cells, right=frozenset(HEAD))


def _cell(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


def _fields(explained: Explanation) -> dict[str, Any]:
    cause = explained.cause
    return {
        "task": explained.task,
        "step": explained.step,
        "saved": explained.checkpoint is not None,
        "checkpoint": explained.checkpoint,
        "attempt": explained.attempt,
        "kind": cause.kind,
        "cause": cause.text,
        "measured": cause.measured,
        "limit": cause.limit,
        "numbers": typed_json.encode(dict(cause.numbers)),
        "effect": explained.effect,
        "health": None if explained.health is None else explained.health.value,
        "doubt": explained.doubt,
        "kept": explained.kept,
        "rollback": explained.rollback,
        "cost": typed_json.encode(dict(explained.cost)),
        "next": explained.next_command,
        "before": explained.before,
        "after": explained.after,
        "seen": [fields(explained.attempt or 0, row) for row in explained.seen],
        "near": [{"step": fact.step, "kind": fact.kind, "text": told(fact)} for fact in explained.near],
    }
