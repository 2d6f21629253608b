"""A manifest and its checkpoint: no bit can change unnoticed, in any file or the manifest; stray files are named."""

import contextlib
import hashlib
import json
import pathlib
import pickle
import random
import shutil
import sys

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.train.checkpoints import hashes, manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.manifest import DamagedCheckpoint, find_step_problems
from tests.train.checkpoints.test_checkpoint import SHAPES, saved


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> pathlib.Path:
    """A folder with steps 1, 2, 3."""
    folder = tmp_path_factory.mktemp("original")
    saved(folder, 1, 2, 3, keep_last=3, facts={"run": {"note": "é"}}).close()
    return folder


@pytest.fixture
def folder(tmp_path, original) -> pathlib.Path:
    """A copy of it, made anew: other dates, other inodes."""
    shutil.copytree(original, tmp_path / "copy", copy_function=shutil.copyfile)
    return tmp_path / "copy"


def test_a_copy_is_intact_and_the_hashes_are_those_of_the_files(folder):
    assert find_step_problems(folder / "3") == []
    content = json.loads((folder / "3" / "manifest.json").read_text())
    assert set(content["files"]) == {
        p.relative_to(folder / "3").as_posix() for p in (folder / "3" / "state").rglob("*") if p.is_file()
    }
    for name, output in content["files"].items():
        data = (folder / "3" / name).read_bytes()
        assert output == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert content["tree"] == {
        "run.step": "int32[]", "run.params.w": "float32[3]", "run.skipped": "int32[]", "run.streak": "int32[]"
    }  # fmt: skip


def files(step: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in sorted(step.rglob("*")) if path.is_file() and path.stat().st_size]


def test_every_flipped_bit_is_seen_and_its_file_is_named(folder):
    chance, tried = random.Random(0), 0
    for path in files(folder / "3"):
        data = path.read_bytes()
        for bit in [0, len(data) * 8 - 1, *(chance.randrange(len(data) * 8) for _ in range(20))]:
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            lines = find_step_problems(folder / "3")
            assert len(lines) == 1 and str(path) in lines[0], (path, bit)
            tried += 1
        path.write_bytes(data)
    assert tried >= 200 and find_step_problems(folder / "3") == []


