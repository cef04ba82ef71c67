"""Keys of S3 out of the file in which its own tools keep them, which the client does not read."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
# Whoever has one of these has said elsewhere who they are, and the file must not speak for them.
ELSEWHERE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
SAID = frozenset({*NAMES, *NAMES.values(), "skip_signature", "aws_skip_signature"})


def keys_of_file(options: Mapping[str, str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options with the keys of the profile AWS_PROFILE (`default` where it is unset) in AWS_SHARED_CREDENTIALS_FILE
    (~/.aws/credentials). Empty where options or environment have keys already, or the file has none of that profile."""
    if SAID & options.keys() or any(name in env for name in ELSEWHERE):
        return {}
    file = configparser.RawConfigParser()
    given = env.get("AWS_SHARED_CREDENTIALS_FILE")
    try:
        path = Path(given or "~/.aws/credentials").expanduser()
        file.read_string(path.read_text(encoding="utf-8"))
        profile = file[env.get("AWS_PROFILE", "default")]
    except (OSError, RuntimeError, UnicodeDecodeError, KeyError, configparser.Error):
        return {}  # then the client looks for the machine's role, and says so if there is none
    return {ours: profile[theirs] for theirs, ours in NAMES.items() if theirs in profile}
