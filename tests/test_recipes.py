"""Published recipes: the parameters their sources count, tokens and FLOPs, sources on every line."""

import ast
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import replace_hparams
from scalelab.config.mixture_text import parse_mixture, parse_stacks
from scalelab.config.steps import schedule_steps
from scalelab.model import count
from scalelab.record.soundness import size
from scalelab.sweep.scaling import recipes
from scalelab.sweep.scaling.shrink import shrink_recipe
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import many_steps
from tests.hf.oracle.counts import HERE
from tests.quick import one_in, others_slow

NAMES = recipes.list_recipes()


def parameters(name):
    return count.count_parameters(config_lib.static(recipes.find_recipe(name).config).model)


def last_digit(value):
    """What the last printed digit of a rounded number stands for: 540.35e9 -> 1e7."""
    digits, _, exponent = f"{value:e}".partition("e")
    return 10.0 ** (int(exponent) - len(digits.rstrip("0").partition(".")[2]))


def published(name):
    """Names of a recipe's published numbers, from its text: to load all recipes takes each worker two seconds."""
    for node in ast.parse((recipes.recipes_folder() / f"{name}.py").read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PUBLISHED":
            return list(ast.literal_eval(node.value))
    return []


COUNTED = [(name, key) for name in NAMES for key in published(name) if key not in ("tokens", "flops")]


@pytest.mark.parametrize(("name", "convention"), one_in(8, COUNTED))
def test_parameters_are_those_published(name, convention):
    """Whole numbers to the last parameter; rounded ones to half of what their last digit stands for.

    Some sources cut off the number of active parameters after a digit.
    """
    recipe = recipes.find_recipe(name)
    published, result = recipe.published[convention], parameters(name)[convention]
    if convention == "active":
        groups = count.count_parameters_by_group(config_lib.static(recipe.config).model)
        result -= sum(groups[group] for group in recipe.active_without)
    if isinstance(published, int):
        assert result == published
    else:
        digits = (result - published) / last_digit(published)
        assert -0.51 <= digits <= (1 if convention == "active" else 0.51)


ORACLE = json.loads((HERE / "counts.json").read_text())["models"]


@pytest.mark.parametrize("name", [n for n in ORACLE if n in NAMES])
def test_parameters_are_counted_as_by_transformers(name):
    """To the last parameter of transformers' own class, but for the parts that our model lacks, which it says."""
    theirs, recipe = ORACLE[name], recipes.find_recipe(name)
    ours = size.count_parameters(recipe.config.to_dict())
    assert (ours["total"], ours["active"]) == (theirs["without_absent"], theirs["active_without_absent"])
    assert theirs["total"] == theirs["without_absent"] + sum(theirs["absent"].values())
    assert all(any(what.split()[-1] in text for text in recipe.not_reproduced) for what in theirs["absent"])


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in ORACLE if n in NAMES])
def test_experts_are_declared_as_they_are_counted(name):
    config = recipes.find_recipe(name).config
    assert parameters(name) == size.count_parameters(config.to_dict())


@pytest.mark.parametrize("name", [n for n in NAMES if "tokens" in published(n)])
def test_tokens_are_those_published(name):
    """Within 2 %; a recipe of a first stage, or of the parts that carry over, names the tokens it lacks."""
    recipe = recipes.find_recipe(name)
    tokens = schedule_steps.tokens_before(recipe.config, recipe.config.train.steps)
    ratio = tokens / recipe.published["tokens"]
    assert ratio <= 1.02
    if ratio < 0.98:
        assert any("stage 2" in text or "last 500 B tokens" in text for text in recipe.not_reproduced)
        assert ratio > 0.8


def test_published_flops():
    """GPT-3's Table D.1 and Llama 3's section 3.2.1 are 6 N D; Gopher's is the authors' own count, an eighth above."""
    for name, low, high in (("gpt3_175b", 0.99, 1.01), ("llama3_405b", 0.99, 1.01), ("gopher_280b", 0.85, 0.9)):
        recipe = recipes.find_recipe(name)
        tokens = schedule_steps.tokens_before(recipe.config, recipe.config.train.steps)
        assert low < 6 * parameters(name)["total"] * tokens / recipe.published["flops"] < high


def test_gpt3s_learning_rate_stands_at_a_tenth_from_260_billion_tokens_on():
    config = recipes.find_recipe("gpt3_175b").config
    end = round(config.schedule.fall_share * config.train.steps)
    assert schedule_steps.tokens_before(config, end) == pytest.approx(260e9, rel=1e-4)


