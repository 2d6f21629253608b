"""The ledger through the command: tokens, compute and the place in the data after a batch, length or mixture changed.

What was read is seen where the loop takes it; its order is held against the windows of the data file themselves.
"""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config.steps import schedule_steps, stretches
from scalelab.errors import BadInput
from scalelab.optim import schedules
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.run import sources
from scalelab.train.single import load_run_dataset
from tests.train.checkpoints.test_manifest import forge
from tests.train.runs import command, finish, record_rows, run_here, stopped_at, untimed

LENGTH = 16
KEYS = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": LENGTH, "eval.batches": 1,
    "eval.every_steps": 1000, "log.every_steps": 1, "checkpoint.every_steps": 2, "checkpoint.keep_last": 99,
    "schedule.name": "constant", "schedule.warmup_steps": 2, "train.steps_per_dispatch": 4, "data.source": "synthetic",
    "data.n_tokens": 20000,
}  # fmt: skip


def flags(**changes):
    values = KEYS | {key.replace("__", "."): value for key, value in changes.items()}
    return [f"--config.{key}={value}" for key, value in values.items()]


def train(folder, *allow, code=0, **changes):
    """`scalelab train` in `folder`; returns the rows [n, LENGTH + 1] of each step that it took, in order."""
    with record_rows() as steps:
        allowed = [f"--allow-change={key}" for key in allow]
        run_here("--config=configs/tiny.py", f"--workdir={folder}", *flags(**changes), *allowed, "--json", code=code)
    return [rows[rows[:, 0] >= 0] for rows in steps]


def counted(folder, step):
    return manifest.read_manifest(folder / "checkpoints" / str(step))["facts"]["run"]["ledger"]


def assert_ledger(folder, step, tokens, flops=None):
    """Record, manifest, table of runs and logged lines all say what was counted."""
    record, noted = records.read_record(folder), counted(folder, step)
    per_token = record["flops_per_token"]
    flops = per_token["exact"] * tokens if flops is None else flops
    assert (record["steps"], record["tokens"], record["flops"]["exact"]) == (step, tokens, flops)
    assert (noted["steps"], noted["tokens"], noted["flops"]) == (step, tokens, record["flops"])
    row = json_rows(folder)
    assert (row["D"], row["C"]) == (tokens, flops)
    lines = records.read_metrics(folder)
    assert (lines[-1]["tokens"], lines[-1]["flops"]) == (tokens, flops)
    for name in ("tokens", "flops"):
        column = [line[name] for line in lines if "train_loss" in line]
        assert column == sorted(set(column)) and len(column) == step  # rises with each step, and never falls


def json_rows(folder):
    (row,) = run_here(str(folder), "--json", name="runs")
    return row


def windows(config):
    """Every window of the training split, cut out of the tokens by hand."""
    (part,) = load_run_dataset(config).parts
    (tokens,) = part.train.shards
    n = (len(tokens) - 1) // LENGTH
    return np.stack([np.asarray(tokens[i * LENGTH : (i + 1) * LENGTH + 1]) for i in range(n)])


def assert_goes_on(rows, config):
    """`rows`, in the order they were read, are the seed's own order of windows: none left out, none read twice."""
    every = [tuple(window) for window in windows(config).tolist()]
    plain = config_lib.resolve(config_lib.override(config, {"train.global_batch": 1, "log.stretches": ""}))
    order = sources.make_train_batches(plain, load_run_dataset(config))
    n, read = len(every), [tuple(row) for row in rows.tolist()]
    assert read == [every[int(order.window_numbers(i)[0])] for i in range(len(read))]
    for start in range(0, len(read), n):  # and, by counting alone: an epoch reads no window more often than it stands
        epoch = read[start : start + n]
        assert all(epoch.count(window) <= every.count(window) for window in set(epoch))


def resolved(**changes):
    overrides = dict(flag.removeprefix("--config.").split("=") for flag in flags(**changes))
    return config_lib.load("configs/tiny.py", overrides)


SIXTEEN = {"train__global_batch": 16, "train__steps": 20}
FOUR = {"train__global_batch": 4, "train__steps": 24}


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory):
    """20 steps of 16 sequences, and their rows."""
    folder = tmp_path_factory.mktemp("sixteen") / "run"
    return folder, train(folder, **SIXTEEN)


