"""What an object store's client says, as an error with a next command that fits who asks."""

from __future__ import annotations

import importlib.util
import re

import pytest

from mementum.errors import AccessRefused, Unreachable
from services import missing


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("Generic S3 error: error sending request, kind: Connect", "s3://b: no connection to it"),
        ("Generic S3 error: status code: 503, body: <Code>SlowDown</Code>", "s3://b: it answers 503 SlowDown"),
    ],
)
def test_who_runs_a_command_is_not_told_that_it_is_tried_again(said: str, message: str) -> None:
    if importlib.util.find_spec("obstore") is None:
        missing("pip install 'mementum[s3]'")
    from obstore.exceptions import GenericError

    from mementum.storage.objects_errors import told

    error = told(GenericError(said), "a", "s3://b")
    assert isinstance(error, Unreachable)
    assert error.message == message
    assert error.next_command == "the same command once it answers; a training tries again by itself"


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("s3://b/p", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        ("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS"}),
        ("az://b/p", {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_USE_AZURE_CLI"}),
    ],
)
def test_who_has_no_credentials_is_told_those_of_the_cloud_that_was_asked(place: str, names: set[str]) -> None:
    if importlib.util.find_spec("obstore") is None:
        missing("pip install 'mementum[s3]'")
    from obstore.exceptions import GenericError

    from mementum.storage.objects_errors import told

    error = told(GenericError("error sending request for url (http://169.254.169.254/metadata/identity)"), "", place)
    assert isinstance(error, AccessRefused)
    assert error.message == f"{place}: no credentials were found"
    assert set(re.findall(r"[A-Z]{2,}_[A-Z_]+", str(error.next_command))) == names
