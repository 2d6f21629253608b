"""Local object stores for the tests, one of each protocol, and machines with nothing in their caches."""

import contextlib
import itertools
import re

import pytest

from scalelab.stores import client, lease, mirror
from tests.stores.servers import SERVERS

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def running():
    """Each server, started when it is first asked for."""
    with contextlib.ExitStack() as stack:
        started = {}

        def start(scheme):
            if scheme not in started:
                started[scheme] = stack.enter_context(SERVERS[scheme]())
            return started[scheme]

        yield start


@pytest.fixture(params=["s3", "gs"])
def server(request, running, monkeypatch, record_property):
    """A server without faults, to which this process's environment leads; short waits."""
    front = running(request.param)
    front.heal()
    front.faults.requests = front.faults.struck = 0
    for name, value in front.environment.items():
        monkeypatch.setenv(name, value)
    for module, name, value in [
        *((client, "WAITS_S", (0.05, 0.2)), (client, "TIMEOUT_S", 0.5)),
        *((mirror, "SYNC_S", 60.0), (mirror, "PATIENCE_S", 1.0)),
    ]:
        monkeypatch.setattr(module, name, value)
    yield front
    front.heal()
    record_property("requests", front.faults.requests)  # for checks/hostile/stores.py
    record_property("struck", front.faults.struck)
    lease.HELD.clear()


@pytest.fixture
def note_line(record_property):
    """Note a line that a user reads, for checks/hostile/stores.py; this machine's folders are left out."""
    return lambda line: record_property("line", re.sub(r"/\S*/stores/", "~/.cache/scalelab/stores/", line))


@pytest.fixture
def url(server):
    """A folder in the store that no other test uses."""
    return f"{server.scheme}://bucket/runs/{next(NUMBERS)}"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Go to a machine by its name: a cache of its own, empty at first."""

    def go(name):
        monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / name))

    go("first")
    return go
