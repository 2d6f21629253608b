"""What may change between a save and its resumption, what may not, and starting on another run's weights."""

import shutil

import jax
import numpy as np
import pytest

from scalelab import __version__
from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.record.identity import absent_parts
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.train.lineage.facts import diff_facts
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.single import train_single
from tests.quick import one_in, others_slow
from tests.train.checkpoints.test_manifest import forge

SMALL = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 16, "train.global_batch": 2,
    "train.steps": 4, "train.steps_per_dispatch": 2, "eval.every_steps": 4, "eval.batches": 1, "log.every_steps": 1,
    "checkpoint.every_steps": 2, "schedule.warmup_steps": 2, "data.source": "synthetic", "data.n_tokens": 20000,
}  # fmt: skip


def config(**changed):
    return config_lib.resolve(
        override(tiny.get_config(), SMALL | {k.replace("__", "."): v for k, v in changed.items()})
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps, with checkpoints of steps 2 and 4; and what `train_single` said of it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train_single(config(), folder)


@pytest.fixture
def run(tmp_path, finished):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def events(folder, kind):
    return [event for event in records.read_events(folder) if event["kind"] == kind]


REFUSED = {
    "model__rope_theta": (500.0, "model.rope_theta=10000.0, now it is 500.0"),
    "train__seed": (3, "train.seed=0, now it is 3"),
    "precision__name": ("bf16", "precision.name='fp32', now it is 'bf16'"),
    "schedule__name": ("wsd", "schedule.name='cosine', now it is 'wsd'"),
    "data__split_seed": (1, "data.split_seed=0, now it is 1"),
    "model__d_model": (16, "params.embed.w: float32[256,8], now float32[256,16]"),
    "train__init_from": ("runs/other", "train.init_from='', now it is 'runs/other'"),
}
SLOW = {"train__seed", "schedule__name", "data__split_seed"}  # values of a group like the others'


@pytest.mark.full
@pytest.mark.parametrize("key", others_slow(lambda key: key not in SLOW, one_in(4, REFUSED)))
def test_what_makes_another_run_is_refused_old_against_new_with_the_flag_that_allows_it(run, key):
    value, line = REFUSED[key]
    before = contents(run)
    with pytest.raises(BadInput) as error:
        train_single(config(**{key: value}, train__steps=6), run, allow=["train.steps"])
    offered = f"--allow-change={key.replace('__', '.')}" in str(error.value)
    assert line in str(error.value) and offered == (key != "model__d_model")  # no flag makes shapes fit
    assert contents(run) == before


def contents(folder):
    """Every file of a run but its lock, by name."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("changed, allow", one_in(3, [
    ({"optim__peak_lr": 0.05}, []), ({"eval__batches": 2}, []), ({"train__steps": 2}, ["train.steps"]),
    ({"train__seed": 3}, ["train.seed"]), ({"optim__name": "lion"}, ["optim.name"]),
]))  # fmt: skip
def test_a_run_without_a_step_left_is_never_called_another(run, changed, allow):
    before = contents(run)
    with pytest.raises(BadInput, match=r"has no step left and was trained with") as error:
        train_single(config(**changed), run, allow=allow)
    assert f"{next(iter(changed)).replace('__', '.')}=" in str(error.value) and "--allow-change" not in str(error.value)
    assert contents(run) == before
    diverged = records.read_json(run / "record.json") | {"status": "diverged", "steps": 2}
    records.write_json(run / "record.json", diverged)
    with pytest.raises(BadInput, match="has no step left"):
        train_single(config(**changed), run, allow=allow)


def test_a_finished_run_keeps_every_byte_and_its_scores_whatever_is_logged_or_kept(run, finished):
    before = contents(run)
    result = train_single(config(log__every_steps=2, checkpoint__keep_last=1, train__steps_per_dispatch=1), run)
    assert contents(run) == before and result["bpb"] == finished[1]["bpb"] is not None
    assert {**result, "folder": "", "tokens_per_s": 0, "resumed_from": 4} == {
        **finished[1], "folder": "", "tokens_per_s": 0, "resumed_from": 4
    }  # fmt: skip


def test_a_run_killed_before_its_last_record_is_not_finished_under_another_identity(run):
    """Its last checkpoint is there, and the record still says running."""
    records.write_json(run / "record.json", records.read_json(run / "record.json") | {"status": "running", "steps": 0})
    with pytest.raises(BadInput, match=r"checkpoints/4 has no step left and was trained with optim.peak_lr"):
        train_single(config(optim__peak_lr=0.05), run)
    assert train_single(config(), run)["status"] == "done"
    assert records.read_json(run / "record.json")["steps"] == 4


def test_a_run_whose_config_was_edited_goes_on_under_neither_value_and_keeps_every_byte(run):
    content = records.read_json(run / "config.json")
    content["optim"]["peak_lr"] = 0.05
    records.write_json(run / "config.json", content)
    before = contents(run)
    for lr in (content["optim"]["peak_lr"], config().optim.peak_lr):
        with pytest.raises(BadInput, match=r"config.json is not the config that .*record.json was written for"):
            train_single(config(optim__peak_lr=lr, train__steps=6), run, allow=["train.steps"])
        assert contents(run) == before


FORGED = {
    "optim.name": ("config", "optim", "name", "lion", "optim.name='lion', now it is 'adamw'"),
    "data.tokenizer": ("data", None, "tokenizer", "bpe-4096", "data.tokenizer='bpe-4096', now it is 'ids-256'"),
    "parametrization.name": (
        "config",
        "parametrization",
        "name",
        "mup",
        "parametrization.name='mup', now it is 'standard'",
    ),
}


@pytest.mark.parametrize("key", others_slow(lambda key: key != "parametrization.name", one_in(3, FORGED)))
def test_another_optimizer_tokenizer_or_parametrization_at_the_save_is_refused_likewise(run, key):
    """The save is made to say it: today's configs know one optimizer and one tokenizer."""
    part, group, name, value, line = FORGED[key]
    content = manifest.read_manifest(run / "checkpoints" / "4")
    place = content["facts"]["run"][part]
    (place[group] if group else place)[name] = value
    forge(run / "checkpoints" / "4", content)
    with pytest.raises(BadInput) as error:
        train_single(config(train__steps=5), run, allow=["train.steps"])
    assert line in str(error.value) and f"--allow-change={key}" in str(error.value)
    assert train_single(config(train__steps=5), run, allow=[key, "train.steps"])["resumed_from"] == 4
    (event,) = events(run, "config_change")
    assert event["step"] == 4 and event["allowed"] == [key] and f"{key}: {value} -> " in event["text"]


def test_a_run_that_goes_on_takes_the_program_of_its_start(run, caplog):
    """A restored state has the places of a new one, so that jax neither lowers nor compiles anything for it."""

    def heard(x):
        return x + 1

    with jax.log_compiles():
        jax.jit(heard)(1.0)
        assert train_single(config(train__steps=6), run, allow=["train.steps"])["resumed_from"] == 4
    assert "heard" in caplog.text and "many_steps" not in caplog.text and "evaluation_values" not in caplog.text


def test_what_is_allowed_goes_on_and_is_recorded(run):
    result = train_single(config(train__seed=3, train__steps=6), run, allow=["train.seed", "train.steps"])
    assert (result["resumed_from"], result["final_step"]) == (4, 6)
    (noted,) = events(run, "config_change")
    assert "train.seed: 0 -> 3" in noted["text"] and "train.steps: 4 -> 6" in noted["text"]
    assert noted["allowed"] == ["train.seed"] and noted["step"] == 4


@pytest.mark.full
def test_a_group_allows_its_keys_and_what_names_nothing_is_refused(run):
    longer = config(model__rope_theta=500.0, train__steps=5)
    assert train_single(longer, run, allow=["model", "train.steps"])["resumed_from"] == 4
    with pytest.raises(BadInput, match=r"--allow-change=model.rope_thet: no such key; did you mean 'model.rope_theta'"):
        train_single(config(), run, allow=["model.rope_thet"])
    with pytest.raises(BadInput, match="may change anyway"):
        train_single(config(), run, allow=["optim.peak_lr"])


@pytest.mark.full
def test_shapes_are_never_made_to_fit_even_where_the_key_is_allowed(run):
    before = contents(run)
    with pytest.raises(BadInput, match=r"run.params.embed.w: float32\[256,8\], now float32\[256,16\]"):
        train_single(config(model__d_model=16, train__steps=5), run, allow=["model", "train.steps"])
    assert contents(run) == before


@pytest.mark.full
def test_a_folder_in_which_no_step_was_taken_is_taken_over_and_any_other_is_refused(tmp_path, run):
    for name, lines in (("untrained", ""), ("trained", '{"step": 1, "train_loss": 5.0}\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes((run / "config.json").read_bytes())
        started = records.read_record(run) | {"status": "running", "steps": 0, "tokens": 0}
        records.write_json(tmp_path / name / "record.json", started)
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    other, message = config(model__d_model=16), []
    with pytest.raises(BadInput, match=r"trained was started with\n  model\.d_ff=24, now it is 48"):
        train_single(other, tmp_path / "trained")
    assert train_single(other, tmp_path / "untrained", message.append)["final_step"] == 4
    line = f"{tmp_path / 'untrained'} held another config, of which no step was taken: this one takes it over"
    assert {"note": line} in message
    assert [event["text"] for event in events(tmp_path / "untrained", "taken_over")] == [line]
    record = listing.read_run(tmp_path / "untrained")
    assert (record["model.d_model"], record["status"]) == (16, "done")


def test_a_trial_in_which_no_step_was_taken_is_taken_over(tmp_path, run):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.json").write_bytes((run / "config.json").read_bytes())
    assert run_sweep(tmp_path, {"a": config(train__seed=3)}) == {"a": "done"}


@pytest.mark.full
def test_other_data_under_the_same_config_are_refused(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name in "abcdef":
        (text / name).write_text(f"{name} and what stands in all of them\n" * 80)
    of_text = {"data__source": "text", "data__path": f"{text}/*", "schedule__name": "constant"}
    train_single(config(**of_text), tmp_path / "run")
    (text / "a").write_text("z" * 2000)
    with pytest.raises(BadInput, match=r"no step left and was trained with data\.fingerprint='\w+', now it is '\w+'"):
        train_single(config(**of_text), tmp_path / "run")
    longer = config(**of_text, train__steps=6)
    with pytest.raises(BadInput, match=r"data\.fingerprint='\w+', now it is '\w+'.*--allow-change=data\.fingerprint"):
        train_single(longer, tmp_path / "run")
    assert train_single(longer, tmp_path / "run", allow=["data.fingerprint"])["resumed_from"] == 4
    assert events(tmp_path / "run", "config_change")[0]["allowed"] == ["data.fingerprint"]


def test_a_checkpoint_that_another_run_saved_is_refused_though_the_folder_is_right(tmp_path, run):
    train_single(config(train__seed=3), tmp_path / "other")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", run / "checkpoints")
    with pytest.raises(BadInput, match=r"checkpoints/4 was started with train.seed=3, now it is 0"):
        train_single(config(train__steps=6), run, allow=["train.steps"])


def test_a_key_that_the_save_did_not_know_had_its_default(finished):
    old = manifest.read_manifest(finished[0] / "checkpoints" / "4")["facts"]["run"]
    del old["config"]["train"]["init_from"], old["config"]["checkpoint"]["fallback"]
    new = old | {"config": config(optim__peak_lr=0.5).to_dict()}
    assert diff_facts(old, new) == {"optim.peak_lr": (old["config"]["optim"]["peak_lr"], 0.5)}


@pytest.mark.full
def test_a_run_of_before_experts_and_latents_goes_on_and_another_model_is_refused(run):
    """The widths that follow from others are written out in a config, and no default says them."""
    content = manifest.read_manifest(run / "checkpoints" / "4")
    model = content["facts"]["run"]["config"]["model"]
    later = [key for key in model if f"model.{key}".startswith(absent_parts({}))]
    assert {"d_expert", "d_head_value", "n_experts"} < {*later}
    for key in later:
        del model[key]
    forge(run / "checkpoints" / "4", content)
    with pytest.raises(BadInput, match=r"model\.block='?sequential'?, now it is '?experts"):
        train_single(config(model__block="experts", model__n_experts=4, train__steps=6), run, allow=["train.steps"])
    assert train_single(config(train__steps=6), run, allow=["train.steps"])["resumed_from"] == 4
    assert events(run, "config_change")[0]["text"].count("model.") == 0


def test_another_version_of_jax_or_scalelab_is_a_warning_on_record(run):
    step = run / "checkpoints" / "4"
    content = manifest.read_manifest(step)
    content["facts"]["run"]["versions"] |= {"jax": "0.4.1", "scalelab": "0.1.0"}
    forge(step, content)
    assert train_single(config(train__steps=5), run, allow=["train.steps"])["resumed_from"] == 4
    (event,) = events(run, "warning")
    assert "jax 0.4.1 -> " in event["text"] and "jaxlib" not in event["text"]
    assert f"scalelab 0.1.0 -> {__version__}; bits may differ" in event["text"]


def test_strays_are_told_and_the_damaged_step_is_refused_or_passed_over_by_policy(run):
    (run / "checkpoints" / "notes").mkdir()
    (run / "checkpoints" / "4" / "state" / "_METADATA").unlink()
    heard = []
    with pytest.raises(DamagedCheckpoint, match="_METADATA is missing"):
        train_single(config(), run, heard.append)
    assert [h for h in heard if "notes: not a checkpoint" in h.get("warning", "")]
    result = train_single(config(checkpoint__fallback=True), run)
    assert (result["resumed_from"], result["status"]) == (2, "done")
    assert "_METADATA is missing" in events(run, "fallback")[0]["text"]


# --- starting on another run's weights
# ----------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_starts_on_anothers_weights_with_its_own_schedule_and_a_fresh_optimizer(tmp_path, finished):
    folder, whole = finished
    still = config(train__init_from=f"{folder}@4", optim__peak_lr=0.0, train__seed=9)
    result = train_single(still, tmp_path / "still")
    assert result["params_digest"] == whole["params_digest"]  # at learning rate zero nothing moves
    assert (result["resumed_from"], result["final_step"]) == (None, 4)
    train_single(config(train__init_from=str(folder)), tmp_path / "moving")
    origin = records.read_json(tmp_path / "moving" / "record.json")["init_from"]
    assert (origin["run"], origin["step"], origin["digest"]) == (str(folder), 4, whole["params_digest"])
    lrs = [[m["lr"] for m in records.read_metrics(f) if "lr" in m] for f in (folder, tmp_path / "moving")]
    assert lrs[0] == lrs[1] and len(lrs[0]) == 4  # warm-up again
    tree = manifest.read_manifest(tmp_path / "moving" / "checkpoints" / "4")["tree"]
    counters = [name.split(".", 2)[2] for name, kind in tree.items() if kind == "int32[]" and ".opt_state." in name]
    assert counters
    state = saved_state(tmp_path / "moving")
    assert int(state.step) == 4 and all(int(leaf) == 4 for leaf in whole_numbers(state.opt_state))


def saved_state(folder):
    from scalelab import config as config_lib
    from scalelab.train.step import state

    return Checkpoints(folder / "checkpoints").restore(4, {"run": state.state_shapes(config_lib.static(config()))})[
        "run"
    ]


def whole_numbers(tree):
    import jax

    return [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype == "int32"]


@pytest.mark.full
def test_the_weights_are_those_of_the_step_asked_for(tmp_path, finished):
    still = config(train__init_from=f"{finished[0]}@2", optim__peak_lr=0.0)
    result = train_single(still, tmp_path / "run")
    origin = records.read_json(tmp_path / "run" / "record.json")["init_from"]
    assert origin["step"] == 2 and origin["digest"] == result["params_digest"] != finished[1]["params_digest"]


def test_weights_come_in_the_format_that_the_new_run_keeps_them_in(finished):
    import jax
    import jax.numpy as jnp

    from scalelab.train.resume.start import load_initial_weights

    (wide, _), (narrow, _) = (
        load_initial_weights(make_train_spec(config(train__init_from=str(finished[0]), precision__name=name)))
        for name in ("fp32", "bf16_master")
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype(jnp.bfloat16), b), wide, narrow)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(narrow)} == {"bfloat16"}


@pytest.mark.full
def test_once_begun_it_resumes_from_itself_and_keeps_its_lineage(tmp_path, finished):
    for steps, resumed in ((4, None), (6, 4)):
        made = config(train__init_from=str(finished[0]), train__steps=steps, schedule__name="constant")
        assert train_single(made, tmp_path / "run")["resumed_from"] == resumed
    assert records.read_json(tmp_path / "run" / "record.json")["init_from"]["step"] == 4
    assert len(events(tmp_path / "run", "init_from")) == 1


@pytest.mark.full
def test_a_trial_of_a_sweep_gives_and_takes_weights(tmp_path, finished):
    trials = {
        n: config(train__init_from=str(finished[0]), optim__peak_lr=0.0, train__seed=s) for s, n in enumerate("ab")
    }
    run_sweep(tmp_path / "sweep", trials)
    record = records.read_json(tmp_path / "sweep" / "runs" / "b" / "record.json")
    assert record["init_from"]["digest"] == finished[1]["params_digest"]
    chosen = config(train__init_from=str(tmp_path / "sweep" / "runs" / "b"), optim__peak_lr=0.0)
    assert train_single(chosen, tmp_path / "run")["params_digest"] == finished[1]["params_digest"]


def test_weights_that_are_not_there_do_not_fit_or_are_damaged_are_refused(tmp_path, run):
    cases = {
        f"{run}@3": r"no checkpoint of step 3; it has \[2, 4\]",
        str(tmp_path): "is not a run folder",
        f"{tmp_path}/none@2": "is not a run folder",
    }
    for source, message in cases.items():
        with pytest.raises(BadInput, match=message):
            train_single(config(train__init_from=source), tmp_path / "new")
    with pytest.raises(BadInput, match=r"params.embed.w: float32\[256,8\], now float32\[256,16\]"):
        train_single(config(train__init_from=str(run), model__d_model=16), tmp_path / "wide")
    (run / "checkpoints" / "4" / "state" / "_METADATA").unlink()
    with pytest.raises(DamagedCheckpoint, match="_METADATA is missing"):
        train_single(config(train__init_from=str(run)), tmp_path / "other")