def test_the_batches_of_palm_and_llama_3():
    """Chowdhery et al. 2022, section 5, in tokens; Llama 3, section 3.4.1, and tokens seen where they change."""
    palm, llama = (recipes.find_recipe(name).config for name in ("palm_540b", "llama3_405b"))
    sizes = [
        schedule_steps.tokens_before(palm, step + 1) - schedule_steps.tokens_before(palm, step)
        for step in (0, 50_000, 254_999)
    ]
    assert [size / 2**20 for size in sizes] == [1, 2, 4]
    seen = [schedule_steps.tokens_before(llama, step) for step in (60, 342_161, 1_100_928)]
    assert seen == pytest.approx([252e6, 2.87e12, 15.6e12], rel=2e-3)


@pytest.mark.parametrize("name", ["llama3_8b", "llama3_70b", "llama3_405b"])
def test_llama_3s_recipes_have_its_published_shares_of_data(name):
    """Section 3.1.2: "roughly 50 % … general knowledge, 25 % … 17 % code tokens, and 8 % multilingual"."""
    text, source = recipes.find_recipe(name).data_shares
    shares = parse_mixture(text)[0].shares
    assert [float(share) for share in dict(shares).values()] == [0.5, 0.25, 0.17, 0.08] and "3.1.2" in source


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_says_where_it_is_from(name):
    """Each value that a file sets has a comment on its line, wherever a formatter has put it."""
    recipe = recipes.find_recipe(name)
    assert published(name) == list(recipe.published)
    result = recipes.list_choices(recipe)
    assert len(result) > 15 and [choice.key for choice in result if not choice.why] == []
    output = {choice.key: choice.why for choice in result}
    assert output["train.global_batch"] != output["eval.batches"] == "how a long run is monitored: our choice"


def test_what_a_preset_brings_is_the_presets_word():
    output = {choice.key: choice.why for choice in recipes.list_choices(recipes.find_recipe("opt_175b"))}
    assert output["model.d_model"] == "Table 1" and output["model.bias"].startswith("base.gpt2: Radford et al. 2019")


KEPT = {"position", "norm", "mlp", "norm_place", "qk_norm", "qk_norm_over", "tied_head", "bias", "qkv_bias",
        "nope_every", "logit_scale", "n_shared_experts", "router_scores", "router_groups", "balance_rate", "init_std",
        "projection_std", "depth_scaled_init", "rope_theta", "rope_share", "attention_softcap", "logit_softcap",
        "remat"}  # fmt: skip


def stacks(model):
    return parse_stacks(model.block, model.n_layers)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_one_has_the_recipes_choices(name):
    recipe = recipes.find_recipe(name).config
    config = shrink_recipe(recipe, d_model=64, steps=500)
    small, large = config.model, recipe.model
    assert {key: small[key] for key in KEPT} == {key: large[key] for key in KEPT}
    assert [stack.block for stack in stacks(small)] == [stack.block for stack in stacks(large)]
    assert small.n_layers == (large.nope_every or large.global_every or 2)
    assert small.vocab_size == 256 and small.seq_len == 128
    assert small.n_heads // small.n_kv_heads == min(4, large.n_heads // large.n_kv_heads)
    assert small.n_heads * small.d_head / 64 == pytest.approx(large.n_heads * large.d_head / large.d_model, rel=0.1)
    assert small.d_expert / 64 == pytest.approx(large.d_expert / large.d_model, abs=8 / 64)
    assert small.n_experts == min(large.n_experts, 16) and small.experts_per_token <= large.experts_per_token
    assert small.d_ff / 64 == pytest.approx(large.d_ff / large.d_model, abs=8 / 64)
    for group in ("optim", "schedule", "precision"):
        assert config[group].name == recipe[group].name
    assert config.schedule.warmup_steps == round(500 * recipe.schedule.warmup_steps / recipe.train.steps)
    first, full = (schedule_steps.tokens_before(c, 1) / schedule_steps.tokens_per_step(c) for c in (config, recipe))
    assert first == pytest.approx(full, abs=1 / 16)  # as small a part of the batch to begin with


# It has what others don't: parallel blocks, one key head, scaled logits, Adafactor, a batch that jumps. Others: slow.
QUICK = ("palm_540b",)


@pytest.mark.parametrize("name", others_slow(lambda name: name in QUICK, NAMES))
def test_a_small_one_trains(name):
    """Two steps on random bytes: finite losses that change."""
    config = shrink_recipe(recipes.find_recipe(name).config, d_model=32, steps=60)
    static = config_lib.static(config)
    h = replace_hparams(config_lib.hparams(config), {"log.every_steps": 1, "dataset.separator": 0})
    h = jax.tree.map(jnp.float32, h)
    batch = np.random.default_rng(0).integers(0, 256, (2, 16, config.model.seq_len + 1), np.int32)
    run, init = (jax.jit(function, static_argnums=0) for function in (many_steps, state_lib.init_state))
    state, metrics = run(static, init(static, h), jnp.asarray(batch), jnp.int32(2), h)
    losses = np.asarray(metrics["train_loss"])
    assert np.isfinite(losses).all() and losses[0] != losses[1] and int(state.step) == 2
    assert 4 < losses[0] < 8  # log 256 = 5.5
