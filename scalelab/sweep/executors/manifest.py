"""Packs as commands for other engines: one a line, a SkyPilot task, a Kubernetes JobSet.

Nothing is trained here. Each command trains one pack, resumes it where it is begun, and ends with 0 when it has ended,
75 when it was stopped after saving: then the same command goes on. When all have run, the command that wrote the
manifest goes on with what they trained.
"""

import json
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import yaml

from scalelab import git
from scalelab.errors import quote_path
from scalelab.sweep.executors import jobs
from scalelab.sweep.executors.pool import PackJobs, WatchTrials
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE
from scalelab.untrusted.files import replace_file
from scalelab.untrusted.paths import path_below

PLACE = "/sweep"  # where other machines see the sweep's folder
RESUMING = """\
# Every command resumes its pack from the last checkpoint, so each may be killed and run again at any time; two at once
# can't harm a pack (its folder is locked). Exit codes: 0 ended, 75 stopped after saving (run it again), 1 failed (the
# pack's log.txt says why), 2 bad input (running it again won't help). The folder must be the same for all of them.
# --trust names your own code that a command may run, --config the file beside which it lies: set it to its place there.
"""


class Manifest:
    """An executor that writes D/manifest/ and trains nothing: it answers like a pool that was stopped at once."""

    def __init__(
        self,
        folder: pathlib.Path,
        report: Callable[[str], None],
        allow: Collection[str] = (),
        take_over: bool = False,
        judge: Any = None,
        config_file: str = "",
    ) -> None:
        self.folder, self.report, self.options = folder.absolute(), report, (tuple(allow), take_over, judge)
        self.config_file = config_file

    def __enter__(self) -> "Manifest":
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing was started."""

    def run(
        self,
        packs: PackJobs,
        watch: WatchTrials = lambda running: None,
        stop: Callable[[], bool] = lambda: False,
        code: Mapping[str, git.RepoState] | None = None,
    ) -> dict[str, int]:
        """Write the packs and the commands that train them; {pack: 75}."""
        for pack, trials in packs.items():
            jobs.write_job(self.folder, pack, trials, code, *self.options)
        place = path_below(self.folder, "manifest")
        place.mkdir(exist_ok=True)
        configs = [config for trials in packs.values() for config in trials.values()]
        trust = jobs.trust_options(configs, self.config_file)
        quoted = quote_path(self.folder)
        commands = [f"scalelab sweep --workdir={quoted} --pack={pack}{trust}" for pack in packs]
        replace_file(place / "commands.txt", "\n".join([*commands, ""]))
        replace_file(place / "skypilot.yaml", skypilot_task(list(packs), self.folder.name, trust))
        replace_file(place / "jobset.yaml", kubernetes_jobset(list(packs), self.folder.name, trust))
        self.report(
            f"{len(packs)} packs to train elsewhere, in any order: {place}/commands.txt, skypilot.yaml, "
            "jobset.yaml; when they have ended, the same command goes on"
        )
        return dict.fromkeys(packs, STOPPED_EXIT_CODE)


def skypilot_task(packs: Sequence[str], name: str, trust: str = "") -> str:
    """A SkyPilot task for one pack, to be launched once a pack. `trust`: options for user code."""
    launches = "".join(f"#   sky jobs launch --yes --name={name}-{p} --env PACK={p} skypilot.yaml\n" for p in packs)
    task = {
        "name": dns_name(name),
        "envs": {"PACK": packs[0]},
        "resources": {
            "accelerators": "H100:1", "use_spot": True,
            "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [STOPPED_EXIT_CODE]},
        },
        "volumes": {PLACE: "VOLUME"},
        "setup": "pip install scalelab",
        "run": f"scalelab sweep --workdir={PLACE} --pack=$PACK{trust}",
    }  # fmt: skip
    head = "# SkyPilot, a managed job a pack. Set resources and VOLUME, which holds the sweep's folder, then:\n"
    return head + launches + RESUMING + yaml.safe_dump(task, sort_keys=False)


def kubernetes_jobset(packs: Sequence[str], name: str, trust: str = "") -> str:
    """A JobSet with one indexed job: each index trains a pack, and is run again after exit code 75 or an eviction."""
    script = f"set -- {' '.join(packs)}; shift $JOB_COMPLETION_INDEX; "
    script += f"exec scalelab sweep --workdir={PLACE} --pack=$1{trust}"
    container = {
        "name": "train", "image": "IMAGE", "command": ["sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [{"name": "sweep", "mountPath": PLACE}],
    }  # fmt: skip
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [STOPPED_EXIT_CODE]}},
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [2]}},
    ]
    job = {
        "completionMode": "Indexed", "completions": len(packs), "parallelism": len(packs), "backoffLimitPerIndex": 2,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 120, "containers": [container],
            "volumes": [{"name": "sweep", "persistentVolumeClaim": {"claimName": "CLAIM"}}],
        }},
    }  # fmt: skip
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": dns_name(name)},
        "spec": {"replicatedJobs": [{"name": "packs", "replicas": 1, "template": {"spec": job}}]},
    }  # fmt: skip
    head = "# Kubernetes JobSet: set IMAGE, CLAIM (a volume that all pods can write) and limits, then\n"
    head += "#   kubectl apply -f jobset.yaml\n"
    return head + RESUMING + yaml.safe_dump(json.loads(json.dumps(jobset)), sort_keys=False)


def dns_name(text: str) -> str:
    """A name that Kubernetes and SkyPilot take: lower-case letters, digits and dashes, at most 40."""
    letters = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in text.lower())
    return letters.strip("-")[:40].strip("-") or "sweep"