@pytest.fixture(scope="module")
def changed(tmp_path_factory, sixteen):
    """They and 4 steps of 4: the folder, and all rows."""
    folder = tmp_path_factory.mktemp("changed") / "run"
    shutil.copytree(sixteen[0], folder)
    return folder, sixteen[1] + train(folder, "train.global_batch", **FOUR)


@pytest.mark.full
def test_twenty_steps_of_sixteen_and_four_of_four_are_5376_tokens_and_the_data_go_on(changed):
    folder, rows = changed
    assert [len(step) for step in rows] == [16] * 20 + [4] * 4
    assert_ledger(folder, 24, 5376)
    assert_goes_on(np.concatenate(rows), resolved(**FOUR))
    noted = counted(folder, 24)
    assert (noted["sequences"], noted["position"], noted["batch"]) == (336, 336, 24)
    assert counted(folder, 20)["position"] == 320 and counted(folder, 22)["tokens"] == 5248
    (said,) = [event["text"] for event in records.read_events(folder) if "are counted" in event["text"]]
    assert said == "step 20: 5,120 tokens are counted, and the data go on at sequence 320"


@pytest.mark.full
def test_without_the_flag_it_is_refused_and_nothing_changes(sixteen, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sixteen[0], folder)
    assert train(folder, code=2, **FOUR) == []
    assert train(folder, "train.global_batch", code=2, log__stretches="[]", **FOUR) == []  # nor is a past given by hand
    assert_ledger(folder, 20, 5120)


@pytest.mark.full
def test_stopped_after_the_change_it_goes_on_to_the_same_bits(changed, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(changed[0], folder)
    stopped_at(folder, 22)
    rows = train(folder, **FOUR)
    assert_ledger(folder, 24, 5376)
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(changed[1][22:]))
    assert untimed(folder) == untimed(changed[0]) and counted(folder, 24) == counted(changed[0], 24)
    states = [manifest.read_manifest(f / "checkpoints" / "24")["facts"]["run"]["config"] for f in (folder, changed[0])]
    assert states[0] == states[1]


@pytest.mark.full
def test_back_to_an_older_step_the_ledger_is_that_steps(changed, tmp_path):
    """A fallback to before the change: from there on the present batch counts."""
    folder = tmp_path / "run"
    shutil.copytree(changed[0], folder)
    for step in (20, 22, 24):
        (folder / "checkpoints" / str(step) / "manifest.json").write_text("{}")
    records.write_json(folder / "record.json", records.read_record(folder) | {"status": "running", "steps": 20})
    rows = train(folder, "train.global_batch", checkpoint__fallback=True, **FOUR)
    assert_ledger(folder, 24, 18 * 256 + 6 * 64)
    assert_goes_on(np.concatenate(changed[1][:18] + rows), resolved(**FOUR))


@pytest.mark.full
def test_diagnose_shows_the_batches_that_were_read_before_and_after_the_change(changed):
    every = [tuple(window) for window in windows(resolved(**FOUR)).tolist()]
    for step in (3, 22):
        answer = run_here(str(changed[0]), f"--batch={step}", "--json", name="diagnose")
        numbers = {row["row"]: row["window"] for row in answer["sequences"]}
        assert [every[numbers[i]] for i in range(len(numbers))] == [tuple(r) for r in changed[1][step - 1].tolist()]


@pytest.mark.full
def test_schedules_in_tokens_take_the_counted_ones(changed):
    """Traced as on the host, before and after the change; and at 10^13 tokens, which int32 does not hold."""
    config = config_from_facts({"config": records.read_config(changed[0])})
    static, steps = config_lib.static(config), np.arange(30)
    expected = [min(step, 20) * 256 + max(0, step - 20) * 64 for step in steps.tolist()]
    assert [schedule_steps.tokens_before(config, step) for step in steps.tolist()] == expected
    traced = jax.jit(jax.vmap(lambda step: schedules.traced_tokens_before(static, step)))
    assert traced(jnp.asarray(steps, jnp.int32)).tolist() == expected
    far = [past._replace(tokens=10**13) if past.step else past for past in static.past]
    large = dataclasses.replace(static, past=tuple(far))
    assert float(jax.jit(lambda step: schedules.traced_tokens_before(large, step))(22)) == np.float32(10**13 + 128)
    own = config_lib.resolve(config)  # a config of the user's own counts from zero
    assert (own.log.stretches, schedule_steps.tokens_before(own, 10)) == ("", 640)


