"""The door: help without jax, mistakes in one line, and every command behind it."""

import importlib
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from scalelab import __version__
from scalelab.__main__ import COMMANDS, guarded, main, pages_folder, usage
from scalelab.api.setup import list_studies, study_module
from scalelab.cli.parser import emit_json
from scalelab.experiments import isoflop
from tests.report import synthetic

ROOT = pathlib.Path(__file__).parent.parent


def scalelab(*arguments, python=()):
    return subprocess.run([sys.executable, *python, "-m", "scalelab", *arguments], capture_output=True, text=True)


def imported(stderr):
    """Top-level packages in the log of `python -X importtime`."""
    return {
        line.split("|")[-1].strip().split(".")[0] for line in stderr.splitlines() if line.startswith("import time:")
    }


def test_help_lists_every_command_and_imports_nothing_heavy(record_property):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = scalelab("--help", python=["-X", "importtime"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Must stay under 0.3 s; recorded and not asserted, for a busy machine would make it fail.
    record_property("cpu_s", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert answer.returncode == 0
    assert all(f"  {name} " in answer.stdout for name in COMMANDS)
    packages = imported(answer.stderr)
    assert "argparse" not in packages and "scalelab" in packages
    assert packages <= set(sys.stdlib_module_names) | {"scalelab"} | site_hooks()


def site_hooks():
    """What this Python imports at start for its own reasons (editable installs put a finder there)."""
    bare = subprocess.run([sys.executable, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True)
    return imported(bare.stderr)


def test_the_version_stands_in_one_place_and_imports_nothing_heavy():
    answer = scalelab("--version", python=["-X", "importtime"])
    assert (answer.returncode, answer.stdout) == (0, f"scalelab {__version__}\n")
    assert imported(answer.stderr) <= set(sys.stdlib_module_names) | {"scalelab"} | site_hooks()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "scalelab.git.VERSION"}
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = next(
        line
        for line in (ROOT / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## ") and "Unreleased" not in line
    )
    assert newest.split()[1] == __version__


def test_no_command_prints_the_help_and_is_a_mistake():
    answer = scalelab()
    assert answer.returncode == 2
    assert answer.stdout.startswith("usage: scalelab COMMAND")


@pytest.mark.parametrize(("typo", "meant"), [("trian", "train"), ("doctr", "doctor"), ("swep", "sweep")])
def test_a_typo_ends_in_one_line_with_the_nearest_command(typo, meant):
    answer = scalelab(typo)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == f"scalelab: unknown command {typo!r}; did you mean {meant!r}?\n"


# Of all commands in one process, for starting one each would cost six seconds; isoflop replaces its process by another.
ASK_ALL = """
import contextlib, io, json, sys
from scalelab.__main__ import main
def ask(*argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(argv))
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue(), "jax" in sys.modules]
print(json.dumps({name: [ask(name, "--help"), ask(name, "--jsn")] for name in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def answers():
    """{command: [answer to --help, answer to an unknown option]}, each as (code, out, err, whether jax is imported)."""
    names = [name for name in COMMANDS if name != "isoflop"]
    answer = subprocess.run([sys.executable, "-c", ASK_ALL, *names], capture_output=True, text=True, check=True)
    alone = [scalelab("isoflop", option, python=["-X", "importtime"]) for option in ("--help", "--jsn")]
    log = re.compile("^import time:.*\n", re.MULTILINE)
    alone = [[a.returncode, a.stdout, log.sub("", a.stderr), "jax" in imported(a.stderr)] for a in alone]
    return json.loads(answer.stdout) | {"isoflop": alone}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_without_jax(name, answers):
    code, out, _, has_jax = answers[name][0]
    assert not code
    assert out.startswith((f"usage: scalelab {name}", f"usage: scalelab study {name}"))
    assert "--json" in out
    assert max(map(len, out.splitlines())) <= 80
    example = out.rpartition("example:\n")[2].strip()
    assert re.match(rf"scalelab (study )?{name}\b", example) and "\n" not in example, example
    given = {word.partition("=")[0].partition(".")[0] for word in example.split()}
    assert {word for word in given if word.startswith("--")} <= set(re.findall(r"--[\w-]+", out)), example
    assert not has_jax


@pytest.mark.parametrize(
    "command",
    ["train --workdir=new", "sweep --workdir=new", "schedule", "optim"],
)
def test_a_mistyped_key_is_refused_without_jax_and_writes_nothing(command, tmp_path, monkeypatch):
    config = ROOT / "configs" / ("lr_checks.py" if command.startswith("sweep") else "tiny.py")
    monkeypatch.chdir(tmp_path)
    answer = scalelab(*command.split(), f"--config={config}", "--config.train.stepz=3", python=["-X", "importtime"])
    line = "scalelab: unknown config key 'train.stepz'; did you mean 'train.steps'?"
    assert (answer.returncode, answer.stdout, answer.stderr.splitlines()[-1]) == (2, "", line)
    assert "jax" not in imported(answer.stderr)
    assert not list(tmp_path.iterdir())


def test_a_list_of_runs_of_ours_loads_no_jax(tmp_path):
    """The readers of runs that another program trained load it."""
    synthetic.write_sweep(tmp_path / "sweep")
    answer = scalelab("runs", f"{tmp_path}/sweep", python=["-X", "importtime"])
    assert answer.returncode == 0 and "val" in answer.stdout, answer.stderr[-300:]
    assert "jax" not in imported(answer.stderr)


def test_runs_that_differ_are_compared_without_jax(tmp_path):
    """Weights, which need it, are read where all metrics are equal: 0.4 CPU s instead of 1.7."""
    synthetic.write_sweep(tmp_path / "sweep")
    one, two = sorted((tmp_path / "sweep" / "runs").iterdir())[:2]
    answer = scalelab("compare", str(one), str(two), python=["-X", "importtime"])
    assert answer.returncode == 0 and "loss: " in answer.stdout, answer.stderr[-300:]
    assert "jax" not in imported(answer.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_ends_in_one_line(name, answers):
    code, out, err, _ = answers[name][1]
    assert (code, out) == (2, "")
    assert err.startswith(("scalelab: ", f"{name}: ")) and err.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command, environment = [sys.executable, "-m", "scalelab", "--help"], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments, code, err", [("--help >&-", 0, ""), ("trian >&-", 2, "unknown command"), ("trian 2>&-", 2, "")]
)
def test_a_stream_that_is_closed_is_no_error(arguments, code, err):
    answer = subprocess.run(
        f"{sys.executable} -m scalelab {arguments}", shell=True, capture_output=True, text=True, cwd=ROOT
    )
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (code, "", bool(err))
    assert err in answer.stderr


def test_what_standard_output_cannot_write_stands_as_its_number(tmp_path):
    synthetic.write_run(tmp_path / "é", lines=1)
    latin = os.environ | {"PYTHONIOENCODING": "ascii"}
    answer = subprocess.run(
        [sys.executable, "-m", "scalelab", "runs", tmp_path, "--show=name"], capture_output=True, env=latin
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"name\n\\xe9\n", b"")


def test_what_is_not_finite_is_null_in_json(capsys):
    emit_json({"a": [1.5, math.nan], "b": {"c": math.inf}, "d": np.float32("nan")}, "-")
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [1.5, None],
        "b": {"c": None},
        "d": None,
    }


def test_json_without_a_value_does_not_swallow_the_folder_after_it(tmp_path, capsys):
    assert main(["report", "--json", str(tmp_path)]) == 2
    assert f"'{tmp_path}' holds no run" in capsys.readouterr().err


MISTAKES = {
    "train --config=README.md --workdir=new": (
        "README.md is not a config file: it must be Python, with a name that ends in .py"
    ),
    "train --config=configs/tiny.py --workdir=README.md": "README.md is a file; name a folder",
    "train --config=configs/tiny.py --workdir=README.md/mine": "README.md is a file; name a folder",
    "train --config=configs/tiny.py --workdir=new --optim.name=lion": "written --config.optim.name=VALUE",
    "train --config=configs/tiny.py --workdir=new --config.optim=lion": "unknown config key 'optim': it is a group",
    "plan --flops=1e20 --json=absent/plan.json": "--json=absent/plan.json: there is no folder 'absent'",
    "plan --flops=1e20 --json=configs": "--json=configs is a folder",
    "plan --flops=1e20 --mfu=0.4": "--mfu goes with --gpu-hours",
    # Names that 0.2.0 renamed, and the release after it dropped.
    "plan --flops=1e20 --card": "unknown argument '--card'",
    "fit README.md --approach=2 --at=U=1": "unknown argument '--at=U=1'",
    "fit README.md --approach=2 --next=2": "unknown argument '--next=2'; did you mean '--next-runs'?",
    "fit README.md --forks=Makefile": "unknown argument '--forks=Makefile'",
    # What stands alone, and what is missing beside it.
    "train configs/tiny.py": "unknown argument 'configs/tiny.py'; write --config=configs/tiny.py; required: ",
    "train --workdir=new configs/tiny.py": "unknown argument 'configs/tiny.py'; write --config=configs/tiny.py\n",
    "prepare --output=new": "unknown argument '--output=new'; did you mean '--out'?; required: --source, ",
    "prepare README.md": "unknown argument 'README.md'; write --source=README.md; required: --source",
    "plan --flops=1e20 --config=configs/tiny.py h100": "unknown argument 'h100'; write --hardware=h100\n",
    "eval runs/a b": "unknown argument 'b'\n",
    "sweep --workdir=configs --status": "'configs' holds no sweep",
    "coordcheck --config=configs/tiny.py --widths=64": "'64' is not two whole sizes or more",
    "coordcheck --config=configs/tiny.py --widths=64,wide": "'64,wide' is not two whole sizes or more",
    "recipe llama3_8b --steps=10": "--steps goes with --shrink",
    "prepare --source=README.md --tokenizer=byte --out=new": "did you mean 'bytes'?",
    "prepare --source=README.md --tokenizer=bytes --out=README.md/mine": "README.md is a file; name a folder",
    "prepare --source=README.md --tokenizer=~nosuchuser/t.json --out=new": (
        "--tokenizer=~nosuchuser/t.json: no such file"
    ),
    "prepare --source=README.md --tokenizer=bpe:300 --separator=5 --out=new": "bpe:300 always uses 0",
    "schedule --config=configs/tiny.py --config.model.seq_len=1e300": (
        "seq_len=1e+300 is more than can be counted; nearest: 2147"
    ),
    "schedule --config=configs/tiny.py --config.data.mixture=a=1e400": (
        "'a=1e400' is not a name and a number from 0 to 2^63"
    ),
    "schedule --config=configs/tiny.py --config.data.mixture=a=1;1__0:b=1,a=1": "sum to 2, not 1",
    "plan --config=configs/tiny.py --hardware=h100 --serve-batch=1e20": "is not a whole number up to 1000000000000000",
    "plan --config=configs/tiny.py --hardware=h100 --gpus=8": "did you mean '--devices=8'?",
    "plan --config=configs/tiny.py --hardware=h100 --nodes=8": "did you mean '--devices'?",
    "fit README.md --resamples=200": "did you mean '--bootstrap=200'?",
    "plan --compute=1e20 --law=besiroglu": "did you mean '--flops=1e20'?",
    "plan --config=configs/tiny.py --gpu=h100": "did you mean '--hardware=h100'?",
    "plan llama3_8b --hardware=h100": "unknown argument 'llama3_8b'; write --config=llama3_8b\n",
    "plan --config=configs/tiny.py --hardware=h100 --devices=0": "not a whole number above zero; nearest: 1",
    "plan --config=configs/tiny.py --hardware=h100 --devices=-8": "nearest: 8",
    "plan --config=configs/tiny.py --hardware=h100 --devices=0..8": "nearest: --devices=1..8",
    "train --config=configs/tiny.py --workdir=": "'' is not a folder; the current folder is .",
    "fit README.md --law=os:path": "--law='os:path' is <module",
    "fit README.md --hold=E=inf": "E = inf can't be held",
    "export hf runs/none --out=README.md/mine": "README.md is a file; name a folder",
    "import hf runs/none --out=README.md/mine": "README.md is a file; name a folder",
    f"runs {'x' * 300}": "File name too long",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_ends_in_one_line_before_any_work(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert MISTAKES[line] in output.err
    assert not (ROOT / "new").exists()


RENAMED = {
    "schedule --config=configs/tiny.py --at=1": "--show-steps",
    "schedule --config=configs/tiny.py --steps=1": "--show-steps",
    "fit README.md --n=total": "--n-convention",
    "fit README.md --plot=figures": "--figures",
    "fit README.md --target=2": "--determine",
    "sample nowhere --prompt=a --n=2": "--samples",
    "plan --config=configs/tiny.py --hardware=h100 --context=10": "--serve-context",
    "isoflop --holdout=1e10": "--holdout-flops",
}


@pytest.mark.parametrize("line", RENAMED)
def test_an_option_of_the_release_before_is_refused_by_its_present_name(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    option, new = line.split()[-1], RENAMED[line]
    if line.startswith("isoflop"):
        assert isoflop.main(line.split()[1:]) == 2
    else:
        assert main(line.split()) == 2
    assert capsys.readouterr().err.endswith(f"unknown argument {option!r}; it is now called {new}\n")


def test_ctrl_c_and_a_failure_end_in_one_line(capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    def without_space(argv):
        raise OSError(28, "No space left on device", "runs/x")

    assert guarded("a study", interrupted, []) == 130
    assert capsys.readouterr().err == "a study: interrupted\n"
    assert guarded("a study", without_space, []) == 1
    assert capsys.readouterr().err == "a study: [Errno 28] No space left on device: 'runs/x'\n"


EDGES = """
import resource, sys
from scalelab.__main__ import guarded
def leaf(a=0, b=0, c=0, d=0, e=0, f=0): return a
def faults(depth):
    if depth: return faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000): leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def work(argv):
    print(max(map(faults, range(800))))
    return 0
sys.exit(guarded("x", work, []))
"""


def test_a_loop_at_any_depth_of_a_command_maps_no_memory_at_each_call():
    out = subprocess.run([sys.executable, "-c", EDGES], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(out.stdout) < 500


STUDIES = {name: study_module(path) for name, path in list_studies().items()}


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_takes_mistakes_as_commands_do(name, capsys):
    folder = list_studies()[name].name == "__main__.py"
    study = importlib.import_module(STUDIES[name] + (".__main__" if folder else ""))
    assert study.main(["--qick"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"{name}: ") and output.err.count("\n") == 1
    with pytest.raises(SystemExit):
        study.main(["--help"])
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80 and f"example:\n    scalelab study {name}" in page


def test_an_installation_carries_every_page_that_a_message_names():
    """A wheel puts them where `scalelab --help` says; in a checkout that is the checkout itself."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    carried = {path for each in patterns.values() for pattern in each for path in ROOT.glob(pattern)}
    prefix = "share/doc/scalelab"
    for place, each in patterns.items():
        folder = place.removeprefix(prefix).lstrip("/") or "."
        assert {str(pathlib.Path(pattern).parent) for pattern in each} == {folder}
    texts = [path.read_text() for path in (ROOT / "scalelab").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\b(?:docs|scalelab/laws)/[\w/]+\.md", text)}
    assert len(named) >= 5 and {ROOT / name for name in named} <= carried
    assert pathlib.Path(pages_folder()) == ROOT and f"are in {ROOT}." in usage()
