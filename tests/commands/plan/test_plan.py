"""`scalelab plan` as scripts see it: its JSON, its text, its refusals. tests/plan checks the figures themselves."""

import json
import pathlib

import pytest

import scalelab.api
import scalelab.plan
from scalelab.__main__ import main
from scalelab.config import Layout
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.hardware.device_memory import usable_bytes
from scalelab.plan.machine.machine import load_machine
from tests.quick import one_in, others_slow

TINY = "--config=configs/tiny.py"
MESH = ["--hardware=h100", "--devices=4", "--mesh=fsdp=2,tensor=2"]


def answer(capsys, *argv):
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_keys_that_others_script_against(capsys):
    result = answer(capsys, TINY, *MESH, "--price=2")
    memory, time = result["memory_bytes"], result["time_s"]
    facts = {"total", "fits", "capacity", "margin_bytes", "formula_bytes"}
    assert memory["total"] == sum(size for name, size in memory.items() if name not in facts)
    assert memory["fits"] and memory["margin_bytes"] == memory["capacity"] - memory["total"]
    assert memory["capacity"] == usable_bytes(load_machine("h100").chip)
    assert {"compute", "hbm", "fsdp", "tensor", "bubble", "total"} <= time.keys()
    assert time["low"] < time["total"] < time["high"]
    conventions = ("total", "active", "non_embedding", "kaplan", "chinchilla")
    groups = {name for name in result["params"] if name not in conventions}
    assert result["params"]["total"] == sum(result["params"][name] for name in groups)
    assert {"6N", "chinchilla", "palm", "causal", "exact"} <= result["flops"].keys()
    assert result["flops"]["6N"]["total"] == 6 * result["params"]["total"] * result["tokens"]
    assert {"bytes", "seconds", "young_s", "daly_s", "goodput"} <= result["checkpoint"].keys()
    assert result["batch_tokens"] * result["steps"] == result["tokens"]
    assert result["cost"] == pytest.approx(2 * result["device_hours"])
    assert result["energy_kwh"] == pytest.approx(0.7 * result["device_hours"])  # of an H100 SXM: 700 W
    assert result["device_hours"] == pytest.approx(4 * result["steps"] * time["total"] / 3600)
    assert result["tokens_per_s"] == pytest.approx(result["batch_tokens"] / time["total"])
    assert isinstance(result["advice"], list) and "compiled" not in result
    from_python = scalelab.api.plan("configs/tiny.py", "h100", 4, "fsdp=2,tensor=2", price_per_hour=2.0)
    assert result == json.loads(json.dumps(from_python.to_json()))


def test_from_python_with_whatever_stands_for_a_config_and_a_mesh():
    overrides = scalelab.plan.plan("configs/tiny.py", "h100", 4, "fsdp=2,tensor=2").to_json()
    sizes = {"fsdp": 2, "tensor": 2}
    for config, mesh in ((tiny.get_config(), sizes), (pathlib.Path("configs/tiny.py"), Layout(**sizes))):
        assert scalelab.plan.plan(config, "h100", 4, mesh).to_json() == overrides
    with pytest.raises(BadInput, match="'fdsp' is not an axis"):
        scalelab.plan.plan("configs/tiny.py", "h100", 4, {"fdsp": 4})


def test_the_text_names_mesh_components_and_what_was_assumed(capsys):
    assert main(["plan", TINY, "--hardware=h100", "--devices=4", "--why"]) == 0
    output = capsys.readouterr().out
    for part in (
        "4 x H100 SXM, ",
        "plan: fsdp=4, ",
        "chosen as the config has none",
        "activations",
        "MFU",
        "efficiencies:",
        "Daly",
        "6N",
    ):
        assert part in output, part


