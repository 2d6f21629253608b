"""Hashes of a step's files. With several processes each one reads its share, at the same time as the others.

A save runs in a background thread, which must not start a collective: it could meet one of the training step in
another order. So the processes speak through files in the draft of the step, which the first one removes at the end:

    checkpoints/120.tmp/hashes/wanted.json    by the first process: {"shares": the names for each process}
    checkpoints/120.tmp/hashes/3.json         by process 3: {"files": its hashes} or {"error", "errno"}

A file is also brought to disk (fsync) by the process that hashes it. This is the one that wrote it wherever Orbax says
who that was: on a network file system another host knows nothing of bytes that are still on their way.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record.jsonfiles import read_json, retry_transient, write_json
from scalelab.untrusted.files import open_file

SHARES_NAME = "hashes"
POLL_S = 0.05
# A process that has not hashed its share after this time is named, and the save fails.
LIMIT_S = 600.0
SLOWEST_BYTES_PER_S = 50e6  # the limit grows with the bytes of the largest share
FileHashes = dict[str, dict[str, Any]]


def hash_files(step_folder: pathlib.Path, names: Sequence[str], sync: bool = False) -> FileHashes:
    """Hash files of a step: `{name: {"bytes", "sha256"}}`, several at once (hashlib releases the GIL).

    A file that can't be read has an "error" instead. `sync`: also bring each file to disk, and raise if one can't be
    read.
    """

    def hash_file(name: str) -> dict[str, Any]:
        def digest() -> dict[str, Any]:
            with open_file(step_folder / name) as file:
                if sync:
                    os.fsync(file.fileno())
                sha = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
                return {"bytes": file.tell(), "sha256": sha}

        try:
            return retry_transient(digest)
        except OSError as error:
            if sync:
                raise
            return {"error": error.strerror or str(error)}
        except BadInput:
            if sync:
                raise
            return {"error": "it is a link, or not a file"}

    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(hash_file, names), strict=True))


def split_files(sizes: Mapping[str, int], processes: int) -> list[list[str]]:
    """The names for each process: the files that it wrote, as Orbax names them, and others so that bytes are balanced.

    `sizes`: {name: bytes}. The answer depends on nothing else, so every process finds the same one.
    """
    shares: list[list[str]] = [[] for _ in range(processes)]
    totals, others = [0] * processes, []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = re.search(r"ocdbt\.process_(\d+)/", name)
        if writer and int(writer[1]) < processes:
            _give(name, int(writer[1]), sizes, shares, totals)
        else:
            others.append(name)
    for name in others:
        _give(name, totals.index(min(totals)), sizes, shares, totals)
    return shares


def _give(name: str, process: int, sizes: Mapping[str, int], shares: list[list[str]], totals: list[int]) -> None:
    shares[process].append(name)
    totals[process] += sizes[name]


def hash_with_others(draft: pathlib.Path, names: Sequence[str], processes: int) -> FileHashes:
    """In the first process: hash and sync `names` of a draft together with the others, whose answers are awaited.

    OSError or WorkFailed with the process's number where one could not read its files, or has not answered in time.
    """
    if processes == 1:
        return hash_files(draft, names, sync=True)
    sizes = {name: retry_transient((draft / name).stat).st_size for name in names}
    shares, place = split_files(sizes, processes), draft / SHARES_NAME
    limit_s = LIMIT_S + max(sum(sizes[name] for name in share) for share in shares) / SLOWEST_BYTES_PER_S
    write_json(place / "wanted.json", {"shares": shares})
    found, end = hash_files(draft, shares[0], sync=True), time.monotonic() + limit_s
    for process in range(1, processes):
        found |= _await_answer(place, process, end, limit_s)
    retry_transient(lambda: shutil.rmtree(place))
    return {name: found[name] for name in names}


def _await_answer(place: pathlib.Path, process: int, end: float, limit_s: float) -> FileHashes:
    path = place / f"{process}.json"
    if not _await(path.exists, end):
        raise WorkFailed(f"process {process} has not hashed its files in {limit_s:,.0f} s: {path} is missing")
    files: FileHashes = _read_answer(path, f"process {process}")["files"]
    return files


def hash_own_share(draft: pathlib.Path, process: int) -> None:
    """In each other process: await the first one's list, hash and sync the own share, and answer.

    OSError or WorkFailed where the first process has no list in time, or says why its save failed.
    """
    wanted = draft / SHARES_NAME / "wanted.json"
    if not _await(wanted.exists, time.monotonic() + LIMIT_S):
        raise WorkFailed(f"the first process has not listed the files to hash in {LIMIT_S:,.0f} s: {wanted} is missing")
    share = _read_answer(wanted, "the first process")["shares"][process]
    write_json(wanted.with_name(f"{process}.json"), {"files": hash_files(draft, share, sync=True)})


def _read_answer(path: pathlib.Path, process: str) -> dict[str, Any]:
    answer: dict[str, Any] = read_json(path)
    if "error" in answer:
        text = f"{process}: {answer['error']}"
        raise OSError(answer["errno"], text) if answer["errno"] else WorkFailed(text)
    return answer


def report_failure(draft: pathlib.Path, process: int, error: BaseException) -> None:
    """Tell the other processes that this one's save failed, so that none of them waits for it."""
    name = f"{process}.json" if process else "wanted.json"
    text = str(getattr(error, "strerror", None) or error).strip().split("\n")[0] or type(error).__name__
    try:
        if draft.is_dir():
            write_json(draft / SHARES_NAME / name, {"error": text, "errno": getattr(error, "errno", None)})
    except OSError:
        pass  # the same disk may refuse this too; then the others wait for their time limit


def _await(condition: Callable[[], bool], end: float) -> bool:
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
