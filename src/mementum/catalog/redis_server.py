"""A Redis server for a catalog: the connection, its limits in time, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from mementum.errors import AccessRefused, StoreError, Unreachable, UsageError
from mementum.masking import shown

SCHEMA = 1  # of the keys
CONNECT_S = 3.0  # a server that does not answer by then is taken to be gone
ANSWER_S = 10.0  # for one answer; a batch of a thousand takes milliseconds
LOOK_S = 30  # a connection that was idle for so long is tried before it is used
KEPT = "all checkpoints: the catalog is only a cache of them"
REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid password", "Authentication required", "invalid username-password")


class RedisServer:
    """One database of a server. Safe to use from several threads, and after a fork."""

    def __init__(self, url: str) -> None:
        """UsageError if the url is none. Nothing is sent yet."""
        self.name = shown(url)
        try:
            self.client: Any = redis.Redis.from_url(
                url,
                socket_connect_timeout=CONNECT_S,
                socket_timeout=ANSWER_S,
                health_check_interval=LOOK_S,
                retry=Retry(NoBackoff(), 0),  # whoever asks decides whether to ask again
            )
        except (ValueError, TypeError):
            raise UsageError(
                f"{self.name} is no address of a Redis", next_command="write redis://user:password@host:6379/0"
            ) from None  # whose words may quote the url

    @contextmanager
    def asked(self) -> Iterator[None]:
        """What goes wrong with the server inside becomes one of our errors. None of them holds a password."""
        try:
            yield
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise self._refused(error) from error
        except (ConnectionError, TimeoutError, OSError) as error:
            if any(word in str(error) for word in REFUSED):
                raise self._refused(error) from error
            raise Unreachable(
                self.name,
                f"the catalog {self.name} does not answer: {error}",
                kept=KEPT,
                next_command="look whether its server runs and can be reached from this host",
            ) from error
        except OutOfMemoryError as error:
            raise Unreachable(
                self.name,
                f"the catalog {self.name} is full: {error}",
                kept=KEPT,
                next_command="give its server more memory",
            ) from error
        except RedisError as error:
            if isinstance(error, ResponseError) and any(word in str(error) for word in REFUSED):
                raise self._refused(error) from error
            raise StoreError(
                self.name,
                f"the catalog {self.name} cannot be used: {error}",
                kept=KEPT,
                next_command="choose another database of the server: redis://host:6379/1",
            ) from error

    def require_schema(self, key: str) -> None:
        """StoreError if a newer mementum has made the catalog there, or if the server would throw away parts of it as
        it likes, so that what is left says wrong things."""
        with self.asked():
            self.client.set(key, SCHEMA, nx=True)
            found = self.client.get(key)
            memory = self._memory()
        number = int(found) if isinstance(found, bytes) and found.isdigit() else None
        if number is None or number < SCHEMA:
            raise StoreError(
                self.name,
                f"{self.name} holds under {key} what is no number of a catalog",
                kept="what it holds, as it is",
                next_command="choose another database of the server: redis://host:6379/1",
            )
        if number > SCHEMA:
            raise StoreError(
                self.name,
                f"the catalog {self.name} was made by a newer mementum: it has version {number}, here {SCHEMA} is"
                " known",
                kept="all checkpoints, and the catalog as it is",
                next_command="pip install --upgrade mementum",
            )
        if int(memory.get("maxmemory", 0)) and str(memory.get("maxmemory_policy", "")).startswith("allkeys"):
            raise StoreError(
                self.name,
                f"the catalog {self.name} throws keys away when its memory is full: a pin that is gone would not be"
                " missed",
                kept=KEPT,
                next_command="redis-cli CONFIG SET maxmemory-policy noeviction",
            )

    def close(self) -> None:
        self.client.close()

    def _memory(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.client.info("memory")
        except (ResponseError, NoPermissionError):  # not everybody may ask
            return {}
        return found

    def _refused(self, error: BaseException) -> AccessRefused:
        return AccessRefused(
            self.name,
            f"the catalog {self.name} refuses us: {error}",
            kept=KEPT,
            next_command="look at the user and the password in its url",
        )
