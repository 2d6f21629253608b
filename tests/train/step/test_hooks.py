"""Functions of the user inside the step: metrics, evaluation metrics, a loss term, a block, documents."""

import json
import os
import re
import shlex
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scalelab
from docs import own
from scalelab import config as config_lib
from scalelab import user_code
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
from scalelab.errors import BadInput
from scalelab.evaluate import sample, subject
from scalelab.model import count, transformer
from scalelab.model.declare import named_leaves
from scalelab.plan.step.block_products import block_products
from scalelab.record import listing, records
from scalelab.testing import check_block, check_hooks, check_source
from scalelab.train import formats_found
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume.weights import Weights
from scalelab.train.step.gradients import compute_gradients
from tests.quick import one_in
from tests.train.runs import ROOT, SMALL
from tests.train.step.test_step import H, batches, init, relative, setting, step

PAGE = (ROOT / "docs" / "fork.md").read_text()
OWN = {
    "train.metrics": "docs.own:moved", "eval.metrics": "docs.own:accuracy", "train.loss": "docs.own:confidence",
    "model.block": "docs.own:gained", "data.source": "docs.own:sums",
}  # fmt: skip
SILENT = "docs.own:silent"  # metrics of the step's activations and logits
QUIET = "docs.own:quiet"  # a block with a loss of its own
SEEDS = """
from scalelab.configs.tiny import get_config

def sweep(h):
    return h.sweep("train.seed", range(2))
"""
CONTRACT = """
import json
from docs import own
from scalelab.testing import check_hooks, hooks
functions = {"train.metrics": lambda a: own.moved(a) | own.silent(a), "eval.metrics": own.accuracy,
             "train.loss": own.confidence, "model.block": own.gained}
report = check_hooks(functions)
hooks.MESH_LAYOUT = {"fsdp": 2, "context": 2}
ring = check_hooks(functions, **{"data.documents": "mask", "log.layers_every": 1})
print(json.dumps([report.layout, ring.layout, report.values]))
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A packed sweep over two seeds with the five functions of docs/own.py; its folder."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "seeds.py").write_text(SEEDS)
    options = [f"--config.{key}={name}" for key, name in OWN.items()]
    short = ["--config.train.steps=4", "--config.log.every_steps=2", "--config.sweep.pack=vmap"]
    short += ["--config.model.n_layers=1", "--config.train.steps_per_dispatch=4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        words = ["sweep", f"--config={folder}/seeds.py", f"--workdir={folder}/out", *SMALL, *short, *options]
        assert main(words) == 0
    return folder / "out"


@pytest.mark.full
def test_own_values_are_logged_in_a_pack_and_are_columns_of_runs(swept, capsys):
    runs = sorted((swept / "runs").iterdir())
    for run in runs:
        lines = records.read_metrics(run)
        trained = [line for line in lines if "train_loss" in line]
        assert [line["step"] for line in trained] == [2, 4]
        for line in trained:
            assert 0 < line["moved/embed"] < 1 and -0.01 * np.log(256) <= line["loss_term"] < 0
        (scored,) = [line for line in lines if "val_loss" in line]
        assert 0 < scored["eval/accuracy"] < 1
        row = listing.read_run(run)
        assert row["eval/accuracy"] == scored["eval/accuracy"] and row["moved/embed"] == trained[-1]["moved/embed"]
        assert all(row[key] == name for key, name in OWN.items())
    one, two = (records.read_metrics(run)[0]["moved/embed"] for run in runs)
    assert one != two
    assert main(["runs", str(swept), "--show=name,eval/accuracy,moved/embed", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.full
def test_a_stored_run_runs_no_code_that_only_it_names(swept, monkeypatch):
    run = next((swept / "runs").iterdir())
    monkeypatch.setattr(user_code, "_trusted", set())
    with pytest.raises(BadInput, match=r"it is not run; if you trust it: --trust=docs\.own:gained"):
        scalelab.api.load(run).logits([1, 2, 3])
    loaded = scalelab.api.load(run, trust=[OWN["model.block"]])
    assert loaded.logits([1, 2, 3]).shape == (3, 256)


def test_the_page_names_each_function_with_its_key():
    named = set(re.findall(r"--config\.((?:train|eval|model|data)\.\w+)=(docs\.own:\w+)", PAGE))
    assert named == {*OWN.items(), ("model.block", QUIET), ("train.metrics", SILENT)}
    for name in (*OWN.values(), QUIET, SILENT):
        source = re.search(
            rf"^def {name.partition(':')[2]}\(.*?(?=^def |\Z)", (ROOT / "docs/own.py").read_text(), re.M | re.S
        )
        assert len(source[0].strip().splitlines()) <= 15
    user_code.trust_names(*OWN.values(), QUIET, SILENT)
    lines = re.findall(r"^    scalelab (train .*--config\.\w+\.(?:metrics|loss|block|source)=.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 6
    for words in map(shlex.split, lines):
        overrides, rest = config_lib.split_overrides(words)
        assert rest[:2] == ["train", "--config=configs/tiny.py"]
        config_lib.load(ROOT / "configs" / "tiny.py", overrides)


def seen(a):
    """`train.metrics` of the tests: what the forward pass of the step holds."""
    kept, log_p = a.activations(), jax.nn.log_softmax(a.logits())
    nats = -jnp.mean(jnp.take_along_axis(log_p, a.tokens[:, 1:, None], axis=-1))
    up = kept["mlp_norm"] @ a.params["blocks"]["mlp"]["up"]["w"]
    return {"nats": nats, "off": jnp.abs(kept["mlp/up"] - up).max(), "size": jnp.abs(up).max(),
            "few": a.logits(rows=2).shape[0], **own.silent(a)}  # fmt: skip


def test_metrics_see_the_activations_and_logits_of_the_step():
    """Their cross-entropy is the loss that the step reports, which it computes in chunks without holding logits."""
    user_code.trust_names("tests.train.step.test_hooks:seen")
    static, h = setting(**{"train.metrics": "tests.train.step.test_hooks:seen"})
    _, metrics = step(static, init(static, h), batches()[0], h)
    assert float(metrics["nats"]) == pytest.approx(float(metrics["train_loss"]), rel=1e-5)
    assert float(metrics["off"]) <= 1e-5 * float(metrics["size"]) and int(metrics["few"]) == 2
    assert 0 < float(metrics["silent/share"]) < 1


@pytest.mark.full
def test_a_loss_term_adds_its_gradient_and_leaves_the_reported_loss():
    static, _ = setting(**{"train.loss": "docs.own:confidence"})
    tokens, params = batches()[0], transformer.init_params(static.model, jax.random.key(0))

    def objective(params):
        logits = transformer.next_token_logits(static.model, params, tokens[:, :-1])
        log_p = jax.nn.log_softmax(logits)
        nll = -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], -1))
        term = 0.01 * jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, -1))
        return nll + term, (nll, term)

    (_, (nll, term)), expected = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    sums, grads = jax.jit(compute_gradients, static_argnums=0)(static, params, tokens, jnp.float32(0))
    assert relative(grads, expected) < 2e-6
    np.testing.assert_allclose([sums.nll / sums.tokens, sums.term / sums.tokens], [nll, term], rtol=1e-5)


def config(**changes):
    small = {"model.d_model": 16, "model.n_layers": 1, "model.seq_len": 16, "train.global_batch": 4}
    values = small | {key.replace("__", "."): value for key, value in changes.items()}
    return config_lib.resolve(config_lib.override(tiny.get_config(), values))


@pytest.mark.full
def test_a_block_of_ones_own_is_counted_and_planned_from_its_declarations():
    ours, plain = (config_lib.static(config(**more)).model for more in ({"model__block": "docs.own:gained"}, {}))
    gains = {name for name in named_leaves(transformer.parameter_declarations(ours)) if "gain" in name}
    assert gains == {"blocks.attention_gain.w", "blocks.mlp_gain.w"}
    assert count.count_parameters(ours)["total"] == count.count_parameters(plain)["total"] + 2 * 16
    assert count.count_parameters_by_group(ours)["own"] == 2 * 16
    assert count.flops_per_token(ours)["exact"] == count.flops_per_token(plain)["exact"]
    assert [p.name for p in block_products(ours)] == [p.name for p in block_products(plain)]


def attention_free(x, parts):
    return x + parts.mlp(parts.norm("mlp_norm", x))


def looks_ahead(x, parts):
    return x + jnp.roll(x, -1, axis=1)


def test_a_block_without_attention_counts_no_attention_and_its_plan_is_refused_by_name():
    name = f"{__name__}:attention_free"
    shape = config_lib.static(config(model__block=name)).model
    terms = count.appendix_f_flops(shape)
    assert [key for key in terms if terms[key] == 0] == [
        "qkv",
        "attention_logits",
        "softmax",
        "attention_values",
        "attention_output",
    ]
    per_token = {"mlp": 3 * 2 * shape.d_model * shape.d_ff, "head": 2 * shape.d_model * shape.vocab_size}
    assert count.flops_per_token(shape)["exact"] == 3 * sum(per_token.values())
    with pytest.raises(BadInput, match="the plan can't derive"):
        block_products(shape)


@pytest.mark.full
def test_samples_of_a_block_of_ones_own_are_the_likeliest_tokens_one_by_one():
    resolved = config(model__block="docs.own:gained")
    shape = config_lib.static(resolved).model
    params = transformer.init_params(shape, jax.random.key(1))
    model = subject.make_evaluated_model(Weights(resolved, params, {"run": "x"}))
    tokenizer = type(
        "Bytes",
        (),
        {"kind": "bytes", "separator": 0, "vocab_size": 256, "encode": lambda text: np.frombuffer(text, np.uint8)},
    )
    (drawn,) = sample.draw_samples(model, tokenizer, "ab", 4, 1, sample.SamplingOptions(temperature=0))
    ids = [0, *b"ab"]
    for _ in range(4):
        padded = np.array([ids + [0] * (16 - len(ids))])  # one length: one compilation
        ids.append(int(subject.next_token_logits(model, padded, 0)[0, len(ids) - 1].argmax()))
    assert drawn.ids == ids[3:] or drawn.ended


def test_documents_of_ones_own_are_the_tokens(tmp_path):
    assert check_source(own.sums) == 1000
    data = open_dataset(DataConfig(source="docs.own:sums", cache_dir=str(tmp_path)))
    assert data.description["source"] == "docs.own:sums"
    assert data.description["train_documents"] + data.description["val_documents"] == 1000
    texts = sum(len(text) for text in own.sums(""))
    assert data.parts[0].train.n_tokens + data.parts[0].val.n_tokens == texts + 1000


@pytest.mark.slow
def test_functions_of_ones_own_keep_their_contract_alone_packed_and_on_a_mesh():
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", CONTRACT], cwd=ROOT, env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    layout, ring, values = json.loads(done.stdout.splitlines()[-1])
    assert (layout, ring) == ({"fsdp": 2, "tensor": 2}, {"fsdp": 2, "context": 2})
    assert {"eval/val_loss", "eval/accuracy", "moved/embed", "silent/share", "loss_term"} <= set(values)


MISTAKES = """
import jax, jax.numpy as jnp, numpy as np

