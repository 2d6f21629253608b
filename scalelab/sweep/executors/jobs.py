"""A pack as a file, and its training by whatever process finds that file: a job of Slurm, a line of a manifest.

packs/KEY/job.json       the trials' configs, the state of the code, the stop rule
packs/KEY/starts.jsonl   one line a start and one an end of a process that trains the pack: step, host, code, why

Which user code may run is not in a file: the command that trains a pack carries it (`trust_options`).
"""

import os
import pathlib
import shlex
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import git, user_code
from scalelab.errors import BadInput, nearest_hint
from scalelab.record import records
from scalelab.record.jsonfiles import LIST, NUMBER, SCALAR, TEXT, WHOLE
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE, log_to, log_warning
from scalelab.untrusted.paths import path_below
from scalelab.untrusted.text import printable

JOB_FILE, STARTS_FILE = "job.json", "starts.jsonl"
START_SCHEMA = {"time": NUMBER, "submission": TEXT, "job": TEXT, "host": TEXT, "step": WHOLE, "skew_s?": NUMBER,
                "code?": (WHOLE, None), "why?": TEXT}  # fmt: skip
JOB_SCHEMA = {"trials": {"*": {"*": {}}}, "code": {"*": {"*": SCALAR}}, "allow": LIST, "take_over": SCALAR,
              "stop_if": (TEXT, None)}  # fmt: skip
TRAINER_OPTIONS = ("allow", "take_over", "code")  # of a job, as `train_pack` and `train_single` take them


def write_job(
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    code: Mapping[str, git.RepoState] | None,
    allow: Collection[str],
    take_over: bool,
    judge: Any,
) -> None:
    """Write what another process needs to train the pack."""
    place = folder / "packs" / pack
    place.mkdir(parents=True, exist_ok=True)
    job = {
        "trials": {name: config.to_dict() for name, config in trials.items()},
        "code": code or git.code_state(), "allow": sorted(allow), "take_over": take_over,
        "stop_if": getattr(judge, "rule", None),
    }  # fmt: skip
    records.write_json(place / JOB_FILE, job)


