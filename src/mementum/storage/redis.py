"""A store in a Redis, for small objects: contexts, manifests, indexes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable, UsageError
from mementum.masking import shown
from mementum.storage.keys import check_key, check_prefix, check_range
from mementum.storage.store import Buffer, Stat
from mementum.storage.tiers import NAMESPACE, REDIS_PORT
from mementum.storage.unsure import Unsure

OBJECT_SIZE_MAX = (
    64 << 20
)  # bytes: a Redis does one thing at a time, and moves this much in some hundredths of a second
PAGE = 1000  # keys or folders that are asked for at once, so that others are not kept waiting
CONNECT_S = 5
ANSWER_S = 30  # for 64 MiB over a slow network
WAIT_MS = 5_000  # for replicas, where the options ask for them
OPTIONS = frozenset({"replicas", "username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
FULL = "OOM command not allowed"  # also inside of what a script's failure says
FOR_NOW = ("TRYAGAIN", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "BUSY")
KEPT = "the home's own checkpoints, and what is in this place"

# Each of an object's effects happens or none: a script is run as one. KEYS: the object, the index of names, which all
# have the score 0 and hence are in the order of their bytes, and what is known of each, its put's number and its size.
CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('HGET', KEYS[3], ARGV[1]) or '' end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
return false
"""
REPLACE = """
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
return false
"""
DELETE = """
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
"""
LIST = """
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
if #names == 0 then return {} end
return {names, redis.call('HMGET', KEYS[3], unpack(names))}
"""
FOLDERS = """
local prefix, from, found = ARGV[1], ARGV[2], {}
for _ = 1, tonumber(ARGV[3]) do
    local name = redis.call('ZRANGEBYLEX', KEYS[2], from, '+', 'LIMIT', 0, 1)[1]
    if not name or string.sub(name, 1, #prefix) ~= prefix then return {'', found} end
    local slash = string.find(name, '/', #prefix + 1, true)
    if slash then
        found[#found + 1] = string.sub(name, #prefix + 1, slash - 1)
        from = '[' .. string.sub(name, 1, slash - 1) .. '0'
    else
        from = '(' .. name
    end
end
return {from, found}
"""