def test_every_bit_of_the_manifest_counts_even_in_its_blanks(folder):
    path = folder / "3" / "manifest.json"
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        if bit % 37 == 0 or bit < 400 or (data[bit // 8] in b" \n" and bit // 8 % 8 == 0):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is damaged"):
                manifest.read_manifest(folder / "3")
    for other in (
        data.replace(b"\n", b"\r\n"),
        data + b"\n",
        data.replace(b'"step": 3', b'"step": 3.0'),
        b"[]",
        b"",
        b"null",
    ):
        path.write_bytes(other)
        with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is damaged"):
            manifest.read_manifest(folder / "3")


def test_an_edited_manifest_that_hashes_right_but_lies_about_a_file_is_seen(folder):
    content = manifest.read_manifest(folder / "3")
    name = next(iter(content["files"]))
    content["files"][name]["sha256"] = "0" * 64
    forge(folder / "3", content)
    assert len(find_step_problems(folder / "3")) == 1 and name in find_step_problems(folder / "3")[0]


def forge(step: pathlib.Path, content: dict) -> None:
    body = {key: value for key, value in content.items() if key != "sha256"}
    (step / "manifest.json").write_text(manifest._canonical(body | {"sha256": manifest._sha256(body)}))


WAYS = {
    "is missing": lambda path: path.unlink(),
    "has 0 bytes": lambda path: path.write_bytes(b""),
    "bytes, saved": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "is damaged": lambda path: path.write_bytes(random.Random(1).randbytes(path.stat().st_size)),
}


@pytest.mark.parametrize("line", WAYS)
def test_a_file_that_is_missing_empty_cut_or_garbage_is_named(folder, line):
    path = max(files(folder / "3" / "state"), key=lambda p: p.stat().st_size)
    WAYS[line](path)
    assert len(find_step_problems(folder / "3")) == 1
    assert find_step_problems(folder / "3")[0].startswith(str(path)) and line in find_step_problems(folder / "3")[0]


def test_a_file_the_manifest_does_not_name_and_a_renamed_step_are_seen(folder):
    (folder / "3" / "state" / "checkpoint").write_bytes(b"x")  # one of the names that Orbax looks for
    assert find_step_problems(folder / "3") == [f"{folder}/3/state/checkpoint is not in the manifest"]
    (folder / "2").rename(folder / "7")
    assert find_step_problems(folder / "7") == [f"{folder}/7 holds step 2: was the folder renamed?"]


def test_without_a_manifest_it_is_no_checkpoint_and_the_message_says_what_it_may_be(folder):
    (folder / "3" / "manifest.json").unlink()
    (folder / "5" / "default").mkdir(parents=True)  # as saved before there were manifests
    assert manifest.list_steps(folder) == [1, 2, 3, 5]
    for step in (3, 5):
        assert len(find_step_problems(folder / str(step))) == 1
        assert (
            f"{folder}/{step}/manifest.json is missing: lost, or saved by a scalelab version without"
            in find_step_problems(folder / str(step))[0]
        )


def test_strays_and_drafts_are_no_steps(folder):
    for name in ("9", "007", "4.tmp", "5.damaged", "step_3", "3.orbax-checkpoint-tmp-12", "٣"):
        (folder / name).mkdir()
    (folder / "007" / "manifest.json").touch()
    (folder / "12").write_text("a file")
    (folder / "11").symlink_to(folder / "11")
    (folder / "latest").symlink_to(folder / "gone")
    assert manifest.list_steps(folder) == [1, 2, 3]
    expected = sorted(["9", "007", "step_3", "3.orbax-checkpoint-tmp-12", "12", "11", "latest", "٣"])
    assert manifest.list_strays(folder) == expected
    assert Checkpoints(folder).load(None).step == 3


# --- what a resuming run does about it
# ----------------------------------------------------------------------------------


def break_step(folder: pathlib.Path, step: int) -> pathlib.Path:
    path = folder / str(step) / "state" / "_METADATA"
    path.write_bytes(path.read_bytes()[::-1])
    return path


def test_the_last_step_damaged_is_refused_unless_a_fallback_is_asked_for(folder):
    path = break_step(folder, 3)
    with pytest.raises(DamagedCheckpoint, match=f"step 3: {path} is damaged.*--fallback"):
        Checkpoints(folder).load(None)
    assert manifest.list_steps(folder) == [1, 2, 3]  # looking changes nothing
    choice = Checkpoints(folder).load(None, fallback=True)
    assert choice.step == 2 and len(choice.tried) == 1 and str(path) in choice.tried[0]
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2", "3.damaged"]
    checkpoints = saved(folder, 3)  # its number is free again
    assert float(checkpoints.restore(3, {"run": SHAPES})["run"].params["w"][0]) == 3.0


def test_only_damaged_steps_are_all_listed_with_why_and_left_alone(folder):
    paths = [break_step(folder, step) for step in (3, 2, 1)]
    with pytest.raises(DamagedCheckpoint) as error:
        Checkpoints(folder).load(None, fallback=True)
    assert all(
        f"step {step}: {path} is damaged" in str(error.value) for step, path in zip((3, 2, 1), paths, strict=True)
    )
    assert manifest.list_steps(folder) == [1, 2, 3]


def test_a_step_asked_for_by_number_is_checked_too(folder):
    break_step(folder, 2)
    assert Checkpoints(folder).load(None, at=1).step == 1
    with pytest.raises(DamagedCheckpoint, match="step 2"):
        Checkpoints(folder).load(None, at=2)


def test_what_accept_raises_is_final_and_the_facts_are_those_saved(folder):
    seen = []

    def accept(step, facts):
        seen.append((step, facts))
        raise BadInput("no")

    with pytest.raises(BadInput, match="no"):
        Checkpoints(folder).load(None, accept, fallback=True)
    assert seen == [(3, {"run": {"note": "é"}})]


# --- nothing is ever unpickled
# --------------------------------------------------------------------------------------------


class Payload:
    def __reduce__(self):
        return (exec, ("import builtins; builtins.PAYLOAD_RAN = True",))


UNPICKLED: list[tuple] = []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # tensorstore's, on reading rubbish
def test_nothing_is_unpickled_even_where_a_forged_manifest_vouches_for_it(folder):
    if not UNPICKLED:
        sys.addaudithook(lambda event, arguments: UNPICKLED.append(arguments) if event == "pickle.find_class" else None)
    pickle.loads(pickle.dumps(np.float32))
    assert UNPICKLED  # the hook sees what it is for
    UNPICKLED.clear()
    Checkpoints(folder).restore(3, {"run": SHAPES})
    for path in files(folder / "3" / "state"):
        content, data = manifest.read_manifest(folder / "3"), path.read_bytes()
        path.write_bytes(pickle.dumps(Payload()))
        name = path.relative_to(folder / "3").as_posix()
        forge(folder / "3", content | {"files": content["files"] | hashes.hash_files(folder / "3", [name])})
        assert find_step_problems(folder / "3") == []
        with contextlib.suppress(Exception):  # what Orbax says of such files is its own affair
            Checkpoints(folder).restore(3, {"run": SHAPES})
        path.write_bytes(data)
        forge(folder / "3", content)
    assert not UNPICKLED and not hasattr(__import__("builtins"), "PAYLOAD_RAN")
