"""Paths, files and text of others, judged by what they would have opened."""

import os
import socket

import pytest

from scalelab.errors import BadInput
from scalelab.untrusted import files, paths
from scalelab.untrusted.text import printable


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "a\nb", "a\x1b[2J", "a\0b",
     "\udcff", "x" * 256, "/".join(["x"] * 2500), 3, None, ["a"], True],
)  # fmt: skip
def test_a_name_that_is_not_a_plain_path_below_is_refused(tmp_path, name):
    with pytest.raises(BadInput, match="index names a file"):
        paths.path_below(tmp_path, name, "index")


def test_a_plain_name_is_a_path_below(tmp_path):
    assert paths.path_below(tmp_path, "checkpoints/20/é …") == tmp_path / "checkpoints" / "20" / "é …"


def test_links_below_the_folder_are_refused_and_the_folder_may_be_one(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "figures").symlink_to(tmp_path / "outside")
    (tmp_path / "run" / "nowhere").symlink_to(tmp_path / "absent")
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    for name in ("figures", "figures/loss.csv", "nowhere"):
        with pytest.raises(BadInput, match="is a link"):
            paths.path_below(tmp_path / "run", name)
    assert paths.path_below(tmp_path / "alias", "loss.csv") == tmp_path / "alias" / "loss.csv"


def test_only_regular_files_of_bounded_size_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    kinds = {"pipe": "a pipe", "link": "a link", "socket": "a socket", "/dev/zero": "a device", "": "a folder"}
    for name, kind in kinds.items():
        with pytest.raises(BadInput, match=f"is {kind}, not a file"):
            files.read_bytes(tmp_path / name)
    listener.close()
    with pytest.raises(BadInput, match="has 5 bytes; at most 4 are read"):
        files.read_bytes(tmp_path / "file", 4)
    assert files.read_bytes(tmp_path / "file", 5) == b"12345"
    assert files.read_bytes(tmp_path / "link", follow=True) == b"12345"
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "absent")


def test_a_draft_is_not_written_through_a_link(tmp_path):
    (tmp_path / "canary").write_bytes(b"alive")
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to(tmp_path / "canary")
    with files.create_draft(tmp_path / "x.json") as draft:
        draft.write(b"new")
    assert (tmp_path / "canary").read_bytes() == b"alive"


def test_text_is_printable():
    assert printable("a\x1b[31m\u202e\udcff\x85 é 模") == "a\\x1b[31m\\u202e\\udcff\\x85 é 模"
    assert len(printable("x" * 1000)) == 300
