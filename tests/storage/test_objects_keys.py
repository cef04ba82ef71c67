"""Keys out of the file of S3's own tools: whose they are, and when the file is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mementum.storage.objects import open_objects
from mementum.storage.objects_keys import keys_of_file
from services import Server
from wire import Wire

FILE = """
[default]
aws_access_key_id = first
aws_secret_access_key = per%cent
[other]
aws_access_key_id=second
aws_secret_access_key=hunter2
aws_session_token=token==
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text(FILE)
    return path


def test_the_profile_decides(file: Path) -> None:
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert keys_of_file({"region": "x"}, env) == {"access_key_id": "first", "secret_access_key": "per%cent"}
    assert keys_of_file({}, env | {"AWS_PROFILE": "other"}) == {
        "access_key_id": "second",
        "secret_access_key": "hunter2",
        "session_token": "token==",
    }
    assert keys_of_file({}, env | {"AWS_PROFILE": "none"}) == {}


def test_keys_that_were_given_are_the_ones(file: Path) -> None:
    env = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    for options in ({"access_key_id": "x"}, {"aws_access_key_id": "x"}, {"skip_signature": "true"}):
        assert keys_of_file(options, env) == {}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        assert keys_of_file({}, env | {name: "x"}) == {}


@pytest.mark.parametrize(
    "content", [b"", b"no section", b"\xff\xfe", b"[default]\nregion=x\n", b"[default]\n[default]\n"]
)
def test_a_file_without_keys_has_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "credentials"
    path.write_bytes(content)
    assert keys_of_file({}, {"AWS_SHARED_CREDENTIALS_FILE": str(path)}) == {}
    assert keys_of_file({}, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}) == {}


def test_requests_are_signed_with_them(
    file: Path, s3_url: str, s3_server: Server, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    signed: list[bytes] = []

    def look(request: bytes) -> bytes:
        signed.append(request)
        return request

    with Wire(s3_server.port, rewrite=look).running() as port:
        options = {name: value for name, value in s3_options.items() if "key" not in name}
        open_objects(s3_url, options | {"endpoint": f"http://127.0.0.1:{port}"}).put("a", [b"1"])
    assert signed
    assert all(b"Credential=first/" in request for request in signed)