def test_a_budget_and_a_run_beside_the_best_one(capsys):
    result = answer(capsys, "--flops=1e24", "--law=chinchilla_3")
    assert {"n", "d", "loss", "intervals", "law", "source"} <= result.keys() and result["law"] == "chinchilla_3"
    assert result["flops"] == pytest.approx(1e24) == pytest.approx(6 * result["n"] * result["d"])
    gpt3 = answer(capsys, "--params=175e9", "--tokens=300e9")
    assert gpt3["verdict"] == "undertrained" and gpt3["n"] < 175e9


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("hbm_bytes", "Infinity", "hbm_bytes=inf is not finite"),
        ("host_bytes", "1e400", "host_bytes=inf is not finite"),
        ("devices_per_node", "1.6", "devices_per_node=1.6 is not a whole number; nearest: 2"),
        ("links", "NaN", "links=nan is not a number above 0"),
        ("flops", '{"float32": 1e-300}', "flops.float32=1e-300 is outside 1 to 1e+30; nearest: 1"),
        ("hbm_bytes", "1e308", "hbm_bytes=1e+308 is outside 1 to 1e+30; nearest: 1e+30"),
    ],
)
def test_a_number_of_a_machine_file_that_no_machine_has_is_one_line(tmp_path, capsys, key, value, reason):
    path = tmp_path / "machine.json"
    path.write_text(f'{{"base": "h100", "{key}": {value}}}')
    assert main(["plan", TINY, f"--hardware={path}"]) == 2
    assert reason in (error := capsys.readouterr().err) and error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing to plan"),
        ([TINY], "--hardware is needed"),
        ([TINY, "--hardware=h10"], "known: "),
        ([TINY, "--hardware=h100", "--mesh=fdsp=2"], "did you mean 'fsdp'"),
        ([TINY, "--hardware=h100", "--mesh=tp=2"], "did you mean 'tensor'"),
        ([TINY, "--hardware=h100", "--mesh=pipeline_model_parallel_size=2"], "did you mean 'stage'"),
        ([TINY, "--hardware=h100", "--devices=4", "--mesh=fsdp=3"], "nearest product: 4, e.g. fsdp=4"),
        ([TINY, "--hardware=h100", "--devices=64", "--mesh=tensor=3"], "nearest product: 64, e.g. fsdp=16 x tensor=4"),
        ([TINY, "--hardware=h100", "--devices=2.5"], "nearest: 2"),
        ([TINY, "--hardware=h100", "--devices=8..x"], "e.g. --devices=8..512"),
        ([TINY, "--hardware=h100", "--devices=8..2"], "nearest: 2..8"),
        ([TINY, "--hardware=h100", "--devices=8-64"], "a range is LOW..HIGH, in doublings; nearest: 8..64"),
        ([TINY, "--hardware=h100", "--devices=8,16,32"], "nearest: 8..32"),
        ([TINY, "--hardware=h100", "--devices=2..4", "--mesh=fsdp=2"], "nearest: --devices=2"),
        ([TINY, "--hardware=h100", "--mesh=fsdp=-1"], "say how many there are"),
        ([TINY, "--hardware=h100", "--mesh=fsdp=8,zero=7"], "parallel.zero=7 is outside [0, 3]; nearest bound: 3"),
        ([TINY, "--hardware=h100", "--mesh=stage=2,microbatches=0"], "parallel.microbatches=0"),
        ([TINY, "--hardware=h100", "--mesh=stage=2,schedule=1f1"], "did you mean '1f1b'"),
        (["--flops=1e20", "--hardware=h100", "--mfu=0.4"], "--hardware goes with --gpu-hours"),
        (["--flops=1e20", "--hardware=h10"], "known: "),
        (["--flops=1e20", "--hardware=h100:-1"], "e.g. --hardware=h100:2.5"),
        (["--flops=1e20", "--hardware=h100,a100", "--price=2"], "nearest: --hardware=h100:2,a100:2"),
        (["--flops=1e20", "--budget=$5", "--hardware=h100:2.5"], "give one of them"),
        (["--budget=$2M"], "e.g. --hardware=h100:2.5"),
        (["--budget=$2M", "--hardware=a100"], "e.g. --hardware=a100:2.5"),
        (["--budget=$2", "--hardware=h100:2.5"], "below one device-hour of H100 SXM; nearest: --budget=2.5"),
        (["--gpu-hours=0.5", "--hardware=h100"], "nearest: --gpu-hours=1"),
        (["--flops=1e20", "--days=30"], "--days has no effect with"),
        (["--params=1e6", "--tokens=1e9", "--hardware=h100"], "nearest: --params="),
        (
            ["--params=1e8", "--tokens=1e9", "--hardware=a100", "--config.precision.name=fp8"],
            "has no fp8 unit; nearest: --config.precision.name=bf16",
        ),
        (["--flops=1e20", "--law="], "neither a file nor a published law"),
        ([TINY, "--flops=1e20"], "together"),
        ([TINY, "--hardware=v5p", "--config.precision.name=fp8"], "TPU v5p has no fp8 unit; nearest: "),
        ([TINY, "--hardware=h100:2.5", "--price=3"], "--price=3 is the price of one kind; nearest: --hardware=h100:3"),
        ([TINY, "--hardware=v5p-128"], "nearest: --hardware=v5p --devices=64"),
        ([TINY, "--hardware=4090"], "did you mean 'rtx4090'"),
        ([TINY, "--hardware=h100,a100"], "a config is planned on one; nearest: --hardware=h100"),
        (["--flops=0"], "not a number above zero"),
        (["--flops=1e20", "--tokens=1e9"], "give one of them"),
        (["--flops=1e20", "--law=chinchila"], "did you mean"),
        (["--flops=1e20", "--mesh=fsdp=2"], "--mesh has no effect with"),
        ([TINY, "--hardware=h100", "--law=kaplan"], "--law has no effect with"),
        (["--gpu-hours=100"], "--hardware"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, argv, message):
    assert main(["plan", *argv]) == 2
    line = capsys.readouterr().err
    assert message in line and len(line.strip().splitlines()) == 1


