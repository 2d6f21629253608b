"""Each format is read as its own library wrote it, or as its source prints it, value by value."""

import json
import math
import pathlib

import numpy as np
import pytest
from tensorboardX import SummaryWriter

from scalelab.errors import BadInput
from scalelab.foreign import convert, find

FILES = pathlib.Path(__file__).parent / "files"


def read(source):
    """The runs of a source."""
    return [run for found in find.find_runs(pathlib.Path(source)) for run in find.read_found(found)]


def converted(source, **given):
    (run,) = read(source)
    return convert.convert_run(run, given)


def series(columns, name):
    column = columns[name]
    return dict(zip(columns["step"].values[column.present].tolist(), column.logged().tolist(), strict=True))


def test_a_wandb_file_holds_what_was_logged():
    run = converted(FILES / "wandb")
    assert series(run.training, "train_loss") == pytest.approx({i: 4 + 3 * math.exp(-i / 5) for i in range(1, 21)})
    assert series(run.evaluations, "val_loss") == pytest.approx({i: 4.1 + 3 * math.exp(-i / 5) for i in (10, 20)})
    assert series(run.training, "lr")[2] == pytest.approx(3e-4 * 2 / 5) and run.record["tokens"] == 20 * 4096
    assert (
        run.record["name"] == "wandb" and run.record["status"] == "done" and run.record["source"]["state"] == "finished"
    )
    assert run.config["model"] == {"d_model": 64, "n_layers": 2} and run.config["train"]["seed"] == 1


def test_a_wandb_file_that_was_cut_gives_what_is_whole_and_garbage_is_one_line(tmp_path):
    whole = (FILES / "wandb" / "run-5psl737r.wandb").read_bytes()
    for size in (7, 100, 3000, len(whole) - 5):
        (tmp_path / "run-x.wandb").write_bytes(whole[:size])
        try:
            (run,) = read(tmp_path / "run-x.wandb")
            assert run.state == "running" and run.n_rows <= 20
        except BadInput as refusal:
            assert "history" in str(refusal) and "\n" not in str(refusal)
    rng = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(whole)
        for place in rng.integers(7, len(data), 20):
            data[place] = rng.integers(256)
        (tmp_path / "run-x.wandb").write_bytes(data)
        try:
            read(tmp_path / "run-x.wandb")
        except BadInput as refusal:
            assert "\n" not in str(refusal)


def test_a_wandb_export_is_history_summary_and_config(tmp_path):
    rows = [
        {"_step": i, "train/global_step": 10 * i, "train/loss": 5 - i / 10, "_timestamp": 1e9 + i} for i in range(9)
    ]
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "config.yaml").write_text(
        "wandb_version: 1\n_wandb:\n  value: {t: 1}\nseed:\n  desc: null\n  value: 3\n"
    )
    (tmp_path / "wandb-summary.json").write_text('{"train/loss": 4.2, "state": "crashed"}')
    run = converted(tmp_path)
    assert series(run.training, "train_loss") == {10 * i: 5 - i / 10 for i in range(9)}
    assert run.config["train"]["seed"] == 3 and run.record["status"] == "crashed"
    (tmp_path / "config.yaml").write_text("a: &a [1]\nb: *a\nc: !!python/object/apply:os.system ['echo']\n")
    with pytest.raises(BadInput, match="alias"):
        read(tmp_path)


def test_tensorboard_is_read_as_tensorboardx_wrote_it(tmp_path):
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(50):
            writer.add_scalar("loss_metrics/global_avg_loss", 9.0 - step / 10, step)
            writer.add_scalar("grad_norm", 1.5, step)
            writer.add_scalar("throughput(tps)", 3386, step)
        writer.add_scalar("validation_metrics/loss", 4.25, 49)
        writer.add_text("note", "text")
        writer.add_histogram("weights", np.arange(10.0), 3)
    run = converted(tmp_path / "run")
    assert series(run.training, "train_loss") == pytest.approx({step: 9.0 - step / 10 for step in range(50)}, rel=1e-6)
    assert series(run.evaluations, "val_loss") == {49: 4.25}
    assert series(run.training, "tokens_per_s")[7] == 3386 and series(run.training, "grad_norm")[0] == 1.5
    (events,) = (tmp_path / "run").iterdir()
    events.write_bytes(events.read_bytes()[:-3])
    (cut,) = read(tmp_path / "run")
    assert any("ends within a record" in note for note in cut.notes) and cut.n_rows == 50
    events.write_bytes(b"\xff" * 400)
    with pytest.raises(BadInput, match="not an event file"):
        read(tmp_path / "run")


