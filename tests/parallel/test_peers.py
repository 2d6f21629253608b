"""Meeting, watching and parting over real sockets, each process a thread here; and who is told what place."""

import concurrent.futures
import contextlib
import socket
import threading
import time

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.parallel import peers, processes
from scalelab.parallel.peers import Place, Watch, meet
from tests.train.runs import PATIENCE_S, free_port


@pytest.fixture
def address():
    return f"localhost:{free_port()}"


def gather(address, hellos, within_s=PATIENCE_S):
    """What `meet` gives or raises for each (index, processes, facts), all at once."""

    def one(hello):
        index, count, facts = hello
        try:
            return meet(Place(address, count, index), facts, within_s)
        except BadInput as refusal:
            return str(refusal)

    with concurrent.futures.ThreadPoolExecutor(len(hellos)) as pool:
        return list(pool.map(one, hellos))


class Heard:
    """Watches of a run of three, and what each was told."""

    def __init__(self, address):
        self.lines = gather(address, [(i, 3, {"a": 1}) for i in range(3)])
        self.told = [[] for _ in range(3)]
        self.event = [threading.Event() for _ in range(3)]

    def watch(self, index):
        def lost(code, why):
            self.told[index].append((code, why))
            self.event[index].set()

        return Watch(Place("localhost:1", 3, index), self.lines[index], lost)

    def close(self, index):
        """What the kernel does for a killed process."""
        for line in list(self.lines[index].values()):
            with contextlib.suppress(OSError):  # its watch may have closed it already
                line.link.shutdown(socket.SHUT_RDWR)

    def end(self):
        """All sockets shut, and every watch at its end before one is closed under it."""
        links = [line.link for lines in self.lines for line in list(lines.values())]
        for index in range(3):
            self.close(index)
        for thread in threading.enumerate():
            if thread.name == "watch":
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        for link in links:
            link.close()


@pytest.fixture
def three(address):
    heard = Heard(address)
    yield heard
    heard.end()


