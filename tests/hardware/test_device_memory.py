"""Memory that a program gets: jax's share of a device, as the planner counts it and as `train` asks for it."""

import json
import os

import jax
import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.hardware import device_memory
from scalelab.hardware.chips import GIB
from scalelab.plan.machine.machine import load_machine
from scalelab.train.run.opening import description


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (device_memory.SHARE_VARIABLE, device_memory.OLD_SHARE_VARIABLE, device_memory.ALLOCATOR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device_memory, "jax_started", lambda: False)
    return monkeypatch


def test_jaxs_own_share_of_an_h100_is_what_its_users_see(environment):
    """75 % of an 80 GB H100: 59.2 to 59.7 GiB in users' logs; the planner called all 80 GiB usable."""
    environment.setenv(device_memory.SHARE_VARIABLE, "0.75")
    assert 58 * GIB < device_memory.usable_bytes(load_machine("h100").chip) < 59.7 * GIB


# GiB in out-of-memory messages of PyTorch: ArcInstitute/evo2 issue 190, QwenLM/Qwen3-VL issue 2097, Zheng-Chong/CatVTON
# issue 133.
@pytest.mark.parametrize(("name", "reported"), [("l4", 22.03), ("l40", 44.40), ("t4", 14.56)])
def test_gddr6_with_ecc_is_a_sixteenth_smaller(environment, name, reported):
    environment.setenv(device_memory.ALLOCATOR_VARIABLE, "platform")  # all that CUDA reports
    assert 0.98 * reported < device_memory.usable_bytes(load_machine(name).chip) / GIB <= reported


def test_tpus_keep_what_their_compiler_says():
    """ "exceeds available HBM (15.75G)" on v5e, "(31.25G)" on v6e."""
    assert device_memory.usable_bytes(load_machine("v5e").chip) == 15.75 * GIB
    assert device_memory.usable_bytes(load_machine("v6e").chip) == 31.25 * GIB


def test_a_share_of_the_users_own_counts_in_both(environment):
    whole = device_memory.usable_bytes(load_machine("a100").chip)
    for name in (device_memory.SHARE_VARIABLE, device_memory.OLD_SHARE_VARIABLE):
        environment.setenv(name, "0.45")
        assert device_memory.usable_bytes(load_machine("a100").chip) == pytest.approx(whole / 2, rel=1e-6)
        device_memory.reserve_gpu_memory()
        assert [os.environ.get(n) for n in (name,)] == ["0.45"] and device_memory.gpu_memory_share() == 0.45
        environment.delenv(name)
    environment.setenv(device_memory.ALLOCATOR_VARIABLE, "platform")
    assert device_memory.gpu_memory_share() == 1.0


@pytest.mark.parametrize("text", ["0", "1.5", "most", "-1", "nan"])
def test_a_share_that_is_none_is_refused_by_plan_and_train_alike(environment, text, tmp_path, capsys):
    environment.setenv(device_memory.SHARE_VARIABLE, text)
    with pytest.raises(BadInput, match="not a share above 0"):
        device_memory.reserve_gpu_memory()
    assert main(["train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}"]) == 2
    assert main(["plan", "--config=configs/tiny.py", "--hardware=h100"]) == 2
    assert not (tmp_path / "run").exists() and capsys.readouterr().err.count("not a share above 0") == 2


def test_train_asks_jax_for_the_share_that_the_plan_counts_with(environment, tmp_path, capsys):
    """Seen through the command: the environment that jax will read, and `capacity` of a plan."""
    asked = []

    def refuse(*_):
        asked.append(os.environ[device_memory.SHARE_VARIABLE])
        raise BadInput("seen")

    environment.setattr("scalelab.parallel.processes.find_process_place", refuse)  # before jax is asked for anything
    assert main(["train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == "scalelab: seen\n"
    environment.delenv(device_memory.SHARE_VARIABLE)
    assert main(["plan", "--config=configs/tiny.py", "--hardware=h100", "--json=-"]) == 0
    plan = json.loads(capsys.readouterr().out)
    chip = load_machine("h100").chip
    assert plan["memory_bytes"]["capacity"] == int(float(asked[0]) * device_memory.REPORTED * chip.hbm_bytes)
    assert any(device_memory.SHARE_VARIABLE in note for note in plan["notes"])


def test_too_late_changes_nothing(environment):
    """A process whose jax has started has the memory it took: its record says 75 %, not the share it would request."""
    environment.setattr(device_memory, "jax_started", lambda: True)
    device_memory.reserve_gpu_memory()
    assert device_memory.SHARE_VARIABLE not in os.environ
    assert device_memory.gpu_memory_share(device_memory.JAX_DEFAULT_SHARE) == 0.75


def test_the_record_has_what_jax_was_given(environment):
    """On a GPU bytes and share: 75 % of a process that didn't ask, 90 % of one that did."""

    class Device:
        platform, device_kind = "gpu", "NVIDIA H100 80GB HBM3"

        def memory_stats(self):
            return {"bytes_limit": 7}

    environment.setattr(jax, "local_devices", lambda: [Device()])
    assert description.describe_device_memory() == {"bytes": 7, "share": 0.75}
    device_memory.reserve_gpu_memory()
    assert description.describe_device_memory() == {"bytes": 7, "share": 0.9}
