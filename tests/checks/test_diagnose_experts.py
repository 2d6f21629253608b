"""The score of experts' cases: what counts as right, and its page."""

from checks.diagnosis.dead_experts import __main__ as score
from checks.diagnosis.dead_experts.cases import COLLAPSED, DEAD, HEALTHY, PLANTS
from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.diagnose.checks.causes import CAUSES


def row(name, cause, *verdicts, right=True):
    each = [{"cause": verdict, "kind": "test", "evidence": f"of {verdict}"} for verdict in verdicts]
    return {"name": name, "seed": 0, "cause": cause, "verdicts": each, "right": right,
            "idle": 2.0, "entropy": 0.5, "router logit": 51.0}  # fmt: skip


def test_there_are_plants_of_both_causes_and_healthy_runs_with_keys_that_exist():
    causes = [plant.cause for plant in PLANTS.values()]
    assert causes.count(DEAD) >= 3 <= causes.count(COLLAPSED) and len(HEALTHY) >= 6 and {DEAD, COLLAPSED} <= {*CAUSES}
    for case in score.CASES.values():
        override(tiny.get_config(), case.changes)
    assert config_lib.resolve(override(tiny.get_config(), PLANTS["balance_rate 1"].changes)).model.balance_rate == 1


def test_the_page_lists_every_case_and_what_was_not_run():
    rows = [row("router x 100", COLLAPSED, COLLAPSED), row("6 of 8", "", DEAD, right=False)]
    page = score.format_page({"rows": rows, "right": 1, "command": "c", "date": "d", "machine": "m"})
    assert "1 of 2 right" in page and "Not run: " in page and "6 of 8;" not in page.partition("Not run")[2]
    assert (
        "| router x 100 | 0 | router_collapsed | router_collapsed (test) | yes | 2 | 0.50 | 51 | of router_coll" in page
    )
    assert "| 6 of 8 | 0 | healthy | dead_expert (test) | no |" in page


def test_an_unknown_case_is_refused(capsys):
    assert score.main(["--only=router x 10"]) == 2
    assert "router x 100" in capsys.readouterr().err
