"""Meeting, watching and parting over real sockets, each process a thread here; and who is told what place."""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import socket
import stat
import threading
import time

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel import meeting, peers, processes
from scalelab.parallel.meeting import meet_processes
from scalelab.parallel.peers import PeerWatch, ProcessPlace
from scalelab.parallel.pulse import Pulse
from tests.train.runs import PATIENCE_S, command, ended, free_port, train


@pytest.fixture
def address(tmp_path):
    """Where the processes meet, and the folder that they share."""
    return f"localhost:{free_port()}", tmp_path


def gather(address, hellos, within_s=PATIENCE_S):
    """What `meet` gives or raises for each (index, processes, facts), all at once."""
    coordinator, folder = address

    def one(hello):
        index, count, facts = hello
        try:
            return meet_processes(ProcessPlace(coordinator, count, index), facts, folder, within_s)[0]
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

    def watch(self, index, pulse=None):
        def lost(code, why):
            self.told[index].append((code, why))
            self.event[index].set()

        return PeerWatch(ProcessPlace("localhost:1", 3, index), self.lines[index], lost, pulse)

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
            return socket.create_connection(("localhost", int(address[0].split(":")[1])))
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_all_meet_whatever_else_knocks(address):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(gather, address, [(0, 2, {})])
        ours = json.dumps({"index": 1, "processes": 2, "facts": {"train.seed": "5"}}).encode() + b"\n"
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", ours, b"x " + b"0" * 64 + b"\n" + ours, b"\xff\n", b""):
            with connected(address) as stranger:
                stranger.sendall(text)
                stranger.shutdown(socket.SHUT_WR)
                heard = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := stranger.recv(1000):
                        heard += more
                assert re.fullmatch(rb"([0-9a-f]{64}\n)?", heard)  # a random number, and nothing of the run
        silent = [connected(address) for _ in range(30)]  # who says nothing keeps nobody waiting
        begun = time.monotonic()
        (late,) = gather(address, [(1, 2, {})], within_s=100.0)
        assert time.monotonic() - begun < 100.0
    (lines,) = first.result()
    assert list(lines) == [1] and list(late) == [0]
    for link in (lines[1].link, late[0].link, *silent):
        link.close()


