"""A sink: an S3 on loopback that keeps the names and sizes of what it is given, small bodies, and nothing else.

A server that stores what it gets would take more of the machine than the client that is measured. This one lets the
kernel throw the bytes of large bodies away where they lie. Run as a program it tells its port, and ends with its input.
"""

from __future__ import annotations

import itertools
import json
import mmap
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from mementum.records import record

KEEP_MAX = 1 << 20  # bytes of a body that is kept: manifests, attempts and facts are read again, data is not
ONCE = 8 << 20  # bytes that one call throws away
AHEAD = 64 << 10  # more than the reader of headers has ever read beyond them
LISTED_MAX = 1000  # in one answer, as S3
TOLD = "/-/told"  # what it has counted; no bucket has this name
XML = '<?xml version="1.0" encoding="UTF-8"?>'


@record
class Held:
    """An object. `body` is None where it was thrown away."""

    size: int
    etag: str
    body: bytes | None
    metadata: Mapping[str, str]
    time: str


@record
class Told:
    """What the sink has received so far, and what that took of its processor."""

    received: int  # bytes of bodies
    requests: int
    cpu_s: float


class Objects:
    """What is there, by key, for all connections."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: dict[str, Held] = {}
        self.uploads: dict[str, dict[int, int]] = {}  # sizes of parts by number, by the upload's id
        self.received = self.requests = 0
        self._numbers = itertools.count(1)

    def number(self) -> str:
        return f"{next(self._numbers):08x}"

    def told(self) -> Told:
        return Told(received=self.received, requests=self.requests, cpu_s=time.process_time())

    def page(self, prefix: str, delimiter: str, after: str) -> tuple[list[str], list[str], str]:
        """Keys and common prefixes behind `after`, and where the next page begins; empty where there is none."""
        keys: list[str] = []
        folders: list[str] = []
        with self.lock:
            for key in sorted(key for key in self.held if key.startswith(prefix) and key > after):
                if len(keys) + len(folders) == LISTED_MAX:
                    return keys, folders, (keys or [after])[-1]
                inside, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                folder = f"{prefix}{inside}{mark}"
                if not mark:
                    keys.append(key)
                elif folder not in folders[-1:]:
                    folders.append(folder)
        return keys, folders, ""


class Connection(BaseHTTPRequestHandler):
    """One client, request after request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: Objects

    def setup(self) -> None:
        super().setup()
        self._nowhere = memoryview(mmap.mmap(-1, ONCE))  # its pages are never touched, and so never there

    def do_PUT(self) -> None:
        key, asked = self._asked()
        size, body = self._take()
        objects = self.objects
        if "partNumber" in asked:
            with objects.lock:
                objects.uploads[asked["uploadId"]][int(asked["partNumber"])] = size
            self._answer(HTTPStatus.OK, headers={"ETag": f'"{objects.number()}"'})
            return
        with objects.lock:
            taken = key in objects.held and self.headers.get("If-None-Match") == "*"
            if not taken:
                self._hold(key, size, body)
        if taken:
            self._refuse(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        else:
            self._answer(HTTPStatus.OK, headers={"ETag": objects.held[key].etag})

    def do_POST(self) -> None:
        key, asked = self._asked()
        self._take()
        objects = self.objects
        with objects.lock:
            if "uploads" in asked:
                upload = objects.number()
                objects.uploads[upload] = {}
                said = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            else:
                self._hold(key, sum(objects.uploads.pop(asked["uploadId"]).values()), None)
                etag = escape(objects.held[key].etag)
                said = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        self._answer(HTTPStatus.OK, (XML + said).encode())

    def do_GET(self) -> None:
        key, asked = self._asked()
        if self.path == TOLD:
            told = self.objects.told()
            said = {"received": told.received, "requests": told.requests, "cpu_s": told.cpu_s}
            self._answer(HTTPStatus.OK, json.dumps(said).encode())
        elif "uploads" in asked:
            self._answer(HTTPStatus.OK, f"{XML}<ListMultipartUploadsResult></ListMultipartUploadsResult>".encode())
        elif "list-type" in asked:
            self._answer(HTTPStatus.OK, self._list(key, asked))
        else:
            self._give(key, with_body=True)

    def do_HEAD(self) -> None:
        self._give(self._asked()[0], with_body=False)

    def do_DELETE(self) -> None:
        key, asked = self._asked()
        with self.objects.lock:
            if "uploadId" in asked:
                self.objects.uploads.pop(asked["uploadId"], None)
            else:
                self.objects.held.pop(key, None)
        self._answer(HTTPStatus.NO_CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: it would be written for every part."""

    def _asked(self) -> tuple[str, dict[str, str]]:
        split = urlsplit(self.path)
        with self.objects.lock:
            self.objects.requests += 1
        return unquote(split.path.lstrip("/")), {
            name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()
        }

    def _take(self) -> tuple[int, bytes | None]:
        """The size of the request's body, and the body where it is small."""
        size = left = int(self.headers.get("Content-Length", 0))
        body: bytes | None = None
        if size <= KEEP_MAX:
            body = self.rfile.read(size)
        else:
            left -= len(self.rfile.read1(AHEAD))  # type: ignore[attr-defined]  # what came with the headers
            while left > 0:
                flags = socket.MSG_TRUNC | socket.MSG_WAITALL  # tcp(7): received, counted, and never copied
                got = self.connection.recv_into(self._nowhere, min(left, ONCE), flags)
                if not got:
                    raise ConnectionError("the client left in the midst of a body")
                left -= got
        with self.objects.lock:
            self.objects.received += size
        return size, body

    def _hold(self, key: str, size: int, body: bytes | None) -> None:
        metadata = {name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}
        self.objects.held[key] = Held(
            size=size, etag=f'"{self.objects.number()}"', body=body, metadata=metadata, time=_now()
        )

    def _give(self, key: str, *, with_body: bool) -> None:
        held = self.objects.held.get(key)
        if held is None:
            self._refuse(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        headers = {"ETag": held.etag, "Last-Modified": held.time, **held.metadata}
        if not with_body:
            self._answer(HTTPStatus.OK, headers={**headers, "Content-Length": str(held.size)})
        elif held.body is None:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, "NotKept")
        else:
            self._answer(*_range(self.headers.get("Range"), held.body, headers))

    def _list(self, bucket: str, asked: Mapping[str, str]) -> bytes:
        begin = bucket.rstrip("/") + "/"
        after = asked.get("continuation-token") or asked.get("start-after") or ""
        keys, folders, following = self.objects.page(
            begin + asked.get("prefix", ""), asked.get("delimiter", ""), begin + after if after else ""
        )
        told = [XML, f"<ListBucketResult><IsTruncated>{'true' if following else 'false'}</IsTruncated>"]
        if following:
            token = escape(following.removeprefix(begin))
            told.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for key in keys:
            held = self.objects.held[key]
            told.append(
                f"<Contents><Key>{escape(key.removeprefix(begin))}</Key><Size>{held.size}</Size>"
                f"<ETag>{escape(held.etag)}</ETag><LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents>"
            )
        told += [
            f"<CommonPrefixes><Prefix>{escape(folder.removeprefix(begin))}</Prefix></CommonPrefixes>"
            for folder in folders
        ]
        return "".join([*told, "</ListBucketResult>"]).encode()

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        self._answer(status, f"{XML}<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: HTTPStatus, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _range(asked: str | None, body: bytes, headers: dict[str, str]) -> tuple[HTTPStatus, bytes, dict[str, str]]:
    """The answer to a GET of the part of a body."""
    if asked is None:
        return HTTPStatus.OK, body, headers
    first, _, last = asked.removeprefix("bytes=").partition("-")
    begin, end = int(first), min(int(last or len(body)), len(body) - 1)
    if begin > end:
        return HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", {}
    headers["Content-Range"] = f"bytes {begin}-{end}/{len(body)}"
    return HTTPStatus.PARTIAL_CONTENT, body[begin : end + 1], headers


def _now() -> str:
    return formatdate(usegmt=True)


class Server(ThreadingHTTPServer):
    """A sink in this process, on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 64  # a client opens all of its connections at once

    def __init__(self) -> None:
        self.objects = Objects()
        super().__init__(("127.0.0.1", 0), type("Bound", (Connection,), {"objects": self.objects}))


class Sink:
    """A sink in a process of its own."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def told(self) -> Told:
        with urllib.request.urlopen(self.endpoint + TOLD) as answer:
            return Told(**json.load(answer))


@contextmanager
def started(command: Sequence[str] = (sys.executable, str(Path(__file__).resolve()))) -> Iterator[Sink]:
    """Start one, and end it."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Sink(int(process.stdout.readline()))
        finally:
            process.stdin.close()


def main() -> None:
    with Server() as server:
        print(server.server_address[1], flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()  # until whoever started it closes it, or is gone
        server.shutdown()


if __name__ == "__main__":
    main()
