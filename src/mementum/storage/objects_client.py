"""The client of an object store, made of a tier's url and options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from mementum.errors import UsageError
from mementum.masking import shown
from mementum.records import record
from mementum.storage.objects_keys import keys_of_file
from mementum.storage.objects_uploads import Place, place_of

Client = S3Store | GCSStore | AzureStore | MemoryStore

# Of the client, not of one store; the others are names of S3Store's, GCSStore's and AzureStore's own settings.
OF_THE_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\[\]-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
TRUE = frozenset({"1", "true", "on", "yes", "y"})  # as the client reads it
CONNECT_S = 5  # a server that is there takes a connection in milliseconds, from the other end of the world in one
READ_S = 30  # without a byte: a part of 8 MiB at 0.3 MB/s has gone by then, a server that is only busy has answered
REQUEST_S = 300  # for a whole answer: one object of 1 GB at 4 MB/s; beyond it credentials of a request may lapse
RETRIES = 2  # of one part or read by the client itself, so that a hiccup does not send a whole file again
RETRY_S = 20  # all of these; whoever waits longer is a Store around this one
BACKOFF_S = 0.2
EXPRESS = "--x-s3"  # at the end of the name of a bucket that lists in no order
THAWS = frozenset({"GLACIER", "DEEP_ARCHIVE", "ARCHIVE"})  # hours from a request to the first byte; no resume waits so


@record
class Clients:
    """`patient` repeats what may be repeated; `once` sends a request a single time, so that a conflict is one."""

    patient: Client
    once: Client
    place: str
    prefix: str
    storage_class: str | None
    uploads: Place | None
    sorted: bool  # whether it lists in the order of keys, and can begin behind one


def begin_threads() -> None:
    """Let the threads in which all clients of this process send begin now. They inherit the priority of the thread that
    makes a client's first call, and keep it: whoever wants them in the background of a training calls from there."""
    obstore.put(MemoryStore(), "first", b"")


def open_clients(url: str, options: Mapping[str, str]) -> Clients:
    """Clients of the bucket in `url`. Nothing is sent. UsageError says which part of the url or which option is
    wrong; it never repeats an option's value, which may be a secret."""
    scheme, bucket, prefix = _parts(url)
    if scheme == "s3":
        options = {**options, **keys_of_file(options)}
    _check_way(shown(f"{scheme}://{bucket}"), bucket, options, os.environ)
    client_options: dict[str, Any] = {
        "connect_timeout": f"{CONNECT_S}s",
        "read_timeout": f"{READ_S}s",
        "timeout": f"{REQUEST_S}s",
    }
    config: dict[str, Any] = {}
    for name, value in options.items():
        if name != "storage_class":
            (client_options if name in OF_THE_CLIENT else config)[name] = value
    if scheme == "s3":
        _settle_s3(config, allow_http=client_options.get("allow_http", "").lower() in TRUE)

    def client(retries: int) -> Client:
        retry_config: Any = {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {"init_backoff": timedelta(seconds=BACKOFF_S), "max_backoff": timedelta(seconds=RETRY_S)},
        }
        given: dict[str, Any] = {
            "prefix": prefix or None,
            "config": config,
            "client_options": client_options,
            "retry_config": retry_config,
        }
        if scheme == "s3":
            return S3Store(bucket, **given)
        if scheme == "gs":
            return GCSStore(bucket, **given)
        return AzureStore(bucket, **given)

    place = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        patient, once = client(RETRIES), client(0)
    except (BaseError, ValueError) as error:
        raise UsageError(
            f"{place}: its options are not what the client takes: {_without(str(error), options)}",
            next_command="correct `options` of the tier",
        ) from None  # the client's own error may repeat a value
    return Clients(
        patient=patient,
        once=once,
        place=place,
        prefix=prefix,
        storage_class=_storage_class(options, place),
        uploads=place_of(bucket, prefix, options) if scheme == "s3" else None,
        sorted=not bucket.endswith(EXPRESS),
    )


def _check_way(place: str, bucket: str, options: Mapping[str, str], env: Mapping[str, str]) -> None:
    """UsageError where the client would be given an address that is none: it panics then, in the midst of a request."""
    if not BUCKET.fullmatch(bucket):
        raise UsageError(f"{place}: a bucket's name has letters, digits, dots and dashes")
    for name, value in options.items():
        bare = name.lower().removeprefix("aws_").removeprefix("google_").removeprefix("azure_")
        if bare in ("region", "default_region", "account_name") and not BUCKET.fullmatch(value):
            raise UsageError(f"{place}: {name} has letters, digits and dashes")
    is_said = not place.startswith("s3:") or any("endpoint" in name.lower() for name in options)
    around = () if is_said else [(name, env[name]) for name in ENDPOINTS if name in env]  # else nobody looks at those
    for name, value in (*options.items(), *around):
        if "endpoint" not in name.lower():
            continue
        if not ENDPOINT.fullmatch(value):
            raise UsageError(f"{place}: {name} is not like https://host:9000")
        if value.startswith("http:") and options.get("allow_http", env.get("AWS_ALLOW_HTTP", "")).lower() not in TRUE:
            raise UsageError(
                f"{place}: {name} is without TLS",
                next_command='if you trust the network: `allow_http: "true"` in its options, or AWS_ALLOW_HTTP=true',
            )


def _settle_s3(config: dict[str, Any], *, allow_http: bool) -> None:
    """What is right for checkpoints, unless the options say otherwise."""
    config.setdefault("disable_bulk_delete", "true")  # we delete one by one, which every S3 can
    config.setdefault("disable_tagging", "true")  # tags are not used, and not every S3 has them
    if not allow_http:
        # TLS protects the body already, and every block has a digest of its own. Signing it as well is a SHA-256 of
        # every byte: half of the CPU that an upload takes.
        config.setdefault("unsigned_payload", "true")


def _storage_class(options: Mapping[str, str], place: str) -> str | None:
    name = options.get("storage_class")
    if name is not None and name.upper() in THAWS:
        raise UsageError(
            f"{place}: objects of the class {name} must be thawed before they are read, so nothing resumes from them",
            next_command="choose STANDARD_IA or GLACIER_IR, or move old objects by a rule of the bucket",
        )
    return name


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix without slashes around it."""
    split = urlsplit(url)
    if "@" in split.netloc:
        raise UsageError(
            f"{split.scheme}://…@{split.hostname}: keys do not belong in a url, which is printed",
            next_command="set them in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3)",
        )
    bucket, prefix = split.netloc, unquote(split.path).strip("/")
    if not bucket or split.query or split.fragment:
        raise UsageError(f"{shown(url)} is not like {split.scheme}://bucket/prefix")
    return split.scheme, bucket, prefix


def _without(text: str, options: Mapping[str, str]) -> str:
    """The first line, without any option's value."""
    line = text.partition("\n")[0][:200]
    for value in options.values():
        if len(value) > 3:
            line = line.replace(value, "…")
    return line
