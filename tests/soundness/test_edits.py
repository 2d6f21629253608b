"""One value edited in one file of a finished run: `runs` says damaged, or `checkpoint verify --all` names the file.

And neither says a word of a run that nobody edited: finished, resumed, changed on the way, branched, stopped, underway.
"""

import itertools
import json
import re
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep.tune import study
from scalelab.train.single import train_single
from tests.quick import one_in
from tests.report import synthetic
from tests.train.resume.test_compatibility import config

GONE = object()
RUN = {"schedule__name": "constant", "log__layers_every": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps, with checkpoints of 2 and 4, layers, and evaluations of step 4 alone."""
    folder = tmp_path_factory.mktemp("finished") / "runs" / "a"
    train_single(config(**RUN), folder)
    return folder


@pytest.fixture
def run(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


def is_listed_as_damaged(run, capsys):
    code = main(["runs", str(run.parent.parent), "--json"])
    out, err = capsys.readouterr()
    (row,) = json.loads(out.splitlines()[-1])
    assert (code == 1) == (row["status"] == "damaged") == ("a is damaged" in err) and "Traceback" not in err
    return row["status"] == "damaged"


def files_named_by_verify(run, capsys):
    code = main(["checkpoint", "verify", "--all", str(run)])
    out, _ = capsys.readouterr()
    lines = [line.removeprefix(f"{run}/") for line in out.splitlines()]
    assert all(re.match(r"[\w./ ]+: (sound$|damaged: \S)", line) for line in lines), out
    named = [line.split(": ")[0] for line in lines if ": damaged" in line]
    assert code == int(bool(named))
    return named


def change(path, key, value):
    """Set a dotted key, or a key of the line numbered before it (`3:train_loss`), or drop it where value is GONE."""
    number, _, key = key.rpartition(":")
    lines = path.read_text().splitlines() if number else [path.read_text()]
    content = json.loads(lines[int(number or 0)])
    *groups, last = key.split(".")
    place = content
    for group in groups:
        place = place[group]
    assert last in place, key
    old = place.pop(last)
    if value is not GONE:
        place[last] = value(old) if callable(value) else value
        assert place[last] != old
    lines[int(number or 0)] = json.dumps(content)
    path.write_text("\n".join([*lines, ""]))


def less(value):
    return value * 0.9 if isinstance(value, float) else value - 1


# (file, key, new value): read with the numbers of laws and bests, so `runs` itself must say it.
READ = [
    ("record.json", "val_loss", 0.5), ("record.json", "val_loss", None), ("record.json", "val_loss", less),
    ("record.json", "params.total", less), ("record.json", "params.non_embedding", less),
    ("record.json", "params.kaplan", less), ("record.json", "params.chinchilla", less),
    ("record.json", "params_by_group.mlp", less), ("record.json", "tokens", less), ("record.json", "tokens", 10**9),
    ("record.json", "steps", less), ("record.json", "steps", 40), ("record.json", "flops.exact", less),
    ("record.json", "flops.6ND", less), ("record.json", "flops.chinchilla", less), ("record.json", "bpb", less),
    ("record.json", "flops_per_token.exact", less), ("record.json", "flops_per_token.6N", less),
    ("record.json", "status", "diverged"), ("record.json", "status", "stopped"), ("record.json", "identity", "0" * 16),
    ("record.json", "identity", GONE), ("record.json", "tokens", GONE), ("record.json", "flops", GONE),
    ("record.json", "versions", GONE), ("config.json", "optim.peak_lr", 0.5), ("config.json", "model.d_ff", less),
    ("config.json", "train.seed", 7), ("config.json", "train.steps", 8), ("config.json", "data.n_tokens", less),
    ("config.json", "schedule.name", "linear"), ("metrics.jsonl", "4:val_loss", less),
    ("metrics.jsonl", "4:tokens", less), ("metrics.jsonl", "4:step", less),
    ("events.jsonl", "-1:kind", "diverged"),
]  # fmt: skip
# Held by the manifests of the checkpoints, which only verify reads.
VERIFIED = [
    ("record.json", "data.fingerprint", "0" * 16), ("record.json", "data.tokenizer", "gpt2"),
    ("record.json", "set_by", lambda old: dict.fromkeys(old, "the command line")),
    ("config.json", "log.role", "holdout"), ("config.json", "checkpoint.keep_last", 9),
    ("metrics.jsonl", "0:train_loss", less), ("metrics.jsonl", "2:lr", less), ("metrics.jsonl", "1:time", less),
    ("metrics.jsonl", "0:step", "one"), ("layers.jsonl", "0:step", 3), ("layers.jsonl", "1:weight_norm", [1.0]),
    ("events.jsonl", "0:text", "nothing happened"), ("events.jsonl", "0:time", GONE),
    ("checkpoints/4/manifest.json", "step", 3), ("checkpoints/4/manifest.json", "time", less),
    ("checkpoints/2/manifest.json", "facts.run.identity", "0" * 16),
    ("checkpoints/4/manifest.json", "facts.run.config.optim.peak_lr", 0.5),
]  # fmt: skip


def test_forty_edits_of_one_value_are_each_named(run, finished, capsys):
    assert len(READ) + len(VERIFIED) >= 40
    assert not is_listed_as_damaged(run, capsys) and files_named_by_verify(run, capsys) == []
    for file, key, value in [*READ, *VERIFIED]:
        change(run / file, key, value)
        named = files_named_by_verify(run, capsys)
        step = "/".join(file.split("/")[:2])
        expected = {file, step} | ({"record.json"} if (file, key, value) in READ else set())  # it is held to the others
        assert set(named) & expected, (file, key, value, named)
        if (file, key, value) in READ:
            assert is_listed_as_damaged(run, capsys), (file, key, value)
        shutil.copy(finished / file, run / file)
    assert not is_listed_as_damaged(run, capsys) and files_named_by_verify(run, capsys) == []


@pytest.mark.parametrize("file", ["metrics.jsonl", "layers.jsonl", "events.jsonl", "record.json"])
def test_files_cut_or_deleted_are_named(run, finished, capsys, file):
    (run / file).unlink()
    assert file in files_named_by_verify(run, capsys)
    if file != "record.json":
        lines = (finished / file).read_text().splitlines(keepends=True)
        (run / file).write_text("".join(lines[:-1]))
        assert {file, "record.json"} & set(files_named_by_verify(run, capsys)), file


def test_a_damaged_run_takes_no_part_in_a_fit_and_a_best(tmp_path, capsys):
    for seed, lr in enumerate((1e-3, 2e-3, 4e-3, 8e-3)):
        synthetic.write_run(tmp_path / "runs" / f"r{seed}", peak_lr=lr, seed=seed, lines=15)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    change(tmp_path / "runs" / "r2" / "record.json", "val_loss", 0.1)
    assert main(["runs", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "r2 is damaged" in err and "val_loss is 0.1" in err and "metrics.jsonl says" in err and "0.1000" not in out
    assert main(["fit", str(tmp_path), "--best-of=lr", "--per=N,D", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["excluded"] == [{"name": "r2", "reason": "damaged"}] and answer["groups"][0]["runs"] == 3


def test_a_sweep_and_a_tuning_take_no_false_loss(tmp_path, capsys):
    for name in "abc":
        synthetic.write_run(tmp_path / "runs" / name, lines=15)
    records.write_json(tmp_path / "sweep.json", {"trials": dict.fromkeys("abc", 3906), "packs": {"p": list("abc")}})
    change(tmp_path / "runs" / "b" / "record.json", "val_loss", 0.5)
    main(["sweep", "--status", f"--workdir={tmp_path}", "--json"])
    out, err = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(out.splitlines()[-1])["trials"]}
    assert [rows[name]["status"] for name in "abc"] == ["done", "damaged", "done"]
    assert "val_loss is 0.5, and the last evaluated line of metrics.jsonl says" in err and "0.5000" not in out
    with pytest.raises(BadInput, match=r"val_loss is 0\.5, and"):
        study.read_loss(tmp_path / "runs" / "b")


def counted_by_a_fork(folder, groups, more_flops=0.0):
    """Write the run's files as a fork writes them that has these parameters more and these FLOPs a token more."""
    record, more = records.read_record(folder), sum(groups.values())
    params = {name: count + more for name, count in record["params"].items()}
    by_group = record["params_by_group"]
    by_group |= {name: by_group.get(name, 0) + count for name, count in groups.items()}
    added = {"6N": 6 * more, "chinchilla": 6 * more + more_flops, "exact": 6 * more + more_flops}
    per_token = {name: value + added[name] for name, value in record["flops_per_token"].items()}
    flops = {("6ND" if name == "6N" else name): value * record["tokens"] for name, value in per_token.items()}
    counts = {"params": params, "params_by_group": by_group, "flops_per_token": per_token, "flops": flops}
    records.write_json(folder / "record.json", record | counts)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    changed = [line | ({"flops": line["tokens"] * per_token["exact"]} if "flops" in line else {}) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))


