"""The batch of a layout, and critical batch sizes against what the papers' authors measured."""

import dataclasses

import numpy as np
import pytest

from scalelab import config as configs
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.laws.law.names import LAWS
from scalelab.laws.published.kaplan import L_OF_N_D
from scalelab.model import count
from scalelab.plan.run.batch import kaplan_critical_batch, kaplan_loss, plan_batch, zhang_critical_batch

# Steps to a fixed validation loss by batch size, 64 to 16,384 sequences of 512 tokens of C4; the tokens of each size's
# full run. Zhang et al. 2024: github.com/hlzhang109/critical-batch-size, plots/chinchilla.ipynb, commit c5b509d.
BATCHES = 2 ** np.arange(6, 15)
STEPS = {
    13_282: [46000, 23000, 13282, 7000, 3840, 2500, 1800, 1600, 1600],  # 85M
    23_438: [96000, 49000, 24000, 11951, 7128, 4200, 2760, 2400, 2300],  # 151M
    46_875: [196000, 90000, 46000, 23400, 13300, 7224, 4980, 3400, 2879],  # 302M
    93_750: [311000, 166000, 81000, 37440, 21320, 11400, 7199, 4700, 3800],  # 604M
    187_500: [643000, 331000, 176000, 94000, 46500, 25000, 15360, 8900, 6500],  # 1.2B
}


def static(layout=None, **values):
    tree = base.get_config()
    tree.optim.peak_lr = 1e-3
    made = configs.static(
        configs.resolve(configs.override(tree, {k.replace("__", "."): str(v) for k, v in values.items()}))
    )
    return dataclasses.replace(made, layout=layout or made.layout)


@pytest.mark.parametrize("steps_of_256", STEPS)
def test_critical_batch_by_tokens_is_what_its_authors_runs_show(steps_of_256):
    sequences = BATCHES * np.array(STEPS[steps_of_256], float)
    overhead = sequences / np.median(sequences[:4])  # below 512 sequences the cost is flat but for noise of 10 %
    first = int(np.argmax((overhead > 1.2) & (BATCHES > 512)))
    at = np.interp(1.2, overhead[first - 1 : first + 1], BATCHES[first - 1 : first + 1])
    assert zhang_critical_batch(steps_of_256 * 256 * 512) / 512 == pytest.approx(at, rel=0.3)


def test_kaplan_at_his_own_scale():
    assert kaplan_critical_batch(1.0) == 2.1e8
    # 1 to 2 million tokens at the losses that his larger models reached (2001.08361, summary of results)
    assert 1e6 < kaplan_critical_batch(3.0) < kaplan_critical_batch(2.7) < 2e6


def test_kaplans_law_says_the_loss_where_none_is_known():
    columns = {"N": np.array([1e9, 1.75e11]), "D": np.array([1e10, 3e11])}
    losses = LAWS["kaplan"](columns, L_OF_N_D)
    assert [kaplan_loss(*sizes) for sizes in zip(*columns.values(), strict=True)] == pytest.approx(losses)
    (actual, _) = plan_batch(static(), tokens=1e10).critical
    assert actual.name == "kaplan" and actual.tokens == kaplan_critical_batch(
        kaplan_loss(count.count_parameters(static().model)["kaplan"], 1e10)
    )


def test_the_parts_multiply_to_the_batch():
    layout = configs.Layout(data=4, fsdp=8, stage=2, tensor=2, microbatches=4)
    batch = plan_batch(static(layout, train__global_batch=1024, train__accumulate=2, model__seq_len=512), tokens=1e10)
    assert (
        batch.rows_per_device * batch.microbatches * batch.accumulate * batch.data_parallel == batch.sequences == 1024
    )
    assert (batch.rows_per_device, batch.data_parallel, batch.tokens) == (4, 32, 1024 * 512)
    assert batch.first_tokens == batch.tokens and not batch.notes


def test_a_batch_that_is_warmed_up():
    made = static(
        train__global_batch=64, train__accumulate=4, schedule__batch_start=32, schedule__batch_warmup_tokens=20_000
    )
    assert plan_batch(made).first_tokens * 2 == plan_batch(made).tokens


def test_where_it_stands():
    made = static(train__global_batch=512, model__seq_len=1024)
    actual = {c.name: c for c in plan_batch(made, tokens=1e10, loss=2.7, critical_tokens=2**20).critical}
    assert (actual["yours"].ratio, actual["yours"].extra_tokens) == (0.5, 0.5)
    assert actual["zhang"].extra_tokens == pytest.approx(0.2 * actual["zhang"].ratio)
    assert actual["kaplan"].tokens == kaplan_critical_batch(2.7) and "WebText2" in actual["kaplan"].source
    assert any("beyond" in note for note in plan_batch(made, tokens=15e12).notes)
    assert any("no critical batch" in note for note in plan_batch(made).notes)
    with pytest.raises(BadInput, match="loss=0"):
        plan_batch(made, loss=0)
