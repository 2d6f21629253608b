"""What is taken for what: names, units, N and how a run ended; each is said, asked or corrected, never guessed."""

import json
import math
import os
import pathlib

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.foreign import convert, find, names
from scalelab.foreign.run import columns_of_rows

FILES = pathlib.Path(__file__).parent / "files"


def write(folder, rows, config=None, name="metrics.jsonl"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def converted(source, **given):
    (found,) = find.find_runs(source)
    (run,) = find.read_found(found)
    return convert.convert_run(run, given)


def rows_of(name="loss", factor=1.0, n=20, **more):
    return [{"step": i, name: factor * (math.log(256) - i / n), **more} for i in range(n)]


def test_two_held_out_losses_are_asked_and_chosen_by_columns(tmp_path):
    rows = [row | {"eval/a/loss": 3.0, "eval/b/loss": 4.0} for row in rows_of()]
    run = converted(write(tmp_path, rows))
    assert "val_loss" not in run.record and any("choose one: --columns='val_loss=eval/a/loss'" in n for n in run.notes)
    assert converted(tmp_path, val_loss="eval/b/loss").record["val_loss"] == 4.0
    with pytest.raises(BadInput, match="no column 'eval/c/loss'; did you mean"):
        converted(tmp_path, val_loss="eval/c/loss")


def test_the_steps_of_the_optimizer_come_before_wandbs_calls():
    rows = [{"_step": 5 * i, "trainer/global_step": i, "loss": 3.0} for i in range(4)]
    chosen = names.choose_columns(columns_of_rows(rows)[0], {}, "x")
    assert chosen.taken["step"] == "trainer/global_step"


def test_a_training_loss_is_never_one_on_held_out_data():
    rows = [{"step": i, "eval/loss": 3.0, "validation/loss": 3.0, "test_loss": 2.0} for i in range(4)]
    assert "train_loss" not in names.choose_columns(columns_of_rows(rows)[0], {}, "x").taken


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, ""),
        (1 / math.log(2), "in bits? If so, --columns='train_loss=COLUMN*0.693147'"),
        (1 / math.log(10), "base 10? If so, --columns='train_loss=COLUMN*2.302585'"),
        (4.0, "a sum over 4 micro-batches? If so, --columns='train_loss=COLUMN*0.25'"),
    ],
)
def test_units_are_questioned_by_the_first_loss(tmp_path, factor, words):
    run = converted(write(tmp_path, rows_of(factor=factor, n=200), {"vocab_size": 256}))
    questions = [note for note in run.notes if "the first loss is" in note]
    assert (words in questions[0]) if words else not questions
    if words:
        column = f"loss*{1 / factor:.9g}"
        assert converted(tmp_path, train_loss=column).training["train_loss"].values[0] == pytest.approx(math.log(256))


def test_a_name_that_says_bits_is_questioned(tmp_path):
    run = converted(write(tmp_path, rows_of("loss"), {}), val_loss="loss")
    assert not any("bits" in note for note in run.notes)
    run = converted(
        write(tmp_path, rows_of("loss_bits") and [r | {"loss_bits": 3.0} for r in rows_of()]), val_loss="loss_bits"
    )
    assert any("bits, not nats: --columns='val_loss=loss_bits*0.693147'" in note for note in run.notes)


