"""The state of the git repositories that a run's code comes from: commit, whether anything differs from it, a hash of what does.

Only what is on this disk is asked, for some seconds at most, and nothing is written there. Where git can't tell, a note says why.
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

RepoState = dict[str, str | bool | None]  # folder, commit, dirty, diff_sha256; or folder and note

GIT_TIMEOUT_S = 10.0  # for all questions about one folder
PACKAGE_FOLDER = pathlib.Path(__file__).resolve().parent
# Every other GIT_* variable is dropped: in a hook, GIT_DIR and GIT_INDEX_FILE name the repository that the hook runs for.
INHERITED_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES")
FORCED_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would ask its server for what it lacks
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
NO_PROGRAMS_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# The text of a difference, whatever the user's settings of `git diff` are: its hash must not depend on them.
DIFF_COMMAND = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--full-index", "--no-renames"),
    *("--no-relative", "--diff-algorithm=myers", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/"),
    "--ignore-submodules=dirty",
)


class _GitUnknown(Exception):
    """Git can't tell; the message says why."""


def code_state(file: str | os.PathLike[str] | None = None) -> dict[str, RepoState]:
    """`{"user": …, "scalelab": …}`: the repository of the config `file` (None: of the current folder), and scalelab's own.

    Untracked Python files beside the config count as its repository's: the config may import them.
    """
    path = pathlib.Path(file).resolve() if file else None
    return {"user": _repo_state(path.parent if path else pathlib.Path.cwd(), path), "scalelab": _package_state()}


def describe_changes(old: Mapping[str, RepoState], new: Mapping[str, RepoState]) -> str:
    """What differs between two `code_state`s but where the folders are: `user: commit 1f… -> commit 2a…`; "" where nothing does."""
    parts = {part: (_describe_state(old[part]), _describe_state(new[part])) for part in new if part in old}
    return "; ".join(f"{part}: {before} -> {now}" for part, (before, now) in parts.items() if before != now)


def _describe_state(state: RepoState) -> str:
    commit = f"commit {str(state['commit'])[:12]}" if "commit" in state else ""
    changes = f" with changes {str(state['diff_sha256'])[:12]}" if state.get("diff_sha256") else ""
    return ", ".join(filter(None, [commit + changes, str(state.get("note", ""))]))


@functools.cache
def _package_state() -> RepoState:
    """Of scalelab's own folder. Installed into a user's repository (a virtual environment, say) it is not a part of that."""
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
    """What `git diff` prints, from a copy of the index: it would refresh the index itself, and lock out a commit meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copyfile(folder / os.fsdecode(index), pathlib.Path(place) / "index")
        return _run_git(folder, end, *DIFF_COMMAND, index=copy)


def _untracked_files(folder: pathlib.Path, file: pathlib.Path | None, end: float) -> list[pathlib.Path]:
    """The config file if it is not tracked, ignored or not, and its untracked neighbours that Python could import."""
    if file is None:
        return []
    names = _run_git(folder, end, "ls-files", "-z", "--others", "--exclude-standard", "--", ":(glob)*.py").split(b"\0")
    paths = {folder / os.fsdecode(name) for name in names if name}
    if not _run_git(folder, end, "ls-files", "-z", "--", f":(literal){file.name}"):
        paths.add(file)
    return sorted(path for path in paths if path.is_file())


def _run_git(folder: pathlib.Path, end: float, *arguments: str, index: pathlib.Path | None = None) -> bytes:
    """What `git arguments` prints in `folder`, with another file as its index where one is given."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in INHERITED_VARIABLES
    }
    environment |= {"GIT_INDEX_FILE": str(index)} if index else {}
    command: Sequence[str] = ("git", *NO_PROGRAMS_OPTIONS, *arguments)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment | FORCED_VARIABLES, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=max(end - time.monotonic(), 0.1), check=False,
        )  # fmt: skip
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
