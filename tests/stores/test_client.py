"""Requests and the lease against local servers: what is done once is done, what can't be done is one line."""

import builtins
import os
import re
import socket

import pytest

from scalelab.errors import BadInput
from scalelab.record import lock, owners
from scalelab.stores import client, lease, urls
from tests.quick import one_in

pytestmark = pytest.mark.usefixtures("machine")


def test_a_conditional_put_is_done_by_one_of_all(server, url):
    place = client.open_place(url)
    first = client.put_if(place, "one", b"first", None)
    for late in (None, first):
        client.put_if(place, "one", b"second", first) if late else None
        with pytest.raises(client.Conflict):
            client.put_if(place, "one", b"third", late)
    assert client.get(place, "one") == b"second"


@pytest.mark.parametrize(("kind", "every"), [("lie", 1), ("lie", 2), ("error", 2), ("hang", 2)])
@pytest.mark.parametrize("server", one_in(2, ["s3", "gs"]), indirect=True)  # a client's patience is waited for
def test_a_put_is_done_whatever_the_answer_said(server, url, kind, every):
    place = client.open_place(url)
    server.faults.hang_s = 0.6
    server.strike(kind, every, "PUT")
    version = None
    for content in (b"1", b"2", b"3"):
        version = client.put_if(place, "one", content, version)
        if every > 1:
            client.put(place, f"part-{content.decode()}", content)
    assert server.faults.struck
    server.heal()
    assert client.get(place, "one") == b"3"
    assert client.get(place, "part-3") == b"3" if every > 1 else client.list_names(place, "") == ["one"]
    with pytest.raises(client.Conflict):
        client.put_if(place, "one", b"4", None)


def test_a_file_larger_than_a_piece_goes_up_in_parts(running, server, url, tmp_path, monkeypatch):
    if server.scheme == "gs":
        pytest.skip("fake-gcs-server doesn't know the XML API's multipart upload")
    monkeypatch.setattr(client, "PIECE_BYTES", 5 * 2**20)
    content = os.urandom(client.PIECE_BYTES + 100)
    (tmp_path / "large").write_bytes(content)
    place = client.open_place(url)
    client.put(place, "large", tmp_path / "large")
    assert client.get_piece(place, "large", client.PIECE_BYTES - 5, 50) == content[client.PIECE_BYTES - 5 :][:50]


def line_of(work, note=lambda line: None) -> str:
    with pytest.raises(BadInput) as mistake:
        work()
    assert "\n" not in str(mistake.value)
    note(str(mistake.value))
    return str(mistake.value)


def test_what_does_not_pass_is_one_line(server, url, monkeypatch, note_line):
    scheme = server.scheme
    nowhere = client.open_place(f"{scheme}://nobucket/run")
    line = line_of(lambda: client.put(nowhere, "x", b""), note_line)
    assert line == f"{scheme}://nobucket/run: there is no bucket 'nobucket'"
    server.strike("expired")
    line = line_of(lambda: client.get(client.open_place(url), "x"), note_line)
    assert line.endswith("the credentials have expired; renew them")
    server.heal()
    for name in server.environment:
        monkeypatch.delenv(name)
    if scheme == "s3":
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # a machine without a role
        line = line_of(lambda: client.get(client.open_place(url), "x"), note_line)
        assert line == f"{url}: no credentials found; set {client.VARIABLES['s3']}"
    assert "no credentials found; set " in client.explain_refusal(
        url, "Error performing GET http://169.254.169.254/latest"
    )


def test_an_address_or_package_that_is_missing_is_named(monkeypatch, note_line):
    for text in ("s3://bucket", "gs://", "s3://bucket/a//b", "gs://bucket/../b"):
        assert "is not a folder in a bucket, e.g. " in line_of(lambda text=text: urls.split_url(text))
    found = builtins.__import__

    def without(name, *more):
        if name.startswith("obstore"):
            raise ImportError(name)
        return found(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    for url, extra in (("s3://bucket/a", "scalelab[s3]"), ("gs://bucket/a", "scalelab[gcs]")):
        assert line_of(lambda url=url: client.open_place(url), note_line).endswith(
            f"not installed: pip install '{extra}'"
        )


def other_owner(**changes) -> owners.LockOwner:
    facts = {"host": "elsewhere", "process": 7, "started": "2026-11-23 10:00:00"} | changes
    return owners.LockOwner(**facts)


def leave_lease(place, monkeypatch, owner, take_over=False) -> lease.Lease:
    """Take the lease in another's name; of one elsewhere also on another machine."""
    held, _ = lease.take_lease(place, take_over=take_over)
    held.owner = str(owner)
    with monkeypatch.context() as patch:
        if owner.host == "elsewhere":
            patch.setattr(lease, "machine_id", lambda: "another machine")
        held.beat()
    lease.HELD.discard(place.url)
    return held


def test_a_second_writer_is_refused_with_the_owner_and_its_last_sign_of_life(server, url, note_line, monkeypatch):
    place = client.open_place(url)
    leave_lease(place, monkeypatch, other_owner())
    refusal = line_of(lambda: lease.take_lease(place), note_line)
    assert re.search(r"is held by host elsewhere, process 7, .*; its last sign of life was \d s ago", refusal)
    assert refusal.endswith("pass --take-over")
    leave_lease(place, monkeypatch, other_owner(host=socket.gethostname(), process=os.getppid()), take_over=True)
    assert line_of(lambda: lease.take_lease(place)).endswith("stop it, or use another --workdir")


def test_a_lease_passes_on_when_its_owner_is_dead_or_silent_and_publishes_no_more(server, url, monkeypatch):
    place = client.open_place(url)
    dead = leave_lease(place, monkeypatch, other_owner(host=socket.gethostname(), process=2**22 + 1))
    silent, news = lease.take_lease(place)
    assert "died without releasing it" in news
    with pytest.raises(client.Conflict):
        dead.publish("index/of the dead")
    silent.publish("index/a")
    silent.release()
    leave_lease(place, monkeypatch, other_owner())
    monkeypatch.setattr(lock, "LEASE_S", -2.0)
    last, news = lease.take_lease(place)
    assert "gave no sign of life for " in news and last.index == "index/a"
    last.release()
    assert lease.take_lease(place)[1] is None


@pytest.mark.parametrize("server", one_in(2, ["s3", "gs"]), indirect=True)  # a client's patience is waited for
def test_an_owner_whose_puts_were_done_without_an_answer_keeps_the_lease(server, url):
    held, _ = lease.take_lease(client.open_place(url))
    server.strike("lie")  # the put is done, and neither its answer nor that to the question whether it was
    with pytest.raises(client.StoreDown):
        held.publish("index/a")
    server.heal()
    held.publish("index/b")
    head = lease.read_head(held.place)
    assert head and head[0]["index"] == "index/b"


def test_an_object_of_another_program_is_left_alone(server, url):
    place = client.open_place(url)
    for content in (b"text", b"[1]", b'{"format": 2}'):
        client.put(place, "head.json", content)
        assert "was not written by this version of scalelab" in line_of(lambda: lease.take_lease(place))
        assert client.get(place, "head.json") == content
