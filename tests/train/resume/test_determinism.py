"""What XLA is told before it starts, and what a record promises of a run's bits. GPUs are told here, not used."""

import json
import os
import subprocess
import sys

import jax
import pytest

from scalelab.errors import WorkFailed
from scalelab.record import records
from scalelab.train.lineage import determinism
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import ROOT


def test_a_first_life_writes_its_choice_of_kernels_and_every_later_one_reads_it(tmp_path):
    stored = tmp_path / "autotuned.textproto"
    first = determinism.deterministic_xla_flags(tmp_path)
    assert first == [
        "--xla_gpu_exclude_nondeterministic_ops=true",
        f'--xla_gpu_dump_autotune_results_to="{stored}"',
    ]
    stored.write_text("version: 3\n")
    assert determinism.deterministic_xla_flags(tmp_path) == [*first, f'--xla_gpu_load_autotune_results_from="{stored}"']


@pytest.mark.full
@pytest.mark.parametrize(("more", "code"), [([], 0), (["--xla_gpu_excludes_nothing=true"], 1)])
def test_this_jaxlib_knows_every_flag_and_takes_a_path_with_a_space_whole(tmp_path, more, code):
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "autotuned.textproto").touch()
    dump = f'--xla_dump_to="{folder / "dump"}"'  # the same notation, of a flag that shows on CPU
    env = os.environ | {"XLA_FLAGS": " ".join([*determinism.deterministic_xla_flags(folder), dump, *more])}
    program = "import jax; jax.jit(lambda x: x + 1)(1)"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-500:]
    assert (folder / "dump").exists() == (code == 0)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine on which jax would look for a GPU, and has not yet."""
    monkeypatch.setenv("XLA_FLAGS", "--theirs=1")
    monkeypatch.setattr(determinism, "expects_accelerator", lambda: True)
    monkeypatch.setattr(determinism, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return tmp_path / "run"


def test_flags_are_set_where_asked_for_and_needed_beside_those_of_the_user(gpu, monkeypatch):
    determinism.set_deterministic_flags(config(), gpu)
    assert os.environ["XLA_FLAGS"] == "--theirs=1" and not gpu.exists()
    determinism.set_deterministic_flags(config(train__deterministic=True), gpu)
    assert os.environ["XLA_FLAGS"].split() == ["--theirs=1", *determinism.deterministic_xla_flags(gpu)]
    assert gpu.is_dir()  # XLA makes no folders
    monkeypatch.setenv("XLA_FLAGS", "--theirs=1")
    monkeypatch.setattr(determinism, "expects_accelerator", lambda: False)
    determinism.set_deterministic_flags(config(train__deterministic=True), gpu)
    assert os.environ["XLA_FLAGS"] == "--theirs=1"


def test_too_late_is_an_error_that_says_what_to_do_and_never_a_silent_fallback(gpu, monkeypatch):
    monkeypatch.setattr(determinism, "backends_are_initialized", lambda: True)
    with pytest.raises(WorkFailed, match=r"already started.*process of its own.*XLA_FLAGS='--xla_gpu_exclude_non"):
        train_single(config(train__deterministic=True), gpu)
    other = gpu.with_name("other")
    monkeypatch.setenv("XLA_FLAGS", " ".join(determinism.deterministic_xla_flags(other)))
    with pytest.raises(WorkFailed):  # the kernels of another run
        determinism.set_deterministic_flags(config(train__deterministic=True), gpu)
    determinism.set_deterministic_flags(config(train__deterministic=True), other)
    determinism.set_deterministic_flags(config(), gpu)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    determinism.set_deterministic_flags(config(train__deterministic=True), gpu)


LATE = """
import sys
from scalelab import __main__
from scalelab.train.lineage import determinism
determinism.expects_accelerator = lambda: True
determinism.deterministic_xla_flags = lambda folder: ["--xla_force_host_platform_device_count=3"]
code = __main__.main(sys.argv[1:])
import jax
print(code, jax.device_count())
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_the_commands_set_them_before_jax_starts(tmp_path, command):
    file = tmp_path / "one.py"
    file.write_text(
        "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
        "def sweep(h): return h.sweep('train.seed', [0])\n"
    )
    values = [f"--config.{key}={value}" for key, value in SMALL.items()]
    argv = [command, f"--config={file}", f"--workdir={tmp_path / 'run'}", "--config.train.deterministic=true", *values]
    done = subprocess.run([sys.executable, "-c", LATE, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 3", done.stderr[-2000:]


GUARANTEES = [
    (("cpu", 1, False), "bit-exact", "number of cores"),
    (("cpu", 8, True), "same mesh", "another mesh"),
    (("tpu", 1, False), "bit-exact", "ordered by program and machine"),
    (("tpu", 256, False), "same mesh", "another mesh"),
    (("gpu", 1, False), "statistical", "train.deterministic"),
    (("gpu", 1, True), "bit-exact", "autotuned.textproto"),
    (("gpu", 8, True), "same mesh", "another mesh"),
    (("abacus", 1, True), "statistical", "nothing is known of how abacus adds"),
]


@pytest.mark.parametrize(("case", "name", "why"), GUARANTEES)
def test_the_guarantee_of_each_backend_and_mesh(tmp_path, case, name, why):
    platform, devices, deterministic = case
    result = determinism.determinism_note(deterministic, platform, devices, tmp_path)
    assert result["guarantee"] == name and why in result["why"]


@pytest.mark.full
def test_a_run_that_goes_on_with_other_cores_says_so_for_good(tmp_path, monkeypatch):
    folder, cores = tmp_path / "run", len(os.sched_getaffinity(0))

    def promised(**changed):
        train_single(config(schedule__name="constant", **changed), folder)
        return records.read_json(folder / "record.json")["determinism"]

    assert promised()["guarantee"] == "bit-exact" == promised(train__steps=5)["guarantee"]
    assert records.read_json(folder / "record.json")["device_memory"]["bytes"] > 2**28
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores + 3))
    assert promised(train__steps=6)["guarantee"] == "statistical"
    (event,) = [e for e in records.read_events(folder) if e["kind"] == "moved"]
    assert (event["text"], event["step"]) == (f"cores {cores} -> {cores + 3}", 5)
    later = promised(train__steps=7)
    assert later["guarantee"] == "statistical" and event["text"] in later["why"]


def test_on_a_gpu_a_change_of_the_key_itself_is_a_move(monkeypatch):
    class Device:
        platform, device_kind = "gpu", "NVIDIA X"

    monkeypatch.setattr(jax, "devices", lambda: [Device])
    old, new = determinism.hardware_facts("one device", False), determinism.hardware_facts("one device", True)
    assert determinism.describe_hardware_change(old, new) == "deterministic False -> True"
    assert json.loads(json.dumps(old)) == old == {"mesh": "one device", "device": "NVIDIA X", "deterministic": False}
    assert determinism.describe_hardware_change({}, new) == ""  # saved before places were kept