def in_lines(capsys, *argv):
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_plan_that_fits_is_answered_in_four_lines_and_sources_wait_for_why(capsys):
    text = in_lines(capsys, TINY, *MESH, "--price=2")
    result = answer(capsys, TINY, *MESH, "--price=2")
    assert text[0].startswith("fits: ") and "4 x H100 SXM" in text[0]
    assert text[1].startswith("plan: fsdp=2 x tensor=2, zero=3; remat none; ") and "adamw in fp32" in text[1]
    assert f"{result['cost']:,.0f}" in text[2] and f"MFU {result['mfu']:.1%}" in text[2] and text[4] == ""
    assert f"at most {result['energy_kwh']:.3g} kWh" in text[2] and "full board power of 700 W, chips alone" in text[2]
    assert "kWh" not in in_lines(capsys, TINY, "--hardware=v5e", "--devices=1")[2]  # nothing is published
    assert not any("Daly" in line or "efficiencies" in line or "keys and values a token" in line for line in text)
    assert next(iter(result)) == "verdict" and result["verdict"]["fits"]
    assert result["verdict"]["step_s"] == result["time_s"]["total"] and result["verdict"]["remat"] == "none"


LARGE = [
    TINY, "--config.train.global_batch=64", "--config.model.seq_len=8192", "--config.model.vocab_size=65536",
    "--config.model.d_model=1024", "--config.model.n_layers=16", "--config.optim.peak_lr=1e-3",
]  # fmt: skip


@pytest.mark.full
def test_where_a_plan_cannot_run_the_nearest_that_does_is_a_command_with_its_own_time(tmp_path, capsys):
    card = tmp_path / "card.json"
    card.write_text('{"base": "h100", "hbm_bytes": 20e9}')
    argv = [*LARGE, f"--hardware={card}", "--devices=8", "--mesh=data=8"]
    result, text = answer(capsys, *argv), in_lines(capsys, *argv)
    assert text[0].startswith("does not fit: ") and not result["verdict"]["fits"]
    paste = text[3].removeprefix("paste: scalelab plan ").split(" ")
    assert result["verdict"]["command"] == text[3].removeprefix("paste: ") and not result["verdict"]["alters"]
    nearest, again = answer(capsys, *paste), in_lines(capsys, *paste)
    assert nearest["memory_bytes"]["fits"] and not any("refuses" in note for note in nearest["notes"])
    assert nearest["verdict"]["step_s"] == result["verdict"]["step_s"] == nearest["time_s"]["total"]
    of_a_run = ("time_s", "mfu", "mfu_range", "tokens_per_s", "days", "device_hours", "energy_kwh", "checkpoint")
    for key in (*of_a_run, "savings_s"):
        assert result[key] is None and nearest[key] is not None, key
    assert {each["of_plan"] for each in result["advice"]} == {None}
    assert again[1:3] == text[1:3]


