"""One run in two processes of four devices each, over gloo: the same training, stopped together, resumed exactly."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import split_overrides
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.step import state
from tests.rounding import sum_error
from tests.train.runs import ROOT, command, ended, finish, free_port, run_here, train, untimed, wait_for

STEPS, EVERY = 18, 6
SETTINGS = [
    f"--config.{key}"
    for key in (
        f"train.steps={STEPS}", "train.steps_per_dispatch=2", "train.global_batch=8", "train.accumulate=2",
        "eval.every_steps=9", "eval.batches=1", f"checkpoint.every_steps={EVERY}",
        "log.every_steps=1", "data.source=synthetic", "data.n_tokens=50000", "model.n_layers=1",
        "parallel.fsdp=4", "parallel.tensor=2", "optim.peak_lr=1e-3",
    )
]  # fmt: skip


def devices(n):
    """Fake devices, and no optimizing of their code: it is compiled more often than it runs."""
    flags = f"--xla_force_host_platform_device_count={n} --xla_backend_optimization_level=0"
    return {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"}


def pair(folder, *more, own=((), ())):
    """Both processes of a run, started; `own`: what only one of them is told."""
    together = (*SETTINGS, *more, f"--coordinator=localhost:{free_port()}", "--processes=2")
    reported = [train(folder, *together, f"--process-id={i}", *own[i]) for i in range(2)]
    return [command(*arguments, env=devices(4)) for arguments in reported]


def finish_pair(processes, code=0):
    """Process 0's result; process 1 ends with the same code and says nothing."""
    result = finish(processes[0], code)
    out, err = ended(processes[1])
    assert (processes[1].returncode, out, err) == (code, "", "")
    return result


def interrupted(folder, number, victim, until):
    """A pair that was started and, once `until()`, one of it sent a signal."""
    processes = pair(folder)
    wait_for(until, processes[0])
    processes[victim].send_signal(number)
    return processes


def last_saved(folder):
    return max(manifest.list_steps(folder / "checkpoints"))


def last_logged(folder):
    return max(line["step"] for line in records.read_metrics(folder))


def check_gone(processes, victim, folder):
    """The other one ends at once, and its last line says who is gone and from which step the same commands go on."""
    _, err = ended(processes[1 - victim])
    processes[victim].communicate()
    last = err.strip().splitlines()[-1]
    assert processes[1 - victim].returncode == 1 and "Traceback" not in err, err
    assert f"process {1 - victim} of 2: process {victim} of 2 is gone" in last, err
    assert f"the same commands resume from step {last_saved(folder)}" in last, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The pair that nobody disturbs: its folder and result."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, finish_pair(pair(folder))


def params_at(folder, step):
    config = config_lib.load("configs/tiny.py", split_overrides(train(folder, *SETTINGS))[0])
    like = {"run": {"params": state.state_shapes(config_lib.static(config)).params}}
    return Checkpoints(folder / "checkpoints").load(like, at=step).states["run"]["params"]


def largest_difference(a, b):
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


@pytest.mark.full
def test_two_processes_train_what_one_device_trains(tmp_path):
    """Not to the last bit, since gloo adds in another order: 6e-8 after 18 steps (5e-6 at ten times the learning
    rate)."""
    folder, one, steps = tmp_path / "run", tmp_path / "one", f"--config.train.steps={EVERY}"
    result = finish_pair(pair(folder, steps))
    alone = run_here(*train(one, *SETTINGS, steps, "--config.parallel.fsdp=1", "--config.parallel.tensor=1"))
    assert result["params_digest"] == state.params_digest(params_at(folder, EVERY))  # gathered from both
    assert alone["params_digest"] == state.params_digest(params_at(one, EVERY))
    for ours, theirs in zip(untimed(folder), untimed(one), strict=True):
        # A loss's distance from its forecast, over the scatter about it: differences enlarge the losses' rounding.
        assert ours.pop("loss_sigmas", 0) == pytest.approx(theirs.pop("loss_sigmas", 0), rel=1e-3)
        assert ours == pytest.approx(theirs, rel=2e-6)
    # Adam moves a parameter by lr x g / |g|: by lr times what g is off by, relative to itself. It is a sum over 256
    # tokens after as many terms of the chain to each, of ten times its own size where most of it cancels.
    # And a gain of about one is rounded in each step.
    rounding = EVERY * 1e-3 * sum_error(512, 10) + sum_error(EVERY)
    assert largest_difference(params_at(folder, EVERY), params_at(one, EVERY)) <= rounding
    spent = records.read_record(folder)["seconds_by_process"]
    assert spent.keys() == {"0", "1"} and all(seconds["data"] > 0 for seconds in spent.values())


@pytest.mark.slow
def test_a_signal_to_one_and_the_death_of_either_stop_both_and_the_pair_goes_on_exactly(whole, tmp_path):
    folder = tmp_path / "run"
    stopped = finish_pair(interrupted(folder, signal.SIGTERM, 1, lambda: records.read_events(folder)), 75)
    assert 0 < stopped["final_step"] < EVERY and stopped["status"] == "stopped"
    assert manifest.list_steps(folder / "checkpoints") == [stopped["final_step"]]
    for victim in (1, 0):
        before = last_saved(folder)
        lost = lambda: last_logged(folder) > last_saved(folder) > before  # noqa: B023, E731 - logged, and not saved
        check_gone(interrupted(folder, signal.SIGKILL, victim, lost), victim, folder)
    last = last_saved(folder)
    assert stopped["final_step"] < EVERY < last < STEPS
    result = finish_pair(pair(folder))
    assert result["resumed_from"] == last
    assert result["params_digest"] == whole[1]["params_digest"]
    assert untimed(folder) == untimed(whole[0])
    assert [line["step"] for line in untimed(folder) if "train_loss" in line] == [*range(1, STEPS + 1)]
    kinds = [event["kind"] for event in records.read_events(folder)]
    kinds = [kind for kind in kinds if kind != "chosen"]  # what was, is said at each launch
    assert kinds == ["start", "stopped", "resume", "resume", "resume", "done"]


