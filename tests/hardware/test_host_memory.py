"""Memory of the host for moments: the limit of XLA's pool, set before jax starts, and what a plan says of it."""

import json
import os
import random
import subprocess
import sys

import jax
import pytest

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.hardware import host_memory
from scalelab.hardware.chips import GIB, host_memory_bytes
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.host import host_memory as plan_host
from scalelab.record import records
from scalelab.train.step import state
from tests.train.runs import ROOT, run_here, train

AWAY = ("train.updates=per_layer", "train.moments=pinned_host", "model.remat=full", "optim.name=adamw")
SETTINGS = [f"--config.{key}" for key in (*AWAY, "train.steps=2", "eval.batches=1")]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv(host_memory.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(host_memory, "jax_started", lambda: False)
    return monkeypatch


def load_recipe(name, *changes):
    overrides = dict(change.split("=", 1) for change in (*AWAY, *changes))
    alone = {"schedule.batch_stages": "", "train.global_batch": "1", "train.accumulate": "1"}
    meshes = {f"parallel.{axis}": "1" for axis in ("data", "fsdp", "tensor")}
    return config_lib.static(config_lib.load(f"configs/recipes/{name}.py", alone | meshes | overrides))


def reserve_in_pool(sizes, limit):
    """Whether XLA's best-fit allocator places arrays of these sizes: its rules, written anew from tsl's bfc_allocator.

    A region is twice the last one or as large as the array needs, in powers of two of 2 MiB, or what the limit leaves;
    the smallest gap that holds an array is split where half or 128 MiB would be lost.
    """
    gaps, reserved, region = [], 0, 2 << 20
    for size in (-(-size // 256) * 256 for size in sizes):
        if not any(gap >= size for gap in gaps):
            if size > limit - reserved:
                return False
            doubled = region < size
            while region < size:
                region *= 2
            gaps.append(min(region, limit - reserved))
            reserved += gaps[-1]
            region *= 1 if doubled else 2
        gap = min(gap for gap in gaps if gap >= size)
        gaps.remove(gap)
        if gap >= 2 * size or gap - size >= 128 << 20:
            gaps.append(gap - size)
    return True


@pytest.mark.parametrize(
    ("recipe", "change"), [("llama3_8b", ""), ("llama3_8b", "optim.name=lion"), ("llama3_70b", "")]
)
def test_the_pool_holds_the_moments_in_whatever_order_they_come(recipe, change):
    static = load_recipe(recipe, *([change] if change else []))
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(state.state_shapes(static).opt_state) if x.ndim]
    assert sum(sizes) == state.host_bytes(static)
    limit, draw = host_memory.pool_gib(sum(sizes)) * GIB - host_memory.STAGING_BYTES, random.Random(0)
    orders = [sizes, sorted(sizes), sorted(sizes)[::-1], *(draw.sample(sizes, len(sizes)) for _ in range(200))]
    assert all(reserve_in_pool(order, limit) for order in orders)
    assert not reserve_in_pool(sizes, sum(sizes) - 1)


def test_adamws_state_of_8b_takes_more_than_xla_allows_beside_its_own_staging():
    pinned = state.host_bytes(load_recipe("llama3_8b"))
    assert 64.2e9 < pinned < 64.3e9 and pinned + host_memory.STAGING_BYTES > 0.99 * host_memory.XLA_LIMIT_GIB * GIB
    assert host_memory.pool_gib(pinned) == 84


def test_a_limit_is_set_once_and_the_users_own_stays(environment):
    environment.setattr(host_memory, "host_memory_bytes", lambda: 200 * GIB)
    host_memory.reserve_host_memory(0)
    assert host_memory.LIMIT_VARIABLE not in os.environ
    host_memory.reserve_host_memory(60 * GIB)
    assert os.environ[host_memory.LIMIT_VARIABLE] == "84"
    environment.setenv(host_memory.LIMIT_VARIABLE, "61")
    host_memory.reserve_host_memory(60 * GIB)
    assert os.environ[host_memory.LIMIT_VARIABLE] == "61"
    facts = host_memory.reserved_facts(60 * GIB)
    assert facts == {"moments_bytes": 60 * GIB, "limit_gib": 61, "bytes": 200 * GIB}
    assert "60 GiB in a pool of at most 61" in host_memory.describe_reserved(facts)


@pytest.mark.parametrize(
    ("limit", "started", "pinned", "message"),
    [
        ("50", False, 60, r"needs 60\.0 GiB and \S+ allows 50; nearest: \S+LIMIT_GB=84"),
        ("many", False, 60, r"='many' is not a whole number of GiB"),
        ("", True, 90, r"needs 90\.0 GiB and \S+ allows 64, XLA's own, as jax has started; nearest: \S+=124"),
        ("500", False, 201, r"needs 201\.0 GiB of the host's memory, which has 200\.0; nearest"),
    ],
)
def test_too_little_is_refused_with_both_numbers(environment, limit, started, pinned, message):
    environment.setattr(host_memory, "host_memory_bytes", lambda: 200 * GIB)
    environment.setattr(host_memory, "jax_started", lambda: started)
    environment.setenv(host_memory.LIMIT_VARIABLE, limit)
    with pytest.raises(BadInput, match=message):
        host_memory.reserve_host_memory(pinned * GIB)


# `scalelab train` that reports the variable as jax starts its first backend.
REPORTS = """
import os, sys
from jax._src import xla_bridge
from scalelab.__main__ import main
init = xla_bridge._init_backend
def report(platform):
    print("starts:", os.environ.get("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"), file=sys.stderr)
    return init(platform)
xla_bridge._init_backend = report
sys.exit(main(sys.argv[1:]))
"""


def start_reporting(*arguments, **variables):
    environment = {key: value for key, value in os.environ.items() if key != host_memory.LIMIT_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-c", REPORTS, "train", *arguments],
        cwd=ROOT,
        env=environment | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.full
@pytest.mark.parametrize("remat", [pytest.param("full", marks=pytest.mark.slow), "auto"])
def test_the_command_sets_it_before_jax_starts_prints_and_records_it(tmp_path, remat):
    wanted = min(host_memory.XLA_LIMIT_GIB, host_memory_bytes() // GIB)
    out, err = start_reporting(*train(tmp_path / "run", *SETTINGS, f"--config.model.remat={remat}")).communicate()
    assert out and [line for line in err.splitlines() if "starts:" in line] == [f"starts: {wanted}"], err
    assert f"in a pool of at most {wanted} ({host_memory.LIMIT_VARIABLE}" in err
    noted = records.read_record(tmp_path / "run")["host_memory"]
    static = config_lib.static(
        config_lib.load("configs/tiny.py", config_lib.split_overrides(train(tmp_path, *SETTINGS))[0])
    )
    assert noted == {"moments_bytes": state.host_bytes(static), "limit_gib": wanted, "bytes": host_memory_bytes()}


@pytest.mark.full
def test_the_command_refuses_a_limit_below_the_moments_and_moments_above_the_host(tmp_path):
    small = start_reporting(*train(tmp_path / "run", *SETTINGS), XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB="0")
    out, err = small.communicate()
    assert (small.returncode, out) == (2, "") and "allows 0; nearest" in err and len(err.splitlines()) == 1
    wide = start_reporting(*train(tmp_path / "run", *SETTINGS, "--config.model.d_model=262144"))
    out, err = wide.communicate()
    assert (wide.returncode, out) == (2, "") and "of the host's memory, which has" in err.splitlines()[-1]
    assert "starts:" not in err


def test_a_plan_holds_moments_and_a_saves_copy_against_the_host(tmp_path, capsys):
    static, h100 = load_recipe("llama3_8b"), load_machine("h100")
    host = plan_host(static, h100)
    assert host.pool_bytes == 84 * GIB and host.capacity == 2 * 10**12 and host.fits
    assert host.save_bytes == pytest.approx(1.5 * host.moments_bytes, rel=1e-6)  # fp32 weights and two moments
    assert not plan_host(load_recipe("llama3_405b"), h100).fits
    assert plan_host(static, load_machine("rtx4090")).fits is None
    assert plan_host(static, load_machine("cpu")).pool_bytes == host.moments_bytes
    assert load_machine("cpu").host_bytes == host_memory_bytes()
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"base": "rtx4090", "host_bytes": 64 * 10**9}))
    assert plan_host(static, load_machine(str(path))).fits is False


@pytest.mark.full
@pytest.mark.parametrize(("hardware", "words"), [("h100", "8 devices share: fits"), ("rtx3090", "not known for this")])
def test_the_plan_prints_the_hosts_memory(capsys, hardware, words):
    from scalelab.__main__ import main

    arguments = ["plan", "--config=configs/tiny.py", f"--hardware={hardware}"]
    assert main([*arguments, *(f"--config.{key}" for key in AWAY)]) == 0
    text = capsys.readouterr().out
    assert "memory of the host, GiB" in text and words in text and host_memory.LIMIT_VARIABLE in text
    assert main(arguments) == 0 and "memory of the host" not in capsys.readouterr().out
    planned = run_here(*arguments[1:], *(f"--config.{key}" for key in AWAY), "--json", name="plan")
    assert planned["host_memory_bytes"]["fits"] is (True if hardware == "h100" else None)
