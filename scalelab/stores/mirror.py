"""`attached`: hold a folder in a store, bring it here, and keep the store up to date while it is worked on.

Training never waits for the store, and goes on without it: files that were not uploaded stay in the local folder, and
the same command uploads them. On the same machine the local folder is used if it follows from the present index; on
another machine work goes on from the store's files.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record import lock
from scalelab.record.jsonfiles import LIST, read_json, write_json
from scalelab.stores import client
from scalelab.stores.client import Conflict, Place, StoreDown, StoreRefused
from scalelab.stores.download import download_files, read_index
from scalelab.stores.formats import MOST_INDEX_BYTES, Files
from scalelab.stores.lease import Lease, take_lease
from scalelab.stores.upload import Uploader, object_names
from scalelab.stores.urls import local_folder, url_of

SYNC_S = 10.0
PATIENCE_S = 300.0  # seconds that the end waits for a store that doesn't answer
Report = Callable[[str], None]


@contextlib.contextmanager
def attached(
    folder: pathlib.Path, take_over: bool = False, report: Report = lambda text: None, option: str = "--workdir"
) -> Iterator[None]:
    """Hold the store's folder that `folder` stands for, bring it here, upload changes, and at the end the rest.

    Does nothing for a plain local folder. `report` gets lines for the user. BadInput: no such bucket, no credentials,
    held by another process; WorkFailed: the store doesn't answer at the start, or not until PATIENCE_S after the end.
    """
    url = url_of(folder)
    if url is None:
        yield
        return
    place = client.open_place(url)
    lease, warning = take_lease(place, option, take_over)
    if warning:
        report(warning)
    left = threading.Event()
    threading.Thread(target=_beat, args=(lease, left), daemon=True, name="lease").start()
    try:
        with Mirror(lease, folder, bring_here(lease, folder, report), report):
            yield
    finally:
        left.set()
        with contextlib.suppress(StoreDown, StoreRefused, Conflict):  # the lease then ends by silence
            lease.release()


def bring_here(lease: Lease, folder: pathlib.Path, report: Report) -> Files:
    """Bring the folder here unless it is here; returns the store's files.

    A local folder that doesn't follow from the present index is outdated by another machine, and is set aside.
    """
    place = lease.place
    files = read_index(place, lease.index)
    if lease.index in _read_state(place):
        return files
    if os.path.lexists(folder):
        aside = folder.with_name(f"{folder.name}.overtaken")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder, aside)
        report(f"{place.url} was written elsewhere since; what this machine had is in {aside}")
    download_files(place, files, folder, report=report)
    _write_state(place, lease.index)
    return files


def _state_file(place: Place) -> pathlib.Path:
    folder = local_folder(place.url, "state")
    return folder.with_name(f"{folder.name}.json")


def _read_state(place: Place) -> list[str | None]:
    """Read the indices that the local folder follows from: two if a crash left the last put's outcome open."""
    path = _state_file(place)
    indices: list[str | None] = read_json(path, {"indices": LIST})["indices"] if path.exists() else [None]
    return indices


def _write_state(place: Place, *indices: str | None) -> None:
    write_json(_state_file(place), {"url": place.url, "indices": indices})


class Mirror:
    """Uploads a folder in the background; at the end of its context it uploads the rest."""

    def __init__(self, lease: Lease, folder: pathlib.Path, files: Files, report: Report) -> None:
        self.lease, self.place, self.report, self.folder, self.files = lease, lease.place, report, folder, files
        held = local_folder(self.place.url, "held")
        self.uploader = Uploader(self.place, folder, held, lease.nonce[:8], files)
        self.left, self.down = threading.Event(), ""
        self.left_out: set[str] = set()  # files that are not uploaded, as the user was told
        self.thread = threading.Thread(target=self._repeat, daemon=True, name="store")

    def __enter__(self) -> "Mirror":
        with contextlib.suppress(StoreDown, StoreRefused):
            self._delete_orphans()
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.left.set()
        self.thread.join()
        failure = self._upload_rest(0.0 if kind else PATIENCE_S)
        if failure and kind is None:
            raise WorkFailed(failure)
        if failure:
            self.report(failure)

    def _repeat(self) -> None:
        while not self.left.wait(SYNC_S):
            self._try_sync()

    def _try_sync(self) -> str:
        """Upload what changed; returns why it failed, or "". Ends the process if another has the lease."""
        try:
            self.sync()
        except Conflict:
            _end_process(self.place)
        except (StoreDown, StoreRefused, WorkFailed, OSError) as failure:
            if not self.down:
                self.report(f"{failure}; the work goes on, and what it writes waits in {self.folder}")
            self.down = str(failure)
            return self.down
        if self.down:
            self.report(f"{self.place.url} answers again")
        self.down = ""
        return ""

    def _upload_rest(self, patience_s: float) -> str:
        """Upload the rest; returns a line for the user if that failed for `patience_s`, else ""."""
        deadline, wait = time.monotonic() + patience_s, 0.5
        while failure := self._try_sync():
            if time.monotonic() + wait > deadline:
                return f"{failure}; what the store lacks is in {self.folder}, and the same command uploads it"
            time.sleep(wait)
            wait = min(2 * wait, 15.0)
        return ""

    def sync(self) -> None:
        """Upload changes, and publish them."""
        files = self.uploader.upload()
        while self.uploader.damaged:
            step = self.uploader.damaged.pop()
            self.report(f"{self.folder / step} differs from its manifest: it is not uploaded")
        for path in self.uploader.left_out.keys() - self.left_out:
            self.left_out.add(path)
            self.report(f"{self.uploader.left_out[path]}; it is not uploaded")
        data = json.dumps({"format": 1, "files": files}, sort_keys=True).encode()
        if len(data) > MOST_INDEX_BYTES:
            raise WorkFailed(
                f"{self.place.url}: the list of its files has {len(data):,} bytes, and no reader takes more than "
                f"{MOST_INDEX_BYTES:,}: save fewer checkpoints (checkpoint.keep_last, keep_every), or split the sweep"
            )
        name = f"index/{hashlib.sha256(data).hexdigest()[:32]}-{self.lease.nonce[:8]}"
        if files == self.files or name == self.lease.index:
            return
        before, old = self.files, self.lease.index
        client.put(self.place, name, data)
        _write_state(self.place, old, name)
        self.lease.publish(name)
        _write_state(self.place, name)
        self.files = files
        self.uploader.sweep(before, files)
        if old:
            client.delete(self.place, [old])

    def _delete_orphans(self) -> None:
        """Delete objects that a killed process uploaded and never published."""
        known = object_names(self.files) | {self.lease.index}
        names = [name for part in ("index", "files", "clock") for name in client.list_names(self.place, part)]
        client.delete(self.place, [name for name in names if name not in known])


def _beat(lease: Lease, left: threading.Event) -> None:
    while not left.wait(lock.HEARTBEAT_S):
        try:
            lease.beat()
        except Conflict:
            if not left.is_set():
                _end_process(lease.place)
        except (StoreDown, StoreRefused):  # report files that can't be uploaded
            continue


def _end_process(place: Place) -> None:
    os.write(2, f"scalelab: {place.url} was taken over by another process; this process ends\n".encode())
    os._exit(1)


def refuse_several_processes(folder: pathlib.Path) -> None:
    """Raise BadInput if `folder` stands for one in a store: several processes need a folder that they all share."""
    if url := url_of(folder):
        raise BadInput(f"--workdir={url} is for one process: several need a folder that they share")
