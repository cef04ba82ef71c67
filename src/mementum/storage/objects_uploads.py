"""Uploads in parts that nobody will end: found in a bucket of S3 and given up, which no client of ours can do."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from mementum.clock import Clock
from mementum.errors import AccessRefused, StoreError, Unreachable
from mementum.records import record

AGE = timedelta(days=1)  # since its beginning: one that is still alive sends 80 GB at 1 MB/s
TIMEOUT_S = 30
ANSWER_SIZE_MAX = 16 << 20  # bytes: S3 answers with at most 1,000 uploads, a megabyte
ANY = "{*}"  # namespace: not every S3 gives one
REFUSALS = frozenset({401, 403, 405, 501})  # of keys, or of a store that has no such list


@record
class Place:
    """A bucket that can be asked without the client: where, and by whose keys."""

    host: str
    secure: bool
    folder: str
    bucket: str
    prefix: str
    region: str
    key_id: str
    secret: str
    token: str | None

    def __repr__(self) -> str:
        return f"Place(bucket={self.bucket!r}, prefix={self.prefix!r})"


@record
class Begun:
    """An upload that has begun."""

    key: str
    id: str
    since: datetime


def place_of(bucket: str, prefix: str, options: Mapping[str, str], env: Mapping[str, str] = os.environ) -> Place | None:
    """Where to ask, by the options and variables that the client goes by. None where the keys come from somewhere
    else, the machine's role say, or the way there is a special one; then a rule of the bucket has to clear up."""
    key_id = options.get("access_key_id") or env.get("AWS_ACCESS_KEY_ID")
    secret = options.get("secret_access_key") or env.get("AWS_SECRET_ACCESS_KEY")
    special = {"virtual_hosted_style_request", "proxy_url", "root_certificate", "s3_express", "skip_signature"}
    if not key_id or not secret or special & options.keys():
        return None
    region = options.get("region") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
    given = options.get("endpoint") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    split = urlsplit(given or f"https://s3.{region}.amazonaws.com")
    return Place(
        host=split.netloc,
        secure=split.scheme != "http",
        folder=split.path.rstrip("/"),
        bucket=bucket,
        prefix=f"{prefix}/" if prefix else "",
        region=region,
        key_id=key_id,
        secret=secret,
        token=options.get("session_token") or env.get("AWS_SESSION_TOKEN"),
    )


def give_up_old(place: Place, clock: Clock) -> tuple[str, ...]:
    """Give up the uploads below the prefix that began more than `AGE` ago by the server's own clock; their keys.
    Unreachable, AccessRefused, StoreError: the server did not do it."""
    now, begun = _list(place, clock)
    old = tuple(one for one in begun if now - one.since > AGE)
    for one in old:
        _ask(place, clock, "DELETE", f"/{one.key}", {"uploadId": one.id}, may_lack=True)
    return tuple(one.key.removeprefix(place.prefix) for one in old)


def _list(place: Place, clock: Clock) -> tuple[datetime, tuple[Begun, ...]]:
    begun: list[Begun] = []
    marker: dict[str, str] = {}
    while True:
        now, answer = _ask(place, clock, "GET", "", {"uploads": "", "prefix": place.prefix} | marker)
        try:
            tree = ElementTree.fromstring(answer)  # expat expands no external entities, and the answer is limited
            if not tree.tag.endswith("ListMultipartUploadsResult"):
                raise ValueError(tree.tag)
            begun += _uploads_in(tree)
        except (ElementTree.ParseError, ValueError) as error:
            raise StoreError(
                "",
                f"s3://{place.bucket}: its list of uploads is none",
                kept="all objects, and the half uploads",
                next_command="set a lifecycle rule that ends half uploads (docs/object_stores.md)",
            ) from error
        if tree.findtext(f"{ANY}IsTruncated") != "true":
            return now, tuple(begun)
        marker = {
            "key-marker": tree.findtext(f"{ANY}NextKeyMarker") or "",
            "upload-id-marker": tree.findtext(f"{ANY}NextUploadIdMarker") or "",
        }


def _uploads_in(tree: ElementTree.Element) -> Iterator[Begun]:
    for one in tree.findall(f"{ANY}Upload"):
        key, id, since = (one.findtext(f"{ANY}{name}") for name in ("Key", "UploadId", "Initiated"))
        if key and id and since:
            at = datetime.fromisoformat(since)
            yield Begun(key=key, id=id, since=at if at.tzinfo else at.replace(tzinfo=UTC))


def _ask(
    place: Place, clock: Clock, method: str, path: str, query: Mapping[str, str], *, may_lack: bool = False
) -> tuple[datetime, bytes]:
    """The server's time, and the body of its answer."""
    target = quote(f"{place.folder}/{place.bucket}{path}")
    words = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))
    headers = _signed(place, datetime.fromtimestamp(clock.now(), UTC), method, target, words)
    kind: Any = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection
    connection: http.client.HTTPConnection = kind(place.host, timeout=TIMEOUT_S)
    try:
        connection.request(method, f"{target}?{words}", headers=headers)
        answer = connection.getresponse()
        body, date = answer.read(ANSWER_SIZE_MAX), answer.headers["Date"]
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable("", f"s3://{place.bucket}: no answer about its uploads") from error
    finally:
        connection.close()
    if answer.status in REFUSALS:
        raise AccessRefused(
            "",
            f"s3://{place.bucket}: it does not let us list uploads, or give them up ({answer.status})",
            next_command="allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or let a rule do it",
        )
    if answer.status >= 300 and not (may_lack and answer.status == 404):
        error_class = Unreachable if answer.status >= 500 else StoreError
        raise error_class("", f"s3://{place.bucket}: it answers {answer.status} about its uploads")
    return parsedate_to_datetime(date) if date else datetime.fromtimestamp(clock.now(), UTC), body


def _signed(place: Place, at: datetime, method: str, target: str, query: str) -> dict[str, str]:
    """Headers with a signature of a request without a body, of version 4:
    docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html."""
    day, instant = at.strftime("%Y%m%d"), at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": place.host, "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(), "x-amz-date": instant}
    if place.token is not None:
        headers["x-amz-security-token"] = place.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join((method, target, query, lines, names, headers["x-amz-content-sha256"]))
    scope = f"{day}/{place.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", instant, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{place.secret}".encode()
    for word in (day, place.region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={place.key_id}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return headers