@pytest.mark.full
def test_a_decay_in_tokens_counts_back_over_the_change(changed):
    """Of the last 768 tokens 4 steps took 64, and 2 before them 256."""
    config = config_from_facts({"config": records.read_config(changed[0])})
    lengths = {
        tokens: schedule_steps.requested_steps(config_lib.override(config, {"schedule.decay_tokens": tokens}), "decay")[
            "decay_tokens"
        ]
        for tokens in (128, 256, 768)
    }
    assert lengths == {128: 2, 256: 4, 768: 6}


@pytest.mark.slow
def test_on_a_mesh_the_ledger_and_the_data_are_those_of_one_device(sixteen, changed, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sixteen[0], folder)
    arguments = ["--config=configs/tiny.py", f"--workdir={folder}", *flags(**FOUR, parallel__data=2)]
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    finish(command(*arguments, "--allow-change=train.global_batch", env=env))
    assert_ledger(folder, 24, 5376)
    assert counted(folder, 24) == counted(changed[0], 24)
    one, two = (
        [line["train_loss"] for line in records.read_metrics(each) if "train_loss" in line]
        for each in (changed[0], folder)
    )
    np.testing.assert_allclose(two, one, rtol=1e-5)


@pytest.mark.full
def test_a_branch_of_a_changed_trunk_has_the_trunks_tokens(changed, tmp_path):
    folder = tmp_path / "branch"
    run_here(f"--branch-from={changed[0]}", f"--workdir={folder}", "--config.schedule.decay_tokens=128", "--json")
    record = records.read_record(folder)
    assert (record["steps"], record["tokens"]) == (26, 5376 + 128)
    assert (
        record["flops"]["exact"] == record["flops_per_token"]["exact"] * 5504 and counted(folder, 26)["position"] == 344
    )