def test_a_refusal_comes_first_and_no_time_of_what_is_refused(capsys):
    words = (TINY, "--hardware=h100", "--devices=5", "--mesh=fsdp=5")
    text, result = in_lines(capsys, *words), answer(capsys, *words)
    assert text[0].startswith("refused: model.d_model=") and "parallel.fsdp=5" in text[0], text[0]
    assert "nearest that fits" in text[0] and text[1].startswith("plan: data=5;")  # whose time stands below
    assert result["time_s"] is None and result["mfu"] is None and result["days"] is None


def test_the_faster_plan_is_a_command_that_keeps_the_mesh_that_was_asked_for(capsys):
    text = in_lines(capsys, TINY, *MESH)
    seconds, words = text[3].removeprefix("faster: ").split(" a step (0.")[0], text[3].split(": scalelab plan ")[1]
    assert in_lines(capsys, *words.split(" "))[2].startswith(f"time: {seconds} (")


@pytest.mark.full
def test_seven_billion_parameters_fit_one_card_of_24_gb_by_galore_in_8_bits(capsys):
    """As configs/galore_7b.py has it; `--single-gpu` names what the search names."""
    argv = ["--config=configs/recipes/llama2_7b.py", "--hardware=rtx4090", "--devices=1", "--single-gpu"]
    text = in_lines(capsys, *argv)
    assert text[0].startswith("does not fit: ") and "optim.name" in text[0].split("changes the numbers")[1]
    for lever in ("train.updates=per_layer", "optim.name=galore8bit", "precision.name=bf16_stochastic"):
        assert f"--config.{lever}" in text[3]
    assert in_lines(capsys, *text[3].removeprefix("paste: scalelab plan ").split(" "))[0].startswith("fits: ")
    first = text[[line.startswith("this trainer has steps") for line in text].index(True) + 1]
    assert "optim.name=galore8bit" in first and first.strip() in text[3]


@pytest.mark.full
def test_a_range_of_devices_says_from_how_many_on_it_fits(tmp_path, capsys):
    card = tmp_path / "card.json"
    card.write_text('{"base": "h100", "hbm_bytes": 3e9}')
    argv = [*LARGE, f"--hardware={card}", "--price=2", "--config.parallel.tensor=2"]  # which no range keeps
    text, result = in_lines(capsys, *argv, "--devices=1..4"), answer(capsys, *argv, "--devices=1..4")
    first = result["fits_from_devices"]
    assert first > 1 and text[0].startswith(f"fits from {first} devices on") and "does not fit" in text[6]
    assert [each["devices"] for each in result["counts"]] == [1, 2, 4] and "days" not in result["counts"][0]
    again = answer(capsys, *text[3].removeprefix("paste: scalelab plan ").split(" "))
    assert again["verdict"]["fits"] and again["verdict"]["days"] == result["counts"][-1]["days"]


@pytest.mark.full
def test_days_choose_the_fewest_devices_that_meet_them(capsys):
    argv = [*LARGE, "--hardware=h100:2", "--config.precision.name=bf16", "--config.train.steps=100000"]
    text, result = in_lines(capsys, *argv, "--days=2"), answer(capsys, *argv, "--days=2")
    days = {each["devices"]: each.get("days") for each in result["counts"]}
    pick = result["pick"]
    assert days[pick] <= 2 and all(spent is None or spent > 2 for n, spent in days.items() if n < pick)
    assert text[0].startswith("fits: ") and f"on {pick} x H100" in text[0] and "at most 2 days" in text[0]
    again = answer(capsys, *text[3].removeprefix("paste: scalelab plan ").split(" "))
    assert again["verdict"]["fits"] and again["days"] == days[pick] and again["devices"] == pick
    assert any(line.startswith(f"> {pick:>8,} ") for line in text)
    assert main(["plan", *argv, "--days=1e-5"]) == 2
    nearest = capsys.readouterr().err.split("nearest: ")[1].split()[0]
    assert nearest.startswith("--days=") and answer(capsys, *argv, nearest)["pick"]


