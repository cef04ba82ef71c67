"""Recalling: what the attempts of a task have recorded of themselves, vital signs and facts, by attempt and step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mementum.catalog import facts, plans
from mementum.catalog.address import SHOWN_MAX
from mementum.catalog.plans import Plan
from mementum.catalog.tasks import TaskHome
from mementum.cli.failing import warn
from mementum.cli.reading import Contents
from mementum.decide.amounts import seconds, share
from mementum.errors import MementumError, NewerFormat, UsageError
from mementum.format import vitals
from mementum.records import Damage, Fact, Health, Vitals, record
from mementum.rooting import part_of
from mementum.storage.store import Store

ALARM, REFUSED, NOTICE, SKIP = "alarm", "refused", "notice", "skip"
DECISIONS = frozenset({ALARM, REFUSED, NOTICE, SKIP})  # kinds of facts that tell of a decision that was no save
DIAGNOSIS, PIN = "diagnosis", "pin"


@record
class Attempt:
    """What one process start has recorded: rows by step, and facts in the order in which they became known."""

    number: int
    rows: Mapping[int, Vitals]
    facts: tuple[Fact, ...]

    @property
    def decisions(self) -> tuple[Fact, ...]:
        return tuple(fact for fact in self.facts if fact.kind in DECISIONS and fact.step is not None)

    @property
    def doubts(self) -> tuple[Fact, ...]:
        """What was told of the state's health, and what was kept for it. A pin is of the step at which it was told."""
        found: list[Fact] = []
        step: int | None = None
        for fact in self.facts:
            step = fact.step if fact.kind == DIAGNOSIS and fact.step is not None else step
            if fact.kind in (DIAGNOSIS, PIN) and step is not None:
                found.append(replace(fact, step=step))
        return tuple(found)


@record
class Recollection:
    """All of a task, the oldest attempt first, and its rollbacks, done or not. `damage` is what could not be read, with
    keys relative to the root."""

    task: str
    home: str
    attempts: tuple[Attempt, ...]
    plans: tuple[Plan, ...] = ()
    outside: tuple[Fact, ...] = ()  # what people and commands have told, the oldest first
    damage: tuple[Damage, ...]
    torn: tuple[str, ...]

    def attempt(self, number: int) -> Attempt | None:
        return next((one for one in self.attempts if one.number == number), None)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Every step with the number of the newest attempt that has its vital signs, in the order of the steps."""
        newest: dict[int, int] = {}
        for one in self.attempts:
            newest.update(dict.fromkeys(one.rows, one.number))
        return sorted(newest.items())

    def row(self, step: int, number: int) -> tuple[int, Vitals]:
        """An attempt's number and its row of a step that it has."""
        return number, next(one.rows[step] for one in self.attempts if one.number == number)


def home_of(contents: Contents, task: str | None) -> TaskHome:
    """The folder of the task that is meant. UsageError where none is named and there are several."""
    if task is not None:
        return contents.of(task).homes[0]
    names = sorted(set(contents.tasks))
    if len(names) > 1:
        more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
        raise UsageError(
            f"there are {len(names)} tasks and none is named: {', '.join(map(repr, names[:SHOWN_MAX]))}{more}",
            next_command="name one of them after ROOT",
        )
    return contents.homes[0]


def recall(contents: Contents, home: TaskHome, *, first: int = 0, last: int = vitals.STEP_MAX) -> Recollection:
    """Vital signs of the steps from `first` to `last`, and all facts."""
    store = part_of(contents.root, home.home)
    rows: dict[int, Mapping[int, Vitals]] = {}
    told: dict[int, tuple[Fact, ...]] = {}
    damage: list[Damage] = []
    torn: list[str] = []
    for key in _keys(store, "vitals/"):
        number = vitals.attempt_of(key)
        if number is None:
            continue
        name = f"{home.home}/{key}"
        try:
            recorded = vitals.parse(store.get(key), name, first=first, last=last)
        except MementumError as error:
            damage.append(Damage(key=name, what=_with_advice(error)))
            continue
        rows[number] = recorded.rows
        damage += recorded.damage
        if recorded.torn:
            torn.append(name)
    for number, keys in journals(store).items():
        try:
            told[number] = facts_in(store, keys)
        except MementumError as error:
            damage.append(Damage(key=f"{home.home}/{keys[0]}", what=error.message))
    outside: list[Fact] = []
    for key in _keys(store, plans.FOLDER):
        try:
            outside += facts.parse(store.get(key))
        except MementumError as error:
            damage.append(Damage(key=f"{home.home}/{key}", what=error.message))
    attempts = tuple(
        Attempt(number=number, rows=rows.get(number, {}), facts=told.get(number, ()))
        for number in sorted(rows.keys() | told.keys())
    )
    return Recollection(
        task=home.task,
        home=home.home,
        attempts=attempts,
        plans=_plans(store, damage),
        outside=tuple(outside),
        damage=tuple(damage),
        torn=tuple(torn),
    )


