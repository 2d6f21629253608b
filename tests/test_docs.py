"""README and docs/: links that lead somewhere, commands with options that exist, and users' functions that work."""

import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from docs import generate, own
from scalelab import config as config_lib
from scalelab.__main__ import COMMANDS, main
from scalelab.api.setup import list_studies, study_module
from scalelab.config.files import USER_OPTIM_PREFIX, default_tree, leaves
from scalelab.laws.law.law import law_of
from scalelab.optim import schedules, table

ROOT = pathlib.Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
COURSE = sorted((ROOT / "docs" / "course").glob("*.md"))
REFERENCE = ROOT / "docs" / "reference"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "scalelab/laws/README.md", *DOCS, *COURSE]
TINY = ROOT / "configs" / "tiny.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_index_lists_every_page_and_the_readme_leads_to_it():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in DOCS if page.name != "index.md" and f"]({page.name})" not in index] == []
    assert [page.name for page in ROOT.glob("*.md") if f"](../{page.name})" not in index] == []
    assert "](course/index.md)" in index
    assert "](docs/index.md)" in (ROOT / "README.md").read_text()


def test_the_page_of_commands_has_all_of_them():
    rows = re.findall(r"^\| `scalelab (\w+)` \|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_reference_is_what_the_code_says():
    pages = {path.name: path.read_text() for path in REFERENCE.iterdir()}
    pages["../gallery.md"] = (REFERENCE.parent / "gallery.md").read_text()
    assert pages == generate.reference_pages(), "run python -m docs.generate"
    assert re.findall(r"^## scalelab (\w+)$", pages["commands.md"], re.MULTILINE) == [*COMMANDS]
    keys = re.findall(r"^\| `([a-z]+\.\w+)` \|", pages["keys.md"], re.MULTILINE)
    assert {*leaves(default_tree())} <= {*keys} and len(keys) == len({*keys})


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path):
    """Every command of the page, in order, in an empty folder."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    lines = re.findall(r"^ {7,}(scalelab .*)$", text, re.MULTILINE)
    assert len(lines) == 10
    start = f"{sys.executable} -m scalelab"
    for line in lines:
        command = re.sub(r"^scalelab", start, line)
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    assert list((tmp_path / "runs" / "figures").glob("*.pdf")) and (tmp_path / "runs/first/report.html").exists()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_make_targets_that_a_page_names_exist(page):
    text = page.read_text()
    named = re.findall(r"`((?:scalelab|configs|experiments|checks|tests|docs|\.github|\.ci)/[\w./*-]*)`", text)
    assert [name for name in named if not [*ROOT.glob(name.rstrip("/"))]] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= targets


FOLDERS = ("scalelab", "configs", "experiments", "docs", "tests")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PROSE = re.compile(r'(?:\A|:(?:  #.*)?\n) *"""(?:.|\n)*?"""|# .*')  # docstrings and comments, much faster than by `ast`
NAMED_FILE = re.compile(r"(?<![\w/.:{}~$<*-])((?:[A-Za-z_][\w.-]*/)*[\w.-]+\.(?:py|md))\b(?!/)")
STANDS_FOR_ANY = re.compile(
    r"(.*/)?(mine|my|twin|target|gpu|[A-Z]+)\.(py|md)|[A-Z]/.*"
)  # what users and commands write
OF_OTHERS = {
    "OLMo-3-1025-32B-pretrain.py", "OLMo-3-1025-7B-pretrain-1.py", "README_WEIGHTS.md", "a/__init__.py",
    "configuration_deepseek.py", "data/README.md", "data/openwebtext/prepare.py", "docs/reports/marin-32b-retro.md",
    "docs/reports/marin-8b-retro.md", "encoder.py", "json.py", "llama3_h100_202412_torchtitan.md",
    "marin-32b-retro.md", "marin-8b-retro.md", "matplotlib.py", "megatron/core/datasets/indexed_dataset.py",
    "modeling_rope_utils.py", "olmo_core/nn/transformer/config.py", "scaling/laws.py", "scaling/shared.py",
    "text/pretraining/README.md", "tiktoken_ext/openai_public.py",
}  # fmt: skip


def test_files_that_docstrings_and_comments_name_exist():
    """A path holds from the file's folder, one above it, or scalelab/; a name alone is that of any file."""
    names = {path.name for path in [*SOURCES, *PAGES, *(ROOT / "experiments").rglob("*.md")]}
    absent = []
    for path in SOURCES:
        prose = "\n".join(PROSE.findall(path.read_text()))
        places = [*(place for place in path.parents if place.is_relative_to(ROOT)), ROOT / "scalelab"]
        for name in set(NAMED_FILE.findall(prose)) - OF_OTHERS:
            there = any((place / name).exists() for place in places) if "/" in name else name in names
            if not there and not STANDS_FOR_ANY.fullmatch(name):
                absent.append(f"{path.relative_to(ROOT)}: {name}")
    assert absent == []


