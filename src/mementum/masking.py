"""Masking: urls and options as they may be shown, without what opens a place."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

HIDDEN = "…"
FOLDERS = ("file", "ram")  # schemes of places without doors
BUCKETS = ("s3", "gs", "az")  # whose keys may have any sign in them
NAMED = ("postgresql",)  # where a word before the @ is always a user's name
# Options whose values open nothing. All others are hidden: what is not known may be a secret.
PLAIN = frozenset(
    {
        "account_name",
        "addressing_style",
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "container_name",
        "disable_tagging",
        "read_timeout",
        "region",
        "replicas",
        "request_payer",
        "skip_signature",
        "storage_class",
        "timeout",
        "unsigned_payload",
        "virtual_hosted_style_request",
    }
)
ADDRESSES = frozenset({"endpoint", "endpoint_url", "proxy_url"})  # urls themselves
VENDORS = ("aws_", "azure_", "google_")  # prefixes of the same names


def shown(url: str) -> str:
    """A url as it may stand in messages and facts: without a password, and without what follows `?` or `#`, where
    another may stand. What may be a password in one that is written wrongly is hidden with all beside it."""
    scheme, mark, rest = url.partition("://")
    if not mark:  # a folder; or a url without its scheme, in which anything may stand
        return url if url.startswith(("/", "~", ".")) or not set("@?:") & set(url) else HIDDEN
    if scheme in FOLDERS:
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is no number, a bracket too many: what is a password in it nobody can tell
        return f"{scheme}://{HIDDEN}"
    if scheme in BUCKETS and not set(":@") & set(parts.netloc):
        return f"{scheme}://{parts.netloc}{parts.path}"
    if "@" in host or "@" in parts.path or "@" in parts.query + parts.fragment or "#" in rest:
        return f"{scheme}://{HIDDEN}"  # a password that should have been quoted was cut in two
    # A word alone may be a Redis's password, at the wrong place.
    named = parts.username and (parts.password is not None or scheme.partition("+")[0] in NAMED)
    user = f"{parts.username}@" if named else ""
    where = f"[{host}]" if ":" in host else host
    return f"{scheme}://{user}{where}{'' if port is None else f':{port}'}{parts.path}"


def masked(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a place's client as they may be shown."""
    return {name: _masked(name, value) for name, value in options.items()}


def veiled(key: str, value: object) -> object:
    """The value of a setting as it may be shown, by the setting's own key."""
    if key in ("url", "catalog") and isinstance(value, str):
        return shown(value)
    if key == "options" and isinstance(value, Mapping):
        return masked(value)
    return value


def _masked(name: str, value: str) -> str:
    bare = name.lower()
    for vendor in VENDORS:
        bare = bare.removeprefix(vendor)
    if bare in ADDRESSES:
        return shown(value)
    return value if bare in PLAIN else HIDDEN