# A group of its own, a third matrix in the MLP, a smaller norm, and other products with the same parameters.
@pytest.mark.parametrize(
    ("groups", "more_flops"), [({"gate": 4096}, 0), ({"mlp": 8192}, 0), ({"norms": -16}, 0), ({}, 5e4)], ids=str
)
def test_a_run_of_edited_code_is_damaged_only_where_its_numbers_contradict_each_other(run, capsys, groups, more_flops):
    counted_by_a_fork(run, groups, more_flops)
    assert not is_listed_as_damaged(run, capsys)
    whole = (run / "record.json").read_text()
    for key in ("params.total", "params_by_group.mlp", "flops_per_token.6N", "flops_per_token.exact", "flops.exact"):
        change(run / "record.json", key, less)
        assert is_listed_as_damaged(run, capsys), key
        (run / "record.json").write_text(whole)


# Runs that nobody edited.


def stopped_after(dispatches):
    calls = itertools.count(1)
    return lambda: next(calls) == dispatches


def resume(folder):
    assert train_single(config(**RUN), folder, stop=stopped_after(1))["status"] == "stopped"
    yield
    train_single(config(**RUN), folder)


def extend(folder):
    train_single(config(**RUN), folder)
    yield
    train_single(config(**RUN, train__steps=6), folder, allow=["train.steps"])


