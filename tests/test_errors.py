"""Names that users try, and the names that they mean."""

import pytest

from scalelab.__main__ import main
from scalelab.config.keys import default_values
from scalelab.errors import nearest_hint, nearest_name

KEYS = [*default_values(), "optim", "model"]  # groups too, as `scalelab config` knows them


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("optim.lr", "optim.peak_lr"),
        ("learning_rate", "optim.peak_lr"),
        ("train.peak_lr", "optim.peak_lr"),
        ("batch_size", "train.global_batch"),
        ("train.batch_size", "train.global_batch"),
        ("eval.batch", "eval.batches"),
        ("model.hidden_size", "model.d_model"),
        ("model.n_layer", "model.n_layers"),
        ("optim.Weight_Decay", "optim.weight_decay"),
        ("optim.weightdecay", "optim.weight_decay"),
        ("optim.b1", "optim.beta1"),
        ("schedule.warmup", "schedule.warmup_steps"),
        ("train.eval_every", "eval.every_steps"),  # as several trainers call it
        ("eval.every", "eval.every_steps"),  # not optim.every, which has the same last part
        ("log.interval", "log.every_steps"),
        ("save_steps", "checkpoint.every_steps"),
        ("data.sourse", "data.source"),
        ("optim.peak_rl", "optim.peak_lr"),
        ("model.dropout", None),  # there is no such key, and none like it in its group
        ("xyz", None),
    ],
)
def test_a_key_as_others_call_it(word, meant):
    assert nearest_name(word, KEYS) == meant


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("adamW", ["sgd", "adam", "adamw"], "adamw"),
        ("hoffman", ["besiroglu", "chinchilla_1", "chinchilla_3"], "chinchilla_3"),
        ("llama3", ["llama2_7b", "llama3_8b", "llama3_405b"], "llama3_8b"),
        ("H100", ["h100_nvl", "h100", "a100"], "h100"),
        ("adma", ["adam", "adamw", "sgd"], "adam"),
        ("configs/quickstrat.py", ["configs/mup_transfer.py", "configs/quickstart.py"], "configs/quickstart.py"),
    ],
)
def test_case_then_the_fields_names_then_parts_then_letters(word, known, meant):
    assert nearest_hint(word, known) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--lr", "--config.optim.peak_lr"), ("--steps", "--config.train.steps"), ("--jsn", "--json")],
)
def test_an_option_that_is_a_config_key(capsys, option, meant):
    assert main(["train", "--config=configs/tiny.py", "--workdir=nowhere", f"{option}=1"]) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err
