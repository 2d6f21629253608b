"""The undisturbed run that all others are compared with, and the counts at the end."""

import datetime
import json
import os
import sys

import pytest

from scalelab.stores import urls
from tests.crash import trainer
from tests.stores.servers import s3_server


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The root of folders that stand for s3://bucket, where SCALELAB_CRASH_STORE=s3 asks for one; else None."""
    if os.environ.get("SCALELAB_CRASH_STORE") != "s3":
        yield None
        return
    cache = str(tmp_path_factory.mktemp("cache"))
    with s3_server() as server:
        os.environ["SCALELAB_CACHE"] = cache
        trainer.ENVIRONMENT.update(server.environment | {"SCALELAB_CACHE": cache})
        yield urls.cache_root() / "work" / "s3" / "bucket"


@pytest.fixture
def tmp_path(tmp_path, store):
    """The test's folder; with a store, one whose runs stand in it."""
    folder = store / tmp_path.name if store else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> dict:
    """What an undisturbed run leaves."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert trainer.end(trainer.start(folder)) == 0, trainer.said(folder)
    return trainer.left(folder)


def pytest_terminal_summary(terminalreporter):
    counts = {name: trainer.TALLY[name] for name in ("kills", "resumes", "refusals", "mismatches")}
    if any(counts.values()):
        terminalreporter.write_line("crash suite: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    if path := os.environ.get("SCALELAB_CRASH_RESULT"):  # asked for by `make test-crash`
        _write(path, counts | {f"tests_{k}": len(terminalreporter.stats.get(k, ())) for k in ("passed", "failed")})


def _write(path: str, counts: dict[str, int]) -> None:
    from scalelab.train.lineage.facts import package_versions

    facts = {"command": "make test-crash", "date": str(datetime.date.today()), "platform": sys.platform}
    with open(path, "w") as file:
        json.dump(facts | counts | {"versions": package_versions()}, file, indent=1)
        file.write("\n")
    with open(path.removesuffix("json") + "md", "w") as file:
        numbers = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in counts.items())
        installed = ", ".join(f"{name} {version}" for name, version in package_versions().items())
        file.write(
            "# Crash suite\n\nReal training processes, killed at every file operation of theirs, at random times, "
            "during restores and deletions, with damaged files and a full disk; each then resumed and compared bit "
            "for bit (parameters, optimizer, counters, metrics file) with a run that nobody disturbed.\n\n`make "
            f"test-crash` on {facts['date']} ({facts['platform']}; {installed}):\n\n| what | number "
            f"|\n|---|---|\n{numbers}\n"
        )
