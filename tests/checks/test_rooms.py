"""Every check explains itself by its name, no room is crowded, and nothing of `checks/` is in the wheel or a study."""

import ast
import importlib
import pathlib
import re

import pytest

from checks.mutants import __main__ as mutants
from scalelab.api.setup import list_studies
from scalelab.commands import study
from scalelab.errors import BadInput
from tests import house
from tests.test_walls import MOST_ENTRIES

ROOT = pathlib.Path(__file__).parents[2]
CHECKS = ROOT / "checks"


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


# A file below the package of a command is started by that command alone.
PACKAGES = [path.parent for path in CHECKS.rglob("__main__.py")]
FILES = [path for path in sorted(CHECKS.rglob("*.py")) if 'if __name__ == "__main__"' in path.read_text()]
COMMANDS = {module_of(path): path for path in FILES if path.name == "__main__.py" or not {*PACKAGES} & {*path.parents}}
ASIDE = {"checks.numerics.oracles", "checks.mutants"}  # needs torch; has a parser of another kind


@pytest.mark.parametrize("name", sorted({*COMMANDS} - ASIDE))
def test_a_check_takes_mistakes_as_commands_do(name, capsys):
    check = importlib.import_module(name + (".__main__" if COMMANDS[name].name == "__main__.py" else ""))
    assert check.main(["--qick"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"{name.rpartition('.')[2]}: ") and output.err.count("\n") == 1
    with pytest.raises(SystemExit):
        check.main(["--help"])
    page = capsys.readouterr().out
    assert page.startswith(f"usage: python -m {name} ") and max(map(len, page.splitlines())) <= 80
    assert f"example:\n    python -m {name}" in page


def test_the_two_aside_are_explained_too(capsys):
    assert "-m checks.numerics.oracles" in (ROOT / "Makefile").read_text()
    with pytest.raises(SystemExit):
        mutants.main(["--help"])
    assert "usage: python -m checks.mutants " in capsys.readouterr().out


def test_what_make_and_the_docs_start_is_there():
    folders = [(CHECKS, "*.py"), (ROOT / "scalelab", "*.py"), (ROOT / "docs", "*.md")]
    paths = [ROOT / "Makefile", *(path for folder, pattern in folders for path in folder.rglob(pattern))]
    named = {name for path in paths for name in re.findall(r"-m (checks\.[a-z0-9_.]+\w)", path.read_text())}
    assert "checks.gpu" in named and named <= {module_of(path) for path in FILES}


@pytest.mark.parametrize("folder", sorted({path.parent for path in CHECKS.rglob("*.py")}), ids=module_of)
def test_a_room_has_few_entries_and_says_what_it_is_for(folder):
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert len(house.entries(folder)) <= MOST_ENTRIES, house.entries(folder)


def test_the_wheel_needs_nothing_of_checks_and_holds_one_result():
    """Of `checks/` the package links to what `scalelab doctor` reads, and imports nothing: users may not have it."""
    links = [path.resolve() for path in (ROOT / "scalelab").rglob("*") if path.is_symlink()]
    assert [path for path in links if path.is_relative_to(CHECKS)] == [CHECKS / "results" / "latest.json"]
    shipped = [path for top in ("scalelab", "configs", "experiments") for path in (ROOT / top).rglob("*.py")]
    assert len(shipped) > 500
    assert [path for path in shipped if re.search(r"^ *(from|import) (checks|tests)\b", path.read_text(), re.M)] == []


def test_the_list_of_studies_has_no_check(capsys):
    assert study.main([]) == 0
    listed = capsys.readouterr().out
    names = {name.rpartition(".")[2] for name in COMMANDS}
    assert "grokking" in listed and not names & {*re.findall(r"^(\w+)  ", listed, re.MULTILINE)}
    assert not names & {*list_studies()}
    with pytest.raises(BadInput, match="no study 'coverage'"):
        study.main(["coverage"])
