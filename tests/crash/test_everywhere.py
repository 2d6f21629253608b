"""The crash suite, long (`make test-crash`): a kill before every file operation, at random times, in every restore."""

import concurrent.futures
import os
import random
import re
import shutil
import signal
import time

import pytest

from scalelab.train.checkpoints import manifest
from tests.crash.trainer import (
    TALLY,
    Cue,
    check_killed,
    check_refused,
    check_resumed,
    check_same,
    check_steps,
    count,
    end,
    flip,
    operations,
    result,
    said,
    start,
    wait_for,
)

pytestmark = pytest.mark.crash
SIGKILL = -signal.SIGKILL


def in_pairs(work, cases) -> None:
    """Two at a time: a machine of two cores is then busy and not more."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(work, cases))


def resumes_but_for_retention(folder, whole) -> None:
    """As `check_resumed`, where a step that should be gone may stand yet: the kill came before its deletion."""
    steps = check_steps(folder)
    assert end(start(folder)) == 0, said(folder)
    count("resumes")
    assert result(folder)["resumed_from"] == max(steps, default=None)
    check_same(folder, whole | {"steps": [4, 8]} if steps == [4, 8] else whole)


def test_a_kill_before_and_after_every_file_operation_of_a_run(tmp_path, whole):
    part = re.escape(str(tmp_path)) + r"/\w+[/.]"  # all that a run writes: checkpoints, metrics, events, record, lock
    total = len(operations(tmp_path / "all", part.replace(r"\w+", "all")))
    assert total > 70

    def die(n: int) -> None:
        folder = tmp_path / f"n{n}"
        code = end(start(folder, Cue(part, n)))
        if code == SIGKILL:
            count("kills")
            resumes_but_for_retention(folder, whole)
        else:  # data files are not always equally many
            assert code == 0 and n > total - 8
        shutil.rmtree(folder)

    in_pairs(die, range(1, total + 2))


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that died right after the commit of its first step."""
    folder = tmp_path_factory.mktemp("half") / "run"
    check_killed(start(folder, Cue(r"mkdir .*/8\.tmp$")))
    return folder


def test_a_kill_at_every_file_that_a_restore_opens(tmp_path, whole, half):
    shutil.copytree(half, tmp_path / "reads")
    total = len(operations(tmp_path / "reads", r"/checkpoints/4/", "read"))
    assert total > 15

    def die(n: int) -> None:
        folder = tmp_path / f"n{n}"
        shutil.copytree(half, folder)
        check_killed(start(folder, Cue(r"/checkpoints/4/", n, "read")))
        assert check_steps(folder) == [4]
        check_resumed(folder, whole)

    in_pairs(die, range(1, total - 2))


def test_twenty_kills_at_random_times(tmp_path, whole):
    """Half of them any time in a process's life, half within 20 ms of a save's beginning, while tensorstore writes."""

    def die(seed: int) -> None:
        chance, folder, kills = random.Random(seed), tmp_path / f"s{seed}", 0
        while kills < 4:
            cue = Cue(rf"{folder.name}[/.]", delay_s=chance.uniform(0.05, 3)) if kills % 2 else None
            cue = cue or Cue(
                r"mkdir .*orbax-checkpoint-tmp$", 1 + chance.randrange(2), delay_s=chance.uniform(1e-3, 0.02)
            )
            before = manifest.list_steps(folder / "checkpoints")
            code = end(start(folder, cue))
            assert code in (SIGKILL, 0)
            assert max(check_steps(folder), default=0) >= max(before, default=0)
            if code == 0:  # done before its time came: begin anew
                shutil.rmtree(folder)
                continue
            kills += 1
            count("kills")
        resumes_but_for_retention(folder, whole)

    in_pairs(die, range(5))


@pytest.mark.parametrize("cue", [r"rename .*/8$", r"metrics", r"mkdir .*/8\.tmp$"])
def test_a_kill_during_a_fallback_leaves_it_to_be_asked_for_again_or_done(tmp_path, whole, cue):
    folder = tmp_path / "run"
    check_killed(start(folder, Cue(r"rename .*/4$")))
    flip(folder / "checkpoints" / "8" / "manifest.json", 4321)
    check_killed(start(folder, Cue(cue), "--fallback"))
    if (folder / "checkpoints" / "8").exists():
        check_refused(folder, 1, "manifest.json is damaged", "--fallback")
    check_resumed_from(folder, whole, 4)


def check_resumed_from(folder, whole, step: int) -> None:
    assert end(start(folder, None, "--fallback")) == 0, said(folder)
    count("resumes")
    assert result(folder)["resumed_from"] == step
    check_same(folder, whole)


def test_every_file_of_a_checkpoint_damaged_in_every_way_is_refused_by_name(tmp_path, half):
    """The documented message for each: flipped, emptied, cut, filled with garbage, missing."""
    names = [*manifest.list_step_files(half / "checkpoints" / "4"), manifest.MANIFEST_NAME]
    ways = {
        "flipped": lambda path: flip(path, 8 * (path.stat().st_size // 2)),
        "empty": lambda path: path.write_bytes(b""),
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(path.stat().st_size)),
        "missing": lambda path: path.unlink(),
    }
    cases = [(name, way) for i, name in enumerate(names) for way in (list(ways)[i % len(ways)], "flipped")]

    def damage(case: tuple[int, tuple[str, str]]) -> None:
        number, (name, way) = case
        folder = tmp_path / f"n{number}"
        shutil.copytree(half, folder)
        path = folder / "checkpoints" / "4" / name
        if path.stat().st_size or way == "missing":
            ways[way](path)
            check_refused(folder, 1, str(path))

    before = TALLY["refusals"]
    in_pairs(damage, enumerate(cases))
    assert TALLY["refusals"] - before >= len(names)


def test_a_process_stopped_and_continued_goes_on(tmp_path, whole):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(lambda: (folder / "metrics.jsonl").exists(), process)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(process.pid, signal.SIGCONT)
    assert end(process) == 0
    check_same(folder, whole)