HANGS = """
import sys, time
from scalelab.__main__ import main
from scalelab.train.run.feed import Feed
prepare = Feed.prepare
def read_from_a_dead_disk(feed, step):
    if step >= 10 and "--process-id=1" in sys.argv:  # past the first evaluation, for which processes wait
        time.sleep(1e6)
    prepare(feed, step)
Feed.prepare = read_from_a_dead_disk
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_peer_that_lives_but_does_not_step_ends_both_with_their_stacks(tmp_path):
    folder, address = tmp_path / "run", f"--coordinator=localhost:{free_port()}"
    more = ("--config.train.stall_s=8", "--config.parallel.schedule=1f1b", address, "--processes=2")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HANGS, "train", *train(folder, *SETTINGS, *more, f"--process-id={i}")],
            cwd=ROOT,
            env=os.environ | devices(4),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    errs = [ended(process)[1] for process in started]
    assert [process.returncode for process in started] == [1, 1], errs
    for err in errs:
        last = err.strip().splitlines()[-1]
        assert "no new step for" in last and "train.stall_s" in last and "resume from step 6" in last, err
    assert "read_from_a_dead_disk" in (folder / "stacks-1.txt").read_text()
    assert "loop.py" in (folder / "stacks-0.txt").read_text()


@pytest.mark.full
def test_processes_told_different_things_refuse_in_one_line_each(tmp_path):
    processes = pair(tmp_path / "run", own=((), ("--config.train.seed=5",)))
    for i, process in enumerate(processes):
        out, err = ended(process)
        assert (process.returncode, out) == (2, "")
        assert err.splitlines() == [
            f"scalelab: process {i} of 2: processes 0 and 1 were not told the same: train.seed: '0' and '5'; "
            "start all with the same command"
        ]
    assert not (tmp_path / "run" / "config.json").exists()


ROWS = """
import json, pathlib, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scalelab.data.batches.batches import Windows, train_batches, val_batches
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput
from scalelab.parallel import processes, rows
from scalelab.parallel.peers import ProcessPlace

def batches(data, asked, mine):
    del asked[:]
    train = train_batches(data, 16, 8, 3).chunk(5, 2, mine)
    read = list(asked)
    del asked[:]
    return train, val_batches(data.parts[0], 16, 8, 2, mine), read, list(asked)

def check(data, asked, order):
    mesh = Mesh(np.array(jax.devices())[order], ("data", "tensor"))
    sharding = NamedSharding(mesh, PartitionSpec(None, "data", None))
    mine = rows.local_row_indices(sharding, (1, 8, 1), 1)
    train, val, read, read_val = batches(data, asked, mine)
    all_train, all_val, all_read, all_read_val = batches(data, asked, slice(None))
    for part, full in ((train, all_train), (val, all_val)):
        made = rows.assemble_global_array(sharding, part, mine, 1, 8)
        assert made.dtype == full.dtype and (processes.gather_to_host(made) == full).all()
    assert read == np.reshape(all_read, (2, 8))[:, mine].ravel().tolist()
    assert read_val == np.reshape(all_read_val, (2, 8))[:, mine].ravel().tolist()
    return mine.tolist()

def refused():
    try:
        processes.broadcast_from_first(lambda: (_ for _ in ()).throw(BadInput("no")))
    except BadInput as error:
        return str(error)

index = int(sys.argv[2])
with processes.run_together(ProcessPlace(sys.argv[1], 2, index), {}, pathlib.Path(sys.argv[3]), lambda code, why: None):
    data = open_dataset(DataConfig(source="synthetic", n_tokens=50000, val_fraction=0.1, vocab_size=256))
    asked, original = [], Windows.__getitem__
    Windows.__getitem__ = lambda self, numbers: (asked.extend(np.asarray(numbers).tolist()), original(self, numbers))[1]
    orders = {
        "neighbours": np.arange(8).reshape(4, 2),
        "tensor peers on the other host": np.arange(8).reshape(2, 4).T,
        "interleaved": np.array([0, 4, 1, 5, 2, 6, 3, 7]).reshape(8, 1),
    }
    held = {name: check(data, asked, order) for name, order in orders.items()}
    calls = iter([False, index == 1, False, False])
    stop = processes.make_agreed_flag(lambda: next(calls))
    said = {"held": held, "stop": [stop() for _ in range(4)], "refused": refused()}
    said["first"] = processes.broadcast_from_first(lambda: {"of": index, "x": 0.1})
print(json.dumps(said), file=sys.stderr)
"""


@pytest.mark.full
def test_each_process_reads_its_own_rows_only_and_they_agree_on_what_they_must(tmp_path):
    address = f"localhost:{free_port()}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ROWS, address, str(i), str(tmp_path)],
            cwd=ROOT,
            env=os.environ | devices(4),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    errs = [ended(process)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errs
    message = [json.loads(err.splitlines()[-1]) for err in errs]
    assert [s["held"]["neighbours"] for s in message] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [s["held"]["tensor peers on the other host"] for s in message] == [[*range(8)]] * 2
    assert [s["held"]["interleaved"] for s in message] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for s in message:
        assert s["stop"] == [False, False, True, False]  # the answer to the call before, the same in both
        assert s["first"] == {"of": 0, "x": 0.1} and s["refused"] == "no"
