"""The code of a run: scalelab's version, and the state of git repositories (commit, a hash of what differs from it).

Only this disk is read, for some seconds at most, and nothing is written. If git fails, a note says why.
"""

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

# The only place of the version: pyproject.toml and `scalelab --version` read it; records and exported weights store it.
VERSION = "0.4.0"
RepoState = dict[str, str | bool | None]  # folder, commit, dirty, diff_sha256; or folder and note

GIT_TIMEOUT_S = 10.0  # limit in seconds for all git commands about one folder
PACKAGE_FOLDER = pathlib.Path(__file__).resolve().parent
# Every other GIT_* variable is dropped: in a hook, GIT_DIR and GIT_INDEX_FILE name the repository that the hook runs
# for.
INHERITED_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES")
FORCED_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would fetch missing objects from its server
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
NO_PROGRAMS_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# The text of a difference is hashed, so that it must not depend on the user's settings of `git diff`.
DIFF_COMMAND = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--full-index", "--no-renames"),
    *("--no-relative", "--diff-algorithm=myers", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/"),
    "--ignore-submodules=dirty",
)


class _GitUnknown(Exception):
    """Git failed; the message says why."""


def code_state(file: str | os.PathLike[str] | None = None) -> dict[str, RepoState]:
    """Read `{"user": …, "scalelab": …}`: states of the config file's repository (None: the current folder's) and ours.

    Untracked Python files beside the config belong to its state: the config may import them.
    """
    path = pathlib.Path(file).resolve() if file else None
    return {"user": _repo_state(path.parent if path else pathlib.Path.cwd(), path), "scalelab": _package_state()}


def describe_changes(old: Mapping[str, RepoState], new: Mapping[str, RepoState]) -> str:
    """Describe changes between two `code_state`s, folders aside: `user: commit 1f… -> commit 2a…`; "" without any."""
    parts = {part: (_describe_state(old[part]), _describe_state(new[part])) for part in new if part in old}
    return "; ".join(f"{part}: {before} -> {now}" for part, (before, now) in parts.items() if before != now)


def _describe_state(state: RepoState) -> str:
    commit = f"commit {str(state['commit'])[:12]}" if "commit" in state else ""
    changes = f" with changes {str(state['diff_sha256'])[:12]}" if state.get("diff_sha256") else ""
    return ", ".join(filter(None, [commit + changes, str(state.get("note", ""))]))


@functools.cache
def _package_state() -> RepoState:
    """State of scalelab's own folder; inside a user's repository (as a virtual environment) it is not a checkout."""
    try:
        _run_git(PACKAGE_FOLDER, time.monotonic() + GIT_TIMEOUT_S, "ls-files", "--error-unmatch", "__init__.py")
    except _GitUnknown:
        return {"folder": str(PACKAGE_FOLDER), "note": "not a checkout"}
    return _repo_state(PACKAGE_FOLDER, None)


def _repo_state(folder: pathlib.Path, file: pathlib.Path | None) -> RepoState:
    end = time.monotonic() + GIT_TIMEOUT_S
    try:
        answer = _run_git(folder, end, "rev-parse", "--show-toplevel", "--git-path", "index", "HEAD")
        top, index, commit = answer.rstrip(b"\n").rsplit(b"\n", 2)
    except _GitUnknown as error:
        return {"folder": str(folder), "note": str(error)}
    state: RepoState = {"folder": os.fsdecode(top), "commit": commit.decode()}
    try:
        difference, untracked = _read_diff(folder, index, end), _untracked_files(folder, file, end)
        sha = hashlib.sha256(difference)
        for path in untracked:
            content = path.read_bytes()
            sha.update(f"\0untracked {os.path.relpath(path, os.fsdecode(top))} {len(content)}\0".encode() + content)
    except (_GitUnknown, OSError) as error:
        return state | {"note": f"its changes are not known: {error}"}
    dirty = bool(difference or untracked)
    return state | {"dirty": dirty, "diff_sha256": sha.hexdigest() if dirty else None}


def _read_diff(folder: pathlib.Path, index: bytes, end: float) -> bytes:
    """Run `git diff` on a copy of the index: on the index itself it would refresh that, and lock out a commit.

    The copy is as old as the index, by which git tells files that may have changed within the second of an `add`.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = pathlib.Path(place) / "index"
        shutil.copy2(folder / os.fsdecode(index), copy)
        return _run_git(folder, end, *DIFF_COMMAND, index=copy)


def _untracked_files(folder: pathlib.Path, file: pathlib.Path | None, end: float) -> list[pathlib.Path]:
    """The config file if untracked (even if ignored), and its untracked neighbours that Python could import."""
    if file is None:
        return []
    names = _run_git(folder, end, "ls-files", "-z", "--others", "--exclude-standard", "--", ":(glob)*.py").split(b"\0")
    paths = {folder / os.fsdecode(name) for name in names if name}
    if not _run_git(folder, end, "ls-files", "-z", "--", f":(literal){file.name}"):
        paths.add(file)
    return sorted(path for path in paths if path.is_file())


def _run_git(folder: pathlib.Path, end: float, *arguments: str, index: pathlib.Path | None = None) -> bytes:
    """The output of `git arguments` in `folder`, with `index` as its index file if given; _GitUnknown if git fails."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in INHERITED_VARIABLES
    }
    environment |= {"GIT_INDEX_FILE": str(index)} if index else {}
    command: Sequence[str] = ("git", *NO_PROGRAMS_OPTIONS, *arguments)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment | FORCED_VARIABLES,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(end - time.monotonic(), 0.1),
            check=False,
        )
    except FileNotFoundError:
        raise _GitUnknown("git is not installed" if folder.is_dir() else "no such folder") from None
    except subprocess.TimeoutExpired:
        raise _GitUnknown(f"git took longer than {GIT_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise _GitUnknown(_reason(done.stderr.decode(errors="replace")))
    return done.stdout


def _reason(text: str) -> str:
    first = next(iter(text.strip().splitlines()), "git failed").removeprefix("fatal: ")
    if "not a git repository" in first:
        return "not in a git repository"
    return "no commit yet" if "ambiguous argument 'HEAD'" in first or "bad revision 'HEAD'" in first else first