def connected(address):
    """A stranger's socket to process 0, once it listens."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("localhost", int(address.split(":")[1])))
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_all_meet_whatever_else_knocks(address):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(gather, address, [(0, 2, {})])
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"index": "x"}\n', b""):
            with connected(address) as stranger:
                stranger.sendall(text)
        (late,) = gather(address, [(1, 2, {})])
    (lines,) = first.result()
    assert list(lines) == [1] and list(late) == [0]
    lines[1].link.close()
    late[0].link.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_is_heard_by_all_at_once(three, victim):
    others = [i for i in range(3) if i != victim]
    for i in others:
        three.watch(i)
    three.close(victim)
    for i in others:
        assert three.event[i].wait(PATIENCE_S)
        assert three.told[i] == [(1, f"process {victim} of 3 is gone: its connection is closed")]


class Clock:
    """For the watches: stands still while this whole process does, so that a busy machine is not taken for silence."""

    def __init__(self):
        self.lock, self.real, self.now_s = threading.Lock(), time.monotonic(), 0.0

    def monotonic(self):
        with self.lock:
            before, self.real = self.real, time.monotonic()
            self.now_s += min(self.real - before, 0.1)
            return self.now_s


@pytest.fixture
def quick(monkeypatch, three):
    """The three, whose watches beat and lose patience soon; and their clock, waited for by `wait(seconds)`."""
    clock = Clock()
    monkeypatch.setattr(peers, "time", clock)
    monkeypatch.setattr(peers, "SILENCE_S", 1.0)
    monkeypatch.setattr(peers, "BEAT_S", 0.05)
    return clock


def wait(clock, seconds):
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        time.sleep(0.02)


def test_silence_is_taken_for_death(quick, three):
    for i in (0, 1):  # process 2 is there and says nothing
        three.watch(i)
    for i in (0, 1):
        assert three.event[i].wait(PATIENCE_S)
        assert three.told[i] == [(1, "process 2 of 3 is gone: not a word for 1 s")]


def test_beats_keep_the_watch_calm_and_who_has_parted_is_not_missed(quick, three):
    three.lines[0][1].heard = quick.monotonic() - 60  # the last one came a minute after the first
    watches = [three.watch(i) for i in range(3)]
    wait(quick, 1.5)
    assert three.told == [[], [], []]
    watches[1].part()
    three.close(1)
    wait(quick, 1.5)
    assert three.told == [[], [], []]


def test_a_failure_reaches_all_with_its_reason_and_code(three):
    watches = [three.watch(i) for i in range(3)]
    watches[2].leave(2, "data.source='x'\nis no source")
    for i in (0, 1):
        assert three.event[i].wait(PATIENCE_S)
        assert three.told[i] == [(2, "process 2 of 3 stopped: data.source='x' is no source")]
    assert three.told[2] == []


def test_what_the_processes_were_not_told_alike_is_named_to_both(address):
    told = [(0, 2, {"train.steps": "20", "seed": "0"}), (1, 2, {"train.steps": "30", "seed": "0"})]
    for refusal in gather(address, told):
        assert "processes 0 and 1 were not told the same: train.steps: '20' and '30';" in refusal


def test_two_with_one_number_and_two_counts_are_refused(address):
    three = gather(address, [(0, 3, {}), (1, 3, {}), (1, 3, {})])
    assert three == ["--process-id=1 was given to two processes; each has one of 0 to 2"] * 3
    other = gather(address, [(0, 2, {}), (1, 3, {})])
    assert all("--processes=2 in process 0, but 3 in process 1" in refusal for refusal in other)


def test_who_does_not_come_is_named_within_the_time(address):
    refusals = gather(address, [(0, 3, {}), (2, 3, {})], within_s=2.0)
    assert all("of 3 processes, 1 did not come within 2 s" in refusal for refusal in refusals)
    (refusal,) = gather(address, [(1, 2, {})], within_s=1.0)
    assert f"--coordinator={address}: process 0 did not answer there within 1 s" in refusal
    with pytest.raises(BadInput, match="no such host"):
        meet(Place("nowhere.invalid:1234", 2, 1), {}, 5.0)


def test_a_taken_port_is_said(address):
    taken = socket.create_server(("", int(address.split(":")[1])), family=socket.AF_INET6, dualstack_ipv6=True)
    with taken, pytest.raises(BadInput, match=r"process 0 can't listen there .*; take another port"):
        meet(Place(address, 2, 0), {}, 1.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((None, 2, 0), "--coordinator is missing: --coordinator=HOST:PORT --processes=N --process-id=I go together"),
        (("a:1", None, 0), "--processes is missing"),
        (("a:1", 2, None), "--process-id is missing"),
        (("a", 2, 0), "--coordinator='a' is not HOST:PORT"),
        (("a:0", 2, 0), "--coordinator='a:0' is not HOST:PORT"),
        (("a:70000", 2, 0), "--coordinator='a:70000' is not HOST:PORT"),
        (("a:1", 0, 0), "--processes=0 is not a number of processes; at least 1"),
        (("a:1", 2, 2), "--process-id=2 is not one of 2 processes; nearest: 1"),
    ],
)
def test_mistakes_in_the_flags(flags, said):
    with pytest.raises(BadInput) as refusal:
        processes.place(*flags, environment={})
    assert said in str(refusal.value)


def test_a_mistake_is_one_line_of_the_command(capsys, tmp_path):
    flags = ["--config=configs/tiny.py", f"--workdir={tmp_path}", "--processes=2", "--process-id=0"]
    assert main(["train", *flags]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "scalelab: --coordinator is missing: --coordinator=HOST:PORT --processes=N --process-id=I go together"
    ]


def test_places_by_hand_by_slurm_and_alone():
    assert processes.place("[::1]:80", 3, 2, {}) == Place("[::1]:80", 3, 2)
    assert Place("[::1]:80", 3, 2).address == ("::1", 80)
    assert processes.place("a:80", 1, 0, {}) is None
    task = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu[003-004,9]", "SLURM_NTASKS": "4", "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in task.items():
            patch.setenv(name, value)
        place = processes.place(None, None, None)
        assert place == Place(f"gpu003:{65535 - 4096 + 1 + 77}", 4, 3)
        patch.setenv("SLURM_NTASKS", "1")
        assert processes.place(None, None, None) is None
    assert processes.place(None, None, None, {}) is None
