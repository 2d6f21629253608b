"""Continued pretraining: on a run's weights or a foreign folder's, with a fresh optimizer, a warm-up and a lineage."""

import hashlib
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.data.batches.batches import val_batches
from scalelab.errors import BadInput
from scalelab.hf.write import write_model
from scalelab.model import transformer
from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.train.resume.weights import load_hf_weights, load_run_weights, write_weights
from scalelab.train.single import load_run_dataset, train_single
from tests.hf.oracle.make import HERE
from tests.quick import one_in
from tests.train.resume.test_compatibility import config, events

NEW = {"data__language_seed": 5, "train__seed": 3, "train__steps": 6, "schedule__warmup_steps": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of four steps and its export; and what `train_single` said of it."""
    folder = tmp_path_factory.mktemp("source")
    result = train_single(config(), folder / "run")
    weights = load_run_weights(str(folder / "run"))
    write_model(folder / "hf", weights.shape, weights.params, weights.origin)
    return folder, result


def at_start(folder: pathlib.Path) -> float:
    """The validation loss before the first step; there is one such line."""
    (line,) = [line for line in records.read_metrics(folder) if line["step"] == 0]
    assert line["tokens"] == 0
    return line["val_loss"]


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(3, ["run", "hf:hf", "kept"]))
def test_before_its_first_step_a_run_has_the_validation_loss_of_the_weights_it_starts_on(tmp_path, source, name):
    folder, result = source
    if name == "kept":
        write_weights(tmp_path / "kept", load_hf_weights(folder / "hf"))
    start = {"run": str(folder / "run"), "hf:hf": f"hf:{folder}/hf", "kept": str(tmp_path / "kept")}[name]
    train_single(config(train__init_from=start), tmp_path / "more")
    assert at_start(tmp_path / "more") == result["val_loss"]
    assert records.read_json(tmp_path / "more" / "record.json")["init_from"]["digest"] == result["params_digest"]


@pytest.mark.full
def test_on_new_data_it_begins_with_the_old_weights_loss_there_and_warms_up_again(tmp_path, source):
    folder, _ = source
    new = config(train__init_from=f"hf:{folder}/hf", **NEW)
    train_single(new, tmp_path / "more")
    weights = load_run_weights(str(folder / "run"))
    batches_BS = jnp.asarray(val_batches(load_run_dataset(new).parts[0], 16, 2, 1)[0])
    sums = transformer.summed_loss(weights.shape, weights.params, batches_BS[:, :-1], batches_BS[:, 1:], 0.0)
    assert at_start(tmp_path / "more") == pytest.approx(float(sums.nll / sums.tokens), rel=1e-6)
    lrs = [line["lr"] for line in records.read_metrics(tmp_path / "more") if "lr" in line]
    assert len(lrs) == 6
    np.testing.assert_allclose(lrs[:3], np.array([1, 2, 3]) / 3 * new.optim.peak_lr, rtol=1e-6)
    assert lrs[3] == pytest.approx(lrs[2]) and lrs[5] < lrs[4] < lrs[3]


def test_the_record_says_which_files_the_weights_were_and_where_those_came_from(tmp_path, source):
    folder, result = source
    train_single(config(train__init_from=f"hf:{folder}/hf"), tmp_path / "more")
    origin = records.read_json(tmp_path / "more" / "record.json")["init_from"]
    hashes = {
        p: hashlib.sha256((folder / "hf" / p).read_bytes()).hexdigest() for p in ("config.json", "model.safetensors")
    }
    assert (origin["hf"], origin["format"], origin["files"]) == (f"{folder}/hf", "llama", hashes)
    assert origin["dtypes"] == {"float32": 12} and origin["digest"] == result["params_digest"]
    made = origin["exported_from"]
    assert (made["run"], made["step"], made["digest"]) == (f"{folder}/run", "4", result["params_digest"])
    (event,) = events(tmp_path / "more", "init_from")
    assert event["text"] == f"weights of {folder}/hf (llama)" and event["digest"] == origin["digest"]


def test_begun_again_before_its_first_save_it_logs_its_beginning_once(tmp_path, source):
    made = config(train__init_from=str(source[0] / "run"))
    train_single(made, tmp_path / "more")
    before = records.read_metrics(tmp_path / "more")
    shutil.rmtree(tmp_path / "more" / "checkpoints")
    for file in ("record.json", "config.json"):
        (tmp_path / "more" / file).unlink()
    train_single(made, tmp_path / "more")
    after = records.read_metrics(tmp_path / "more")
    assert [(line["step"], "val_loss" in line) for line in after] == [
        (line["step"], "val_loss" in line) for line in before
    ]


def test_a_run_that_draws_its_weights_has_no_loss_at_step_0(source):
    assert min(line["step"] for line in records.read_metrics(source[0] / "run")) == 1


def test_weights_of_any_step_come_alone_and_are_the_runs(tmp_path, source):
    folder, result = source
    last, early = load_run_weights(f"{folder}/run"), load_run_weights(f"{folder}/run@2")
    assert (last.origin["step"], last.origin["digest"]) == (4, result["params_digest"])
    assert (early.origin["step"], early.config.model.to_dict()) == (2, config().model.to_dict())
    assert early.origin["digest"] != last.origin["digest"]
    assert set(last.params) == {"embed", "blocks", "final_norm", "head"}  # no optimizer
    assert all(isinstance(leaf, np.ndarray) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(last.params))


@pytest.mark.full
def test_a_trial_of_a_sweep_gives_its_own_weights(tmp_path):
    trials = {name: config(train__seed=seed) for seed, name in enumerate("ab")}
    run_sweep(tmp_path / "sweep", trials)
    alone = train_single(trials["b"], tmp_path / "alone")
    assert load_run_weights(str(tmp_path / "sweep" / "runs" / "b")).origin["digest"] == alone["params_digest"]


def test_damaged_weights_and_absent_steps_are_refused(tmp_path, source):
    shutil.copytree(source[0] / "run", tmp_path / "run")
    for command, message in (
        (f"{tmp_path}/run@3", r"no checkpoint of step 3; it has \[2, 4\]"),
        (str(tmp_path), "not a run folder"),
    ):
        with pytest.raises(BadInput, match=message):
            load_run_weights(command)
    path = max((tmp_path / "run/checkpoints/4/state").rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match="is damaged: SHA-256"):
        load_run_weights(str(tmp_path / "run"))


def test_imported_weights_are_kept_whole_and_are_no_run(tmp_path):
    weights = load_hf_weights(HERE / "their_gpt2")
    write_weights(tmp_path / "kept", weights)
    again = load_run_weights(str(tmp_path / "kept"))
    jax.tree.map(np.testing.assert_array_equal, again.params, weights.params)
    assert (again.shape, again.origin["step"]) == (weights.shape, 0)
    record = records.read_json(tmp_path / "kept" / "record.json")
    assert (record["status"], record["init_from"]["hf"]) == ("imported", str(HERE / "their_gpt2"))
    assert record["params"]["total"] == sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    with pytest.raises(BadInput, match="exists and is not an empty folder"):
        write_weights(tmp_path / "kept", weights)
    with pytest.raises(BadInput, match=r"holds imported weights, not a run: use another --workdir, and --init-from="):
        train_single(config(), tmp_path / "kept")


def test_another_model_is_refused_before_the_folder_is_claimed(tmp_path, source):
    wide = config(train__init_from=f"hf:{source[0]}/hf", model__d_model=16, model__norm_eps=1e-5)
    with pytest.raises(
        BadInput, match=r"model.d_model=16, there it is 8 \(hidden_size\)\n(.*\n)*  model.norm_eps=1e-05"
    ):
        train_single(wide, tmp_path / "wide")
    assert not (tmp_path / "wide" / "config.json").exists()
    with pytest.raises(BadInput, match="no folder 'nowhere'"):
        train_single(config(train__init_from="hf:nowhere"), tmp_path / "wide")
