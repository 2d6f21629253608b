"""What the present devices can't hold is refused before anything is compiled or written, and nothing else is."""

import dataclasses
import re

import jax
import pytest

from scalelab import api
from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.api.door import settle_memory
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.hardware import chips
from scalelab.plan.memory.memory import memory_on_backend
from scalelab.plan.search.fits_here import memory_if_too_large
from tests.plan.small import static_of


@pytest.mark.full
def test_a_7b_model_in_fp32_does_not_fit_this_host(monkeypatch, tmp_path, capsys):
    """12 bytes a parameter with Adam and 4 of gradients: 108 GB beside 64 of memory."""
    monkeypatch.setattr(chips, "host_memory_bytes", lambda: 64 * 10**9)
    code = main(["train", "--config=configs/recipes/safe_7b.py", f"--workdir={tmp_path / 'run'}"])
    reported = capsys.readouterr().err
    assert code == 2 and not (tmp_path / "run").exists()
    for word in ("parameters", "optimizer", "gradients", "activations", "capacity", "59.60"):
        assert word in reported
    last = reported.strip().splitlines()[-1]
    assert last.startswith("scalelab: a step needs at least") and last.endswith("--force starts it anyway")


@pytest.mark.full
def test_of_a_sweep_every_program_is_asked(monkeypatch, tmp_path, capsys):
    """The first fits easily, the second doesn't; nothing is started."""
    study = tmp_path / "two.py"
    study.write_text(
        "from scalelab.configs.tiny import get_config\nsweep = lambda h: h.sweep('model.d_ff', [64, 2**30])\n"
    )
    monkeypatch.setattr(chips, "host_memory_bytes", lambda: 64 * 10**9)
    assert main(["sweep", f"--config={study}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("scalelab: a step needs at least")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_the_way_out_is_named_and_is_one(monkeypatch, tmp_path):
    """GPT-2 with 64 sequences at once needs more than 6 GiB; what the line says instead has room."""
    config = base.get_config()
    config.model = base.gpt2(d_model=768, n_layers=12, n_heads=12)
    config.model.vocab_size, config.model.seq_len, config.train.global_batch = 50_304, 1024, 64
    monkeypatch.setattr(chips, "host_memory_bytes", lambda: 6 * 2**30)
    with pytest.raises(BadInput, match="nearest that fits: --config") as caught:
        settle_memory(config_lib.resolve(config), tmp_path, force=False)
    message = dict(re.findall(r"--config\.(\S+)=(\w+)", str(caught.value)))
    settle_memory(config_lib.resolve(config_lib.override(config, message)), tmp_path, force=False)


def test_force_starts_it(monkeypatch, tmp_path):
    started = []
    ended = dict.fromkeys(field.name for field in dataclasses.fields(api.Trained) if field.name != "process")
    monkeypatch.setattr("scalelab.api.door._find_excess", lambda *_: pytest.fail("asked in spite of --force"))
    monkeypatch.setattr(
        "scalelab.train.single.train_single",
        lambda config, *rest: started.append(config) or ended | {"status": "stopped", "by_source": {}},
    )
    argv = ["train", "--config=configs/recipes/safe_7b.py", f"--workdir={tmp_path}", "--force"]
    assert main(argv) == 75 and len(started) == 1


@pytest.mark.full
def test_the_line_is_what_cannot_be_estimated_away(monkeypatch):
    """A byte below the least is too little; estimates (logits, temporaries) refuse nothing."""
    static = static_of()
    plan = memory_on_backend(static, "cpu", 1)
    assert plan.least < plan.total
    for capacity, refused in ((plan.least, False), (plan.least - 1, True)):
        monkeypatch.setattr(chips, "capacity_bytes", lambda device, c=capacity: c)
        assert (memory_if_too_large(static) is not None) == refused


def test_trials_of_one_program_each_keep_a_state(monkeypatch):
    static = static_of()
    plan = memory_on_backend(static, "cpu", 1)
    state = plan.components["parameters"] + plan.components["optimizer"]
    monkeypatch.setattr(chips, "capacity_bytes", lambda device: (plan.least + state) // len(jax.local_devices()))
    assert memory_if_too_large(static, 2) is None
    assert memory_if_too_large(static, 3) is not None


def test_unknown_devices_and_small_runs_are_not_looked_at(monkeypatch, tmp_path):
    """No tracing: `scalelab train` of the tiny config starts as before."""
    config = config_lib.resolve(base.get_config())
    monkeypatch.setattr("scalelab.plan.search.fits_here.memory_on_backend", lambda *_: pytest.fail("looked at"))
    settle_memory(config, tmp_path, force=False)
    monkeypatch.setattr(chips, "capacity_bytes", lambda device: 0)
    settle_memory(config_lib.load("configs/recipes/safe_7b.py"), tmp_path, force=False)


def test_a_layout_that_cannot_be_is_said_as_ever(monkeypatch):
    monkeypatch.setattr(chips, "capacity_bytes", lambda device: 1)
    with pytest.raises(BadInput, match="nearest"):
        memory_if_too_large(static_of(parallel__data=7))
