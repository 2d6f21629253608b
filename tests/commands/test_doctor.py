"""The doctor: what is asked for, what is seen, what is not as pinned, and the exit code that scripts read."""

import json
import logging
import os
import pathlib
import platform
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import pytest
from packaging.requirements import Requirement

from scalelab.commands.doctor import main
from scalelab.errors import BadInput
from scalelab.hardware import doctor, versions
from tests.quick import one_in

ROOT = pathlib.Path(__file__).parents[2]


def test_asked_for_is_by_option_then_by_environment_then_by_build():
    builds = {"libtpu": "0.0.42"}
    assert doctor.expected_platform("cpu", "cuda", builds) == ("cpu", "--expect=cpu")
    assert doctor.expected_platform(None, "cuda,cpu", builds)[0] == "gpu"
    assert doctor.expected_platform(None, "cpu", builds)[0] is None  # who sets it to cpu wants no accelerator
    assert doctor.expected_platform(None, "", builds) == ("tpu", "the installed libtpu")
    assert doctor.expected_platform(None, "", {"jax-cuda12-plugin": "0.10.2"})[0] == "gpu"
    assert doctor.expected_platform(None, "", {})[0] is None


def test_json_report_on_cpu(capsys):
    assert main(["--expect=cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["python"] == platform.python_version()
    assert report["versions"]["jax"] == jax.__version__
    assert report["platform"] == "cpu" and report["failure"] is None
    assert len(report["devices"]) == jax.local_device_count()
    assert report["matmul"]["right"] and report["matmul"]["error"] < 1e-5
    assert 1e8 < report["matmul"]["flops"] < 1e14


def test_text_report_shows_versions_device_and_peak(capsys, tmp_path):
    assert main([f"--json={tmp_path / 'report.json'}"]) == 0
    out = capsys.readouterr().out
    assert f"jax                {jax.__version__}\n" in out
    assert "cpu:0" in out and "agrees with numpy" in out and "GFLOP/s measured" in out
    assert json.loads((tmp_path / "report.json").read_text())["platform"] == "cpu"


@pytest.mark.parametrize("arguments", [["--expect=gpu"], ["--expect=tpu", "--json"]])
def test_an_accelerator_that_is_not_seen_is_bad_input_after_the_report(arguments, capsys):
    with pytest.raises(BadInput, match=f"{arguments[0][9:]} was asked for by {arguments[0]} and none is seen"):
        main(arguments)
    assert jax.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("platforms", one_in(3, ["cuda", "tpu", "nonsense"]))
def test_a_platform_that_jax_cannot_start_is_one_line_and_exit_2(platforms):
    command = [sys.executable, "-m", "scalelab", "doctor"]
    environment = os.environ | {"JAX_PLATFORMS": platforms, "TPU_SKIP_MDS_QUERY": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.returncode == 0:
        pytest.skip(f"this machine has a device for {platforms}")
    assert answer.returncode == 2
    assert f"asked for by JAX_PLATFORMS={platforms} and none is seen" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
    assert jax.__version__ in answer.stdout


def test_an_installed_build_asks_for_its_accelerator(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    builds = {"jax-cuda12-plugin": "0.10.2"}
    monkeypatch.setattr(
        doctor, "installed_versions", lambda packages: {p: v for p, v in builds.items() if p in packages}
    )
    assert "gpu was asked for by the installed jax-cuda12-plugin" in doctor.examine_installation()["failure"]


@pytest.mark.parametrize(
    ("version", "warning"),
    [
        ("0.10.2", None),
        ("0.11.2", None),
        ("0.11.0", "jax 0.11.0 was not tested itself, 0.10.2 and 0.11.2: `make setup` installs the pinned set"),
        ("0.9.9", "jax 0.9.9 is outside what was tested, 0.10.2 to 0.11.2: `make setup` installs the pinned set"),
        ("0.12.0.1", "jax 0.12.0.1 is outside what was tested, 0.10.2 to 0.11.2: `make setup` installs the pinned set"),
    ],
)
def test_the_command_names_the_tested_versions_and_warns_of_others(monkeypatch, capsys, tmp_path, version, warning):
    (tmp_path / "latest.json").write_text(
        '{"date": "2026-11-26", "versions": {"jax": "0.11.2", "jaxlib": "0.11.2", "grain": "0.2.18"}}'
    )
    (tmp_path / "requirements.txt").write_text("jax==0.10.2   # arrays\nnumpy==2.4.6\n")
    monkeypatch.setattr(versions, "NEWEST", tmp_path / "latest.json")
    monkeypatch.setattr(versions, "PINS", tmp_path / "requirements.txt")
    installed = {"jax": version, "jaxlib": version, "numpy": "2.4.6", "optax": "0.2.8"}
    monkeypatch.setattr(
        doctor, "installed_versions", lambda packages: {p: installed[p] for p in packages if p in installed}
    )
    assert main(["--expect=cpu"]) == 0
    output = capsys.readouterr()
    assert "tested             pinned: jax 0.10.2, numpy 2.4.6 (`make test`)\n" in output.out
    assert "tested             newest: jax 0.11.2, jaxlib 0.11.2 (`make test-latest` on 2026-11-26)\n" in output.out
    assert output.err == (f"warning: {warning}\n" if warning else "")


def test_packages_that_a_run_does_without_are_named_where_they_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(versions, "installed_versions", lambda packages: dict.fromkeys(packages[1:], "1"))
    main(["--expect=cpu"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not installed")]
    assert lines == ["not installed      grain: batches are read without it, the same ones"]


def test_the_committed_newest_set_is_one_that_the_ranges_allow():
    newest = versions.tested_versions()["newest"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    assert ranges.keys() <= newest["versions"].keys() and newest["versions"]["jax"] != versions.pinned_versions()["jax"]
    assert [name for name in ranges if newest["versions"][name] not in ranges[name]] == []


def test_a_product_in_one_bf16_pass_is_not_right(monkeypatch):
    def one_pass(a, b, precision):
        return (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(jnp.float32)

    monkeypatch.setattr(jnp, "dot", one_pass)
    verdict = doctor.check_matmul()
    assert not verdict["right"] and 1e-4 < verdict["error"] < 3e-2


def test_a_wrong_product_is_exit_1(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "check_matmul", lambda: {"error": 3e-3, "right": False})
    assert main([]) == 1
    assert "IS WRONG" in capsys.readouterr().out


def test_a_gpu_beside_a_cpu_build_is_warned_of(monkeypatch):
    monkeypatch.setattr(doctor, "list_nvidia_gpus", lambda: ["NVIDIA L4, 570.1, 23034 MiB"])
    (line,) = [w for w in doctor.examine_installation("cpu")["warnings"] if "GPU" in w]
    assert "NVIDIA L4" in line and "make setup ACCEL=cuda12" in line


def test_every_pin_is_within_the_range_of_the_metadata():
    """The ranges are for installations beside other packages; the tested set must be one of those that they allow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    pins = versions.pinned_versions()
    assert pins.keys() == ranges.keys()
    assert [name for name, version in pins.items() if version not in ranges[name]] == []
    upper = [name for name, allowed in ranges.items() if not any(part.operator == "<" for part in allowed)]
    assert not upper, f"no upper bound: {upper}"


def test_what_jax_logs_becomes_the_reason_and_not_a_traceback(capsys):
    log = logging.getLogger("scalelab.test")
    with doctor._capture_warnings("scalelab.test") as output:
        try:
            raise RuntimeError("Unable to load CUDA.\nIs it installed?")
        except RuntimeError:
            log.exception("plugin failed")
        log.info("not heard")
    assert output == ["Unable to load CUDA."]
    assert log.propagate and not log.handlers
    assert capsys.readouterr().err == ""