def test_parts_of_a_keras_run_are_one_run(tmp_path):
    for part, loss in (("train", 3.0), ("validation", 3.5)):
        with SummaryWriter(str(tmp_path / part)) as writer:
            for step in range(3):
                writer.add_scalar("epoch_loss", loss - step, step)
    run = converted(tmp_path, val_loss="validation/epoch_loss")
    assert series(run.training, "train_loss") == {0: 3.0, 1: 2.0, 2: 1.0}
    assert series(run.evaluations, "val_loss") == {0: 3.5, 1: 2.5, 2: 1.5}


def test_a_trainer_state_is_read_as_transformers_wrote_it():
    history = json.loads((FILES / "trainer_healthy" / "trainer_state.json").read_text())["log_history"]
    run = converted(FILES / "trainer_healthy")
    assert series(run.training, "train_loss") == {row["step"]: row["loss"] for row in history if "loss" in row}
    assert series(run.evaluations, "val_loss") == {
        row["step"]: row["eval_loss"] for row in history if "eval_loss" in row
    }
    # 256 x 64 twice, and of each layer 4 x 64^2 and 3 x 64 x 128 and two gains of 64; one more gain
    assert run.record["params"]["total"] == 2 * 256 * 64 + 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 64
    assert run.record["tokens"] == 300 * 16 * 64 and run.record["status"] == "done"
    assert run.config["model"]["vocab_size"] == 256 and "schedule" not in run.config


LEVANTER = """\
{"tracker": "json", "event": "hparams", "hparams": {"model": {"hidden_dim": 64}, "trainer": {"seed": 5, "train_batch_size": 8}}}
{"tracker": "json", "event": "log", "step": 0, "metrics": {"train/loss": 10.5, "optim/learning_rate": 0.0, "throughput/total_tokens": 4096}}
{"tracker": "json", "event": "log", "step": 1, "metrics": {"train/loss": 9.5, "optim/learning_rate": 0.001, "throughput/total_tokens": 8192, "grad/norm/total": 1.5}}
{"tracker": "json", "event": "log", "step": 1, "metrics": {"eval/loss": 9.75, "eval/bpb": 1.2}}
{"tracker": "json", "event": "summary", "summary": {"parameter_count": 123456}}
"""  # noqa: E501 - as the JSON logger of stanford-crfm/levanter writes events


def test_levanters_events_are_rows_and_what_is_said_once_is_config(tmp_path):
    (tmp_path / "tracker_metrics.jsonl").write_text(LEVANTER)
    run = converted(tmp_path)
    assert series(run.training, "train_loss") == {0: 10.5, 1: 9.5} and series(run.training, "lr")[1] == 1e-3
    assert series(run.evaluations, "val_loss") == {1: 9.75} and run.record["bpb"] == 1.2
    assert run.record["params"] == {"total": 123456} and run.record["tokens"] == 8192
    assert run.config["train"]["seed"] == 5 and run.config["train"]["global_batch"] == 8


