"""Each object of a small store flipped and deleted in turn: what train, checkpoint and runs then do and say."""

import re
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.stores import client, mirror
from scalelab.stores.urls import local_folder
from tests.crash.trainer import overrides

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.parametrize("server", ["s3"], indirect=True)]
STEPS = ("2", "4", "6")
KINDS = ("deleted", "flipped")
TRAIN = ["train", "--config=configs/tiny.py", "--force"]
TRAIN += overrides(**{"train.steps": 6, "eval.every_steps": 6, "checkpoint.every_steps": 2, "checkpoint.keep_last": 3})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with three checkpoints."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, f"--workdir={folder}"]) == 0
    return folder


@pytest.fixture
def store(server, url, machine, trained):
    """The run in a store; and each command finds an empty machine."""
    folder = local_folder(url)
    with mirror.attached(folder):
        shutil.copytree(trained, folder)
    return Store(url, machine)


class Store:
    """A folder in a store whose objects are damaged and mended."""

    def __init__(self, url, machine):
        self.url, self.machine, self.visits = url, machine, 0
        self.place = client.open_place(url)
        self.intact = self.objects()

    def objects(self) -> dict[str, bytes]:
        names = [name for part in ("files", "index", "clock") for name in client.list_names(self.place, part)]
        contents = {name: client.get_versioned(self.place, name) for name in [*names, "head.json"]}
        return {name: content[0] for name, content in contents.items() if content}

    def damage(self, name: str, kind: str) -> None:
        if kind == "deleted":
            return client.delete(self.place, [name])
        content = bytearray(self.intact[name])
        content[content.index(b"1") if name == "head.json" else len(content) // 2] ^= 1  # of head.json the format
        client.put(self.place, name, bytes(content))

    def mend(self) -> None:
        present = self.objects()
        client.delete(self.place, present.keys() - self.intact.keys())
        for name, content in self.intact.items():
            if present.get(name) != content:
                client.put(self.place, name, content)

    def run(self, capsys, *argv: str) -> tuple[int, str]:
        """(exit code, what is printed) of a command on a machine that has nothing."""
        self.visits += 1
        self.machine(f"machine{self.visits}")
        code = main([*argv])
        printed = capsys.readouterr()
        return code, printed.out + printed.err


def step_of(name: str) -> str:
    """The checkpoint that an object belongs to; "" for any other."""
    match = re.match(r"files/checkpoints/(\d+)-", name)
    return match[1] if match else ""


def examples(store) -> list[tuple[str, str]]:
    """An object of each sort, deleted and flipped; of checkpoints, those of the newest and of one before it."""
    steps = [name for name in store.intact if step_of(name) in STEPS[1:]]
    steps = [name for name in steps if name.endswith(("/manifest.json", "/_METADATA"))]
    cases = [(name, KINDS[name.endswith("/_METADATA")]) for name in steps]
    others = [name for name in store.intact if name.startswith(("files/metrics", "index", "head"))]
    return cases + [(name, kind) for name in others for kind in KINDS]


def check(store, capsys, name: str, kind: str) -> None:
    """What the three commands do with one object damaged; then it is mended."""
    step = step_of(name)
    store.damage(name, kind)
    damaged = store.objects()
    texts = [
        check_runs(store.run(capsys, "runs", store.url), name, step),
        check_verify(store.run(capsys, "checkpoint", "verify", store.url), name, step),
        check_train(store, capsys, name, step, damaged),
    ]
    for text in texts:
        assert "Object" not in text and "try again" not in text and "Traceback" not in text, text
        if name in text:
            lost = "is missing" if kind == "deleted" else "is damaged" if name != "head.json" else "head.json"
            assert f"{store.url}/{name} {lost}" in text or (name == "head.json" and lost in text), text
    store.mend()


def check_runs(outcome: tuple[int, str], name: str, step: str) -> str:
    """It reads no checkpoint, and names what else is lost."""
    code, text = outcome
    assert (code == 0 and "done" in text) if step else (code in (1, 2) and name in text), (name, text)
    return text


def check_verify(outcome: tuple[int, str], name: str, step: str) -> str:
    """It names the object, and verifies the other checkpoints."""
    code, text = outcome
    assert code in (1, 2) and text.count(f"/{name} is ") == (name != "head.json" or code == 1), (name, text)
    if step:
        states = {each: re.search(rf"checkpoints/{each}: (\w+)", text)[1] for each in STEPS}
        assert code == 1 and states == {each: "damaged" if each == step else "ok" for each in STEPS}
    return text


def check_train(store, capsys, name: str, step: str, damaged: dict[str, bytes]) -> str:
    """It goes on from the newest checkpoint; from one before that only with --fallback. Refused, it changes nothing."""
    code, text = store.run(capsys, *TRAIN, f"--workdir={store.url}")
    assert name in text, text
    if step in STEPS[:2]:
        assert code == 0 and "done at step 6" in text and text.count("is damaged in the store") == 1, text
        return text
    assert code in (1, 2), text
    after = store.objects()
    assert {key: after[key] for key in after if key != "head.json"} == {
        key: damaged[key] for key in damaged if key != "head.json"
    }
    if step:
        assert "--fallback resumes from the last intact step" in text
        code, more = store.run(capsys, *TRAIN, f"--workdir={store.url}", "--fallback")
        assert code == 0 and "fell back to step 4" in more and "resumed at step 4" in more, more
    return text


@pytest.mark.full
def test_an_object_of_each_sort_that_is_lost_is_named_and_costs_no_more_than_it_must(store, capsys):
    for name, kind in examples(store):
        check(store, capsys, name, kind)


@pytest.mark.slow
def test_every_object_that_is_lost_is_named_and_costs_no_more_than_it_must(store, capsys):
    for name in store.intact:
        for kind in KINDS:
            check(store, capsys, name, kind)
