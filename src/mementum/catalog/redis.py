"""The catalog in Redis: a database that many runs and many people share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import WatchError

from mementum.catalog import facts
from mementum.catalog.branch import Branches
from mementum.catalog.entry import entry_of, manifest_of
from mementum.catalog.redis_keys import (
    BAND_LENGTH,
    DIGITS,
    ID_AT,
    Keys,
    by_step,
    folder_in,
    line_of,
    link_of,
    place_in,
    pointed,
    pointer,
    ranked_as,
    source_in,
    told,
)
from mementum.catalog.redis_server import KEPT, SCHEMA, RedisServer
from mementum.errors import Unreachable
from mementum.format import manifest as manifests
from mementum.records import Entry, Fact, Manifest, Start

T = TypeVar("T")
PREFIX = "mementum"
BATCH = 500  # checkpoints in one transaction: two megabytes, and milliseconds in which nobody else is served
BANDS = 1000  # that are looked at in one question, in milliseconds: the server answers nobody else meanwhile
TRIES = 100  # of a change that others cut across; each time one of them has got through

# Several hashes, then several sets, in one answer: ARGV[1] is how many hashes there are.
READ = """
local found = {}
for n, key in ipairs(KEYS) do
  found[n] = redis.call(n <= tonumber(ARGV[1]) and 'HGETALL' or 'SMEMBERS', key)
end
return found
"""

# Of all up to ARGV[2] the last one whose step is below ARGV[3] (empty: any), with all that is known of it. A band that
# has none is passed over at once; after ARGV[4] of them the answer is nothing, and from where on to look.
BEST = f"""
local max = ARGV[2]
for _ = 1, tonumber(ARGV[4]) do
  local last = redis.call('ZREVRANGEBYLEX', KEYS[1], max, '-', 'LIMIT', 0, 1)[1]
  if not last then return {{}} end
  local band = string.sub(last, 1, {BAND_LENGTH})
  local members = {{last}}
  if ARGV[3] ~= '' then
    local least = redis.call('ZRANGE', ARGV[1] .. ':band:' .. band, 0, 0)[1] or ''
    local early = string.sub(least, 1, {DIGITS}) < ARGV[3]
    members = early and redis.call('ZREVRANGEBYLEX', KEYS[1], max, '[' .. band) or {{}}
  end
  for _, member in ipairs(members) do
    local zero = string.find(member, '\\0', {ID_AT + 1}, true)
    local step = string.sub(member, zero + 1, zero + {DIGITS})
    if ARGV[3] == '' or step < ARGV[3] then
      local id = string.sub(member, {ID_AT + 1}, zero - 1)
      local row = ARGV[1] .. ':row:' .. string.sub(member, zero + 1 + {DIGITS})
      return {{member, redis.call('HGET', row, 'manifest'),
              redis.call('HGETALL', ARGV[1] .. ':of:' .. id), redis.call('HGETALL', ARGV[1] .. ':at:' .. step)}}
    end
  end
  max = '(' .. band