@pytest.mark.full
def test_a_checkpoint_without_a_ledger_gets_one_from_its_own_config_and_says_so(sixteen, changed, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sixteen[0], folder)
    for step in manifest.list_steps(folder / "checkpoints"):
        content = manifest.read_manifest(folder / "checkpoints" / str(step))
        del content["facts"]["run"]["ledger"], content["facts"]["run"]["config"]["log"]["stretches"]
        forge(folder / "checkpoints" / str(step), content)
    rows = train(folder, "train.global_batch", **FOUR)
    assert_ledger(folder, 24, 5376)
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(changed[1][20:]))
    texts = [event["text"] for event in records.read_events(folder)]
    assert sum(text == ledger.NO_LEDGER.format(step=20) for text in texts) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    "edit",
    [
        *([1], {"by_source": {"web": "x"}}),
        *(pytest.param(edit, marks=pytest.mark.slow) for edit in ({"tokens": -1}, {"flops": [1]}, {"steps": 2**63})),
    ],
)
def test_an_edited_ledger_is_one_line(edit, sixteen, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(sixteen[0], folder)
    for step in manifest.list_steps(folder / "checkpoints"):
        content = manifest.read_manifest(folder / "checkpoints" / str(step))
        facts = content["facts"]["run"]
        facts["ledger"] = edit if isinstance(edit, list) else facts["ledger"] | edit
        forge(folder / "checkpoints" / str(step), content)
    line = ["train", "--config=configs/tiny.py", f"--workdir={folder}", "--allow-change=train.global_batch"]
    assert main([*line, *flags(**FOUR)]) == 2
    error = capsys.readouterr().err
    assert "is not what scalelab wrote there" in error and error.count("\n") == 1


@pytest.mark.full
def test_ten_steps_of_eight_and_ten_of_sixteen_are_3840_tokens_and_the_warm_up_ends_in_tokens(tmp_path):
    """Warm-up over 2,560 tokens: 10 steps of 128 were counted, 5 of 256 are left."""
    folder, warm = tmp_path / "run", {"schedule__warmup_steps": "none", "schedule__warmup_tokens": 2560}
    rows = train(folder, train__global_batch=8, train__steps=20, **warm)
    assert_ledger(folder, 20, 2560)
    assert records.read_config(folder)["schedule"]["warmup_steps"] == 20
    stopped_at(folder, 10)
    later = {"train__global_batch": 16, "train__steps": 20, **warm}
    rows = rows[:10] + train(folder, "train.global_batch", **later)
    assert_ledger(folder, 20, 3840)
    assert_goes_on(np.concatenate(rows), resolved(train__global_batch=16))
    assert records.read_config(folder)["schedule"]["warmup_steps"] == 15
    before = records.read_record(folder)
    assert train(folder, **later) == [] and records.read_record(folder) == before  # a finished run stays as it is


def ramp_by_hand(steps, seen, micro, first, last, tokens):
    """Sequences of each step, one step after the other: `tokens` are seen while micro-batches grow first -> last."""
    sizes = []
    for _ in range(steps):
        more = min(last - first, seen * (last - first) // tokens)
        sizes.append((first + more) * micro)
        seen += sizes[-1] * LENGTH
    return sizes, seen


@pytest.mark.full
def test_under_a_batch_ramp_the_ledger_is_the_sum_over_the_ramp_before_and_after_a_change(tmp_path):
    folder = tmp_path / "run"
    ramp = {"schedule__batch_start": 2, "schedule__batch_warmup_tokens": 1000, "train__accumulate": 4}
    rows = train(folder, train__global_batch=8, train__steps=30, **ramp)
    sizes, seen = ramp_by_hand(30, 0, 2, 1, 4, 1000)
    assert [len(step) for step in rows] == sizes and sizes[0] == 2 and sizes[-1] == 8
    assert_ledger(folder, 30, seen)
    stopped_at(folder, 6)  # in the middle of the ramp
    ramp["train__accumulate"] = 8
    more = train(folder, "train.global_batch", "train.accumulate", train__global_batch=16, train__steps=30, **ramp)
    sizes, seen = ramp_by_hand(24, sum(sizes[:6]) * LENGTH, 2, 1, 8, 1000)
    assert [len(step) for step in more] == sizes and sizes[-1] == 16
    assert_ledger(folder, 30, seen)
    assert_goes_on(np.concatenate(rows[:6] + more), resolved(train__global_batch=16))


@pytest.mark.full
def test_another_length_counts_its_own_tokens_and_flops_and_warns_of_the_new_shuffle(sixteen, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sixteen[0], folder)
    per_token = records.read_record(folder)["flops_per_token"]["exact"]
    train(folder, "model.seq_len", **SIXTEEN | {"train__steps": 22, "model__seq_len": 8})
    record, tokens = records.read_record(folder), 5120 + 2 * 16 * 8
    assert record["flops_per_token"]["exact"] != per_token
    assert_ledger(folder, 22, tokens, 5120 * per_token + 256 * record["flops_per_token"]["exact"])
    assert counted(folder, 22)["position"] == 320 * 2 + 32 and counted(folder, 22)["sequences"] == 352
    assert "some tokens come again" in next(e["text"] for e in records.read_events(folder) if e["kind"] == "warning")


@pytest.mark.full
def test_another_model_counts_its_own_flops_from_there_on(sixteen, changed, tmp_path):
    """A window of attention: fewer FLOPs a token, the same tokens; and the next resumption keeps both."""
    folder, windowed = tmp_path / "run", SIXTEEN | {"model__window": 4}
    shutil.copytree(sixteen[0], folder)
    full = records.read_record(folder)["flops_per_token"]["exact"]
    rows = train(folder, "model.window", **windowed | {"train__steps": 22})
    rows += train(folder, **windowed | {"train__steps": 24})
    fewer = records.read_record(folder)["flops_per_token"]["exact"]
    assert fewer < full
    assert_ledger(folder, 24, 24 * 256, 5120 * full + 1024 * fewer)
    assert_goes_on(np.concatenate(sixteen[1] + rows), resolved(**SIXTEEN))


@pytest.mark.full
def test_what_was_counted_outlives_an_edited_config(changed, tmp_path):
    """config.json says that all steps took 4 sequences; the checkpoint knows better."""
    folder = tmp_path / "run"
    shutil.copytree(changed[0], folder)
    config = records.read_config(folder)
    config["log"]["stretches"] = ""
    records.write_json(folder / "config.json", config)
    train(folder, **FOUR | {"train__steps": 26})
    assert_ledger(folder, 26, 5376 + 2 * 64)
    config["log"]["stretches"] = json.dumps([{"step": 3}])
    records.write_json(folder / "config.json", config)
    with pytest.raises(BadInput, match=r"log.stretches=.* is not what scalelab wrote there"):
        stretches.parse_stretches(config["log"]["stretches"])