class RedisStore:
    """A `Store` below a prefix of a Redis. Threads may share it.

    It is as durable as the server's `appendfsync` says; with the option `replicas` an object has reached that many
    of them before a put returns. Whoever lets the server evict keys loses objects.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._place, self._space, self._replicas, words = _parsed(url, options or {})
        self._client: Any = redis.Redis(
            **words,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),  # a request whose answer is lost must not be sent again unseen
            health_check_interval=ANSWER_S,
        )
        self._unsure = Unsure()

    def __repr__(self) -> str:
        return f"RedisStore({self._place!r})"

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        body = self._body(key, chunks)
        number = os.urandom(8).hex()
        try:
            with self._told(key):
                there = self._run(CREATE, key, body, f"{number} {len(body)}")
        except Unreachable:
            self._unsure.note(key, number)
            with self._told(key):
                there = self._client.hget(self._known, key)
            if there is None:
                raise
        if there is not None and not (_number_of(there) in self._unsure.of(key) and self.get(key) == body):
            raise KeyTaken(key)
        self._await_replicas(key, number)
        self._unsure.forget(key)
        return Stat(key=key, size=len(body))

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        body = self._body(key, chunks)
        with self._told(key):
            self._run(REPLACE, key, body, f"{os.urandom(8).hex()} {len(body)}")
        self._await_replicas(key, None)
        return Stat(key=key, size=len(body))

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_key(key)
        check_range(key, start, size)
        end = -1 if size is None else start + size - 1
        with self._told(key), self._client.pipeline(transaction=True) as together:
            together.exists(self._object(key))
            together.getrange(self._object(key), start, end)
            exists, data = together.execute()
        if not exists:
            raise KeyMissing(key)
        return memoryview(b"" if size == 0 else data)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        begin = b"[" + prefix.encode("utf-8", "surrogatepass")  # which no key has
        after, end = begin, begin + b"\xff"  # which no letter's encoding has
        while True:
            with self._told(prefix):
                page = self._run(LIST, "", after, end, PAGE)
            if not page:
                return
            names, known = page
            for name, one in zip(names, known, strict=True):
                if one is not None:
                    yield Stat(key=name.decode(), size=int(one.split()[1]))
            after = b"(" + names[-1]

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        check_prefix(prefix)
        names: list[str] = []
        after: bytes = b"[" + prefix.encode()
        while after:
            with self._told(prefix):
                after, found = self._run(FOLDERS, "", prefix, after, PAGE)
            names += [name.decode() for name in found]
        return tuple(sorted(names))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._told(key):
            self._run(DELETE, key)

    def locate(self, key: str) -> Path | None:
        check_key(key)
        return None

    def sweep(self) -> tuple[str, ...]:
        """A put that did not end has left nothing."""
        return ()

    @property
    def _known(self) -> str:
        return f"{{{self._space}}}:known"

    def _object(self, key: str) -> str:
        """All names have the same braces, so that a cluster keeps them on one server, where scripts reach them."""
        return f"{{{self._space}}}:object:{key}"

    def _run(self, script: str, key: str, *words: object) -> Any:
        names = (self._object(key), f"{{{self._space}}}:index", self._known)
        return self._client.eval(script, len(names), *names, *((key, *words) if key else words))

    def _body(self, key: str, chunks: Iterable[Buffer]) -> bytes:
        parts: list[bytes] = []
        size = 0
        for chunk in chunks:
            parts.append(memoryview(chunk).tobytes())
            size += len(parts[-1])
            if size > OBJECT_SIZE_MAX:
                raise StoreError(
                    key,
                    f"{self._place}: {key} has more than {OBJECT_SIZE_MAX >> 20} MiB, the most that is put there",
                    kept=KEPT,
                    next_command="give this tier `levels: [2]`, and the weights to a bucket or a folder",
                )
        return b"".join(parts)

    def _await_replicas(self, key: str, number: str | None) -> None:
        if self._replicas == 0:
            return
        with self._told(key):
            reached = self._client.wait(self._replicas, WAIT_MS)
        if reached < self._replicas:
            if number is not None:
                self._unsure.note(key, number)
            raise Unreachable(
                key, f"{self._place}: {key} has reached {reached} of {self._replicas} replicas", kept=KEPT
            )

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise _error_of(error, key, self._place) from error


def _error_of(error: redis.RedisError, key: str, place: str) -> StoreError:
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return AccessRefused(
            key,
            f"{place}: it refuses our user or password, or does not let them do this",
            kept=KEPT,
            next_command="set `username` and `password` in the tier's options, or correct the server's ACL",
        )
    if isinstance(error, redis.TimeoutError):
        return Unreachable(key, f"{place}: it did not answer in time", kept=KEPT)
    if isinstance(error, redis.ConnectionError):  # one of them: it is still loading
        return Unreachable(key, f"{place}: no connection to it", kept=KEPT)
    if any(word in str(error) for word in FOR_NOW):
        return Unreachable(key, f"{place}: it does not take this for now: {str(error)[:100]}", kept=KEPT)
    if FULL in str(error):
        return StoreError(
            key,
            f"{place}: its memory is used up",
            kept=KEPT,
            next_command="raise the server's maxmemory, or give the tier a `budget`",
        )
    return StoreError(
        key, f"{place}: it refuses the request: {str(error)[:200]}", kept=KEPT, next_command=f"look at {place}"
    )


def _number_of(known: bytes) -> str:
    return known.decode().partition(" ")[0]


def _parsed(url: str, options: Mapping[str, str]) -> tuple[str, str, int, dict[str, Any]]:
    """Where it is, without secrets; the namespace; replicas to wait for; words for the client."""
    split = urlsplit(url)
    number, _, prefix = split.path.strip("/").partition("/")
    wrong = sorted(options.keys() - OPTIONS)
    try:
        database, port, replicas = int(number or 0), split.port or REDIS_PORT, int(options.get("replicas", "0"))
    except ValueError:
        database, port, replicas = -1, 0, 0
    host = split.hostname or ""
    place = f"{split.scheme}://{host}:{port}/{database}" + (f"/{prefix}" if prefix else "")
    if database < 0 or not host or replicas < 0 or split.query or split.fragment:
        raise UsageError(f"{shown(url)} is not like redis://host:6379/0/prefix, or `replicas` is no number")
    if wrong:
        raise UsageError(f"{place}: there is no option {wrong[0]!r}; there are: {', '.join(sorted(OPTIONS))}")
    words: dict[str, Any] = {"host": host, "port": port, "db": database, "ssl": split.scheme == "rediss"}
    words |= {name: value for name, value in options.items() if name != "replicas"}
    if split.username:
        words["username"] = unquote(split.username)
    if split.password:
        words["password"] = unquote(split.password)
    return place, unquote(prefix) or NAMESPACE, replicas, words
