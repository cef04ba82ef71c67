"""A proxy on the wire between a client and a server, which spoils some of what passes."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

HEAD_SIZE_MAX = 1 << 16
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)

What = Literal["lost before", "lost after", "stall", "cut"] | int
"""What becomes of a request: never sent on; sent on, but its answer lost; sent on, but never answered; half of the
answer's body, then the end; or not sent on and answered with this status."""


@dataclass(frozen=True)
class Fault:
    """One spoiled request. `code` is S3's, in the body of a status."""

    what: What
    code: str = "InternalError"


@dataclass
class Wire:
    """An HTTP proxy in front of `port`. `choose` is asked for each request: its number, and its first line. `rewrite`
    changes what is sent on. `seen` are the first lines of all requests, in order of arrival.
    """

    port: int
    choose: Callable[[int, str], Fault | None] = lambda _number, _line: None
    rewrite: Callable[[bytes], bytes] = lambda request: request
    seen: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """Serve until the block ends; its port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            thread.start()
            try:
                yield listener.getsockname()[1]
            finally:
                self._ended.set()
                listener.shutdown(socket.SHUT_RDWR)
                with self._lock:
                    still_open = list(self._open)
                for one in still_open:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _accept(self, listener: socket.socket) -> None:
        serving: list[threading.Thread] = []
        while not self._ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                break
            serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            serving[-1].start()
        for thread in serving:
            thread.join()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        with client, contextlib.suppress(OSError):
            while True:
                request = _message(client)
                if request is None or not self._pass_on(client, request):
                    break
        with self._lock:
            self._open.discard(client)

    def _pass_on(self, client: socket.socket, request: bytes) -> bool:
        """Whether the connection goes on."""
        line = request.partition(b"\r\n")[0].decode()
        with self._lock:
            number = len(self.seen)
            self.seen.append(line)
        fault = self.choose(number, line)
        what = None if fault is None else fault.what
        if what == "lost before":
            return False
        if fault is not None and isinstance(what, int):
            body = f"<Error><Code>{fault.code}</Code></Error>".encode()
            client.sendall(b"HTTP/1.1 %d Spoiled\r\ncontent-length: %d\r\n\r\n%s" % (what, len(body), body))
            return True
        answer = self._ask(self.rewrite(request))
        if what == "stall":
            self._ended.wait()
            return False
        if what == "lost after" or answer is None:
            return False
        if what == "cut":
            head, _, body = answer.partition(b"\r\n\r\n")
            client.sendall(head + b"\r\n\r\n" + body[: len(body) // 2])
            return False
        client.sendall(answer)
        return True

    def _ask(self, request: bytes) -> bytes | None:
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            server.sendall(request)
            return _message(server, no_body=request.startswith(b"HEAD "))


@dataclass
class RawWire:
    """A proxy in front of `port` for any server that answers each request in one go, and whose requests are small.
    `choose` is asked for each request: its bytes."""

    port: int
    choose: Callable[[bytes], Literal["lost before", "lost after"] | None] = lambda _request: None

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """Serve until the block ends; its port."""
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler()) as server:
            server.daemon_threads = True
            server.block_on_close = False  # a client may keep its connection
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        wire = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", wire.port)) as server, contextlib.suppress(OSError):
                    while request := self.request.recv(1 << 20):
                        what = wire.choose(request)
                        if what == "lost before":
                            return
                        server.sendall(request)
                        answer = server.recv(1 << 20)
                        if what == "lost after":
                            return
                        self.request.sendall(answer)

        return Handler


def _message(connection: socket.socket, *, no_body: bool = False) -> bytes | None:
    """A request or an answer, head and body; None where the connection has ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(1 << 16)
        if not more or len(data) > HEAD_SIZE_MAX:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    parts = [head, b"\r\n\r\n", body]
    if no_body:
        return b"".join(parts)
    length = LENGTH.search(head)
    assert CHUNKED.search(head) is None, "neither obstore nor moto sends such a body"
    missing = (int(length[1]) if length is not None else 0) - len(body)
    while missing > 0:
        more = connection.recv(1 << 20)
        if not more:
            return None
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)
