"""Weighing: `mementum du`, how many bytes lie where, and what could be freed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mementum.catalog.tasks import TaskHome
from mementum.cli.counting import KINDS, Count, count, freed, pieces
from mementum.cli.failing import NOTHING, OK, warn
from mementum.cli.reading import Contents, Held, look
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable, size
from mementum.config.settings import KEEP_LAST, KEEP_SPREAD
from mementum.decide.retain import Retention, retain
from mementum.records import record
from mementum.rooting import part_of

if TYPE_CHECKING:
    from rich.text import Text

BAR = 30  # characters of the longest bar
FULL, PLAIN = "█", "#"  # the second where the terminal's encoding lacks the first
USUAL = Retention(last=KEEP_LAST, spread=KEEP_SPREAD, best=1)  # what a run keeps where nobody has said anything
COLOURS = {"weights": "cyan", "optimizer": "blue", "context": "magenta", "records": "white", "left over": "yellow"}


@record
class Copies:
    """What lies on a tier, as facts say."""

    tier: str
    checkpoints: int
    size: int


@record
class Weight:
    """A task. `frees`: bytes that the usual retention would free, by removing so many checkpoints."""

    task: str
    home: str
    counted: Count
    tiers: tuple[Copies, ...]
    removes: int
    frees: int


@record
class Line:
    """A line of the answer: a name, bytes, and a word on them."""

    name: str
    size: int
    told: str = ""
    kind: str = ""


def du(root: str, task: str | None, *, as_json: bool) -> int:
    """Print how many bytes lie where; the exit code."""
    contents = look(root)
    if task is not None:
        contents = contents.of(task)
    for damage in contents.unreadable:
        warn(f"warning: {damage.key}: {damage.what}")
    weights = sorted((_weigh(contents, home) for home in contents.homes), key=lambda one: -one.counted.size)
    if as_json:
        print(rendered({"root": contents.root.name, "tasks": [_fields(one) for one in weights]}))
    else:
        _print(weights)
    return OK if any(one.counted.checkpoints for one in weights) else NOTHING


def _weigh(contents: Contents, home: TaskHome) -> Weight:
    held = contents.of_home(home)
    entries = [one.entry for one in held]
    found = pieces(part_of(contents.root, home.home))
    verdicts = retain(entries, USUAL)
    return Weight(
        task=home.task,
        home=home.home,
        counted=count(entries, found),
        tiers=_copies(held),
        removes=sum(not verdict.keep for verdict in verdicts),
        frees=freed(entries, verdicts, found),
    )


def _copies(held: Sequence[Held]) -> tuple[Copies, ...]:
    sizes: dict[str, list[int]] = {}
    for one in held:
        for place in one.entry.places:
            sizes.setdefault(place.tier, []).append(place.size)
    return tuple(Copies(tier=tier, checkpoints=len(some), size=sum(some)) for tier, some in sorted(sizes.items()))


def _lines(weights: Sequence[Weight]) -> Iterator[Line]:
    for one in weights:
        bytes_ = one.counted
        yield Line(name=one.task, size=bytes_.size, told=counted(bytes_.checkpoints, "checkpoint"))
        for kind in KINDS:
            if bytes_.kinds[kind]:
                yield Line(name=f"  {kind}", size=bytes_.kinds[kind], kind=kind)
        for copies in one.tiers:
            told = f"{counted(copies.checkpoints, 'checkpoint')} there, not counted above"
            yield Line(name=f"  tier {copies.tier}", size=copies.size, told=told, kind="tier")


def _ends(weights: Sequence[Weight]) -> Iterator[str]:
    total, disks = sum(one.counted.size for one in weights), [one.counted.disk for one in weights]
    disk = "" if any(one is None for one in disks) else f", {size(sum(one or 0 for one in disks))} on the disk"
    checkpoints = counted(sum(one.counted.checkpoints for one in weights), "checkpoint")
    yield f"{counted(len(weights), 'task')}, {checkpoints}, {size(total)}{disk}"
    saved = sum(one.counted.named - one.counted.named_once for one in weights)
    if saved:
        yield f"{size(saved)} more if checkpoints did not share files"
    removes, frees = sum(one.removes for one in weights), sum(one.frees for one in weights)
    kept = f"the newest {KEEP_LAST}, {KEEP_SPREAD} older ones further and further back, the best"
    if removes:
        yield f"retention as it comes ({kept}) would free {size(frees)}: {counted(removes, 'checkpoint')}"
    else:
        yield f"retention as it comes ({kept}) would free nothing"


def _print(weights: Sequence[Weight]) -> None:
    lines = list(_lines(weights))
    width = max((len(printable(line.name)) for line in lines), default=0)
    sizes = max((len(size(line.size)) for line in lines), default=0)
    longest = max((line.size for line in lines), default=0)
    drawn = FULL if _shows(FULL) else PLAIN
    rows = [
        (
            f"{printable(line.name):<{width}}  {size(line.size):>{sizes}}  ",
            drawn * round(BAR * line.size / longest) if longest else "",
            line,
        )
        for line in lines
    ]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for text, bar, line in rows:
            console.print(_coloured(Text(text), bar, line), soft_wrap=True)
    else:
        for text, bar, line in rows:
            print(f"{text}{bar:<{BAR}}  {line.told}".rstrip())
    for text in _ends(weights):
        print(text)


def _coloured(text: Text, bar: str, line: Line) -> Text:
    """A task's own line is bold, and its parts have a colour each."""
    if not line.kind:
        text.stylize("bold")
    text.append(f"{bar:<{BAR}}", style=COLOURS.get(line.kind, "green"))
    return text.append(f"  {line.told}", style="dim")


def _shows(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _fields(one: Weight) -> dict[str, Any]:
    bytes_ = one.counted
    return {
        "task": one.task,
        "folder": one.home,
        "checkpoints": bytes_.checkpoints,
        "size": bytes_.size,
        "disk": bytes_.disk,
        "kinds": dict(bytes_.kinds),
        "shared": bytes_.named - bytes_.named_once,
        "tiers": [{"tier": of.tier, "checkpoints": of.checkpoints, "size": of.size} for of in one.tiers],
        "retention": {"removes": one.removes, "frees": one.frees},
    }
