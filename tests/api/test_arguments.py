"""Every function of the api with wrong values in every argument: BadInput in one line, and nothing is done."""

import inspect
import math
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import pytest

from scalelab import api
from scalelab.api import arguments as arguments_lib
from scalelab.api import door
from scalelab.api.laws import curves, ladder
from scalelab.api.reading.loaded import LoadedRun
from scalelab.errors import BadInput
from tests.report import synthetic

WRONG = {
    "none": None, "number": 3, "negative": -1, "half": 0.5, "nan": math.nan, "text": "seven", "list": [1, "a", None],
    "dict": {1: 2}, "object": object(), "flag": True, "function": len,
}  # fmt: skip
TABLE = {"N": [1e6, 2e6, 4e6, 8e6] * 3, "D": [1e8, 2e8, 4e8] * 4, "loss": [3.0, 2.9, 2.8, 2.7] * 3, "g": ["a", "b"] * 6}
# Values that are right: a run isn't called with them, as other tests do.
RIGHT = {
    "config": ("text",), "progress": ("function",), "stop": ("function",), "law": ("function",),
    "take_over": ("flag",), "force": ("flag",), "ema": ("flag",), "compile": ("flag",), "identify": ("flag",),
    "devices": ("none", "number"), "overrides": ("none",), "mesh": ("none",), "grid": ("none",), "columns": ("none",),
    "n": ("none", "number"), "by": ("none",), "over": ("none",), "delta": ("none", "number", "half"),
    "bootstrap": ("number",), "seed": ("number",), "drop_top_loss": ("number",), "holdout": ("number",),
    "average": ("number",), "tokens": ("none", "number"), "top_k": ("number",), "level": ("half",),
    "target_flops": ("number", "half"), "k": ("none", "number", "half"), "efficiency": tuple(WRONG),
    **dict.fromkeys(("held", "hold", "fixed", "against", "order"), ("none",)),
    **dict.fromkeys(("price_per_hour", "critical_tokens", "mtbf_s", "write_bytes_per_s"), ("none", "number", "half")),
    **dict.fromkeys(("temperature", "top_p"), ("number", "negative", "half")), "restart_s": ("number", "half"),
    **dict.fromkeys(("show_steps", "steps", "seeds", "batch", "depths", "widths", "width"), ("number",)),
    **dict.fromkeys(("trials", "rounds", "confirm", "short"), ("number",)),
    **dict.fromkeys(("name", "out", "download"), ("text",)),
    "prompt": ("text",), "workdir": ("text",), "lr_factor": ("number", "half"), "port": ("number",),
    **dict.fromkeys(("wider", "low", "high"), ("number",)),
    **dict.fromkeys(("processes", "process_id", "max_parallel"), ("number",)),
    **dict.fromkeys(("where", "finished", "allow_change", "trust", "best_of", "per"), ("text",)),
}  # fmt: skip


