"""`--executor` and the options of sbatch: read from arguments and files; what can't be is refused in one line."""

import os

import pytest

from scalelab.__main__ import main
from scalelab.cli import executor_options
from scalelab.errors import BadInput
from scalelab.sweep.executors import choice, slurm

PROGRAMS = {  # of a cluster that refuses every job
    "sbatch": """if [ "$1" = --help ]; then echo '  -p, --partition=partition  --time=minutes --account=name'
        else echo "sbatch: error: $REFUSAL" >&2; exit 1; fi""",
    "srun": "exit 1", "squeue": "true", "scancel": "true", "scontrol": "true", "sinfo": "echo main; echo long",
}  # fmt: skip


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setattr(choice, "CHOSEN", [])


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Programs of Slurm on PATH, which answer as a cluster that refuses every job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_options_of_sbatch_come_from_arguments_and_files(tmp_path):
    argv = ["--slurm.cpus_per_task=4", "--slurm.exclusive", "--workdir=a", "--slurm.mem=1G=2"]
    assert executor_options.split_slurm_options(argv) == (
        {"cpus-per-task": "4", "exclusive": "", "mem": "1G=2"},
        ["--workdir=a"],
    )
    file = tmp_path / "options"
    file.write_text("#!/bin/bash\n# mine\n\n#SBATCH --partition=gpu\n--time = 4:00:00\nexclusive\n--mem 8G \n")
    settings = {"partition": "gpu", "time": "4:00:00", "exclusive": "", "mem": "8G"}
    assert choice.read_slurm_file(file) == settings
    file.write_text("partition=gpu\nsrun python train.py\n")
    with pytest.raises(BadInput, match=r"line 2: 'srun python train.py' is not option=value"):
        choice.read_slurm_file(file)


def refused(capsys, folder, *options):
    """The one line that a sweep is refused with; nothing of it is left in its folder but the plan."""
    code = main(["sweep", "--config=lr_seeds", f"--workdir={folder}", *options])
    output = capsys.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("scalelab: ")]
    assert (code, output.out) == (2, "") and "Traceback" not in output.err
    return line


@pytest.mark.parametrize("options, words", [
    (["--executor=slrum"], "invalid choice: 'slrum' (choose from"),
    (["--slurm.partition=gpu"], "--slurm is for --executor=slurm, not local"),
    (["--executor=manifest", "--max-parallel=2"], "--max-parallel is for --executor=slurm, not manifest"),
    (["--executor=slurm", "--max-parallel=-2"], "--max-parallel=-2 is not a number of jobs"),
    (["--executor=slurm", "--slurm=nowhere"], "--slurm=nowhere: there is no such file"),
    (["--executor=slurm"], "there is no sbatch on PATH; run it on a login node"),
    (["--pack=deadbeef"], "holds no pack 'deadbeef'"),
    (["--cancel"], "there is no sbatch on PATH"),
])  # fmt: skip
def test_what_can_t_be_is_refused_in_one_line(tmp_path, capsys, monkeypatch, options, words):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert words in refused(capsys, tmp_path / "s", *options)
    assert not (tmp_path / "s" / "runs").exists()


def test_jobs_can_t_share_a_folder_in_an_object_store(capsys):
    for option in ("--executor=slurm", "--executor=manifest", "--pack=a", "--cancel"):
        code = main(["sweep", "--config=lr_seeds", "--workdir=s3://bucket/a", option])
        assert code == 2 and "need a folder that they share" in capsys.readouterr().err


@pytest.mark.parametrize("refusal, options, words", [
    ("Batch job submission failed: Invalid account or account/partition combination specified",
     ["--slurm.account=none"], "Invalid account"),
    ("Batch job submission failed: Disk quota exceeded", [],
     "--executor=slurm: sbatch: Batch job submission failed: Disk quota"),
    ("invalid partition specified: mian", ["--slurm.partition=mian"],
     "--slurm.partition=mian: sbatch: invalid partition specified: mian; did you mean 'main'"),
    ("", ["--slurm.partitoin=main"], "--slurm.partitoin is no option of sbatch; did you mean 'partition'"),
    ("", ["--slurm.array=0-3"], "--slurm.array is set by scalelab; see --max-parallel"),
])  # fmt: skip
def test_what_sbatch_refuses_is_one_line_and_leaves_no_submission(
    cluster, tmp_path, capsys, monkeypatch, refusal, options, words
):
    monkeypatch.setenv("REFUSAL", refusal)
    assert words in refused(capsys, tmp_path / "s", "--executor=slurm", *options)
    assert not list((tmp_path / "s" / "slurm").glob("*.json"))


def test_a_machine_that_lacks_one_of_slurms_commands_is_refused_in_one_line(cluster, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(cluster))  # without a Slurm that is installed beside it
    (cluster / "srun").unlink()  # submitit needs it, and jobs call it
    line = refused(capsys, tmp_path / "s", "--executor=slurm")
    assert "there is no srun on PATH; run it on a login node" in line and not (tmp_path / "s" / "runs").exists()
    assert "`scalelab sweep --dry-run` prints the batch script without one" in line


def test_slurm_that_does_not_answer_is_said(cluster, tmp_path, monkeypatch):
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: fatal: no config' >&2; exit 1\n")
    with pytest.raises(BadInput, match=r"Slurm doesn't answer: sbatch: no config .*--dry-run` prints the batch script"):
        slurm.SlurmArray(tmp_path, {"partition": "main"})