def read_job(folder: pathlib.Path, pack: str, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Read what `write_job` wrote; BadInput if there is no such pack, or if its file was edited.

    `report` gets a line about a file of an older version, which says itself which user code may run.
    """
    path = folder / "packs" / pack / JOB_FILE
    if "/" in pack or pack in ("", ".", "..") or not path.exists():
        known = sorted(each.parent.name for each in folder.glob(f"packs/*/{JOB_FILE}"))
        raise BadInput(f"{folder} holds no pack {pack!r}{nearest_hint(pack, known)}")
    job: dict[str, Any] = records.read_json(path_below(folder, f"packs/{pack}/{JOB_FILE}"), JOB_SCHEMA)
    if job.pop("permissions", None):
        report(f"{path} says itself which code may run, which doesn't count: pass --trust, or --config")
    if not isinstance(job["take_over"], bool) or not all(isinstance(key, str) for key in job["allow"]):
        raise BadInput(f"{path}: take_over is true or false, allow a list of keys; was it edited?")
    if not job["trials"]:
        raise BadInput(f"{path} has no trials; was it edited?")
    for name, config in job["trials"].items():
        if "/" in name:
            raise BadInput(f"{path}: {printable(name)!r} is not the name of a trial; was it edited?")
        path_below(folder, f"runs/{name}", str(path))
        try:
            config_lib.resolve(ConfigDict(config), stored=True)
        except (BadInput, ValueError, TypeError) as refusal:
            raise BadInput(f"{path}: trial {name}: {refusal}") from None
    return job


def trust_options(trials: Iterable[ConfigDict], config_file: str) -> str:
    """Options that let another process run the user code of these trials, for its command line; "" if they have none.

    Only names that this process trusts; `config_file`: beside which the code may lie.
    """
    keys = [key for key, record in config_lib.key_records().items() if record.user_code]
    texts = {config_lib.leaves(config)[key] for config in trials for key in keys}
    names = sorted(text for text in texts if isinstance(text, str) and ":" in text and user_code.is_trusted(text))
    options = [f"--trust={name}" for name in names] + [f"--config={config_file}"] * bool(names and config_file)
    return "".join(f" {shlex.quote(option)}" for option in options)


def train_job(
    folder: pathlib.Path,
    pack: str,
    stop: Callable[[], bool],
    judge: Any = None,
    stalled: Callable[[str], None] | None = None,
) -> int:
    """Train (or resume) a pack in this process, with its output in the pack's log; the exit code, 0, 1 or 75.

    Only user code that the process trusts already is run. `judge` as `train_pack` has it. `stalled(why)` is called in
    another thread when no step ends for `train.stall_s`; it must end this process. BadInput and WorkFailed as for
    `train_pack`.
    """
    from scalelab.parallel import processes, pulse
    from scalelab.sweep.pack import train_pack
    from scalelab.train.step.program import cache_compilations

    job = read_job(folder, pack)
    log_to(folder / "packs" / pack)
    cache_compilations()
    trials = {name: ConfigDict(config) for name, config in job["trials"].items()}
    beat = pulse.Pulse(stalled) if stalled else None
    if place := processes.find_process_place(None, None, None):
        return _train_among(place, folder, pack, trials, job, stop, beat)
    options = {key: job[key] for key in TRAINER_OPTIONS}
    verdicts = train_pack(folder, pack, trials, log_warning, stop=stop, judge=judge, pulse=beat, **options)
    return STOPPED_EXIT_CODE if "stopped" in verdicts.values() else 0


def _train_among(
    place: Any,
    folder: pathlib.Path,
    pack: str,
    trials: Mapping[str, ConfigDict],
    job: Mapping[str, Any],
    stop: Callable[[], bool],
    beat: Any,
) -> int:
    """Train the pack as one of several processes, one trial after the other: each is a run over all their devices."""
    from scalelab.evaluate.during import open_scorer
    from scalelab.parallel import processes, pulse
    from scalelab.train.single import train_single

    beat = beat or pulse.Pulse()

    def lost(code: int, why: str) -> None:
        os.write(2, f"{place.name()}: {why}\n".encode())
        os._exit(code)

    facts = {name: str(job["trials"][name]) for name in trials}
    stall_s = max(config.train.stall_s for config in trials.values())
    options = {key: job[key] for key in TRAINER_OPTIONS} | {"open_scorer": open_scorer}
    with processes.run_together(place, facts, folder / "packs" / pack, lost, beat, stall_s):
        for name, config in trials.items():
            result = train_single(config, folder / "runs" / name, stop=stop, pulse=beat, **options)
            if result["status"] == "stopped":
                return STOPPED_EXIT_CODE
    return 0


def note_start(folder: pathlib.Path, pack: str, submission: str, job: str, step: int) -> float:
    """Append a line for a start; returns by how many seconds this host's clock is ahead of the file server's."""
    path = folder / "packs" / pack / STARTS_FILE
    records.append_json_lines(path, [_line(submission, job, step)])
    return time.time() - path.stat().st_mtime


def note_end(folder: pathlib.Path, pack: str, submission: str, job: str, step: int, code: int, why: str = "") -> None:
    """Append a line for an end: `code` as of a command, 75 where the pack goes on later."""
    line = _line(submission, job, step) | {"code": code, "why": why}
    records.append_json_lines(folder / "packs" / pack / STARTS_FILE, [line])


def _line(submission: str, job: str, step: int) -> dict[str, Any]:
    return {"time": time.time(), "submission": submission, "job": job, "host": socket.gethostname(), "step": step}


def read_starts(folder: pathlib.Path, pack: str, submission: str = "") -> list[dict[str, Any]]:
    """Read the lines of starts and ends, of one submission or of all."""
    lines = records.read_json_lines(folder / "packs" / pack / STARTS_FILE, START_SCHEMA)
    return [line for line in lines if submission in ("", line["submission"])]


def last_step(folder: pathlib.Path, trials: Collection[str]) -> int:
    """The last step that any of the trials has logged."""
    metrics = (records.read_metrics(folder / "runs" / name) for name in trials)
    return max((line["step"] for lines in metrics for line in lines[-1:]), default=0)