end
return {{'', max}}
"""


class RedisCatalog:
    """A `Catalog`. Safe to use from several threads and processes; every change is whole or not there.

    What the server has lost, all of it, is filled in by the next refresh: it is only a cache."""

    def __init__(self, server: RedisServer, prefix: str = PREFIX) -> None:
        self._server, self._prefix = server, prefix
        self._client = server.client
        server.require_schema(self._schema)

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self.add_all(home, [(manifest, folder)])

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        """In transactions of 500, each whole: one of a hundred thousand would keep all others waiting."""
        keys = self._keys(home)
        every = {folder: (manifest, manifests.render(manifest)) for manifest, folder in found}
        for some in _some(list(every.items())):
            self._change(partial(self._enter, keys=keys, some=some))

    def forget(self, home: str, folder: str) -> None:
        keys = self._keys(home)

        def plan(pipe: Any) -> None:
            pipe.watch(keys.row(folder))
            ((row,), _) = _read(pipe, [keys.row(folder)])
            pipe.multi()
            _drop(pipe, keys, folder, row)

        self._change(plan)

    def learn(self, home: str, source: str, told: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        keys = self._keys(home)
        # A fact takes more than a byte, so that those that follow sort behind it.
        new = [
            (begin + number, place, facts.render(fact))
            for number, fact in enumerate(told)
            for place in keys.places_of(fact, source)
        ]
        return self._change(lambda pipe: self._take_in(pipe, keys, source, new, size=size, begin=begin))

    def read_sizes(self, home: str) -> dict[str, int]:
        with self._server.asked():
            sizes = self._client.hgetall(self._keys(home).sizes)
        return {source.decode(): int(size) for source, size in sizes.items()}

    def entries(self, home: str) -> Sequence[Entry]:
        keys = self._keys(home)
        with self._server.asked():
            folders = [folder.decode() for folder in self._client.smembers(keys.folders)]
            texts = self._each(folders, lambda pipe, folder: pipe.hget(keys.row(folder), "manifest"))
            found = [(folder, manifest_of(text)) for folder, text in zip(folders, texts, strict=True)]
            present = [(folder, manifest) for folder, manifest in found if manifest is not None]
            ids = list({manifest.id for _, manifest in present})
            steps = list({manifest.step for _, manifest in present})
            of = dict(zip(ids, self._each(ids, lambda pipe, id: pipe.hgetall(keys.told_of(id))), strict=True))
            at = dict(zip(steps, self._each(steps, lambda pipe, step: pipe.hgetall(keys.told_at(step))), strict=True))
        branches = Branches(manifest for _, manifest in present)
        entries = [
            entry_of(folder, manifest, _late(at[manifest.step], manifest, branches), told(of[manifest.id]))
            for folder, manifest in present
        ]
        return sorted(entries, key=lambda entry: entry.order)

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        keys = self._keys(home)
        if before_step is not None and before_step <= 0:
            return None  # there is no earlier step
        before = "" if before_step is None else f"{before_step:0{DIGITS}d}"
        end = b"+"
        while True:
            with self._server.asked():
                answer = self._client.eval(BEST, 1, keys.ranked, keys.below, end, before, BANDS)
            if not answer:
                return None
            if not answer[0]:
                end = answer[1]
                continue
            end = b"(" + answer[0]
            manifest = manifest_of(answer[1])
            if manifest is not None:
                late, of = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in (answer[3], answer[2]))
                branches = self._branches_from(keys, manifest.id) if late else Branches(())
                return entry_of(folder_in(answer[0]), manifest, _late(late, manifest, branches), told(of))

    def begin(self, home: str, start: Start) -> None:
        keys = self._keys(home)
        known = {"time": start.time, "host": start.host, "pid": start.pid, "came_from": start.came_from}
        self._change(lambda pipe: self._enter_start(pipe, keys, start.number, json.dumps(known)))

    def starts(self, home: str) -> Sequence[Start]:
        keys = self._keys(home)
        with self._server.asked():
            (found, outcomes), _ = _read(self._client, [keys.starts, keys.outcomes])
        said: dict[int | None, dict[bytes, bytes]] = {}
        for field, line in outcomes.items():
            said.setdefault(facts.attempt_of(source_in(field)), {})[field] = line
        starts = [_start(int(number), known, told(said.get(int(number), {}))) for number, known in found.items()]
        return sorted(starts, key=lambda start: start.number)

    def homes(self) -> tuple[str, ...]:
        with self._server.asked():
            named = [home.decode() for home in self._client.smembers(self._homes)]

            def ask(pipe: Any, home: str) -> None:
                keys = self._keys(home)
                pipe.exists(keys.folders, keys.sizes, keys.starts)

            known = self._each(named, ask)
        return tuple(sorted(home for home, held in zip(named, known, strict=True) if held))

    def close(self) -> None:
        self._server.close()

    @property
    def _schema(self) -> str:
        return f"{self._prefix}:schema"

    @property
    def _homes(self) -> str:
        return f"{self._prefix}:homes"

    def _keys(self, home: str) -> Keys:
        return Keys(prefix=f"{self._prefix}:home", home=home)

    def _each(self, every: Sequence[Any], ask: Callable[[Any, Any], object]) -> list[Any]:
        """One question for each, many on the way at a time."""
        answers: list[Any] = []
        for some in _some(every):
            with self._client.pipeline(transaction=False) as pipe:
                for one in some:
                    ask(pipe, one)
                answers += pipe.execute()
        return answers

    def _change(self, plan: Callable[[Any], T]) -> T:
        """Read, then change what was read only if it is still so; else again. What the plan has found."""
        for _ in range(TRIES):
            with self._server.asked(), self._client.pipeline() as pipe:
                try:
                    found = plan(pipe)
                    pipe.set(self._schema, SCHEMA, nx=True)  # the server may have lost all since we looked
                    pipe.execute()
                    return found
                except WatchError:
                    continue
        raise Unreachable(
            self._server.name,
            f"{self._server.name}: others have changed the same entries {TRIES} times meanwhile",
            kept=KEPT,
            next_command="look whether two processes enter the same task without end",
        )

    def _enter(self, pipe: Any, *, keys: Keys, some: Sequence[tuple[str, tuple[Manifest, bytes]]]) -> None:
        rows = [keys.row(folder) for folder, _ in some]
        of = [keys.told_of(manifest.id) for _, (manifest, _) in some]
        pipe.watch(*rows, *of)
        hashes, _ = _read(pipe, [*rows, *of])
        pipe.multi()
        before, known = hashes[: len(some)], hashes[len(some) :]
        for (folder, (manifest, text)), old, said in zip(some, before, known, strict=True):
            _drop(pipe, keys, folder, old)
            ranked = ranked_as(entry_of(folder, manifest, (), told(said))) or ""
            line = line_of(manifest, folder)
            row = {"manifest": text, "id": manifest.id, "line": line, "ranked": ranked}
            pipe.hset(keys.row(folder), mapping=row)
            pipe.sadd(keys.folders, folder)
            pipe.sadd(keys.folders_of(manifest.id), folder)  # whoever learns of it meanwhile begins again
            pipe.zadd(keys.lines, {line: 0})
            _place(pipe, keys, ranked)
        pipe.sadd(self._homes, keys.home)

    def _take_in(
        self, pipe: Any, keys: Keys, source: str, new: Sequence[tuple[int, str, bytes]], *, size: int, begin: int
    ) -> int:
        """Facts to take in are number, hash and line of each. What checkpoints are worth by them is told anew. How much
        of the source is known then."""
        pipe.watch(keys.said(source))
        if begin:  # it must be known up to there when this takes effect
            pipe.watch(keys.sizes)
            before = int(pipe.hget(keys.sizes, source) or 0)
            if before < begin:
                pipe.multi()
                return before
        old = [pointed(member) for member in pipe.zrangebyscore(keys.said(source), begin, "+inf")]
        ids = keys.ids_in([*(place for _, place in old), *(place for _, place, _ in new)])
        known, folders = self._watched(pipe, [keys.told_of(id) for id in ids], [keys.folders_of(id) for id in ids])
        every = [folder.decode() for folder in chain.from_iterable(folders)]
        rows, _ = self._watched(pipe, [keys.row(folder) for folder in every], [])
        hashes = {keys.told_of(id): said for id, said in zip(ids, known, strict=True)}
        pipe.multi()
        for number, place in old:
            hashes.get(place, {}).pop(place_in(source, number).encode(), None)
            pipe.hdel(place, place_in(source, number))
        pipe.zremrangebyscore(keys.said(source), begin, "+inf")
        for number, place, line in new:
            if place in hashes:
                hashes[place][place_in(source, number).encode()] = line
            pipe.hset(place, place_in(source, number), line)
            pipe.zadd(keys.said(source), {pointer(number, place): number})
        for folder, row in zip(every, rows, strict=True):
            _rank_again(pipe, keys, folder, row, hashes)
        pipe.hset(keys.sizes, source, size)
        pipe.sadd(self._homes, keys.home)
        return size

    def _watched(
        self, pipe: Any, hashes: Sequence[str], sets: Sequence[str]
    ) -> tuple[list[dict[bytes, bytes]], list[list[bytes]]]:
        if not hashes and not sets:
            return [], []
        pipe.watch(*hashes, *sets)
        return _read(pipe, hashes, sets)

    def _enter_start(self, pipe: Any, keys: Keys, number: int, known: str) -> None:
        pipe.multi()
        pipe.hset(keys.starts, number, known)
        pipe.sadd(self._homes, keys.home)

    def _branches_from(self, keys: Keys, id: str) -> Branches:
        """Where those checkpoints come from that are not older than `id`: no more is needed to tell what is of it."""
        with self._server.asked():
            lines = self._client.zrangebylex(keys.lines, f"[{id}\0", "+")
        return Branches(map(link_of, lines))


def _some(every: Sequence[T]) -> Iterator[Sequence[T]]:
    return (every[begin : begin + BATCH] for begin in range(0, len(every), BATCH))


def _read(
    client: Any, hashes: Sequence[str], sets: Sequence[str] = ()
) -> tuple[list[dict[bytes, bytes]], list[list[bytes]]]:
    """What hashes and sets hold, at one moment."""
    found = client.eval(READ, len(hashes) + len(sets), *hashes, *sets, len(hashes))
    flat, members = found[: len(hashes)], found[len(hashes) :]
    return [dict(zip(one[::2], one[1::2], strict=True)) for one in flat], members


def _drop(pipe: Any, keys: Keys, folder: str, row: Mapping[bytes, bytes]) -> None:
    if not row:
        return
    pipe.delete(keys.row(folder))
    pipe.srem(keys.folders, folder)
    pipe.srem(keys.folders_of(row[b"id"].decode()), folder)
    pipe.zrem(keys.lines, row[b"line"])
    _displace(pipe, keys, row[b"ranked"].decode())


def _place(pipe: Any, keys: Keys, ranked: str) -> None:
    if ranked:
        pipe.zadd(keys.ranked, {ranked: 0})
        pipe.zadd(keys.band(ranked), {by_step(ranked): 0})


def _displace(pipe: Any, keys: Keys, ranked: str) -> None:
    if ranked:
        pipe.zrem(keys.ranked, ranked)
        pipe.zrem(keys.band(ranked), by_step(ranked))


def _rank_again(
    pipe: Any, keys: Keys, folder: str, row: Mapping[bytes, bytes], hashes: Mapping[str, Mapping[bytes, bytes]]
) -> None:
    """Let a checkpoint stand where it belongs by what is known of it now."""
    manifest = manifest_of(row.get(b"manifest", b""))
    if manifest is None:
        return
    ranked = ranked_as(entry_of(folder, manifest, (), told(hashes[keys.told_of(manifest.id)]))) or ""
    if ranked.encode() == row[b"ranked"]:
        return
    _displace(pipe, keys, row[b"ranked"].decode())
    _place(pipe, keys, ranked)
    pipe.hset(keys.row(folder), "ranked", ranked)


def _late(found: Mapping[bytes, bytes], manifest: Manifest, branches: Branches) -> list[Fact]:
    return [fact for fact in told(found) if branches.holds(fact, manifest.id)]


def _start(number: int, known: bytes, said: Sequence[Fact]) -> Start:
    outcome = facts.outcome(said)
    start = Start(number=number, **json.loads(known))
    return replace(start, came_from=start.came_from or outcome.came_from, ended=outcome.ended)


def open_redis(url: str, prefix: str = PREFIX) -> RedisCatalog:
    """The catalog in the database at `redis://user:password@host:6379/0`, below `prefix`."""
    return RedisCatalog(RedisServer(url), prefix)