def journals(store: Store) -> dict[int, tuple[str, ...]]:
    """The keys of each attempt's journal, by the attempt's number: its own, or on a tier those of its parts."""
    found: dict[int, dict[int, str]] = {}
    whole: dict[int, str] = {}
    for key in _keys(store, "journal/"):
        match = facts.JOURNAL.fullmatch(key)
        if match is not None and match[2] is None:
            whole[int(match[1])] = key
        elif match is not None:
            found.setdefault(int(match[1]), {})[int(match[2])] = key
    parts = {number: tuple(key for _, key in sorted(some.items())) for number, some in found.items()}
    return {**parts, **{number: (key,) for number, key in whole.items()}}


def facts_in(store: Store, keys: Sequence[str]) -> tuple[Fact, ...]:
    """What a journal says that lies under these keys."""
    return facts.parse(b"".join(bytes(store.get(key)) for key in keys))


def _plans(store: Store, damage: list[Damage]) -> tuple[Plan, ...]:
    """All rollbacks but those that were taken back before a start did them."""
    try:
        told = plans.plans(store)
    except MementumError as error:
        damage.append(Damage(key=plans.FOLDER, what=error.message))
        return ()
    kept: list[Plan] = []
    for one in told:
        if isinstance(one, Plan):
            kept.append(one)
        else:
            last = next((plan for plan in reversed(kept) if plan.by_hand is one.by_hand), None)
            kept = [plan for plan in kept if plan is not last]
    return tuple(kept)


def _keys(store: Store, prefix: str) -> Iterator[str]:
    return (stat.key for stat in store.list(prefix))


def _with_advice(error: MementumError) -> str:
    return f"{error.message} (next: {error.next_command})" if isinstance(error, NewerFormat) else error.message


def warn_of(recollection: Recollection) -> None:
    """On stderr: what could not be read, and where a kill has cut a file short."""
    for damage in recollection.damage:
        warn(f"warning: {damage.key}: {damage.what}")
    for name in recollection.torn:
        warn(f"warning: {name} ends in the midst of a write, as after a kill: its last second or so is not there")


def number(value: object) -> float | None:
    """A fact's value as a number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a journal holds whole numbers of any size
        return None


def told(fact: Fact) -> str:
    """What a fact says of a decision, in one line."""
    values = fact.values
    match fact.kind:
        case "alarm":
            text = f"{values.get('trouble', 'trouble')}: {values.get('text', 'no text')}"
            chance = number(values.get("chance"))
            return f"{text} (chance that it ends the process: {share(chance)})" if chance else text
        case "notice":
            left = number(values.get("left_s"))
            when = "how long is left is not known" if left is None else f"{seconds(left)} left"
            return f"{values.get('source', 'unknown source')}, {when}"
        case "diagnosis":
            health, why = health_told(fact), str(values.get("why") or "")
            if health is Health.CLEAN:
                return f"the state is clean again{f': {why}' if why else ''}"
            return f"{health.value} from step {values.get('onset', fact.step)} on: {why or 'no reason was told'}"
        case "pin":
            by = f" ({values['by']})" if values.get("by") else ""
            return f"checkpoint {fact.checkpoint} stays: {values.get('why') or 'no reason was told'}{by}"
        case _:
            return str(values.get("reason", "no reason was told"))


def health_told(fact: Fact) -> Health:
    """What a diagnosis says; one that nobody understands is of no good health."""
    try:
        return Health(str(fact.values.get("health")))
    except ValueError:
        return Health.SUSPECT


def ordered(entries: Iterable[Fact]) -> list[Fact]:
    """By step, and within a step as they became known."""
    return sorted(entries, key=lambda fact: fact.step or 0)
