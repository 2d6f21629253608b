"""One accelerator for each worker, found without starting jax."""

import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.sweep.executors import devices, pool

GPUS = [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder of device files; no variable says which of them may be used."""
    monkeypatch.setattr(devices, "expects_accelerator", lambda: True)
    monkeypatch.setattr(pool, "expects_accelerator", lambda: True)
    for name in (devices.GPU_VARIABLE, devices.TPU_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def add(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_gpus_and_chips_are_found_by_their_files_and_by_what_the_user_allows(machine, monkeypatch):
    assert devices.list_accelerators(machine) == []
    add(machine, "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in devices.list_accelerators(machine)] == ["2", "10"]
    monkeypatch.setenv(devices.GPU_VARIABLE, "GPU-7a,3")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in devices.list_accelerators(machine)] == ["GPU-7a", "3"]


@pytest.mark.parametrize("folder, names", [("", ["accel0", "accel1"]), ("vfio", ["0", "1", "vfio"])])
def test_tpu_chips_come_with_the_bounds_of_one(machine, folder, names):
    add(machine / folder, *names)
    found = devices.list_accelerators(machine)
    assert [each["TPU_VISIBLE_CHIPS"] for each in found] == ["0", "1"]
    assert all(each["TPU_PROCESS_BOUNDS"] == each["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1" for each in found)


def run_config(**changes):
    return config_lib.resolve(override(tiny.get_config(), {k.replace("__", "."): v for k, v in changes.items()}))


def test_a_pool_has_a_worker_for_each_accelerator_or_one_for_runs_with_a_mesh(machine, monkeypatch):
    monkeypatch.setattr(devices, "list_accelerators", lambda: GPUS)
    plain = run_config()
    assert pool.worker_count([plain]) == 4
    assert devices.split_accelerators(4, [plain]) == GPUS
    assert devices.split_accelerators(2, [plain]) == GPUS[:2]
    assert devices.split_accelerators(6, [plain]) == [*GPUS, *GPUS[:2]]
    meshed = plain.copy_and_resolve_references()
    with meshed.unlocked():
        meshed.parallel.fsdp = 4
    assert devices.devices_a_run(plain) == 1 and devices.devices_a_run(meshed) == 4
    assert pool.worker_count([plain, meshed]) == 1
    assert devices.split_accelerators(1, [plain, meshed]) == [{}]


def test_on_a_cpu_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(devices, "expects_accelerator", lambda: False)
    assert devices.split_accelerators(3, [run_config()]) == [{}] * 3