@pytest.mark.parametrize(
    ("text", "training", "evaluations"),
    [
        (  # karpathy/nanoGPT
            "number of parameters: 10.65M\ntokens per iteration will be: 16,384\n"
            "step 0: train loss 4.2874, val loss 4.2823\niter 0: loss 4.2654, time 31.72ms, mfu -100.00%\n"
            "iter 10: loss 3.2455, time 12.00ms, mfu 12.30%\niter 20: loss 2.9999, time 12.00ms, mfu 12.30%\n"
            "step 20: train loss 3.0, val loss 3.0500\n",
            {"train_loss": {0: 4.2654, 10: 3.2455, 20: 2.9999}},
            {0: 4.2823, 20: 3.05},
        ),
        (  # KellerJordan/modded-nanogpt: its own source stands above
            "import torch\nprint(f'step:{step}/{n} val_loss:{v:.4f}')\n" + "=" * 100 + "\n"
            "step:0/1770 val_loss:10.8258 train_time:0ms step_avg:0.02ms\n"
            "step:1/1770 train_time:212ms step_avg:212.00ms\n"
            "step:125/1770 val_loss:4.5726 train_time:18245ms step_avg:145.96ms\n",
            {},
            {0: 10.8258, 125: 4.5726},
        ),
        (  # huggingface/nanotron: counts with K and M
            "07/02/2024 13:21:09 [INFO|DP=0|PP=0|TP=0|x]: iteration: 1 / 500 | consumed_tokens: 262K "
            "| tokens_per_sec: 78.8K | global_batch_size: 512 | lm_loss: 10.7 | lr: 3e-05 | grad_norm: 5.5\n"
            "07/02/2024 13:21:19 [INFO|DP=0|PP=0|TP=0|x]: iteration: 10 / 500 | consumed_tokens: 2.62M "
            "| tokens_per_sec: 80K | global_batch_size: 512 | lm_loss: 9.1 | lr: 0.0003 | grad_norm: 1.2\n",
            {"train_loss": {1: 10.7, 10: 9.1}, "lr": {1: 3e-5, 10: 3e-4}, "grad_norm": {1: 5.5, 10: 1.2},
             "tokens": {1: 262e3, 10: 2.62e6}, "tokens_per_s": {1: 78.8e3, 10: 80e3}},
            {},
        ),
        (  # pytorch/torchtitan, with its colours
            "[rank0]:[titan] 2025-01-02 10:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  "
            "\x1b[38mgrad_norm:  1.5756  \x1b[34mmemory:  1.92GiB(2.42%)  \x1b[36mtps: 3,386  \x1b[39mmfu: 0.08%\n"
            "[rank0]:[titan] 2025-01-02 10:00:01,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.9  "
            "\x1b[38mgrad_norm:  1.2  \x1b[34mmemory:  1.92GiB(2.42%)  \x1b[36mtps: 3,400  \x1b[39mmfu: 0.08%\n",
            {"train_loss": {1: 8.1309, 10: 7.9}, "grad_norm": {1: 1.5756, 10: 1.2},
             "tokens_per_s": {1: 3386, 10: 3400}},
            {},
        ),
        (  # allenai/OLMo-core, its console logger
            "2025-01-02 10:00 olmo_core.train.callbacks.console_logger:125 INFO [step=1/100,epoch=1]\n"
            "    train/CE loss=11.2\n    optim/total grad norm=3.5\n    throughput/total tokens=4,194,304\n"
            "2025-01-02 10:01 olmo_core.train.callbacks.console_logger:125 INFO [step=2/100,epoch=1]\n"
            "    train/CE loss=10.2\n    optim/total grad norm=2.5\n    throughput/total tokens=8,388,608\n",
            {"train_loss": {1: 11.2, 2: 10.2}, "grad_norm": {1: 3.5, 2: 2.5}, "tokens": {1: 2**22, 2: 2**23}},
            {},
        ),
        (  # karpathy/build-nanogpt
            "0 val 10.9511\n0 hella 0.2463\n0 train 10.955029\n1 train 10.5\n2 train 9.5\n2 val 9.4\n",
            {"train_loss": {0: 10.955029, 1: 10.5, 2: 9.5}},
            {0: 10.9511, 2: 9.4},
        ),
    ],
    ids=["nanogpt", "modded", "nanotron", "torchtitan", "olmo", "build-nanogpt"],
)  # fmt: skip
def test_text_logs_give_what_they_print(tmp_path, text, training, evaluations):
    (tmp_path / "log.txt").write_text(text)
    run = converted(tmp_path)
    for name, values in training.items():
        assert series(run.training, name) == pytest.approx(values), name
    assert (series(run.evaluations, "val_loss") if evaluations else {}) == evaluations


def test_nanogpts_own_counts_are_taken(tmp_path):
    (tmp_path / "log.txt").write_text(
        "number of parameters: 10.65M\ntokens per iteration will be: 16,384\niter 10: loss 3.2\niter 20: loss 3.0\n"
    )
    run = converted(tmp_path)
    assert run.record["params"]["total"] == 10_650_000 and run.record["tokens"] == 20 * 16384


def test_lightnings_csv_with_its_gaps_and_hparams(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "epoch,lr-AdamW,step,train_loss,val_loss\n0,,9,4.5,\n0,0.001,9,,\n0,,19,3.5,\n0,,19,,3.75\n"
    )
    (tmp_path / "hparams.yaml").write_text("learning_rate: 0.001\nn_layer: 2\nseed: 7\n")
    run = converted(tmp_path)
    assert series(run.training, "train_loss") == {9: 4.5, 19: 3.5} and series(run.training, "lr") == {9: 1e-3}
    assert series(run.evaluations, "val_loss") == {19: 3.75} and run.config["train"]["seed"] == 7


def test_olmo_cores_ladder_metrics_as_a_table_of_wandbs_columns(tmp_path):
    rows = [
        {"_step": i, "train/CE loss": 5 - i, "optim/LR (group 0)": 1e-3, "throughput/total tokens": 4096 * i,
         "eval/lm/c4_en-validation/CE loss": 5.5 - i, "throughput/device/TPS": 5e3}
        for i in range(1, 4)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = converted(tmp_path)
    assert series(run.training, "train_loss") == {1: 4, 2: 3, 3: 2} and series(run.training, "lr")[2] == 1e-3
    assert run.record["val_loss"] == 2.5 and run.record["tokens"] == 3 * 4096