def test_it_is_met_at_the_coordinators_address_only_with_a_secret_of_its_users(address):
    """The kernel's list of who listens where: 127.0.0.1 as it writes it, or ::1."""
    port, tables = int(address[0].split(":")[1]), [pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(gather, address, [(0, 2, {})])
        connected(address).close()
        token = address[1] / ".token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
        listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
        (late,) = gather(address, [(1, 2, {})])
    first.result()[0][1].link.close()
    late[0].link.close()
    assert listening and listening <= {"0100007F", "00000000000000000000000001000000"}
    assert not token.exists()


def test_who_is_not_process_0_is_told_nothing(address):
    """Whoever sits at the coordinator's address without the secret hears a proof that is of no use to it."""
    (address[1] / ".token").write_text("the secret\n")
    heard = []
    with socket.create_server(("127.0.0.1", int(address[0].split(":")[1]))) as door:

        def imposter():
            with contextlib.suppress(OSError):
                while True:
                    with door.accept()[0] as link, contextlib.suppress(OSError):
                        link.settimeout(0.5)
                        link.sendall(b"1" * 64 + b"\n" + b"2" * 64 + b"\ngo\n")
                        while more := link.recv(1000):
                            heard.append(more)

        threading.Thread(target=imposter, daemon=True).start()
        (refusal,) = gather(address, [(1, 2, {"data.path": "private"})], within_s=1.0)
        door.shutdown(socket.SHUT_RDWR)
    assert "process 0 did not answer there" in refusal
    assert heard and b"private" not in b"".join(heard)


def test_a_name_that_leads_home_only_is_listened_at_in_the_network_too(monkeypatch):
    """As Debian's /etc/hosts has it for the machine's own name; a number and localhost mean themselves."""
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    for name in ("localhost", "127.0.1.1"):
        assert meeting.listen_addresses(ProcessPlace(f"{name}:80", 2, 0)) == [(socket.AF_INET, ("127.0.1.1", 80))]
    more = meeting.listen_addresses(ProcessPlace("node7:80", 2, 0))
    assert more[-1] == (socket.AF_INET, ("127.0.1.1", 80)) and len(more) <= 2
    assert meeting.service_address(ProcessPlace("localhost:80", 2, 0)) == "localhost:80"


def test_all_are_told_the_one_address_of_jax_s_service_whatever_the_name_means_to_them(address, monkeypatch):
    """Process 1 on the coordinator's own host, whose name leads home: jax listens in the network only."""
    port, lookup = free_port(), socket.getaddrinfo

    def resolve(host, *arguments, **more):
        return lookup("127.0.0.1" if host == "node7" else host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    places = [ProcessPlace(f"node7:{port}", 2, index) for index in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        met = list(pool.map(lambda place: meet_processes(place, {}, address[1], PATIENCE_S), places))
    for lines, _ in met:
        for line in lines.values():
            line.link.close()
    (_, first), (_, other) = met
    assert first == other == meeting.service_address(places[0])


def test_a_coordinator_elsewhere_is_said(address):
    with pytest.raises(BadInput, match=r"is not this machine .*start process 0 there"):
        meet_processes(ProcessPlace("192.0.2.1:80", 2, 0), {}, address[1], 1.0)


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


def test_malformed_lines_do_not_blind_a_watch(three):
    three.watch(0)
    for text in (
        "stop",
        "stop x y",
        "stop -1",
        "beat",
        "beat x",
        "beat 1 train x y z",
        "beat 1 train 2 3",
        "",
        "\xff",
        "?",
    ):
        three.lines[1][0].send(text)
    three.close(2)
    assert three.event[0].wait(PATIENCE_S)
    assert three.told[0] == [(1, "process 2 of 3 is gone: its connection is closed")]


def test_who_stands_still_ends_all_and_one_that_waits_for_a_save_does_not_stand_still(quick, three, tmp_path):
    """Process 2 saves while the others wait for it: they know from its beats, process 1 by way of process 0."""
    pulses = [Pulse() for _ in range(3)]
    for i, pulse in enumerate(pulses):
        pulse.enter("save" if i == 2 else "train", 7 if i == 2 else 8)
        pulse.stacks = tmp_path / f"{i}.txt"
        three.watch(i, pulse)
    until = time.monotonic() + PATIENCE_S
    while not (pulses[0].excused() and pulses[1].excused()):
        assert time.monotonic() < until
        time.sleep(0.01)
    pulses[0].enter("train", 7)  # the save of one that is no longer behind is no excuse: it waits itself
    assert not pulses[0].excused()
    pulses[0].enter("train", 8)
    pulses[2].enter("train", 7)
    while pulses[0].excused() or pulses[1].excused():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert pulses[1].hindmost() == "; process 2 of 3 is at step 7"
    pulses[1].stalled("no new step")
    for i in range(3):
        assert three.event[i].wait(PATIENCE_S)
        assert three.told[i] == [(1, "no new step" if i == 1 else "process 1 of 3: no new step")]
    assert [(tmp_path / f"{i}.txt").exists() for i in range(3)] == [True, False, True]  # its own it writes before


def test_what_the_processes_were_not_told_alike_is_named_to_both(address):
    reported = [(0, 2, {"train.steps": "20", "seed": "0"}), (1, 2, {"train.steps": "30", "seed": "0"})]
    for refusal in gather(address, reported):
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
    assert f"--coordinator={address[0]}: process 0 did not answer there within 1 s" in refusal
    for index in (0, 1):
        with pytest.raises(BadInput, match="no such host"):
            meet_processes(ProcessPlace("nowhere.invalid:1234", 2, index), {}, address[1], 5.0)


def test_a_taken_port_is_said(address):
    chosen = socket.create_server(("127.0.0.1", int(address[0].split(":")[1])))
    with chosen, pytest.raises(BadInput, match=r"process 0 can't listen there .*; take another port"):
        meet_processes(ProcessPlace(address[0], 2, 0), {}, address[1], 1.0)


@pytest.mark.parametrize(
    ("flags", "message"),
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
def test_mistakes_in_the_flags(flags, message):
    with pytest.raises(BadInput) as refusal:
        processes.find_process_place(*flags, environment={})
    assert message in str(refusal.value)


def test_a_mistake_is_one_line_of_the_command(capsys, tmp_path):
    flags = ["--config=configs/tiny.py", f"--workdir={tmp_path}", "--processes=2", "--process-id=0"]
    assert main(["train", *flags]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "scalelab: --coordinator is missing: --coordinator=HOST:PORT --processes=N --process-id=I go together"
    ]


TASK = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_NTASKS": "many"}, "SLURM_NTASKS='many' is not a whole number: start with srun, which sets it"),
        ({"SLURM_NTASKS": "0"}, "SLURM_NTASKS='0' is not a whole number"),
        (TASK | {"SLURM_PROCID": "2"}, "SLURM_PROCID='2' is not a whole number of at most 1: start with srun"),
        (TASK | {"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x' is not a whole number"),
        (TASK | {"JAX_COORDINATOR_PORT": "99999"}, "JAX_COORDINATOR_PORT='99999' is not a whole number of at most"),
        # The interactive step that salloc starts its shell in.
        (TASK | {"SLURM_STEP_NUM_TASKS": "1"}, "SLURM_NTASKS=2, but 1 of them were started with this process, as in a "
         "shell of salloc: start all with srun scalelab ..., or train in one process with SLURM_NTASKS=1"),
    ],
)  # fmt: skip
def test_slurm_s_variables_that_cannot_be_are_one_line_of_the_command(capsys, tmp_path, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line and not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize(("name", "code"), [("SLURM_JOB_ID", 1), ("JAX_COORDINATOR_PORT", 2)])
def test_a_port_that_is_taken_under_slurm_names_its_variable_and_ends_by_its_cause(tmp_path, name, code):
    """By the job's number: bad luck, 1. By JAX_COORDINATOR_PORT: a bad value, 2. Nobody gave --coordinator."""
    port = 65535 - 4096 + 1 + 77 if name == "SLURM_JOB_ID" else free_port()
    with socket.create_server(("127.0.0.1", port)):
        more = {} if name == "SLURM_JOB_ID" else {name: str(port)}
        process = command(*train(tmp_path / "run"), env=TASK | more)
        _, err = ended(process)
        assert process.returncode == code, err
        assert f"localhost:{port} (by SLURM_STEP_NODELIST and {name}): process 0 can't listen there" in err
        assert "set JAX_COORDINATOR_PORT to a free port" in err and "--coordinator" not in err


def test_nobody_who_comes_under_slurm_is_work_that_failed_and_srun_is_named(address):
    """To the processes that did come, too."""
    errors = {}

    def meet(index):
        place = ProcessPlace(address[0], 3, index, "SLURM_JOB_ID")
        with pytest.raises(WorkFailed) as failure:
            meet_processes(place, {}, address[1], 2.0)
        errors[index] = str(failure.value)

    threads = [threading.Thread(target=meet, args=(index,)) for index in (0, 2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors[0] == errors[2] and "of 3 processes, 1 did not come within 2 s" in errors[0]
    assert "start all with srun" in errors[0] and "SLURM_NTASKS=1" in errors[0]


def test_places_by_hand_by_slurm_and_alone():
    assert processes.find_process_place("[::1]:80", 3, 2, {}) == ProcessPlace("[::1]:80", 3, 2)
    assert ProcessPlace("[::1]:80", 3, 2).address == ("::1", 80)
    assert processes.find_process_place("a:80", 1, 0, {}) is None
    task = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu[003-004,9]", "SLURM_NTASKS": "4", "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in task.items():
            patch.setenv(name, value)
        place = processes.find_process_place(None, None, None)
        assert place == ProcessPlace(f"gpu003:{65535 - 4096 + 1 + 77}", 4, 3)
        patch.setenv("SLURM_NTASKS", "1")
        assert processes.find_process_place(None, None, None) is None
    assert processes.find_process_place(None, None, None, {}) is None


def test_a_collective_that_lost_its_peer_at_dispatch_waits_for_the_verdict_too():
    """As seen: jax raises a plain ValueError where a process was killed while another broadcast, outside the loop."""
    lost = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error"
    assert processes.is_lost_collective(ValueError(lost)) and not processes.is_lost_collective(ValueError("shapes"))