def python_if(a):
    if a.loss > 1:
        return {"x": 1.0}
    return {"x": 0.0}
def python_while(a):
    while a.loss > 1:
        pass
def of_numpy(a):
    return {"x": np.log(a.loss)}
def as_float(a):
    return {"x": float(a.loss)}
def vector(a):
    return {"x": a.tokens}
def builtin(a):
    return {"grad_norm": a.loss}
def column(a):
    return {"val_loss": a.loss}
def number(a):
    return a.loss
def absent(a):
    return {"x": a.logit}
def text(a):
    return {"x": "high"}
def no_argument():
    return {}
def wide(a):
    return a.hidden
def half(x, parts):
    return x[:, :1]
def twice(x, parts):
    return x + parts.attention(x) + parts.attention(x)
def axis(x, parts):
    return x + parts.product("p", x, "embed", "heads", 4)
def numbers(path):
    return [b"x", 3]
def empty(path):
    return []
def broken(path):
    yield "x"
    raise OSError("no disk")
def of_batch(x, parts):
    parts.loss("balance", jnp.mean(x))
    return x + parts.mlp(x)
def by_channel(x, parts):
    parts.loss("balance", x)
    return x + parts.mlp(x)
def same_name(x, parts):
    parts.loss("balance", x[..., 0])
    parts.count("balance", x[..., 0])
    return x + parts.mlp(x)
