"""What an object store's client says about a failure, told as an error of stores."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from mementum.errors import AccessRefused, KeyMissing, StoreError, Unreachable

KEPT = "the home's own checkpoints, and what is in this place"

AGAIN = "the same command once it answers; a training tries again by itself"

# The client has one class for most failures. What they were stands in its text: the server's status, the code in the
# XML of its answer (S3's and Azure's are both called Code), and the kind of a failure that never was an answer.
STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})\b")
CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,64})</Code>")
KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Decode|Request)\b")
REDIRECT = "BareRedirect"  # which S3 sends to who asks in the wrong region
METADATA = re.compile(r"169\.254\.1(69\.254|70\.2)|metadata\.google|metadata/(identity|instance)|fd00:ec2::254")

CREDENTIALS = {  # how each client gets some, by the scheme of the place
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a key's file, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY beside AZURE_STORAGE_ACCOUNT_NAME, or `az login` and AZURE_USE_AZURE_CLI=true",
}
SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
REFUSED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
BUSY = frozenset({408, 409, 429, 500, 502, 503, 504})  # the same request may be answered later
WORDS = {"Timeout": "it did not answer in time", "Connect": "no connection to it", "Interrupted": "it broke off"}


def status_of(error: Exception) -> int | None:
    """The HTTP status of the answer, if there was one."""
    found = STATUS.search(str(error))
    return None if found is None else int(found[1] or found[2])


def code_of(error: Exception) -> str | None:
    """The code in the answer's body, if there was one."""
    found = CODE.search(str(error))
    return None if found is None else found[1]


def told(error: Exception, key: str, place: str) -> StoreError:
    """The error of stores for what the client raised about `key` (empty: about all of it) in `place`, a url without
    secrets. Of the client's own text only codes are taken over, which hold no secret."""
    status, code = status_of(error), code_of(error)
    if code in SKEWED:
        return StoreError(
            key,
            f"{place}: this machine's clock differs from the store's by more than it allows ({code})",
            kept=KEPT,
            next_command="set the clock: `timedatectl` shows it, and whether it is synchronised",
        )
    if code in NO_BUCKET:
        return StoreError(
            key,
            f"{place}: there is no such bucket",
            kept=KEPT,
            next_command="make the bucket, or correct the tier's url",
        )
    if code in ELSEWHERE or REDIRECT in str(error):
        return StoreError(
            key,
            f"{place}: the bucket is in another region than was asked ({code or 'redirected'})",
            kept=KEPT,
            next_command="set `region` in the tier's options to the bucket's region",
        )
    if METADATA.search(str(error)):
        return AccessRefused(
            key,
            f"{place}: no credentials were found",
            kept=KEPT,
            next_command=CREDENTIALS.get(place.partition(":")[0], "set the credentials of its client"),
        )
    if code in REFUSED or status in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return AccessRefused(
            key,
            f"{place}: it refuses our credentials, or does not let them do this ({code or status})",
            kept=KEPT,
            next_command="look at the keys in the environment, and at what the bucket's policy lets them do",
        )
    if isinstance(error, FileNotFoundError):
        return KeyMissing(key)
    return _of_the_network(error, key, place)


def _of_the_network(error: Exception, key: str, place: str) -> StoreError:
    status, code = status_of(error), code_of(error)
    if status is not None and status not in BUSY:
        return StoreError(
            key,
            f"{place}: it refuses the request for {key or 'its list'}: {status}{f' {code}' if code else ''}",
            kept=KEPT,
            next_command="look at the tier's url and options; the cause is attached",
        )
    kind = KIND.search(str(error))
    if status is not None:
        why = f"it answers {status}{f' {code}' if code else ''}"
    else:
        why = WORDS.get("" if kind is None else kind[1], "no whole answer came from it")
    return Unreachable(key, f"{place}: {why}", kept=KEPT, next_command=AGAIN)


def may_have_happened(error: Exception) -> bool:
    """Whether a put that ended so may have made its object all the same: its answer was lost, or was an excuse."""
    status = status_of(error)
    if status is not None:
        return status in BUSY
    kind = KIND.search(str(error))
    return kind is None or kind[1] != "Connect"