@pytest.mark.parametrize(
    ("state", "steps", "last", "status"),
    [
        ("finished", 20, 3.0, "done"), ("crashed", 20, 3.0, "crashed"), ("running", 20, 3.0, "stopped"),
        (None, 20, 3.0, "done"), (None, 100, 3.0, "stopped"), ("finished", 20, math.nan, "diverged"),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_told_by_its_losses_its_word_and_its_steps(tmp_path, state, steps, last, status):
    rows = [{"_step": i, "train/loss": 3.0 if i < 19 else last} for i in range(20)]
    write(tmp_path, rows, name="history.jsonl")
    (tmp_path / "config.yaml").write_text(f"max_steps: {{value: {steps}}}\n")
    (tmp_path / "wandb-summary.json").write_text(json.dumps({"state": state} if state else {}))
    run = converted(tmp_path)
    assert run.record["status"] == status and run.record.get("provenance") == "imported"
    assert state or any("taken as" in note for note in run.notes)


def test_n_is_of_the_config_a_value_or_the_user_and_two_values_are_asked(tmp_path):
    assert converted(write(tmp_path, rows_of(), {"n_params": 1000})).record["params"] == {"total": 1000}
    run = converted(write(tmp_path, rows_of(), {"n_params": 1000, "non_embedding_params": 900}))
    assert "params" not in run.record and any("--columns=N=… chooses" in note for note in run.notes)
    assert converted(tmp_path, N="non_embedding_params").record["params"] == {"total": 900}
    assert converted(tmp_path, N="124M").record["params"] == {"total": 124_000_000}
    for text in ("many", "-5", "0", "inf", "nan"):
        with pytest.raises(BadInput, match="not a count such as 124M"):
            converted(tmp_path, N=text)
    for text in ("exp(n_params)", "n_params*1e400", "n_params*-1", "n_params*1e-9"):
        with pytest.raises(BadInput, match="n_params gives no count"):
            converted(tmp_path, N=text)
    run = converted(write(tmp_path, rows_of(), {"params_active_precise": 543_482_880, "param_groups": 2}))  # Gemstones'
    assert "params" not in run.record
    assert any(
        "'params_active_precise' may be it; --columns=N=params_active_precise takes" in note for note in run.notes
    )
    run = converted(write(tmp_path, rows_of(), {"model_type": "mamba2", "hidden_size": 8}))
    assert "params" not in run.record and any("'mamba2', whose size is not known" in note for note in run.notes)


def test_a_size_below_one_is_not_a_models(tmp_path):
    run = converted(write(tmp_path, rows_of(), {"vocab_size": -5, "n_layer": 2}))
    assert run.config["model"] == {"n_layers": 2} and run.config["source"]["vocab_size"] == -5


def test_counts_too_large_for_whole_numbers_stay_as_they_are(tmp_path):
    (tmp_path / "hparams.yaml").write_text("tokens_per_step: .inf\n")
    assert "tokens" not in converted(write(tmp_path, rows_of())).record
    rows = [row | {"tokens": 1e30 * row["step"]} for row in rows_of()]
    text = convert.metrics_text(converted(write(tmp_path, rows))).decode()
    assert [json.loads(line)["tokens"] for line in text.splitlines()] == [row["tokens"] for row in rows]


def test_steps_logged_again_after_a_restart_count_once_with_their_last_value(tmp_path):
    rows = [{"step": i, "loss": 5.0} for i in range(10)] + [{"step": i, "loss": 4.0} for i in range(5, 12)]
    run = converted(write(tmp_path, rows))
    assert run.training["step"].values.tolist() == list(range(12))
    assert run.training["train_loss"].values.tolist() == [5.0] * 5 + [4.0] * 7
    assert any("5 steps were logged again" in note for note in run.notes)


def test_a_log_that_ends_within_a_line_says_so(tmp_path):
    path = write(tmp_path, rows_of()) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 99, "lo')
    run = converted(tmp_path)
    assert len(run.training["step"].values) == 20
    assert "metrics.jsonl ends within line 21: what is whole was read" in run.notes


def test_values_that_are_no_numbers_keep_their_place(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": Infinity}\n{"step": 4}\n')
    run = converted(tmp_path)
    lines = [json.loads(line) for line in convert.metrics_text(run).decode().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and lines[0] == {"step": 1, "train_loss": 3.0}
    assert math.isnan(lines[1]["train_loss"]) and lines[2]["train_loss"] == math.inf


def test_lines_of_metrics_are_json_whatever_the_names(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"step": i, "loss": float(rng.normal()), 'a "b"\\c': i, "é": 1e-300, "tokens": 2**40 * i} for i in range(9)]
    run = converted(write(tmp_path, rows))
    lines = [json.loads(line) for line in convert.metrics_text(run).decode().splitlines()]
    expected = [
        {"step": r["step"], "train_loss": r["loss"], 'a "b"\\c': r["step"], "é": 1e-300, "tokens": r["tokens"]}
        for r in rows
    ]
    assert lines == expected and all(isinstance(line["tokens"], int) for line in lines)


def test_a_strangers_folder_executes_nothing_and_follows_no_link(tmp_path):
    secret = write(tmp_path / "secret", rows_of())
    place = tmp_path / "given"
    place.mkdir()
    (place / "linked").symlink_to(secret)
    (place / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    with pytest.raises(BadInput, match="holds no run of a known format"):
        find.find_runs(place)
    os.mkfifo(place / "log.txt")
    (place / "training_args.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(BadInput, match="holds no run"):
        find.find_runs(place)
    for text, words in (
        ("[1]\n", "not an object"),
        ("{\n", "not JSON"),
        ('{"a": "x"}\n', "no column of numbers"),
        ("", "empty"),
    ):
        (tmp_path / "x.jsonl").write_text(text + text)
        with pytest.raises(BadInput, match=words):
            converted(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text(json.dumps({f"k{i}": i for i in range(3000)}) + "\n")
    with pytest.raises(BadInput, match="at most 2,000"):
        converted(tmp_path / "x.jsonl")