def bad_name(x, parts):
    parts.loss("z/loss", x[..., 0])
    return x + parts.mlp(x)
"""
REFUSED = {
    "train.metrics": {
        "python_if": "mistakes.py, line 5, in python_if: Python 'if' on a traced value; use jnp.where",
        "python_while": "line 9, in python_while: Python 'while' on a traced value; use jax.lax.while_loop",
        "of_numpy": "line 12, in of_numpy: numpy on a traced value; use jax.numpy",
        "as_float": "line 14, in as_float: a traced value has no number yet",
        "vector": "returned 'x', which has shape 4x17: a metric is one number",
        "builtin": "returned 'grad_norm', which the step logs itself: use mine/grad_norm",
        "column": "returned 'val_loss', which has the name of a value that every run has",
        "number": "a dict {name: number} is expected",
        "absent": "line 24, in absent: AttributeError: 'Step' object has no attribute 'logit'",
        "text": "returned 'x', which holds several arrays: a metric is one number",
        "no_argument": "TypeError: no_argument() takes 0 positional arguments but 1 was given",
        "typo": "mistakes has no 'typo'",
    },
    "eval.metrics": {"vector": "AttributeError: 'EvalArrays' object has no attribute 'tokens'"},
    "train.loss": {
        "wide": "returned a term that has shape 4x16x16: a metric is one number",
        "python_if": "AttributeError: 'LossArrays' object has no attribute 'loss'",
        "text": "returned a term that holds several arrays",
    },
    "model.block": {
        "half": "returned (1, 1, 16): a block returns the residual stream, here of shape (1, 16, 16)",
        "twice": "calls parts.attention twice",
        "axis": "'p' has an axis 'heads' of 4; axes are 'embed' (of 16) and 'mlp' (of any size)",
        "of_batch": "the sum 'balance' (losses) has shape []: a value for each token is expected, [B, S]",
        "by_channel": "the sum 'balance' (losses) has shape [1, 16, 16]: a value for each token is expected, [B, S]",
        "same_name": "the sum 'balance' (counts) comes twice: a sum is given once a block",
        "bad_name": "the sum 'z/loss' (losses) needs a name of letters, digits, _ and -: it is logged as block/z/loss",
    },
    "data.source": {
        "numbers": "document 2 is int, not str or bytes",
        "empty": "gave no document",
        "broken": "mistakes.py, line 43, in broken: OSError: no disk",
    },
}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """The folder of a user's file with a mistake in each function."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mistakes.py").write_text(MISTAKES)
    return folder


