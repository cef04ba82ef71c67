"""Half uploads of dead processes: found by a signed request, given up when they are old, left alone before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from mementum.clock import ManualClock
from mementum.errors import AccessRefused, StoreError, Unreachable
from mementum.storage import objects_uploads
from mementum.storage.objects import PART_SIZE, open_objects
from mementum.storage.objects_uploads import Place, place_of
from services import Server, s3_options_of
from wire import Fault, Wire

BEGIN = """
import os, sys
from mementum.storage.objects import PART_SIZE, open_objects
def chunks():
    for _ in range(3):
        yield bytes(PART_SIZE)
    print("sent", flush=True)
    sys.stdin.read()
open_objects(sys.argv[1], dict(pair.split("=") for pair in sys.argv[2:])).put("step_1/100% large é", chunks())
"""
ROOT, XMLNS = "ListMultipartUploadsResult", "http://s3.amazonaws.com/doc/2006-03-01/"
KEYS = {"access_key_id": "id", "secret_access_key": "secret"}


def test_an_upload_of_a_killed_process_is_given_up_a_day_later(
    s3_url: str, s3_options: dict[str, str], uploads: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_objects(s3_url, s3_options)
    words = [f"{name}={value}" for name, value in s3_options.items()]
    dying = subprocess.Popen(
        [sys.executable, "-c", BEGIN, s3_url, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"sent\n"
        dying.kill()
    assert uploads() == 1
    assert list(store.list()) == []
    monkeypatch.setattr(objects_uploads, "AGE", timedelta(days=36_500))  # moto says that all began in 2010
    assert store.sweep() == ()  # it may be alive, for all that is known
    monkeypatch.setattr(objects_uploads, "AGE", timedelta(seconds=-60))
    assert open_objects(f"{s3_url}/elsewhere", s3_options).sweep() == ()
    assert store.sweep() == ("step_1/100% large é",)
    assert uploads() == 0
    assert store.put("step_1/100% large é", [bytes(PART_SIZE)] * 2).size == 2 * PART_SIZE


def test_a_list_of_uploads_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [
        "<IsTruncated>true</IsTruncated><NextKeyMarker>p/a</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>"
        "<Upload><Key>p/a</Key><UploadId>1</UploadId><Initiated>2026-11-01T00:00:00.000Z</Initiated></Upload>",
        "<IsTruncated>false</IsTruncated>"
        "<Upload><Key>p/b</Key><UploadId>2</UploadId><Initiated>2026-11-29T13:00:00.000Z</Initiated></Upload>"
        "<Upload><Key>p/c</Key><UploadId>3</UploadId><Initiated>2026-11-29T11:00:00Z</Initiated></Upload>",
    ]
    asked: list[tuple[str, str, dict[str, str]]] = []

    def ask(_place: Place, _clock: object, method: str, path: str, query: dict[str, str], **_: bool) -> object:
        asked.append((method, path, query))
        body = f"<{ROOT} xmlns='{XMLNS}'>{pages.pop(0)}</{ROOT}>" if method == "GET" else ""
        return datetime(2026, 11, 30, 12, tzinfo=UTC), body.encode()

    monkeypatch.setattr(objects_uploads, "_ask", ask)
    place = place_of("bucket", "p", KEYS, {})
    assert place is not None
    assert objects_uploads.give_up_old(place, ManualClock()) == ("a", "c")
    assert asked == [
        ("GET", "", {"uploads": "", "prefix": "p/"}),
        ("GET", "", {"uploads": "", "prefix": "p/", "key-marker": "p/a", "upload-id-marker": "1"}),
        ("DELETE", "/p/a", {"uploadId": "1"}),
        ("DELETE", "/p/c", {"uploadId": "3"}),
    ]


@pytest.mark.parametrize("token", [None, "a/token+=="])
def test_the_signature_is_the_one_that_botocore_makes(token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    options = KEYS | {"region": "eu-west-1", "endpoint": "http://host:9000"}
    place = place_of("bucket", "some prefix", options | ({} if token is None else {"session_token": token}), {})
    assert place is not None
    at = datetime(2026, 11, 30, 19, 45, 12, tzinfo=UTC)
    target, query = "/bucket/some%20prefix/a%25b", "prefix=some%20prefix%2F&uploads="
    ours = objects_uploads._signed(place, at, "GET", target, query)
    theirs = AWSRequest("GET", f"http://host:9000{target}?{query}")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: at.replace(tzinfo=None))
    S3SigV4Auth(Credentials("id", "secret", token), "s3", "eu-west-1").add_auth(theirs)
    assert theirs.headers["X-Amz-Date"] == ours["x-amz-date"]
    assert ours["authorization"].replace(" ", "") == theirs.headers["Authorization"].replace(" ", "")


def test_places_that_cannot_be_asked_are_left_to_a_rule() -> None:
    assert place_of("bucket", "p", {}, {}) is None
    for special in ("virtual_hosted_style_request", "proxy_url", "root_certificate"):
        assert place_of("bucket", "p", KEYS | {special: "x"}, {}) is None
    env = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_DEFAULT_REGION": "eu-north-1"}
    place = place_of("bucket", "", {}, env)
    assert place is not None
    assert (place.host, place.secure, place.prefix) == ("s3.eu-north-1.amazonaws.com", True, "")
    assert "hunter2" not in repr(place)


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("lost before", Unreachable, "no answer about its uploads"),
        (503, Unreachable, "answers 503"),
        (400, StoreError, "answers 400"),
        (200, StoreError, "its list of uploads is none"),
    ],
)
def test_refusals_are_told(s3_url: str, s3_server: Server, what: int, kind: type[StoreError], says: str) -> None:
    wire = Wire(s3_server.port, choose=lambda _number, line: Fault(what) if "uploads" in line else None)
    with wire.running() as port:
        store = open_objects(s3_url, s3_options_of(port))
        with pytest.raises(kind, match=says):
            store.sweep()


@pytest.mark.parametrize("status", [403, 405, 501])
def test_who_may_not_list_uploads_leaves_them_to_a_rule(s3_url: str, s3_server: Server, status: int) -> None:
    wire = Wire(s3_server.port, choose=lambda _number, line: Fault(status) if "uploads" in line else None)
    with wire.running() as port:
        assert open_objects(s3_url, s3_options_of(port)).sweep() == ()
        place = place_of(*s3_url.removeprefix("s3://").split("/", 1), s3_options_of(port))
        assert place is not None
        with pytest.raises(AccessRefused, match=f"does not let us list uploads.*{status}"):
            objects_uploads.give_up_old(place, ManualClock())