@pytest.mark.full
def test_money_chooses_the_fewest_devices_near_the_fastest_run_that_it_pays(capsys):
    argv = [*LARGE, "--hardware=h100:2", "--config.precision.name=bf16", "--config.train.steps=100000"]
    text, result = in_lines(capsys, *argv, "--budget=$9k"), answer(capsys, *argv, "--budget=$9k")
    paid = {each["devices"]: each["days"] for each in result["counts"] if each.get("cost", 1e9) <= 9000}
    pick = result["pick"]
    near = [devices for devices, days in paid.items() if days <= 1.05 * min(paid.values())]
    assert pick == min(near) and len(paid) < len(result["counts"])
    assert text[0].startswith("fits: ")
    assert text[0].endswith("the fewest within 5 % of the fastest tried that cost at most 9,000")
    again = answer(capsys, *text[3].removeprefix("paste: scalelab plan ").split(" "))
    assert again["verdict"]["fits"] and again["days"] == paid[pick] and again["cost"] <= 9000
    assert main(["plan", *argv, "--budget=10"]) == 2
    nearest = capsys.readouterr().err.split("nearest: ")[1].split()[0]
    assert nearest.startswith("--budget=") and answer(capsys, *argv, nearest)["pick"]


@pytest.mark.full
def test_what_is_left_free_is_chosen_the_fastest_and_named(capsys):
    argv = ["--config=llama3_2_1b", "--hardware=h100", "--devices=8"]
    kept, free = answer(capsys, *argv)["verdict"], in_lines(capsys, *argv, "--free=precision,optimizer")
    assert "; it changes the numbers of the training: precision.name" in free[0] and " in fp8;" in free[1]
    again = answer(capsys, *free[3].removeprefix("paste: scalelab plan ").split(" "))
    assert again["verdict"]["fits"] and again["verdict"]["days"] < kept["days"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--hardware=h100", "--free=batch"], "'batch' can't be left free; known: precision, optimizer"),
        (["--hardware=h100", "--free=precision", "--mesh=fsdp=2", "--devices=2"], "nearest: leave --mesh out"),
        (["--hardware=h100", "--budget=$50k"], "price of a device-hour of H100 SXM is not known; give it"),
        (["--hardware=h100:2.5", "--budget=$1"], "below one device-hour of H100 SXM; nearest: --budget=2.5"),
        (["--hardware=h100:2.5", "--budget=€"], "'€' is not an amount of money"),
        (["--hardware=h100:2.5", "--budget=$50k", "--devices=8"], "nearest: --devices=1..8"),
    ],
)
def test_money_and_freedom_for_a_config_are_refused_by_name(capsys, argv, message):
    assert main(["plan", TINY, *argv]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") <= 2


@pytest.mark.full
def test_the_front_leaves_out_what_another_count_beats_in_days_hours_and_memory(capsys):
    argv = ["--config=configs/recipes/llama3_8b.py", "--hardware=h100:2.5", "--devices=8..64"]
    counts = answer(capsys, *argv)["counts"]
    hours = {each["devices"]: each["device_hours"] for each in counts}
    assert {each["devices"]: each["front"] for each in counts} == {8: False, 16: True, 32: True, 64: True}
    assert hours[8] > hours[16]  # as it has to split the weights by tensor
    marks = [line[0] for line in in_lines(capsys, *argv)[6:10]]
    assert marks == [" ", "*", "*", ">"]


@pytest.mark.parametrize(
    ("argv", "nearest"),
    [
        (["--devices=4"], "nearest: --devices=1..4"),
        (["--mesh=fsdp=2"], "--mesh is for one number of devices; nearest: leave --days out"),
        (["--single-gpu"], "nearest: leave --days out"),
    ],
)
def test_days_refuse_what_is_of_one_plan(capsys, argv, nearest):
    assert main(["plan", TINY, "--hardware=h100", "--days=3", *argv]) == 2
    assert nearest in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--against=model.n_layers=4", "--why", "--serve-batch=2", "--mtbf-hours=9"])
def test_a_range_of_devices_refuses_what_is_of_one_plan(option, capsys):
    assert main(["plan", *LARGE, "--hardware=h100:2", "--devices=1..4", option]) == 2
    assert f"{option.split('=')[0]} is for one number of devices; nearest: --devices=1" in capsys.readouterr().err


@pytest.mark.full
def test_a_range_takes_a_price_with_its_machine_and_refuses_a_missing_unit(capsys):
    result = answer(capsys, *LARGE, "--hardware=h100:2", "--devices=8..8")
    assert result["counts"][0]["cost"] == pytest.approx(2 * result["counts"][0]["device_hours"])
    assert main(["plan", *LARGE, "--hardware=a100", "--devices=8..8", "--config.precision.name=fp8"]) == 2
    assert "has no fp8 unit" in capsys.readouterr().err


@pytest.mark.full
def test_a_printed_command_keeps_what_was_asked(capsys):
    options = ["--critical-batch=1000000.0", "--mtbf-hours=9.0", "--serve-batch=2", "--price=2.0"]
    line = in_lines(capsys, *LARGE, "--hardware=h100", "--devices=8", *options)[3]
    assert "scalelab plan" in line and all(option in line for option in options)


@pytest.mark.full
def test_405_billion_parameters_begin_with_the_plan_that_no_warm_up_of_the_batch_pins(capsys):
    """The plan as asked is the remark; both train on as many tokens. On a mesh of one's own that is the plan."""
    argv = ["--config=configs/recipes/llama3_405b.py", "--hardware=h100", "--devices=16384"]
    text, result = in_lines(capsys, *argv), answer(capsys, *argv)
    assert text[0].startswith("fits: ") and "changes the numbers of the training: schedule.batch_stages" in text[0]
    assert text[4].startswith("pinned: the batch's warm-up") and "512 sequences" in text[4] and not text[5]
    paste = text[3].removeprefix("paste: scalelab plan ").split(" ")
    free, verdict = answer(capsys, *paste), result["verdict"]
    assert free["verdict"]["fits"] and free["verdict"]["step_s"] == verdict["step_s"] <= 12.6
    assert in_lines(capsys, *paste)[1:3] == text[1:3] and verdict["days"] < 140
    assert free["tokens"] == pytest.approx(result["tokens"], rel=1e-5)
    assert verdict["with_batch_warmup"]["days"] == result["days"] > 3 * verdict["days"]
    meshed = in_lines(capsys, *argv, "--mesh=fsdp=512,tensor=8,context=4")
    assert meshed[2].split(" a step")[0] == "time: 47 s (38.7 to 94)" and meshed[3].startswith("pinned: ")


@pytest.mark.full
def test_an_fp32_plan_that_runs_names_what_16_bits_would_save(capsys):
    argv = [*LARGE, "--hardware=h100", "--devices=8", "--mesh=fsdp=8", "--config.train.accumulate=8"]
    text, result = in_lines(capsys, *argv), answer(capsys, *argv)
    words = "faster: in 16 bits, which changes the numbers of the training, "
    assert text[3].startswith(words) and any("would save" in line and "precision.name=bf16" in line for line in text)
    assert "precision.name" in result["verdict"]["in_16_bits"]["alters"]
    again = in_lines(capsys, *text[3].split(": scalelab plan ")[1].split(" "))
    assert again[2].startswith(f"time: {text[3].removeprefix(words).split(' a step')[0]} (") and "in bf16" in again[1]


CHANCES = [(1.01, "runs out of memory"), (0.95, "fits"), (1.3, "")]


@pytest.mark.parametrize(("spare", "words"), one_in(3, others_slow(lambda spare, _: spare < 1.3, CHANCES)))
def test_a_margin_below_the_error_of_the_account_is_said_as_a_chance(tmp_path, capsys, spare, words):
    memory, whole = answer(capsys, TINY, "--hardware=h100")["memory_bytes"], load_machine("h100").chip.hbm_bytes
    card = tmp_path / "card.json"
    share = memory["total"] * spare / memory["capacity"]
    card.write_text(json.dumps({"base": "h100", "hbm_bytes": round(whole * share)}))
    first = in_lines(capsys, TINY, f"--hardware={card}")[0]
    assert first.startswith("fits: " if spare > 1 else "does not fit: ")
    assert (f"that it {words} all the same: compiled peaks" in first) == bool(words), first
    assert not words or "checks/results/compiled.md" in first
