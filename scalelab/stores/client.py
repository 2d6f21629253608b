"""Requests to an object store: put, put on a condition, get, list, delete; errors become one line.

obstore repeats requests after a 5xx or a broken connection. Requests that it gave up are tried again here: every put is
idempotent (an immutable object, or a conditional one whose outcome is looked up). Endpoints and credentials come from
the variables that obstore reads: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …; GOOGLE_BASE_URL, …
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import os
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from scalelab.errors import BadInput, WorkFailed
from scalelab.stores.urls import EXTRAS, split_url
from scalelab.untrusted.files import MOST_JSON_BYTES
from scalelab.untrusted.text import printable

T = TypeVar("T")
WAITS_S = (0.2, 1.0, 3.0)
TIMEOUT_S, RETRY_S = 20.0, 60.0  # limits of one request, and of its repetitions by obstore
PIECE_BYTES = 2**23  # most bytes of one request
THREADS = 8
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL"}
NO_BUCKET = ("NoSuchBucket", "bucket does not exist")
EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "token has expired", "invalid_grant")
WRONG = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403 Forbidden", "401 Unauthorized")
NO_CREDENTIALS = (
    "computeMetadata",
    "169.254.",
    "/latest/api/token",
    "TokenRequest",
    "MissingAccessKeyId",
    "MissingSecretAccessKey",
)
VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
Version = dict[str, str]  # version that a conditional put compares: an ETag or a generation


class StoreRefused(BadInput):
    """The store refuses: no such bucket, or no, wrong or expired credentials."""


class StoreDown(WorkFailed):
    """The store doesn't answer, or only with errors, also after repetitions."""


class Conflict(Exception):
    """A conditional put came too late: another process made or replaced the object."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder in a bucket: its URL, and obstore's store with the folder as prefix."""

    url: str
    store: Any


def open_place(url: str) -> Place:
    """Open a folder in a store, without a request. BadInput if obstore is not installed."""
    scheme, bucket, path = split_url(url)
    try:
        from obstore.store import GCSStore, S3Store
    except ImportError:
        raise BadInput(
            f"{url} needs obstore, which is not installed: pip install 'scalelab[{EXTRAS[scheme]}]'"
        ) from None
    retries: Any = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=RETRY_S)}
    plain = os.environ.get(ENDPOINTS[scheme], "").startswith("http://")
    options: Any = {"allow_http": plain, "timeout": datetime.timedelta(seconds=TIMEOUT_S)}
    kind = {"s3": S3Store, "gs": GCSStore}[scheme]
    return Place(f"{scheme}://{bucket}/{path}", kind(bucket, prefix=path, retry_config=retries, client_options=options))


def put(place: Place, name: str, content: bytes | pathlib.Path) -> None:
    """Write an object whose name depends on its content: a second write changes nothing."""
    import obstore

    def write() -> None:
        _ask(place, lambda: obstore.put(place.store, name, content, chunk_size=PIECE_BYTES))

    try:
        write()
    except FileNotFoundError:  # the bucket, or an upload in parts that the store ended before a repeated request came
        try:
            write()
        except FileNotFoundError:
            raise _no_bucket(place) from None


def put_if(place: Place, name: str, content: bytes, version: Version | None) -> Version:
    """Write an object if it still has `version`, or is absent (None). Returns the new version; else raises Conflict.

    `content` differs from that of any other put: a put that was done but reported as failed is recognized.
    """
    import obstore

    mode: Any = version or "create"
    try:
        try:
            return _version(_ask(place, lambda: obstore.put(place.store, name, content, mode=mode)))
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError, StoreDown) as failure:
            present = get_versioned(place, name)
            if present and present[0] == content:
                return present[1]
            raise failure if isinstance(failure, StoreDown) else Conflict(name) from None
    except FileNotFoundError:
        raise _no_bucket(place) from None


def get(place: Place, name: str, most_bytes: int = MOST_JSON_BYTES) -> bytes:
    """Read a whole object. FileNotFoundError if there is none, BadInput if it has more than `most_bytes`."""
    import obstore

    return _ask(place, lambda: _content(place, name, obstore.get(place.store, name), most_bytes))


