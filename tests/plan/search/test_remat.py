"""`model.remat=auto`: the least recomputation that fits, told and kept; refused where nothing fits."""

import dataclasses
import re

import jax
import pytest

from scalelab import config as config_lib
from scalelab.api.door import settle_memory
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.hardware import chips
from scalelab.plan.memory.memory import memory_on_backend
from scalelab.plan.search import fits_here, remat
from scalelab.record import records
from scalelab.sweep.trials import group_into_packs
from scalelab.train.lineage.spec import make_train_spec
from tests.plan.small import static_of
from tests.plan.tiny import tiny


def gpt2(**values):
    """GPT-2 with 64 sequences of 1,024 tokens a step: activations are most of its memory."""
    config = base.get_config()
    config.model = base.gpt2(d_model=768, n_layers=12, n_heads=12)
    config.model.vocab_size, config.model.seq_len, config.train.global_batch = 50_304, 1024, 64
    return config_lib.resolve(config_lib.override(config, {"model.remat": "auto"} | values))


def with_total(total, capacity):
    memory = memory_on_backend(static_of(), "cpu", capacity)
    return dataclasses.replace(memory, total=total, fits=total <= capacity, margin_bytes=capacity - total)


@pytest.mark.parametrize(
    ("capacity", "policy"), [(1120, "none"), (1119, "dots"), (673, "dots"), (671, "full"), (448, "full"), (399, "full")]
)
def test_the_least_recomputation_that_leaves_headroom(capacity, policy):
    """Totals of 1000, 600 and 400 bytes; 12 % above a total must fit, but for the last policy."""
    totals = {"none": 1000, "dots": 600, "full": 400}
    choice = remat.choose_remat(static_of(), lambda option: with_total(totals[option.model.remat], capacity))
    assert choice.policy == policy and policy in choice.why
    assert ("too much" in choice.why) == (capacity < 400) and choice.memory.fits == (capacity >= 400)


def test_the_choice_is_what_the_account_says_and_a_run_keeps_it(monkeypatch, tmp_path):
    config = gpt2()
    totals = {
        policy: memory_on_backend(remat.with_remat(config_lib.static(config), policy), "cpu", 1).total
        for policy in remat.CHEAPEST_FIRST
    }
    assert totals["none"] > totals["dots"] > totals["full"]

    def give(size):
        monkeypatch.setattr(fits_here.chips, "capacity_bytes", lambda _: size // jax.local_device_count())

    give(int(1.2 * totals["dots"]))
    settled = remat.settle_remat(config, tmp_path / "new")
    assert settled.model.remat == "dots" and f"dots needs {totals['dots'] / 2**30:,.2f} GiB" in settled.log.remat
    assert config_lib.resolve(settled) == settled and config.model.remat == "auto"

    folder = tmp_path / "run"
    folder.mkdir()
    records.write_json(folder / "config.json", settled.to_dict())
    records.write_json(folder / "record.json", {"steps": 7, "status": "stopped"})
    give(int(2 * totals["none"]))
    again = remat.settle_remat(config, folder)
    assert (again.model.remat, again.log.remat) == ("dots", settled.log.remat)
    assert remat.settle_remat(gpt2(**{"model.remat": "full"}), folder).model.remat == "full"  # what the user sets

    give(int(0.9 * totals["full"]))
    with pytest.raises(BadInput, match=r"nothing fits: .*nearest that fits: --config") as caught:
        remat.settle_remat(config, tmp_path / "new")
    changes = dict(re.findall(r"--config\.(\S+)=(\w+)", str(caught.value)))
    settle_memory(gpt2(**changes), tmp_path, force=False)
    assert remat.settle_remat(config, tmp_path / "new", force=True).model.remat == "full"


def test_unknown_memory_and_small_steps_recompute_nothing(monkeypatch, tmp_path):
    config = tiny(**{"model.remat": "auto"})
    settled = remat.settle_remat(config, tmp_path)
    assert settled.model.remat == "none" and "less than 5%" in settled.log.remat
    monkeypatch.setattr(chips, "capacity_bytes", lambda _: 0)
    assert remat.settle_remat(config, tmp_path).log.remat == "the memory of cpu is not known"


def test_who_cannot_choose_says_so():
    config = tiny(**{"model.remat": "auto"})
    for refused in (lambda: make_train_spec(config), lambda: group_into_packs({"a": config})):
        with pytest.raises(BadInput, match=r"model\.remat='auto' is chosen for one run.*nearest"):
            refused()
