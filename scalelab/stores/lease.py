"""The lease on a folder in a store: head.json, replaced by conditional puts only.

head.json names the owner, and its time is the owner's heartbeat by the store's clock. It also names the index, so an
owner that lost the lease (suspended, or cut off) can't publish: its put is refused.
"""

import json
import os
import pathlib
import socket
import threading
import time
import uuid
from typing import Any

from scalelab.record import lock, owners
from scalelab.stores import client
from scalelab.stores.client import Conflict, Place, Version
from scalelab.stores.formats import MOST_HEAD_BYTES, ObjectsLost, parse_head

HEAD = "head.json"
MOST_SKEW_S = 60.0  # allowance between a reader's clock and the store's
HELD: set[str] = set()  # URLs that this process holds


def read_head(place: Place) -> tuple[dict[str, Any], Version, float] | None:
    """Read (content, version, time of the last write in s by the store's clock); None if nothing was written yet.

    BadInput if the object is not scalelab's.
    """
    present = client.get_versioned(place, HEAD, MOST_HEAD_BYTES)
    if present is None:
        return None
    return parse_head(present[0], f"{place.url}/{HEAD}"), present[1], present[2].timestamp()


def refuse_headless(place: Place) -> None:
    """Raise ObjectsLost if there are indices but no head.json: a new one would delete them."""
    if client.list_names(place, "index"):
        raise ObjectsLost(
            f"{place.url}/{HEAD} is missing: it names which index counts; bring it back from the bucket's versions or "
            "a copy, or use another folder"
        )


class Lease:
    """The right to write a folder in a store. `index`: the name of the present index, None for a new folder."""

    def __init__(self, place: Place, index: str | None, version: Version | None) -> None:
        self.place, self.index, self.version = place, index, version
        self.owner: str | None = str(owners.this_process())
        self.puts, self.nonce = 0, uuid.uuid4().hex
        self.turn = threading.Lock()

    def publish(self, index: str | None) -> None:
        """Make `index` the present one, and renew the heartbeat. Conflict if another process has the lease."""
        with self.turn:
            try:
                self._put(index)
            except Conflict:  # an earlier put of this process may have been done though it seemed to fail
                head = read_head(self.place)
                if not head or not head[0]["put"].startswith(self.nonce):
                    raise
                self.version = head[1]
                self._put(index)
            self.index = index

    def _put(self, index: str | None) -> None:
        self.puts += 1
        # Unlike any other content, also that of another process: the put's outcome can be recognized.
        content = {"format": 1, "owner": self.owner, "machine": machine_id(), "index": index}
        data = json.dumps(content | {"put": f"{self.nonce}.{self.puts}"}, indent=1).encode()
        self.version = client.put_if(self.place, HEAD, data, self.version)

    def beat(self) -> None:
        """Renew the heartbeat."""
        self.publish(self.index)

    def release(self) -> None:
        """Release the lease, so that others may take it."""
        HELD.discard(self.place.url)
        self.owner = None
        self.beat()


def take_lease(place: Place, option: str = "--workdir", take_over: bool = False) -> tuple[Lease, str | None]:
    """Take the lease on `place`: (the lease, a warning if an owner didn't release it).

    FolderHeld if another process holds it, or may hold it; `take_over` asserts that an owner on another host is gone.
    """
    for _ in range(5):  # other owners may come and go meanwhile
        head = read_head(place)
        if head is None:
            _now(place)  # a put shows whether the bucket exists
            refuse_headless(place)
        content, version, written = head or ({"index": None}, None, 0.0)
        owner, news = owners.parse_owner(content.get("owner") or ""), ""
        if owner:
            here = content.get("machine") == machine_id()
            refusal, news = _judge(place, owner, here, _now(place) - written, take_over)
            if refusal:
                raise lock.FolderHeld(f"{place.url} {refusal.format(option=option)}")
        lease = Lease(place, content["index"], version)
        try:
            lease.beat()
        except Conflict:
            continue
        HELD.add(place.url)
        return lease, f"took over {place.url}: {owner} {news}" if news else None
    raise lock.FolderHeld(f"{place.url} is held by another process: stop it, or use another {option}")


def is_owner_alive(content: dict[str, Any], written: float) -> bool:
    """Whether the owner in a head lives, by a reader's own clock: it may lack the right to ask for the store's."""
    owner = owners.parse_owner(str(content.get("owner") or ""))
    if owner is None or (content.get("machine") == machine_id() and not owners.is_process_alive(owner.process)):
        return False
    return time.time() - written < lock.LEASE_S + MOST_SKEW_S


def machine_id() -> str:
    """An id that is equal for processes that see each other's numbers: the machine's boot and process namespace."""
    try:
        return (
            f"{pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
        )
    except OSError:
        return socket.gethostname()


def _judge(place: Place, owner: owners.LockOwner, here: bool, silent_s: float, take_over: bool) -> tuple[str, str]:
    """Judge a lease as a local lock (`scalelab.record.lock`): (reason to refuse it, what became of its owner)."""
    silence = f"its last sign of life was {max(silent_s, 0):.0f} s ago"
    if here:
        alive = place.url in HELD if owner.process == os.getpid() else owners.is_process_alive(owner.process)
        alive &= silent_s < lock.LEASE_S
        refusal = f"is held by {owner}; {silence}: stop it, or use another {{option}}"
        return (refusal, "") if alive else ("", "died without releasing it")
    this = owners.this_process()
    if this.job and this.job == owner.job and this.restart > owner.restart:
        return "", "was this job before it was requeued"
    if take_over:
        return "", "has to make way"
    if silent_s > lock.LEASE_S:
        return "", f"gave no sign of life for {silent_s:.0f} s"
    gone = f"gone is who gives none for {lock.LEASE_S:.0f} s"
    return f"is held by {owner}; {silence} ({gone}); if that process is gone, pass --take-over", ""


def _now(place: Place) -> float:
    """The store's time in s, read from the date of a new object."""
    name = f"clock/{uuid.uuid4().hex}"
    client.put(place, name, name.encode())
    present = client.get_versioned(place, name)
    client.delete(place, [name])
    return present[2].timestamp() if present else time.time()  # None: another process has just cleaned up