def get_versioned(
    place: Place, name: str, most_bytes: int = MOST_JSON_BYTES
) -> tuple[bytes, Version, datetime.datetime] | None:
    """(content, version, time of the last write by the store's clock) of an object; None if there is none."""
    import obstore

    def read() -> tuple[bytes, Version, datetime.datetime]:
        answer = obstore.get(place.store, name)
        return _content(place, name, answer, most_bytes), _version(answer.meta), answer.meta["last_modified"]

    try:
        return _ask(place, read)
    except FileNotFoundError:
        return None


def _content(place: Place, name: str, answer: Any, most_bytes: int) -> bytes:
    size = answer.meta["size"]
    if size > most_bytes:
        raise BadInput(f"{place.url}/{name} has {size:,} bytes; at most {most_bytes:,} are read")
    return bytes(answer.bytes())


def get_piece(place: Place, name: str, start: int, length: int) -> bytes:
    """Read a range of an object; b"" where the object is shorter. FileNotFoundError if there is none."""
    import obstore

    try:
        return bytes(_ask(place, lambda: obstore.get_range(place.store, name, start=start, length=length)))
    except StoreDown:  # raised also for a range that ends behind the object
        if _ask(place, lambda: obstore.head(place.store, name)["size"]) >= start + length:
            raise
        return b""


def list_names(place: Place, folder: str) -> list[str]:
    """List the names of all objects below `folder`; the newest may be missing."""
    import obstore

    return _ask(place, lambda: [item["path"] for chunk in obstore.list(place.store, folder) for item in chunk])


def list_folders(place: Place) -> list[str]:
    """List the folders in a folder; the newest may be missing."""
    import obstore

    prefixes = _ask(place, lambda: obstore.list_with_delimiter(place.store)["common_prefixes"])
    return sorted({prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes})


def delete(place: Place, names: Iterable[str]) -> None:
    """Delete the objects that exist."""
    import obstore

    def remove(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _ask(place, lambda: obstore.delete(place.store, name))

    in_parallel(remove, names)


def in_parallel(work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """Call `work` on each item, several at once; raises the first error."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def _version(meta: Any) -> Version:
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}


def _ask(place: Place, request: Callable[[], T]) -> T:
    """Make a request; retry after WAITS_S if the failure may pass. Raises StoreRefused and StoreDown."""
    import obstore

    passed_on = (FileNotFoundError, obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
    for wait in (*WAITS_S, None):
        try:
            return request()
        except passed_on as answer:
            if any(sign in str(answer) for sign in NO_BUCKET):
                raise _no_bucket(place) from None
            raise
        except obstore.exceptions.BaseError as error:
            if refusal := explain_refusal(place.url, str(error)):
                raise StoreRefused(refusal) from None
            if wait is None:
                raise StoreDown(f"{place.url} doesn't answer: {_first_line(str(error))}") from None
        time.sleep(wait)
    raise AssertionError("not reached")


def _no_bucket(place: Place) -> StoreRefused:
    return StoreRefused(explain_refusal(place.url, NO_BUCKET[0]))


def explain_refusal(url: str, text: str) -> str:
    """Explain in one line an error that doesn't pass by itself; "" for one that may pass."""
    scheme, bucket, _ = split_url(url)
    if any(sign in text for sign in NO_BUCKET):
        return f"{url}: there is no bucket {bucket!r}"
    if any(sign in text for sign in EXPIRED):
        return f"{url}: the credentials have expired; renew them"
    if any(sign in text for sign in NO_CREDENTIALS):
        return f"{url}: no credentials found; set {VARIABLES[scheme]}"
    if any(sign in text for sign in WRONG):
        return f"{url}: the credentials are refused ({_first_line(text)})"
    if "invalid path" in text:
        return f"{url} can't be listed: an object in it has control characters or `..` in its name; name a run in it"
    if "404 Not Found" in text:  # a listing requests the bucket itself
        return f"{url}: there is no bucket {bucket!r}"
    return ""


def _first_line(text: str) -> str:
    """The first line of an error, without the request's address and its repetitions."""
    line = text.strip().partition("\n")[0]
    return printable((line.rpartition(" - ")[2] or line).partition(": <")[0], 240)