def right_kinds(function, argument):
    """The kinds of WRONG that are right: by RIGHT, and None, flags and functions by the annotation."""
    parameter = inspect.signature(function).parameters.get(argument)
    annotation = str(parameter.annotation) if parameter else ""
    kinds = {"none": "None" in annotation or "Optional" in annotation, "flag": "bool" in annotation,
             "function": "Callable" in annotation or "Display" in annotation}  # fmt: skip
    return {*RIGHT.get(argument, ()), *(kind for kind, is_right in kinds.items() if is_right)}


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def functions(folder):
    """{name: (function, arguments that are right, names of all arguments)}; files and folders lie in `folder`."""
    run, work, config = str(folder / "run"), folder / "work", "tiny"
    model = LoadedRun(None)
    known = {
        "runs": (api.runs, {"sources": run}), "metrics": (api.metrics, {"run": run}), "load": (api.load, {"run": run}),
        "plan": (api.plan, {"config": config}), "calibrate": (api.calibrate, {"runs": run}),
        "single_gpu": (api.single_gpu, {"config": config}), "measure": (api.measure, {"config": config, "plan": None}),
        "plan_budget": (api.plan_budget, {"flops": 1e20, "tokens": 1e9}),
        "plan_against": (api.plan_against, {"config": config, "against": "seven=7"}),
        "plan_counts": (api.plan_counts, {"config": config, "hardware": "seven", "low": 1, "high": 2}),
        "plan_on_machine": (api.plan_on_machine, {"hardware": "seven", "flops": 1e20}),
        "plan_sweep": (api.plan_sweep, {"sweep": config}),
        "evaluate": (api.evaluate, {"run": run}), "sample_run": (api.sample, {"run": run}),
        "export_hf": (api.export_hf, {"run": run, "out": work}), "import_hf": (api.import_hf, {"folder": run}),
        "import_runs": (api.import_runs, {"source": work, "workdir": folder / "new"}),
        "open_runs": (api.open_runs, {"source": work}),
        "note": (api.note, {"run": folder / "absent", "text": "seven"}),
        "compare": (api.compare, {"a": work, "b": run}),
        "write_comparison": (api.write_comparison, {"comparison": {}, "html": work}),
        "report": (api.report, {"folders": work}), "verify_checkpoints": (api.verify_checkpoints, {"folder": run}),
        "list_checkpoints": (api.list_checkpoints, {"folder": run}),
        "show_checkpoint": (api.show_checkpoint, {"folder": run}),
        "diagnose": (api.diagnose, {"run": work}), "show_batch": (api.show_batch, {"run": run, "batch": 1}),
        "data_show": (api.data_show, {"source": run}), "data_stats": (api.data_stats, {"source": run}),
        "draw_data": (api.draw_data, {"shown": None, "out": work}),
        "replay": (api.replay, {"window": f"{run}@1..2"}),
        "draw_replay": (api.draw_replay, {"result": {}, "plot": work}),
        "noise": (api.noise, {"run": run}), "watch": (api.watch, {"folder": work}),
        "load_family_law": (api.load_family_law, {"law": work}),
        "score_forecasts": (api.score_forecasts, {"folder": run}),
        "config_keys": (api.config_keys, {}), "show_config": (api.show_config, {"config": config}),
        "optim": (api.optim, {"config": config}), "schedule": (api.schedule, {"config": config}),
        "draw_schedule": (api.draw_schedule, {"scheduled": None, "plot": work}),
        "recipe": (api.recipe, {"name": "seven"}),
        "shrink_recipe": (api.shrink_recipe, {"name": "llama3_8b"}), "coordcheck": (api.coordcheck, {"config": config}),
        "draw_coordcheck": (api.draw_coordcheck, {"result": {}, "plot": work}), "doctor": (api.doctor, {}),
        "init": (api.init, {"name": "3"}), "prepare": (api.prepare, {"source": "", "tokenizer": "seven", "out": work}),
        "demo": (api.demo, {"out": run + "/config.json"}), "reproduce": (api.reproduce, {"paper": "seven"}),
        "download_tables": (api.download_tables, {"download": run}),
        "study_command": (api.study_command, {"name": "seven"}),
        "plan_tuning": (api.plan_tuning, {"config": config}),
        "tune": (api.tune, {"config": "seven.py", "workdir": work}),
        "plan_ablation": (api.plan_ablation, {"baseline": "tiny", "variant": "tiny", "budgets": []}),
        "ablate": (api.ablate, {"baseline": "tiny", "variant": "tiny", "budgets": [], "workdir": work}),
        "proxy": (api.proxy, {"config": config, "flops": 1.0, "workdir": work}),
        "plan_stability": (api.plan_stability, {"config": config}),
        "forecast_stability": (api.forecast_stability, {"config": config, "workdir": work}),
        "study_status": (api.study_status, {"workdir": work}),
        "train": (api.train, {"config": config, "workdir": work}),
        "sweep": (api.sweep, {"config": config, "workdir": work}),
        "draft_sweep": (api.draft_sweep, {"config": config, "workdir": work}),
        "sweep_status": (api.sweep_status, {"workdir": work}), "cancel_sweep": (api.cancel_sweep, {"workdir": work}),
        "train_pack": (api.train_pack, {"workdir": work, "pack": "seven"}), "answer": (api.answer, {"sources": run}),
        "fit": (api.fit, {"source": TABLE}), "fit_groups": (api.fit_groups, {"source": TABLE, "by": "g"}),
        "load_law": (api.load_law, {"law": "chinchilla"}), "read_table": (api.read_table, {"sources": run}),
        "predict": (api.predict, {"fitted": None, "target_flops": 1.0}),
        "tournament": (api.tournament, {"fitted": None}),
        "propose_runs": (api.propose_runs, {"fitted": None, "next_runs": 1, "grid": run, "budget_flops": 1.0}),
        "draw_fit": (api.draw_fit, {"result": None, "figures": work}),
        "fit_approach": (api.fit_approach, {"table": None, "approach": 2}),
        "predict_curves": (curves.predict_curves, {"sources": run}),
        "fit_mixture": (api.fit_mixture, {"sources": run}), "judge_sweep": (api.judge_sweep, {"sources": run}),
        "judge_runs": (api.judge_runs, {"sources": run}),
        "judge_table": (api.judge_table, {"table": folder / "absent.csv", "baseline": "seven"}),
       
        "best_settings": (api.best_settings, {"source": run}), "read_curve": (curves.read_curve, {"source": run}),
        "fit_curves": (curves.fit_curves, {"sources": run}), "schedule_of": (curves.schedule_of, {"config": config}),
        "fit_accuracy": (ladder.fit_accuracy, {"sources": run}), "sample": (model.sample, {}),
    }  # fmt: skip
    return {name: (function, right, parameters(function)) for name, (function, right) in known.items()}