def mix(folder):
    train_single(config(**RUN), folder)
    yield
    train_single(config(**RUN, train__steps=6, optim__peak_lr=0.02), folder, allow=["train.steps"])


def change_batch(folder):
    train_single(config(**RUN), folder)
    yield
    longer = config(**RUN, train__steps=8, train__global_batch=4)
    train_single(longer, folder, allow=["train.global_batch", "train.steps"])


def diverge(folder):
    train_single(config(**RUN, optim__peak_lr=1e3, optim__name="sgd"), folder)
    yield


def be_impatient(folder):
    train_single(config(**RUN, train__steps=8, eval__every_steps=1, eval__patience=1, optim__peak_lr=0.9), folder)
    yield


def be_killed(folder):
    """Killed after a save: the logs are ahead of the record, which says running."""
    train_single(config(**RUN), folder)
    record = records.read_record(folder)
    steps = {"status": "running", "steps": 0, "tokens": 0, "val_loss": None, "flops": dict.fromkeys(record["flops"], 0)}
    records.write_json(folder / "record.json", {k: v for k, v in (record | steps).items() if k != "bpb"})
    yield
    train_single(config(**RUN), folder)


LEGAL = (resume, extend, mix, change_batch, diverge, be_impatient, be_killed)


@pytest.mark.full
@pytest.mark.parametrize("live", one_in(4, LEGAL), ids=lambda live: live.__name__)
def test_runs_that_nobody_edited_are_sound_at_every_stop(tmp_path, capsys, live):
    folder = tmp_path / "runs" / "a"
    for _ in itertools.chain(live(folder), [None]):
        capsys.readouterr()
        assert not is_listed_as_damaged(folder, capsys)
        assert files_named_by_verify(folder, capsys) == []


@pytest.mark.full
def test_a_branch_and_a_note_are_sound(tmp_path, finished, capsys):
    shutil.copytree(finished, tmp_path / "trunk")
    branch = {
        **RUN,
        "schedule__name": "wsd",
        "schedule__decay_steps": 2,
        "train__steps": 6,
        "train__branch_from": f"{tmp_path / 'trunk'}@4",
    }
    train_single(config(**branch), tmp_path / "runs" / "a")
    records.write_event(tmp_path / "runs" / "a", "note", None, "looks good")
    capsys.readouterr()
    assert not is_listed_as_damaged(tmp_path / "runs" / "a", capsys)
    assert files_named_by_verify(tmp_path / "runs" / "a", capsys) == []


@pytest.mark.full
def test_own_code_that_was_edited_since_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_terms.py").write_text("def values(arrays):\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    train_single(config(**RUN, train__metrics="my_terms:values"), tmp_path / "runs" / "a")
    capsys.readouterr()
    assert main(["checkpoint", "verify", "--all", str(tmp_path)]) == 0
    assert f"{tmp_path / 'runs' / 'a'}/own code: sound\n" in capsys.readouterr().out
    (tmp_path / "my_terms.py").write_text("def values(arrays):\n    return {'one': 1.0}\n")
    assert files_named_by_verify(tmp_path / "runs" / "a", capsys) == ["own code"]
    (tmp_path / "my_terms.py").unlink()  # another machine need not have it
    assert files_named_by_verify(tmp_path / "runs" / "a", capsys) == []


def test_all_goes_with_verify_alone(run, capsys):
    for arguments in (["list", "--all"], ["verify", "--all", "--step=4"]):
        assert main(["checkpoint", arguments[0], str(run), *arguments[1:]]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "--all goes with verify" in line
