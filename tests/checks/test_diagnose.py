"""The study of planted faults: its committed table, its plants, and (slow) plants of each kind trained again."""

import functools
import gc
from types import SimpleNamespace

import pytest

from checks.diagnosis.diagnose import __main__ as study
from checks.diagnosis.diagnose import forks
from checks.diagnosis.diagnose.functions import FAULTS, FAULTY, corpus
from checks.diagnosis.diagnose.healthy import HEALTHY
from checks.diagnosis.diagnose.plants import PLANTS
from checks.diagnosis.diagnose.score import judge_healthy, judge_plant, stop_after
from checks.shared import RESULTS
from scalelab.record import records
from scalelab.train.run.feed import Feed
from scalelab.train.single import load_run_dataset
from tests.train.resume.test_compatibility import config


@pytest.fixture(scope="module")
def committed():
    return records.read_json(RESULTS / "diagnose.json")


def test_the_committed_table_names_what_it_holds_and_what_it_does_not(committed):
    names = {row["name"] for row in (*committed["plants"], *committed["healthy"])}
    assert names <= {*PLANTS, *HEALTHY} and committed["planted"] >= 40 and committed["first"] >= 36
    assert {row["seed"] for row in (*committed["plants"], *committed["healthy"])} <= {0, 1}
    page, _, _ = (RESULTS / "diagnose.md").read_text().partition("\nCode: ")  # marks of `tests.claims.same`
    assert page == study.format_page(committed)


def test_the_counts_are_those_of_the_rows(committed):
    for plant in committed["plants"]:
        causes = [verdict["cause"] for verdict in plant["verdicts"]]
        assert plant["cause"] == PLANTS[plant["name"]].cause
        assert plant["place"] == (causes.index(plant["cause"]) + 1 if plant["cause"] in causes else 0)
    assert committed["first"] == sum(plant["place"] == 1 for plant in committed["plants"])
    assert not any(run["verdicts"] for run in committed["healthy"])


def test_too_few_first_or_one_healthy_verdict_fails():
    good = {"planted": 40, "first": 36, "among_three": 40, "healthy_runs": 20, "healthy_with_a_verdict": 0}
    assert study.passed(good, whole=True)
    for worse in ({"first": 35}, {"among_three": 39}, {"healthy_with_a_verdict": 1}, {"healthy_runs": 19}):
        assert not study.passed(good | worse, whole=True)


@pytest.mark.slow
def test_a_faulty_corpus_differs_in_its_fault_alone():
    right = list(corpus("healthy"))
    for kind in FAULTS.keys() - {"healthy", "shard_twice", "duplicates"}:
        documents = list(corpus(kind))
        changed = [i for i, (a, b) in enumerate(zip(right, documents, strict=True)) if a != b]
        assert changed == list(range(FAULTY.start, FAULTY.stop)), kind
    assert list(corpus("shard_twice"))[300:400] == right[FAULTY] and len(list(corpus("duplicates"))) == 800


@pytest.mark.full
@pytest.mark.parametrize("name, changed", [("phrase_at", [3]), ("shuffled_between", [2, 3]), ("cursor_back", [3, 4])])
def test_what_a_plant_does_to_batches_reaches_the_loop(name, changed):
    """By the batches that the training loop takes: a fault that reads them by another door plants nothing."""
    made = config(train__steps=6, train__steps_per_dispatch=5)
    run = SimpleNamespace(config=made, status="running")
    feed = lambda: Feed([run], load_run_dataset(made), slice(None)).take(0, 5)[0]  # noqa: E731
    arguments = {"phrase_at": (3,), "shuffled_between": (2, 3), "cursor_back": (2, 3)}[name]
    right = feed()
    with getattr(forks, name)(*arguments):
        planted = feed()
    assert [i for i in range(5) if (planted[i] != right[i]).any()] == changed
    assert name != "cursor_back" or (planted[3:] == right[1:3]).all()


def test_a_fork_forgets_every_cache_of_the_package():
    kept = (each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper))
    kept = (each for each in kept if not hasattr(each.__wrapped__, "__self__"))  # an object's own ends with it
    named = {f"{each.__module__}.{each.__qualname__}" for each in kept if each.__module__.startswith("scalelab.")}
    found = {f"{each.__module__}.{each.__qualname__}" for each in forks._package_caches()}
    assert len(found) > 50 and named - found == set()


def test_a_stop_comes_after_its_step():
    stop = stop_after(60)
    assert [stop() for _ in range(4)] == [False, False, True, True] and not stop_after(0)()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peak LR x 30", "resume without moments", "spike that grows", "mask off by one"])
def test_a_plant_is_named_again(name, tmp_path):
    assert judge_plant(name, 2, tmp_path / "run")["place"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw, cosine", "a mixture that changes", "resumed"])
def test_a_healthy_run_has_no_verdict_again(name, tmp_path):
    assert judge_healthy(name, 2, tmp_path / "run")["verdicts"] == []
