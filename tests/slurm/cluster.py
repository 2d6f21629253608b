"""A Slurm cluster of one node on loopback, from the distribution's packages, in a temporary folder.

with cluster.start(folder) as slurm: subprocess.run(["sbatch", …], env=slurm.environment)
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")
SETTINGS = """\
ClusterName=scalelab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=2000
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_setup_env_fail
MinJobAge=5
KillWait=10
SlurmdTimeout=10
SlurmctldTimeout=30
InactiveLimit=0
JobRequeue=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE DefaultTime=60 State=UP OverSubscribe=NO
"""


def missing_program() -> str:
    """The first program of Slurm that is not installed; "" if all are."""
    return next((name for name in PROGRAMS if not shutil.which(name, path=_path())), "")


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


@dataclasses.dataclass
class Cluster:
    """The running daemons, and the environment in which Slurm's commands find them."""

    folder: pathlib.Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen]

    def run(self, *command: str) -> str:
        """The output of one of Slurm's commands."""
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def start_daemon(self, name: str, *options: str) -> None:
        """Start munged, slurmctld or slurmd in the foreground."""
        path = shutil.which(name, path=_path())
        assert path
        with open(self.folder / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen([path, *options], env=self.environment, stdout=out, stderr=out)

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Wait until the node takes jobs."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.CalledProcessError):
                if {"idle", "mixed", "allocated"} & set(self.run("sinfo", "-h", "-o", "%T").split()):
                    return
            time.sleep(0.2)
        raise AssertionError(f"the node takes no jobs: see {self.folder}/*.log")

    def start_node(self) -> None:
        """Start slurmd, also after it was killed."""
        self.start_daemon("slurmd", "-D", "-f", f"{self.folder}/slurm.conf", "-N", socket.gethostname())


@contextlib.contextmanager
def start(folder: pathlib.Path, cpus: int = 4) -> Iterator[Cluster]:
    """A cluster that takes jobs; its daemons and their jobs end with the context."""
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(parents=True)
    os.chmod(folder, 0o755)  # munged refuses a socket in a folder that others may write
    host, ports = socket.gethostname(), [_free_port() for _ in range(2)]
    (folder / "slurm.conf").write_text(SETTINGS.format(host=host, folder=folder, ports=ports, cpus=cpus))
    (folder / "munge.key").write_bytes(os.urandom(128))
    os.chmod(folder / "munge.key", 0o400)
    environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": _path()}
    slurm = Cluster(folder, environment, {})
    try:
        slurm.start_daemon(
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munge.seed",
        )
        _wait_for_file(folder / "munge.socket")
        slurm.start_daemon("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        slurm.start_node()
        slurm.wait_until_idle()
        yield slurm
    finally:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            slurm.run("scancel", "--full", "--signal=KILL", "--user=root")
        for daemon in reversed(slurm.daemons.values()):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for_file(path: pathlib.Path, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise AssertionError(f"{path} does not appear")
        time.sleep(0.1)