@pytest.mark.full
def test_every_argument_of_every_function_refuses_what_it_can_not_be(tmp_path):
    synthetic.write_run(tmp_path / "run", lines=5)
    before = sorted(path for path in tmp_path.rglob("*"))
    tried, wrong = 0, []
    for name, (function, right, arguments) in functions(tmp_path).items():
        for argument in arguments:
            for kind, value in WRONG.items():
                if kind in right_kinds(function, argument):
                    continue
                tried += 1
                try:
                    function(**{**right, argument: value})
                    wrong.append(f"{name}({argument}={kind}): accepted")
                except BadInput as error:
                    if "\n" in str(error):
                        wrong.append(f"{name}({argument}={kind}): {error}")
                except Exception as error:
                    wrong.append(f"{name}({argument}={kind}): {type(error).__name__}: {str(error)[:80]}")
    assert not wrong, "\n".join(wrong)
    assert tried > 600
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_every_public_function_is_in_the_walk():
    public = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    # The first two are entered in tests/stores/test_api.py, the last two have no arguments.
    others = {"follow", "serve", "trust", "studies", "list_recipes"}
    assert public - others <= set(functions(pathlib.Path()))
    with pytest.raises(BadInput, match="'3' is not of the form"):
        api.trust(3)


def test_an_option_that_a_fit_does_not_have_names_the_nearest():
    with pytest.raises(BadInput, match=r"bootstraps=3: there is no such option; did you mean 'bootstrap'\?"):
        api.fit(TABLE, bootstraps=3)
    with pytest.raises(BadInput, match=r"source: columns must be equally long"):
        api.fit({"N": [1.0, 2.0], "D": [1.0], "loss": [3.0, 2.0]})
    with pytest.raises(BadInput, match="source: column 'N' is '7'; it must be a list"):
        api.fit({"N": 7, "D": [1.0], "loss": [3.0]})


def test_one_name_where_several_may_stand_is_one_name(tmp_path):
    with pytest.raises(BadInput, match="--allow-change=modl: no such key"):
        api.train("tiny", tmp_path / "run", allow_change="modl")


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (bool, [True], [1, None]),
        (int, [0, 3], [-1, 0.5, True]),
        (float | None, [None, 0.5], ["a", math.nan]),
        (str | os.PathLike[str], ["a", pathlib.Path("a")], [3]),
        (Mapping[str, float] | None, [None, {"E": 1.0}], [{1: 1.0}, {"E": "a"}]),
        (Callable[[int], None] | None, [None, len], [3]),
        (door.Display | None, [None, len], [3]),
        (Literal["cpu", "gpu"], ["tpu"], [3]),  # which texts: the function says
        ("Plan | None", [3, "a"], []),  # a name for the type checker
    ],
)
def test_what_an_argument_must_be_follows_from_its_annotation(annotation, right, wrong):
    kind = arguments_lib.kind_of(annotation)
    assert [value for value in right if not kind.fits(value)] == [] == [value for value in wrong if kind.fits(value)]


def test_one_value_or_several_are_a_list_and_a_path_is_local():
    for annotation in (str | Sequence[str], Collection[str]):
        assert arguments_lib.check_value("x", "a", arguments_lib.kind_of(annotation)) == ["a"]
    paths = arguments_lib.kind_of(arguments_lib.Path | Sequence[arguments_lib.Path])
    assert paths.many and not paths.fits(3)
    with pytest.raises(BadInput, match="is in an object store"):
        arguments_lib.check_value("x", "s3://a/b", arguments_lib.kind_of(arguments_lib.Path))
    with pytest.raises(AssertionError, match="has no parameter"):
        arguments_lib.check_arguments(absent=arguments_lib.TEXT)(len)
