"""Which words are keys: relative paths of plain names, that every store can hold."""

from __future__ import annotations

from mementum.errors import UsageError

TEMP_SUFFIX = ".tmp"  # no key may end so: whatever does is a leftover of a put, or of one that still runs
COMPONENT_BYTES_MAX = 200  # file systems take 255; the temporary name adds 13, and a few are left for other tiers
KEY_BYTES_MAX = 1000  # object stores take 1024, and a key must be able to move to one under a short prefix


def check_key(key: str) -> None:
    """UsageError unless `key` is a relative path of plain names that stays inside any store."""
    why = fault_of(key)
    if why is not None:
        raise UsageError(f"{key!r} is not a key: {why}", kept="nothing was touched")


def check_prefix(prefix: str) -> None:
    """UsageError unless `prefix` can be the beginning of keys that ends at a slash: empty, or a key and a slash."""
    if prefix and not prefix.endswith("/"):
        raise UsageError(f"{prefix!r} is not a folder: it must be empty or end with a slash")
    if prefix:
        check_key(prefix[:-1])


def check_range(key: str, start: int, size: int | None) -> None:
    """UsageError unless `start` and `size` are numbers of bytes."""
    if start < 0 or (size is not None and size < 0):
        raise UsageError(f"{key}: start={start} and size={size} must not be negative")


def fault_of(key: str) -> str | None:
    """Why it is not a key; None: it is one."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > KEY_BYTES_MAX:
        return f"it is longer than {KEY_BYTES_MAX} bytes"
    if b"\\" in encoded or b"\0" in encoded:
        return "backslash and NUL are not allowed"
    for name in encoded.split(b"/"):
        if name in (b"", b".", b".."):
            return "it must be a relative path without empty, `.` and `..` parts"
        if len(name) > COMPONENT_BYTES_MAX:
            return f"a part is longer than {COMPONENT_BYTES_MAX} bytes"
        if name.endswith(TEMP_SUFFIX.encode()):
            return f"names that end in {TEMP_SUFFIX} are kept for unfinished objects"
    return None
