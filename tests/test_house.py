"""The figures of `python -m tests.house` on a small checkout whose answers are known by counting."""

import json

import pytest

from tests import config_walk, house

FILES = {
    "scalelab/__init__.py": "",
    "scalelab/errors.py": "def nearest_name():\n    return 1\n",
    "scalelab/low/__init__.py": "",
    "scalelab/low/a.py": "from scalelab.high import b\n\n\ndef split(x):\n    return x\n\n\ndef _own():\n    pass\n",
    "scalelab/high/__init__.py": "",
    "scalelab/high/b.py": "from scalelab.low import a\nfrom scalelab import errors\n\n\ndef main():\n    pass\n",
    "scalelab/high/c.py": f"X = {'1' * 130}\n",
    "checks/__init__.py": "X = f(1,\n      2)  # fmt: skip\n\n\nY = {1: 2,\n     3: 4}  # fmt: skip\n",
    "tests/__init__.py": "",
    "tests/test_walls.py": "MAY_IMPORT = {'errors': [], 'low': [], 'high': []}\n\n\n"
    "def test_a():\n    assert 1\n    assert 2\n",
    "README.md": "four words stand here\n",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_checkout_is_counted(checkout, monkeypatch, capsys):
    monkeypatch.setattr(config_walk, "measure", lambda root: {})  # a checkout that cannot train
    assert house.main([str(checkout), "--json", f"--out={checkout / 'page'}"]) == 0
    (figures,) = json.loads(capsys.readouterr().out).values()
    assert figures["files"] == 8 and figures["lines"] == 24
    assert figures["Python files in a folder of scalelab, at most"] == 2
    assert figures["one-word public functions"] == 0.5  # split, not nearest_name; main and _own are left out
    assert (figures["circles of files"], figures["circles of rooms"], figures["arrows upward"]) == (1, 1, 1)
    assert figures["lines over 120 columns"] == 1 and figures["words of README.md"] == 4
    assert figures["lines a function: median, 95 %, most"] == [2, 2, 2]
    assert (figures["test functions"], figures["assert statements of tests"]) == (1, 2)
    formatted = {name.partition(": skip ignored")[2]: n for name, n in figures.items() if name.startswith("lines, for")}
    rooms = {": checks": 4, ": scalelab": 2, ": scalelab/high": 7, ": scalelab/low": 9}
    assert formatted == {"": 22, **rooms} and figures["fmt: skip"] == 2  # each call and each table in one line
    assert "| circles of files | 1 |" in (checkout / "page.md").read_text()


@pytest.mark.slow
def test_the_walk_of_config_starts_at_the_command_and_returns_to_rooms():
    walk = config_walk.measure(house.ROOT)
    rooms, handovers, back, *_ = walk.values()
    assert 3 <= rooms <= handovers - back + 1 and 0 < back < handovers
    assert walk["files that config enters in a run"] < 40 and walk["handovers that come back to a file"] < 80
    assert walk["calls that derive from config again"] <= 16  # what follows from the config is in TrainSpec
