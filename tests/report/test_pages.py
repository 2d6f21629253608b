"""Whole pages of synthetic folders: self-contained, escaped, honest about what is missing, with the numbers behind."""

import csv
import html.parser
import json
import math
import os
import re
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.report import gather, parts
from scalelab.report.pages import write_report
from scalelab.sweep.answer import settings
from tests.quick import one_in
from tests.report import synthetic

EVIL = "<script>alert('x')</script> & \"quotes\""


class Elements(html.parser.HTMLParser):
    """Every start tag with its attributes, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.said)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study, moved and then reported: (folder, summary, what write_report returned, its page)."""
    place = tmp_path_factory.mktemp("report")
    summary, folder = synthetic.write_study(place / "where it ran", lines=60), place / "study"
    (place / "where it ran").rename(folder)
    report = write_report(folder)
    return folder, summary, report, Elements((folder / "report.html").read_text())


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without their figures, which take most of the time of a page: for what its text says."""
    monkeypatch.setattr(parts.ReportPage, "draw", lambda self, name, *more: "")


def numbers_behind(folder, name):
    with open(folder / "figures" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_the_page_fetches_nothing_and_runs_nothing(study):
    folder, _, report, page = study
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed"), tag
        assert tag != "script" or attributes in ({}, {"type": "application/json", "class": "charts"})
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "data", "srcset", "action"):
            value = attributes.get(name) or ""
            inside = value.startswith(("data:image/png;base64,", "figures/", "#"))
            assert inside or not value, f"{tag} {name}={value[:80]}"
            if value.startswith("figures/"):
                assert (folder / value).stat().st_size > 0
    raw = (folder / "report.html").read_text()
    addresses = set(re.findall(r"https?://[^ \"]*", raw))
    assert addresses == {"https://github.com/leeoniya/uPlot"} and "@import" not in raw  # its licence's comment
    assert "url(" not in raw.replace("url(#", "")
    assert len(raw) < 3e6
    for layout in ("wide", "phone"):
        assert sum(tag == "svg" and a["class"] == layout for tag, a in page.tags) == len(report["figures"])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_figure_is_a_pdf_with_numbers(study):
    folder, _, report, _ = study
    wanted = {
        "prediction",
        "isoflop",
        "surface",
        "residuals",
        "lr_checks",
        "batch_checks",
        "training_loss",
        "validation_loss",
    }
    assert set(report["figures"]) == wanted and report["kind"] == "study" and report["runs"] == 21
    for name in wanted:
        assert (folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert len(numbers_behind(folder, name)) > 2
    assert not report["missing"]


def test_the_head_states_the_score(study):
    _, summary, _, page = study
    held = summary["held_out"]
    error = 100 * (held["predicted_loss"] / held["measured_loss"] - 1)
    low, high = held["interval90"]
    for text in (
        f"{held['predicted_loss']:.4f}",
        f"{held['measured_loss']:.4f}",
        f"{low:.4f} – {high:.4f}",
        f"{error:+.2f} %",
    ):
        assert text in page.text
    assert "inside the 90 % interval" in page.text and "the prediction came first" in page.text
    assert "4× the largest fitted run" in page.text
    assert "conditional on the form of the law" in page.text and "20 runs" in page.text


def test_the_page_says_which_commit_the_runs_were_trained_from_and_what_was_changed(study):
    assert "git.user.commit 1f2e3d4c5b6a" in study[3].text and "git.user.diff_sha256 99aabbcc" in study[3].text


def test_csvs_hold_the_numbers_of_the_study(study):
    folder, summary, _, _ = study
    by_name = {run["name"]: run for run in summary["runs"]}
    for name in ("isoflop", "residuals", "surface"):
        rows = [row for row in numbers_behind(folder, name) if row["run"] in by_name]
        assert len(rows) == 20
        for row in rows:
            run = by_name[row["run"]]
            assert (float(row["loss"]), float(row["N"]), float(row["D"])) == (run["loss"], run["N"], run["D"])
    residuals = numbers_behind(folder, "residuals")
    for row in residuals:
        p = summary["fit"]["params"]
        law = p["E"] + p["A"] / float(row["N"]) ** p["alpha"] + p["B"] / float(row["D"]) ** p["beta"]
        assert float(row["predicted"]) == pytest.approx(law) and float(row["residual"]) == pytest.approx(
            float(row["loss"]) / law - 1
        )
    assert [row["role"] for row in residuals].count("holdout") == 1
    predicted = [row for row in numbers_behind(folder, "prediction") if row["run"] == "prediction"]
    assert [float(predicted[0][key]) for key in ("low90", "high90")] == summary["held_out"]["interval90"]


def test_csv_of_the_curves_is_every_logged_line(study):
    folder, _, _, _ = study
    logged = [row for path in listing.run_folders(folder) for row in records.read_metrics(path)]
    for name, key in (("training_loss", "train_loss"), ("validation_loss", "val_loss")):
        losses = sorted(line[key] for line in logged if key in line)
        assert sorted(float(row[key]) for row in numbers_behind(folder, name)) == losses


def test_an_optimum_at_the_edge_is_said(study):
    page = study[3]
    assert page.text.count("OPTIMUM AT THE EDGE") == 1 and "with worse ones on both sides" in page.text


@pytest.mark.parametrize("change, message", [
    ({"interval90": [1.0, 1.1]}, "OUTSIDE the 90 % interval"),
    ({"predicted_at": 1_790_000_500.0}, "AFTER the run began"),
    ({"measured_loss": None}, "not measured yet"),
    ({"measured_loss": float("nan")}, "no finite loss"),
])  # fmt: skip
def test_bad_news_is_told(study, tmp_path, change, message):
    from scalelab.report.studies import isoflop as studies
    from scalelab.report.studies import verdict

    summary = json.loads((study[0] / "summary.json").read_text())
    summary["held_out"] |= change
    assert message in " ".join(
        verdict.summary_lines(summary, studies._first_metric(summary, listing.run_folders(study[0])))
    )


def test_a_fit_that_did_not_converge_is_told(study):
    from scalelab.report.studies import verdict

    fit = study[1]["fit"] | {"certificate": {"converged": False}}
    assert "did NOT converge" in verdict.fit_table(fit)


def test_a_parameter_that_the_data_do_not_bound_has_no_value_and_draws_stay_in_the_file(study):
    from scalelab.report.studies import verdict

    fit = study[1]["fit"]
    loose = {"alpha": {"verdict": "not identified"}, "B": {"verdict": "identified"}}
    draws = {"E": [1.25, 1.75], "alpha": [0.375]}
    page = Elements(verdict.fit_table(fit | {"identifiability": loose, "bootstrap": {"resamples": 40, "draws": draws}}))
    value = {name: page.said[page.said.index(name) + 1] for name in ("alpha", "B", "a", "b")}
    assert value == {"alpha": "–", "B": f"{fit['params']['B']:.4g}", "a": "–", "b": "–"}
    assert page.said.count("not identified, as alpha") == 2
    assert "1.75" not in page.text and "resamples" in page.text


@pytest.mark.full
@pytest.mark.parametrize("summary", one_in(3, [{}, {"runs": []}, {"runs": None, "held_out": None, "fit": None}]))
def test_a_study_that_has_just_begun_has_a_page(tmp_path, summary):
    synthetic.write_run(tmp_path / "runs" / "first", status="running", lines=20)
    records.write_json(tmp_path / "summary.json", summary)
    report = write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert "No prediction yet" in text and "Not in this report" in text
    assert report["figures"] == ["training_loss", "validation_loss"]
    assert {gap.split(":")[0] for gap in report["missing"]} == {
        "Prediction", "IsoFLOP curves", "The fitted law", "Checks of the LR", "Checks of the batch"
    }  # fmt: skip


@pytest.mark.full
def test_the_entropy_rate_is_the_floor(tmp_path):
    synthetic.write_run(tmp_path, lines=20)
    record = records.read_json(tmp_path / "record.json")
    record["data"]["entropy_rate"] = 1.0625
    records.write_json(tmp_path / "record.json", record)
    assert gather.entropy_rate([tmp_path]) == 1.0625
    write_report(tmp_path)
    assert "1.0625" in Elements((tmp_path / "report.html").read_text()).text


@pytest.mark.full
def test_names_and_notes_are_escaped(tmp_path):
    name = EVIL.replace("/", "∕")
    for run in (name, "plain"):
        synthetic.write_run(tmp_path / "runs" / run, lines=20, peak_lr=1e-3 if run == "plain" else 2e-3)
        records.write_event(tmp_path / "runs" / run, "note", 3, EVIL)
    write_report(tmp_path)
    write_report(tmp_path / "runs" / name)
    for page in (tmp_path / "report.html", tmp_path / "runs" / name / "report.html"):
        elements = Elements(page.read_text())
        scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
        assert all(attributes in ({}, {"type": "application/json", "class": "charts"}) for attributes in scripts)
        assert scripts.count({}) == 4  # the page's own
        assert EVIL in elements.text and name in elements.text


@pytest.mark.full
def test_a_sweep_names_its_best_and_its_lost(tmp_path):
    synthetic.write_sweep(tmp_path)
    report = write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    losses = {}
    for row in listing.read_runs(tmp_path):
        losses.setdefault(row["optim.peak_lr"], []).append(row["val_loss"] if row["status"] == "done" else math.inf)
    mean, lr = min((sum(pair) / 2, lr) for lr, pair in losses.items())
    error = abs(losses[lr][0] - losses[lr][1]) / 2
    best = (
        f"Best: optim.peak_lr = {lr:g}, with validation loss {mean:.4f} ± {error:.4f} nats/token, "
        "mean and standard error over seeds 0, 1."
    )
    assert report["kind"] == "sweep" and best in text and "10 done, 1 running, 1 diverged" in text
    assert "Settings over seeds" in text and "ranked last: 1 diverged" in text and "not ranked yet: 1 not" in text
    curve = {float(row["peak_lr"]): float(row["loss"]) for row in numbers_behind(tmp_path, "lr_optimum")}
    assert curve == {lr: pair[0] for lr, pair in losses.items()}, "only seed 0 has ended at every LR"
    assert {row["run"] for row in numbers_behind(tmp_path, "sweep")} == {f.name for f in listing.run_folders(tmp_path)}


def test_a_best_trial_at_the_edge_is_said(undrawn, tmp_path):
    for peak_lr, tokens in ((1e-3, 1e6), (2e-3, 2e6), (4e-3, 4e6)):
        synthetic.write_run(tmp_path / "runs" / f"{peak_lr}", d=tokens, peak_lr=peak_lr, lines=20)
    write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert "The best learning rate is not known, and has no interval: the optimum is at the grid's edge: 0.004" in text
    assert "0.004 is the largest LR. Try more beyond it." in text


def test_a_sweep_of_budgets_is_a_design_on_its_page_too(undrawn, tmp_path):
    for tokens in (1e6, 2e6, 4e6):
        synthetic.write_run(tmp_path / "runs" / f"{tokens:g}", d=tokens, lines=20)
    write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert "train.steps changes the size or the compute of a run: an axis of a design" in text
    assert "no verdict: another size or budget" in text and "Best:" not in text and "edge of the sweep" not in text


@pytest.mark.full
def test_the_page_of_a_run_whose_process_is_gone_says_since_when(tmp_path):
    synthetic.write_run(tmp_path, status="running", lines=20)
    (tmp_path / ".lock").write_text("host elsewhere, process 1, started 2026-01-01 00:00:00, beating\n")
    os.utime(tmp_path / ".lock", (1.79e9, 1.79e9))
    write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert re.search(r"not finished \(status: dead since \d{4}-\d\d-\d\d \d\d:\d\d\)", text)


@pytest.mark.full
@pytest.mark.parametrize("status, message", one_in(4, [
    ("done", "This run is done"), ("running", "not finished (status: running)"), ("diverged", "This run diverged"),
    ("stopped", "not finished (status: stopped)"),
]))  # fmt: skip
def test_a_run_in_any_state_has_a_page(tmp_path, status, message):
    synthetic.write_run(tmp_path, status=status, lines=40)
    report = write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert report["kind"] == "run" and message in text and "f00dfeed" in text and "Synthetic Processor" in text
    assert "params.kaplan" in text and "optim.peak_lr" in text


@pytest.mark.full
def test_a_run_that_is_done_after_alarms_says_so_at_its_head(tmp_path):
    synthetic.write_run(tmp_path, status="done", lines=20)
    events = tmp_path / "events.jsonl"
    events.write_text("".join(line + "\n" for line in events.read_text().splitlines() if '"guard"' not in line))
    write_report(tmp_path)
    assert "The guard gave" not in (tmp_path / "report.html").read_text()
    for step in (3, 15):
        records.write_event(tmp_path, "guard", step, "update norm / weight norm 0.2 above 0.1")
    write_report(tmp_path)
    text = Elements((tmp_path / "report.html").read_text()).text
    assert "The guard gave 2 alarms, the first at step 3; their cause: `scalelab diagnose" in text


def test_a_run_that_has_only_started_has_a_page(tmp_path):
    synthetic.write_run(tmp_path)
    for name in ("record.json", "metrics.jsonl", "events.jsonl"):
        (tmp_path / name).unlink()
    report = write_report(tmp_path)
    assert report["figures"] == [] and report["missing"] == ["Loss: the run has not logged any yet."]
    assert "status: starting" in Elements((tmp_path / "report.html").read_text()).text


@pytest.mark.full
def test_a_report_replaces_the_last_one_whole(tmp_path):
    synthetic.write_run(tmp_path, lines=20)
    write_report(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first, "same records, same page"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_no_run_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="holds no run"):
        write_report(tmp_path)


def test_the_runs_table_says_once_what_is_shared():
    rows = [
        {
            "name": n,
            "status": "done",
            "model.d_model": 64,
            "model.n_layers": 2,
            "N": 9,
            "D": d,
            "C": 3e9 * d,
            "train.steps": 5,
            "optim.peak_lr": 1e-3,
            "train.seed": 0,
            "val_loss": 2.0,
            "bpb": 3.0,
        }
        for n, d in (("a", 10), ("b", 20))
    ]
    page = Elements(parts.runs_table(rows))
    assert "2 runs: 2 done. All with d_model 64, layers 2, N (total) 9, steps 5" in page.text
    headings = page.text.split("seed 0.")[1].split()
    assert "(tokens)" in headings and "layers" not in headings and "2.0000" in headings
    assert "N (active)" not in page.text
    with_experts = parts.runs_table([row | {"N_active": active} for row, active in zip(rows, (3, 4), strict=True)])
    assert "N (active)" in Elements(with_experts).text and "N (total) 9" in Elements(with_experts).text


def test_swept_leaves_out_what_only_follows():
    rows = [
        {"name": n, "model.d_model": d, "model.d_ff": ff, "optim.peak_lr": lr}
        for n, d, ff, lr in (("a", 64, 176, 1e-3), ("b", 64, 176, 2e-3), ("c", 128, 344, 1e-3))
    ]
    assert settings.swept_keys(rows) == ["model.d_model", "optim.peak_lr"] and settings.swept_keys(rows[:1]) == []


def test_a_run_on_several_sources_says_each(undrawn, tmp_path):
    for name, loss in (("a", 2.25), ("b", 2.5)):
        synthetic.write_run(tmp_path / "runs" / name)
        record = records.read_json(tmp_path / "runs" / name / "record.json")
        columns = {
            "val_loss/web": loss,
            "bpb/web": 1.0,
            "tokens/web": 3_000_000,
            "epochs/web": 1.5,
            "tokens/code": 7,
            "epochs/code": 0.1,
        }
        records.write_json(tmp_path / "runs" / name / "record.json", record | {"by_source": columns})
    write_report(tmp_path / "runs" / "a")
    page = Elements((tmp_path / "runs" / "a" / "report.html").read_text())
    assert "Sources" in page.text and all(message in page.text for message in ("web 2.2500", "1.5", "code –"))
    assert settings.swept_keys(listing.read_runs(tmp_path)) == []  # what was measured is not what was swept


def test_an_event_without_a_step_stands_where_the_run_was(tmp_path):
    records.append_json_lines(tmp_path / "metrics.jsonl", [{"step": s, "time": 100.0 + s} for s in (10, 20, 30)])
    lines = [{"time": t, "step": None, "kind": "config_change", "text": ""} for t in (5.0, 125.0)]
    records.append_json_lines(tmp_path / "events.jsonl", lines)
    assert [event["step"] for event in gather.read_event_rows([tmp_path])] == [0, 20]


def test_differing_versions_are_counted(tmp_path):
    for name, version in (("a", "0.10.2"), ("b", "0.10.2"), ("c", "0.12.0")):
        records.write_json(tmp_path / name / "record.json", {"versions": {"jax": version}, "device": "cpu"})
    message = gather.collect_provenance([tmp_path / name for name in "abc"])
    assert message == {"versions.jax": "0.10.2 (2 runs), 0.12.0 (1 runs)", "device": "cpu"}


@pytest.mark.parametrize("losses, best, edge", [
    ((2.1, 2.0, 2.2), 1, False), ((1.9, 2.0, 2.2), 0.5, True), ((2.1, 2.0, 1.9), 2, True), ((None, 2.0, 2.1), 1, False),
    ((None, None, None), None, True), ((float("nan"), 2.0, None), 1, False),
])  # fmt: skip
def test_an_optimum_is_bracketed_or_not(losses, best, edge):
    rows = [{"size": 7, "factor": f, "loss": loss} for f, loss in zip((0.5, 1, 2), losses, strict=True)]
    (verdict,) = gather.check_verdicts(rows)
    assert (verdict["best_factor"], verdict["edge"]) == (best, edge)
    if best is not None:
        assert verdict["cost"] == pytest.approx(2.0 / verdict["loss"] - 1)


def test_a_check_with_its_optimum_at_the_edge_fails_the_report(study, undrawn, tmp_path, capsys):
    shutil.copytree(study[0], tmp_path, dirs_exist_ok=True)
    summary = records.read_json(tmp_path / "summary.json")
    assert main(["report", str(tmp_path)]) == 1
    assert "FAILED: N = " in (message := capsys.readouterr().err) and "the best LR tried is 2×" in message
    assert "FAILED: N = " in (tmp_path / "report.html").read_text()
    scatter = summary["fit"]["residual_rms"]
    at_one, at_two = summary["lr_checks"][-2:]
    at_two["loss"] = at_one["loss"] * (1 - scatter / 2)  # no better than the runs scatter about the law
    records.write_json(tmp_path / "summary.json", summary)
    assert main(["report", str(tmp_path)]) == 0
    assert "FAILED" not in (tmp_path / "report.html").read_text()


def test_runs_that_did_not_finish_are_not_drawn_as_fitted(study):
    from scalelab.report.studies.isoflop import fitted_rows

    summary = json.loads((study[0] / "summary.json").read_text())
    for run, change in zip(summary["runs"], ({"status": "diverged"}, {"role": "check"}, {"loss": None}), strict=False):
        run |= change
    assert len(fitted_rows(summary)) == 21 - 3


def test_times_read_both_ways():
    assert gather.format_utc(0.0) == "1970-01-01 00:00:00 UTC" and gather.format_utc(None) == "–"
    assert gather.to_unix_seconds("1970-01-01T00:01:00+00:00") == 60.0 and re.match(
        r"2026", gather.format_utc("2026-05-01T12:00:00Z")
    )


def belief(a=0.45, interval=(0.4, 0.5), verdict="identified", converged=True):
    from scalelab.report.studies import verdict as verdicts

    isoflop = {"a": a, "budgets": [{"edge": False}, {"edge": False}, {"edge": True}]}
    return verdicts.exponent_to_believe(isoflop, {
        "exponents": {"a": 0.46}, "intervals": {"a": interval}, "interval_level": 0.9, "n_runs": 20,
        "identifiability": {"alpha": {"verdict": verdict}}, "certificate": {"converged": converged},
    })  # fmt: skip


def test_which_exponent_to_believe_is_said():
    assert "the fitted law's, N_opt ∝ C^0.460 (90 % interval 0.400 to 0.500)" in belief() and "agree" in belief()
    assert "2 minima without an interval. The two disagree: 0.600 is outside" in belief(a=0.6)
    assert "neither alone. alpha of the law is not identified" in belief(verdict="one-sided")
    assert "neither alone. the law's fit did not converge" in belief(converged=False)
