"""Every mistake changes nothing: after a refusal the work folder has the bytes that it had, or is absent as it was."""

import shutil
import sys

import pytest

from scalelab.__main__ import main
from scalelab.sweep.executors import choice
from tests.quick import one_in

SMALL = [
    f"--config.{key}={value}" for key, value in {
        "data.source": "synthetic", "data.n_tokens": 20_000, "model.vocab_size": 64, "model.seq_len": 16,
        "model.d_model": 16, "train.steps": 4, "train.global_batch": 2, "eval.batches": 1,
    }.items()
]  # fmt: skip
FILES = {
    "one_pack.py": "def sweep(h): return h.sweep('train.seed', [0, 1])",
    "two_packs.py": "def sweep(h): return h.sweep('model.n_layers', [1, 2])",
    "late.py": "def sweep(h): return h.sweep('optim.peak_lr', [1e-3, -1.0])",
    "lion.py": "def get_config():\n    c = tiny.get_config()\n    c.optim.name = 'lion'\n    return c",
    "tuned.py": "def tune(): return {'nuisance': {'optim.peak_lr': (1e-4, 1e-2, 'log')}}",
}
ABSENT = {  # what is not there, or does not work, in any command that trains
    "wandb": ["--config.log.wandb=project"],
    "a sink's module": ["--config.log.sinks=nosuch:fn"],
    "data": ["--config.data.source=text", "--config.data.path=/nonexistent"],
    "weights": ["--config.train.init_from=/nonexistent"],
    "an optimizer": ["--config.optim.name=nosuch:fn"],
    "a value": ["--config.optim.peak_lr=nan"],
    "devices": ["--config.parallel.data=333"],
}
TRAIN = {
    "a sink that fails": ["--config.log.sinks=mine_that_fails:sink"],
    "a loss that fails": ["--config.train.loss=mine_that_fails:loss"],
    "a schedule that fails": ["--config.schedule.name=mine_that_fails:sink"],
    "memory": ["--config.model.d_model=262144"],
    "no run to change": ["--lr-factor=.5"],
    "a trunk": ["--branch-from=/nonexistent"],
    "foreign weights": ["--init-from=hf:/nonexistent"],
    "a key": ["--allow-change=nosuch"],
}
SWEEP = {
    "submitit": ["--executor=slurm"],
    "a rule": ["--stop-if=nosuch > 1"],
    "slurm's option": ["--slurm.partition=gpu"],
    "a pack": ["--pack=nosuch"],
}
TUNED = ["tune", "--config=tuned.py", "--trials=40"]
ABLATED = ["ablate", "--baseline=one_pack.py", "--variant=lion.py", "--budgets=1e8,4e8,1.6e9,6.4e9", "--untuned"]
CASES = {
    **{f"train: {k}": ["train", "--config=tiny", *v] for k, v in (ABSENT | TRAIN).items()},
    **{f"sweep: {k}": ["sweep", "--config=one_pack.py", *v] for k, v in (ABSENT | SWEEP).items()},
    **{f"sweep of packs: {k}": ["sweep", "--config=two_packs.py", *v] for k, v in ABSENT.items() if k != "devices"},
    "sweep: a sink that fails": ["sweep", "--config=one_pack.py", *TRAIN["a sink that fails"]],
    "sweep: a loss that fails": ["sweep", "--config=one_pack.py", *TRAIN["a loss that fails"]],
    **{
        f"sweep of packs: {k}": ["sweep", "--config=two_packs.py", "--config.sweep.workers=2", *TRAIN[k]]
        for k in ("a sink that fails", "a loss that fails", "a schedule that fails")
    },
    "sweep: a late value": ["sweep", "--config=late.py"],
    **{f"tune: {k}": [*TUNED, *v] for k, v in ABSENT.items() if k not in ("devices", "weights")},
    "tune: submitit": [*TUNED, "--executor=slurm"],
    "tune: trials": [*TUNED, "--trials=2"],
    **{f"ablate: {k}": [*ABLATED, *v] for k, v in ABSENT.items() if k not in ("devices", "weights")},
    "ablate: submitit": [*ABLATED, "--executor=slurm"],
    "ablate: a fixed value": [*ABLATED, "--fix=E=much"],
    "proxy: wandb": ["proxy", "--config=tiny", "--flops=1e9", *ABSENT["wandb"]],
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with configs, to call commands in."""
    folder = tmp_path_factory.mktemp("place")
    for name, text in FILES.items():
        (folder / name).write_text(f"from scalelab.configs import tiny\nget_config = tiny.get_config\n{text}\n")
    (folder / "mine_that_fails.py").write_text(
        "def sink(*_): raise ValueError('no')\ndef loss(*_): raise ValueError('no')\n"
    )
    return folder


@pytest.fixture(autouse=True)
def without_packages(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    for name in ("wandb", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    choice.CHOSEN.clear()


def tree(folder):
    """All that is in a folder, byte by byte; None if there is none."""
    if not folder.exists():
        return None
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_a_refusal_leaves_nothing(case, place, capsys):
    folder = place / "new" / "deep"
    shutil.rmtree(folder.parent, ignore_errors=True)  # of a case that failed
    command, *arguments = CASES[case]
    assert main([command, "--workdir=new/deep", *SMALL, *arguments]) == 2, capsys.readouterr().err
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("scalelab: ") and not folder.parent.exists(), (line, [*tree(folder.parent)])


@pytest.mark.parametrize(
    "case",
    one_in(4, ["sweep: wandb", "sweep: a loss that fails", "sweep: a late value", "sweep of packs: wandb",
               "tune: wandb", "ablate: submitit", "proxy: wandb"]),
)  # fmt: skip
def test_a_refusal_leaves_empty_folders_that_were_there(case, place, tmp_path, capsys):
    for name in ("runs/seed=0", "runs/n_layers=1", "runs/of a name of mine", "packs/mine"):
        (tmp_path / "folder" / name).mkdir(parents=True)
    before = tree(tmp_path / "folder")
    command, *arguments = CASES[case]
    assert main([command, f"--workdir={tmp_path / 'folder'}", *SMALL, *arguments]) == 2, capsys.readouterr().err
    assert tree(tmp_path / "folder") == before, capsys.readouterr().err


@pytest.fixture(scope="module")
def swept(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["sweep", "--config=one_pack.py", "--workdir=swept", *SMALL, "--json"]) == 0
    return place / "swept"


@pytest.mark.full
@pytest.mark.parametrize(
    "case", one_in(3, ["sweep: submitit", "sweep: wandb", "sweep of packs: wandb", "sweep: a value"])
)
def test_a_refusal_leaves_a_sweep_as_it_was(case, swept, place, capsys):
    """The grid of a finished sweep is extended by a third seed, and refused."""
    (place / "grown.py").write_text((place / "one_pack.py").read_text().replace("[0, 1]", "[0, 1, 2]"))
    before = tree(swept)
    command, *arguments = [each.replace("one_pack", "grown") for each in CASES[case]]
    assert main([command, "--workdir=swept", *SMALL, *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("scalelab: ") and tree(swept) == before


@pytest.mark.parametrize("name", ["runs", "packs", "manifest", "slurm"])
def test_a_sweep_leaves_a_file_that_has_the_name_of_its_folder(name, tmp_path, capsys):
    (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    assert main(["sweep", "--config=one_pack.py", f"--workdir={tmp_path}", *SMALL]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / name} is a file, where a sweep has a folder" in line and tree(tmp_path) == before


@pytest.mark.full
def test_a_folder_with_other_files_is_not_a_run_s(place, swept, monkeypatch, capsys):
    folder = place / "my project"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    before = tree(folder)
    monkeypatch.chdir(folder)
    for workdir in (".", str(folder), "../my project"):
        assert main(["train", "--config=tiny", f"--workdir={workdir}", *SMALL]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "is not a run and holds notes.txt: a run has a folder of its own, e.g. --workdir=" in line
        assert tree(folder) == before
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    (folder / "sub" / "slurm-7.out").write_text("opened by a scheduler")
    (folder / "sub" / "autotuned.textproto").write_text("version: 3")  # a GPU's kernels, kept before the first record
    assert main(["train", "--config=tiny", "--workdir=.", *SMALL, "--json=-"]) == 0  # but for these empty: allowed
    assert '"name": "sub"' in capsys.readouterr().out
    assert main(["train", "--config=tiny", "--workdir=.", *SMALL]) == 0  # and a run goes on
    capsys.readouterr()
    assert main(["train", "--config=tiny", f"--workdir={swept}", *SMALL]) == 2  # a sweep's


@pytest.mark.full
def test_prepare_leaves_no_plan_behind(place, capsys):
    (place / "part.jsonl").write_text('{"text": "a good line"}\n' * 50)
    (place / "broken.jsonl").write_text('{"text": "a good line"}\n{"text": ')
    for out in (place / "prepared", place / "empty"):
        if out.name == "empty":
            out.mkdir()
        for sources in (["a=broken.jsonl"], ["a=part.jsonl", "b=broken.jsonl"], ["a=nosuch.jsonl"]):
            before = tree(out)
            given = [f"--source={each}" for each in sources]
            assert main(["prepare", *given, "--tokenizer=bytes", f"--out={out}"]) == 2
            assert tree(out) == before, capsys.readouterr().err
    shutil.rmtree(place / "empty")


@pytest.mark.full
def test_prepare_goes_on_where_its_plan_names_very_many_files(place, capsys):
    (place / "one.jsonl").write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(100)))
    prepare = ["prepare", "--source=one.jsonl", "--tokenizer=bytes", "--out=many"]
    assert main(prepare) == 0
    with (place / "many" / "plan.json").open("a") as file:
        file.write(" " * 2**26)
    assert main(prepare) == 0, capsys.readouterr().err
    (place / "one.jsonl").write_text('{"text": "another line"}\n' * 50)
    assert main(prepare) == 2 and "was begun before" in capsys.readouterr().err
    shutil.rmtree(place / "many")


def test_a_plan_that_is_refused_writes_no_json(place, capsys):
    for arguments in (["--hardware=nosuch"], ["--config.model.d_model=17"], ["--devices=0"]):
        assert main(["plan", "--config=tiny", *arguments, "--json=plan.json"]) == 2
    assert main(["plan", "--sweep=late.py", "--json=plan.json"]) == 2
    assert not (place / "plan.json").exists()
