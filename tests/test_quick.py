"""What `make test` holds: every command, every room and every promise of the README by a test that isn't left out.

The tables name one test each, from the command to what it answers; other quick tests hold more. A test that is marked
`full` (or slow), renamed or deleted is red here, and so is a command, room or promise that has none.
"""

import ast
import functools
import pathlib
import re

import pytest

from scalelab.__main__ import COMMANDS
from tests.quick import ELSEWHERE, cross, one_in, others_slow

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = {path.parent.name for path in (ROOT / "scalelab").glob("*/__init__.py") if not path.parent.is_symlink()}
BY_COMMAND = {
    "demo": "commands/test_demo.py::test_the_demo_fits_predicts_and_scores",
    "doctor": "commands/test_doctor.py::test_text_report_shows_versions_device_and_peak",
    "init": "commands/test_init.py::test_a_project_is_written_with_its_name_and_its_config_resolves",
    "prepare": "train/run/test_sources.py::test_two_prepared_sources_by_command",
    "data": "commands/test_data.py::test_stats_are_those_of_the_stored_documents",
    "plan": "commands/plan/test_plan.py::test_the_text_names_mesh_components_and_what_was_assumed",
    "train": "train/resume/test_resume.py::test_killed_at_a_random_moment_and_started_again_it_ends_with_the_same_bits",
    "config": "commands/test_config.py::test_a_config_is_shown_against_the_defaults_with_who_set_what",
    "optim": "commands/test_optim.py::test_muon_takes_hidden_matrices_and_adamw_the_rest",
    "sweep": "test_git.py::test_a_run_and_a_sweep_have_it_on_record_and_a_resumed_one_notes_another_commit",
    "schedule": "commands/test_schedule.py::test_the_table_says_what_was_chosen_and_where_it_bends",
    "checkpoint": "commands/test_checkpoint.py::"
    "test_verify_is_0_where_all_is_intact_and_1_with_the_files_name_where_not",
    "export": "commands/test_export.py::test_out_in_and_on",
    "import": "commands/test_export.py::test_out_in_and_on",
    "eval": "commands/test_eval.py::test_what_is_scored_is_printed_kept_once_and_a_column",
    "sample": "commands/test_sample.py::test_text_and_json_say_the_same_and_say_it_again",
    "runs": "commands/test_runs.py::test_by_a_key_is_one_line_a_setting_with_its_mean_over_seeds",
    "compare": "commands/test_compare.py::test_a_comparison_has_a_page",
    "diagnose": "commands/test_diagnose.py::test_a_healthy_run_is_0_and_a_cause_is_1",
    "replay": "diagnose/test_replay.py::test_the_original_has_the_bits_of_the_run_and_nothing_is_written",
    "noise": "commands/test_noise.py::test_each_saved_step_is_a_line_and_numbers_agree_with_the_json",
    "watch": "commands/test_watch.py::test_a_forecast_is_printed_kept_once_and_scored_when_the_run_is_done",
    "coordcheck": "commands/test_coordcheck.py::test_table_figure_and_json",
    "proxy": "commands/test_proxy.py::test_from_a_recipe_to_its_learning_rate",
    "recipe": "commands/test_recipe.py::test_a_twin_is_a_config_file",
    "fit": "commands/fit/test_fit.py::test_besiroglus_law_from_the_command_line",
    "isoflop": "experiments/test_isoflop.py::test_a_study_predicts_before_the_held_out_run_and_never_again",
    "ablate": "commands/test_ablate.py::test_a_table_gets_a_verdict_in_text_and_json",
    "tune": "commands/test_tune.py::test_the_plan_trains_nothing",
    "study": "commands/test_study.py::test_the_command_becomes_the_study",
    "reproduce": "commands/test_reproduce.py::test_a_number_that_does_not_come_out_is_exit_1",
    "report": "commands/test_report.py::test_a_page_is_written_and_named",
    "completion": "commands/test_completion.py::test_every_command_is_there",
    "note": "commands/test_note.py::test_a_note_stands_at_the_last_logged_step",
}  # fmt: skip
BY_ROOM = {
    "api": "api/test_api.py::test_a_trained_run_is_what_its_folder_says",
    "cli": "test_main.py::test_an_unknown_option_ends_in_one_line",
    "commands": "test_main.py::test_every_command_explains_itself_without_jax",
    "config": BY_COMMAND["config"],
    "data": BY_COMMAND["prepare"],
    "diagnose": BY_COMMAND["diagnose"],
    "evaluate": BY_COMMAND["eval"],
    "foreign": "commands/test_import_run.py::test_a_strangers_sweep_goes_through_every_verb",
    "hardware": BY_COMMAND["doctor"],
    "hf": BY_COMMAND["export"],
    "index": "index/test_alive.py::test_watch_says_that_a_run_is_dead_and_does_not_wait_for_it",
    "laws": BY_COMMAND["fit"],
    "model": BY_COMMAND["sample"],
    "numbers": "commands/plan/test_plan.py::test_a_budget_and_a_run_beside_the_best_one",
    "optim": BY_COMMAND["optim"],
    "parallel": "parallel/test_refusals.py::"
    "test_it_is_refused_in_one_line_that_names_both_numbers_and_nothing_is_compiled",
    "plan": BY_COMMAND["plan"],
    "precision": "precision/test_loss_scale.py::test_a_run_logs_its_scale_names_its_formats_and_resumes_bit_for_bit",
    "record": BY_COMMAND["note"],
    "report": BY_COMMAND["report"],
    "stores": "stores/test_commands.py::test_a_sweep_in_a_store_is_extended_from_another_machine",
    "sweep": BY_COMMAND["sweep"],
    "testing": BY_COMMAND["init"],
    "train": BY_COMMAND["train"],
    "untrusted": "test_edited_files.py::test_every_edit_is_one_line_and_spares_the_other_trials",
}
BY_PROMISE = {  # words of the README
    "fit a scaling law to a table that comes with the package": BY_COMMAND["demo"],
    "**writes down a prediction**": BY_COMMAND["isoflop"],
    "the same command continues it": BY_COMMAND["isoflop"],
    "the plan ranks the changes": "plan/search/test_advice.py::"
    "test_each_way_is_a_config_the_trainer_takes_and_does_what_it_says",
    "the best size and number of tokens, with intervals": "commands/plan/test_plan.py::"
    "test_a_budget_and_a_run_beside_the_best_one",
    "lists every key with its meaning, unit and source": "config/test_config.py::"
    "test_every_key_of_the_default_tree_has_one_record_that_says_what_it_means",
    "prints one. Copy a config": "commands/test_config.py::test_one_key_in_full_and_the_keys_of_a_group",
    "The same command resumes it and ends with the same bits": BY_COMMAND["train"],
    "share one compiled program": "sweep/test_pack.py::test_in_turn_every_trial_equals_itself_alone_bit_for_bit",
    "which learning rate won, over seeds": BY_COMMAND["runs"],
    "Search the keys that a config's `tune()` names": BY_COMMAND["tune"],
    "or your own, to your runs or to any table": "commands/fit/test_fit.py::"
    "test_a_study_folder_gives_the_numbers_of_its_summary",
    "which parameters the data": "commands/fit/test_fit.py::"
    "test_one_line_says_what_to_quote_with_the_digits_that_its_width_supports",
    "Predict the largest runs from the others": "commands/fit/test_fit.py::test_the_tournament_ranks_by_held_out_error",
    "ask whether a change": "commands/test_ablate.py::test_the_plan_trains_nothing",
    "scalelab eval runs/mine --tasks=": BY_COMMAND["eval"],
    "See what happened in a run": BY_COMMAND["report"],
    "what is wrong with it": BY_COMMAND["diagnose"],
    "how two runs differ": BY_COMMAND["compare"],
    "which activations grow with width": BY_COMMAND["coordcheck"],
    "Training on several devices was tested on eight simulated devices": "parallel/test_scatter.py::"
    "test_loss_and_gradients_are_those_of_one_device",
    "the tests compile its programs without one": "train/step/test_lowered_step.py::test_a_devices_step_calls_cudnn",
    "Every number of parameters or FLOPs names its convention": "commands/fit/test_fit.py::"
    "test_the_convention_and_the_target",
}
TESTS = sorted({*BY_COMMAND.values(), *BY_ROOM.values(), *BY_PROMISE.values()})


