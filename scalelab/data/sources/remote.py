"""Files elsewhere as sources: https://HOST/FILE, and files and globs of a data set on the Hugging Face Hub.

    hf://datasets/OWNER/NAME[@REVISION]/PATH      through huggingface_hub, at one commit, into its own cache
    https://HOST/FILE                             through httpx2, into $SCALELAB_CACHE (~/.cache/scalelab)/remote

A file is downloaded once. What names it in the plan is the commit, or the server's mark of its content (ETag,
Last-Modified, else a hash of it): a command that goes on sees that it was changed.
"""

import collections
import hashlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput, WorkFailed, nearest_hint, needs_package

HF_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.*))?")
URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
TIMEOUT_S = 30


class RemoteFile(NamedTuple):
    """A downloaded file: its local path, and the address with the mark of its content."""

    path: str
    origin: str


def is_remote(spec: str) -> bool:
    """Whether a source names files elsewhere."""
    return URL.match(spec) is not None


def fetch(spec: str) -> list[RemoteFile]:
    """Download the files of a source, URLs separated by commas, sorted by address. BadInput: there is no such file.

    WorkFailed: the server can't be reached, or breaks off; the same command goes on.
    """
    files: list[RemoteFile] = []
    for address in filter(None, map(str.strip, re.split(r",(?=[A-Za-z][A-Za-z0-9+.-]*://)", spec))):
        match = URL.match(address)
        scheme = match["scheme"].lower() if match else ""
        if scheme == "hf":
            files += _from_hub(address)
        elif scheme in ("http", "https"):
            files.append(_from_server(address))
        else:
            raise BadInput(
                f"--source={address}: {scheme or 'no'}:// is not read; https:// and hf:// are, and files here"
            )
    return sorted(set(files), key=lambda file: file.origin)


def _from_hub(address: str) -> list[RemoteFile]:
    parts = HF_SPEC.fullmatch(address)
    if parts is None:
        raise BadInput(
            f"--source={address} is not hf://datasets/OWNER/NAME[@REVISION]/PATH, the form of a data set's files"
        )
    hub, errors = _hub()
    repo, pattern = parts["repo"], parts["path"] or ""
    endpoint = os.environ.get("HF_ENDPOINT")  # a mirror
    try:
        info = hub.HfApi(endpoint).dataset_info(repo, revision=parts["revision"], timeout=TIMEOUT_S)
        names = [file.rfilename for file in info.siblings or []]
        matches = [name for name in names if name == pattern or _is_match(pattern, name)]
        if not matches:
            raise BadInput(f"--source={address} matches no file{_file_hint(f'hf://datasets/{repo}', pattern, names)}")
        return [
            RemoteFile(
                hub.hf_hub_download(repo, name, repo_type="dataset", revision=info.sha, endpoint=endpoint),
                f"hf://datasets/{repo}@{info.sha}/{name}",
            )
            for name in matches
        ]
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise BadInput(f"--source={address}: {_first_line(error)} (a private one needs HF_TOKEN)") from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, OSError) as error:
        raise _unreachable(address, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise
        raise _unreachable(address, error) from error


def _hub() -> tuple[Any, Any]:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise needs_package("a source hf://", "huggingface-hub") from None
    return huggingface_hub, errors


def _is_match(pattern: str, name: str) -> bool:
    """Whether a file's name matches a glob, as on disk: * stays within a folder, ** does not."""
    from fsspec.utils import glob_translate  # comes with huggingface_hub

    return bool(pattern) and re.fullmatch(glob_translate(pattern), name) is not None


def _file_hint(repo: str, pattern: str, names: Sequence[str]) -> str:
    """What to name instead: the glob of the usual ending, or the nearest name."""
    if pattern:
        return nearest_hint(pattern, names)
    endings = collections.Counter(ending for name in names if (ending := os.path.splitext(name)[1]) not in ("", ".md"))
    return f"; did you mean {repo}/**/*{endings.most_common(1)[0][0]}?" if endings else ""


def _from_server(address: str) -> RemoteFile:
    try:
        import httpx2
    except ImportError:
        raise needs_package("a source https://", "huggingface-hub") from None
    root = pathlib.Path(os.path.expanduser(os.environ.get("SCALELAB_CACHE") or "~/.cache/scalelab")) / "remote"
    try:
        place = urllib.parse.urlsplit(address).path
    except ValueError as error:
        raise BadInput(f"--source={address} is not an address: {error}") from error
    name = re.sub(r"[^\w.-]", "_", urllib.parse.unquote(place.rpartition("/")[2]))
    if not name.strip("._"):
        raise BadInput(f"--source={address} ends in no file's name, which would tell its format")
    try:
        with httpx2.stream("GET", address, follow_redirects=True, timeout=TIMEOUT_S) as answer:
            if answer.status_code >= 400:
                kind = BadInput if answer.status_code < 500 else WorkFailed
                raise kind(f"--source={address}: the server answers {answer.status_code} {answer.reason_phrase}")
            return _save_answer(root, name, address, answer)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _unreachable(address, error) from error
    except OSError as error:
        raise WorkFailed(f"{root} can't be written: {error.strerror or error}") from error


def _save_answer(root: pathlib.Path, name: str, address: str, answer: Any) -> RemoteFile:
    """The file of an answer, from the cache if it has the server's mark; its body is read only otherwise."""
    mark = answer.headers.get("etag") or answer.headers.get("last-modified") or ""
    size = answer.headers.get("content-length", "") if "content-encoding" not in answer.headers else ""
    folder = root / hashlib.sha256(f"{address}\n{mark}\n{size}".encode()).hexdigest()[:16]
    path = folder / name
    if not (mark and path.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{name}.tmp-{os.getpid()}"
        try:
            digest, n_bytes = hashlib.sha256(), 0
            with open(draft, "wb") as file:
                for chunk in answer.iter_bytes(2**20):
                    file.write(chunk)
                    digest.update(chunk)
                    n_bytes += len(chunk)
                file.flush()
                os.fsync(file.fileno())
            if size and int(size) != n_bytes:
                raise WorkFailed(
                    f"--source={address} broke off after {n_bytes} of {size} bytes; the same command goes on"
                )
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        mark = mark or digest.hexdigest()
    return RemoteFile(str(path), f"{address} {mark}")


def _unreachable(address: str, error: Exception) -> WorkFailed:
    return WorkFailed(f"--source={address} can't be fetched: {_first_line(error)}; the same command goes on")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