def commands(page):
    """The indented lines of a page that call scalelab or a study, comments off, as words.

    A command below a diff is left out: it is for an edited copy, where tests/test_fork.py runs it.
    """
    text = re.sub(r"^```diff.*?^    scalelab[^\n]*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = text.replace("\\\n", " ")
    for line in re.findall(r"^    +((?:scalelab |python -m (?:experiments|checks)\.).*)$", text, re.MULTILINE):
        yield shlex.split(line.replace("…", ""), comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_the_options_that_they_are_shown_with(page, capsys):
    for words in commands(page):
        options = {word.split("=")[0] for word in words if word.startswith("--") and len(word) > 2}
        keys = {option.removeprefix("--config.") for option in options if option.startswith("--config.")}
        assert {key for key in keys if not key.startswith(USER_OPTIM_PREFIX)} <= set(leaves(default_tree())), words
        if words[:2] == ["scalelab", "isoflop"] or (words[:2] == ["scalelab", "study"] and len(words) > 2):
            # The command replaces its process, here that of the tests, by the study's.
            name = words[2] if words[1] == "study" else "isoflop"
            words = ["python", "-m", study_module(list_studies()[name]).removeprefix("scalelab.")]
        if words[0] == "scalelab":
            assert words[1] in COMMANDS, words
            with pytest.raises(SystemExit):
                main([words[1], "--help=all"])
            known = capsys.readouterr().out
        else:
            file = ROOT / (words[2].replace(".", "/") + ".py")
            known = (file if file.exists() else file.with_suffix("") / "__main__.py").read_text()
        shown = [o for o in options if not o.startswith(("--config.", "--slurm."))]  # keys; sbatch's options
        assert [o for o in shown if not re.search(rf"{o}(?![\w-])", known)] == [], words


def test_an_optimizer_and_a_schedule_of_ones_own():
    values = {"optim.name": "docs.own:signs", "optim.peak_lr": 1e-3, "optim.beta1": 0.9}
    config = config_lib.load(TINY, values | {"schedule.name": "docs.own:triangle"})
    rows = table.optimizer_rows(config_lib.static(config), config_lib.hparams(config))
    assert {(row.optimizer, row.bytes_per_parameter) for row in rows} == {("docs.own:signs", 4.0)}  # the momentum
    lr = schedules.schedule_curves(config, [0, 149, 299])["lr"]
    np.testing.assert_allclose(lr, [1e-3 * 2 / 300, 1e-3, 0.0], atol=1e-9)


def test_a_law_of_ones_own():
    law = law_of(own.of_tokens)
    assert (law.columns, law.linear, law.searched) == (("D",), ["E", "B"], ["beta"])
    assert law({"D": [1e4]}, {"E": 1.0, "B": 100.0, "beta": 0.5}) == pytest.approx(2.0)


def test_the_workflow_runs_what_ci_runs_on_every_supported_python():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    versions = re.findall(r'"(3\.\d+)"', workflow)
    low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    assert versions == [f"3.{minor}" for minor in range(int(low), int(high))]
    assert "run: .ci/run\n" in workflow and "make test test-all\n" in (ROOT / ".ci" / "run").read_text()