@functools.cache
def module(path: pathlib.Path) -> tuple[str, dict[str, ast.FunctionDef]]:
    text = path.read_text()
    return text, {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_every_command_and_room_has_one():
    assert set(BY_COMMAND) == set(COMMANDS)
    assert set(BY_ROOM) == ROOMS


def test_every_promise_stands_in_the_readme_and_every_command_of_it_has_one():
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert [words for words in BY_PROMISE if words not in readme] == []
    assert {*re.findall(r"scalelab ([a-z]+) ", readme)} & {*COMMANDS} <= {*BY_COMMAND}


@pytest.mark.parametrize("test", TESTS)
def test_it_is_there_and_not_left_out(test):
    path, name = test.split("::")
    text, functions = module(ROOT / "tests" / path)
    marks = [ast.unparse(mark) for mark in functions[name].decorator_list]
    whole = re.search(r"^pytestmark = .*", text, re.MULTILINE)
    assert not [mark for mark in [*marks, whole[0] if whole else ""] if mark.removeprefix("pytest.mark.") in ELSEWHERE]


BY_HELPER = {"doctor": "doctor import main", "replay": "replay import main", "isoflop": "isoflop.main(",
             "train": "command(*train(", "completion": "write_script"}  # fmt: skip


@pytest.mark.parametrize("command", BY_COMMAND)
def test_it_calls_the_command(command):
    text, _ = module(ROOT / "tests" / BY_COMMAND[command].split("::")[0])
    assert f'"{command}"' in text or BY_HELPER[command] in text


def test_one_value_in_n_is_quick():
    cases = one_in(2, ["a", ("b", 1), pytest.param("c", marks=pytest.mark.slow), "d", pytest.param("e", id="last")])
    names = [[mark.name for mark in getattr(case, "marks", ())] for case in cases]
    assert names == [[], ["full"], ["slow"], [], ["full"]]
    assert cases[0] == "a" and cases[1].values == ("b", 1) and cases[4].id == "last"


def test_members_that_stay_are_as_they_are_and_the_others_slow():
    cases = others_slow(lambda name, size: name == "a" or size == 2, [("a", 1), ("b", 1), ("b", 2)])
    assert cases[0] == ("a", 1) and cases[2] == ("b", 2)
    assert cases[1].values == ("b", 1) and [mark.name for mark in cases[1].marks] == ["slow"]
    assert [getattr(case, "marks", ()) == () for case in one_in(2, cases)] == [True, False, False]
    slow = others_slow(lambda name: name == "a", one_in(2, ["a", pytest.param("b", id="bee")]))
    assert slow[0] == "a" and slow[1].id == "bee" and [mark.name for mark in slow[1].marks] == ["full", "slow"]


def test_a_cross_has_the_marks_of_each_of_its_values():
    cases = cross(one_in(2, ["a", "b"]), one_in(2, [1, 2]), [(3, 4)])
    assert [case.values for case in cases] == [("a", 1, 3, 4), ("a", 2, 3, 4), ("b", 1, 3, 4), ("b", 2, 3, 4)]
    assert [len(case.marks) for case in cases] == [0, 1, 1, 2] and not any(case.id for case in cases)
    assert [case.id for case in cross([pytest.param(1, 2, id="x")], [True])] == ["x-True"]