def opened(key, name):
    """What the door of a run does with a function of the user before it writes anything."""
    resolved = config(**{key.replace(".", "__"): f"mistakes:{name}"})
    spec = make_train_spec(resolved, {"dataset.separator": 0})
    if key == "data.source":
        return open_dataset(DataConfig(source=resolved.data.source))
    formats_found.check_user_metrics(spec.static, tuple(config_lib.flatten_hparams(spec.hparams)))
    if key == "model.block":
        return count.count_parameters(spec.static.model)
    return formats_found.step_formats(spec.static, spec.hparams)


@pytest.mark.parametrize(("key", "name"), one_in(4, [(key, name) for key, names in REFUSED.items() for name in names]))
def test_a_mistake_is_one_line(key, name, mistakes, monkeypatch):
    monkeypatch.chdir(mistakes)
    with pytest.raises(BadInput) as error:
        opened(key, name)
    assert REFUSED[key][name] in str(error.value) and "\n" not in str(error.value)
    assert f"{key}='mistakes:{name}'" in str(error.value)


def test_a_command_prints_the_line_alone_unless_asked_for_the_traceback(mistakes, monkeypatch, capsys):
    monkeypatch.chdir(mistakes)
    words = ["train", f"--config={ROOT}/configs/tiny.py", "--workdir=run", *SMALL]
    assert main([*words, "--config.train.metrics=mistakes:python_if"]) == 2
    line = "scalelab: mistakes.py, line 5, in python_if: Python 'if' on a traced value; use jnp.where"
    assert capsys.readouterr().err == f"{line} (train.metrics='mistakes:python_if')\n"
    assert not (mistakes / "run" / "config.json").exists()
    monkeypatch.setenv("SCALELAB_TRACE", "1")
    assert main([*words, "--config.train.loss=high"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and error.endswith(
        "train.loss='high' is not a function's name: my_module:my_function, or \"\" for none\n"
    )


def test_what_has_no_place_in_a_program_is_refused_by_both_keys():
    for changes, words in (
        ({"train__loss": "docs.own:confidence", "optim__name": "sophia_g"}, "sophia_g estimates the curvature"),
        (
            {"model__block": QUIET, "optim__name": "sophia_g"},
            "docs.own:quiet' has a loss of its own: sophia_g estimates",
        ),
        ({"train__loss": "docs.own:confidence", "parallel__stage": 2}, "parallel.stage=1, not 2"),
        ({"model__block": "docs.own:gained", "model__norm_place": "after"}, "nearest: 'before'"),
    ):
        with pytest.raises(BadInput) as error:
            spec = config(**changes)
            from scalelab.train.step.hooks import refuse_unsupported

            refuse_unsupported(config_lib.static(spec))
        assert words in str(error.value)


def test_the_contracts_name_what_is_wrong():
    with pytest.raises(AssertionError, match="logits change with later tokens"):
        check_block(looks_ahead)
    with pytest.raises(AssertionError, match="document 1 is another one in a second pass"):
        counter = iter(range(100))
        check_source(lambda path: [f"{next(counter)}"])
    with pytest.raises(AssertionError, match="returned 'x', which has shape"):
        check_hooks({"train.metrics": lambda a: {"x": a.tokens}})


def test_a_metric_is_no_part_of_the_identity_and_a_loss_term_is():
    plain, measured, other = (
        config_lib.identity(config(**more))
        for more in ({}, {"train__metrics": "docs.own:moved"}, {"train__loss": "docs.own:confidence"})
    )
    assert plain == measured != other and H
