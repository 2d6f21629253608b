"""An optimizer, a schedule and a scaling law of one's own, each named on the command line: docs/fork.md runs them."""

import contextlib
import sqlite3

import jax
import jax.numpy as jnp
import optax

from scalelab.laws import Coefficient, Exponent


def signs(declared, o, h, lr):
    """signSGD with momentum (Bernstein et al. 2018): an optax transform of gradients into directions.

    `declared`: the parameters' declarations, `o`: options that are compiled in, `h`: numbers that are traced, by
    key (h.optim.beta1, …), `lr`: the step's LR. Weight decay, clipping, multipliers and -LR are the chain's.
    """
    return optax.chain(optax.trace(h.optim.beta1), optax.stateless(lambda g, _: jax.tree.map(jnp.sign, g)))


def soft_signs(declared, o, h, lr):
    """g / (|g| + gamma): a sign that is soft near 0. `gamma` is a number of its own, traced:
    --config.optim.own.gamma=0.025.
    """
    return optax.stateless(lambda g, _: jax.tree.map(lambda x: x / (jnp.abs(x) + h.optim.own.gamma), g))


def triangle(step, h):
    """Up to the peak at half of the run, and down to 0 at its end. `step` and `h` are traced: no Python `if` on
    them.
    """
    return h.optim.peak_lr * (1.0 - jnp.abs(2.0 * (step + 1.0) / h.train.steps - 1.0))


def of_tokens(D, *, E: Coefficient, B: Coefficient, beta: Exponent):
    """L = E + B/D^beta

    Columns come first; parameters after the `*`, annotated with their kind (scalelab/laws/law/law.py).
    """
    return E + B / D**beta


def moved(a):
    """`train.metrics`: how far a step moves the embedding, relative to its size. Fields of `a`: StepArrays."""
    old, new = a.params["embed"]["w"], a.new_params["embed"]["w"]
    return {"moved/embed": jnp.linalg.norm(new - old) / jnp.linalg.norm(old)}


def silent(a):
    """`train.metrics`: the share of the MLP's gates that are shut, below 1 % of their largest, in the first 2 rows."""
    gate = jnp.abs(jax.nn.silu(a.activations(rows=2)["mlp/gate"]))
    return {"silent/share": jnp.mean(gate < 0.01 * gate.max())}


def accuracy(a):
    """`eval.metrics`: the share of tokens that were the likeliest. Fields of `a`: EvalArrays."""
    return {"accuracy": jnp.sum(a.correct) / jnp.maximum(jnp.sum(a.counts), 1)}


def confidence(a):
    """`train.loss`: 0.01 times the mean negative entropy of the predictions (Pereyra et al. 2017): LossArrays."""
    log_p = jax.nn.log_softmax(a.logits())
    return 0.01 * jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=-1))


def gained(x, parts):
    """`model.block`: attention and MLP, each with a learned gain for every channel (Touvron et al. 2021)."""
    x = x + parts.times * parts.gain("attention_gain", parts.attention(parts.norm("attention_norm", x)), fill=0.1)
    return x + parts.times * parts.gain("mlp_gain", parts.mlp(parts.norm("mlp_norm", x)), fill=0.1)


def quiet(x, parts):
    """`model.block`: the usual block, with a loss of its own on the size of what leaves it (Merity et al. 2017)."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    x = x + parts.times * parts.mlp(parts.norm("mlp_norm", x))
    parts.loss("size", 1e-3 * jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1))
    return x


def sums(path):
    """`data.source`: documents of additions. `path` is data.path, not used here."""
    for i in range(1000):
        yield f"{i} + {i * 7 % 100} = {i + i * 7 % 100}\n"


def to_sqlite(run):
    """`log.sinks`: the numbers of all trials in one SQLite file. `run`: TrackedRun; a step taken again is replaced."""
    with contextlib.closing(sqlite3.connect((run.sweep or run.folder) / "metrics.db", timeout=60)) as db:
        db.execute("create table if not exists metrics (run, step, name, value, primary key (run, step, name))")
        while True:
            step, scalars = yield
            rows = [(run.folder.name, step, name, value) for name, value in scalars.items()]
            db.executemany("insert or replace into metrics values (?, ?, ?, ?)", rows)
            db.commit()
