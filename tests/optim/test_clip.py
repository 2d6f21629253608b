"""The clippers against their papers' recurrences in float64, and who can have which."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.optim import clip, registry
from scalelab.optim.chain import build_optimizer_chain, second_moments
from scalelab.record.identity import identity
from tests.optim.frame import by_chain, nested, problem, setting
from tests.quick import one_in, others_slow
from tests.train.runs import ROOT, SMALL

LONG = 160  # steps: beyond every clipper's warm-up


@functools.cache
def spiked():
    """(declarations, params, gradients): falling noise with outliers of all tensors, of one, of a number."""
    declared, params, _ = problem()
    random = np.random.default_rng(1)
    sizes = {k: 10 ** random.uniform(-2, -1) for k in declared}
    gradients = []
    for t in range(LONG):
        size = (0.3 + np.exp(-t / 40)) * (30.0 if t in (40, 130) else 1.0)
        gradients.append({k: size * sizes[k] * random.normal(size=d.shape) for k, d in declared.items()})
    gradients[120]["blocks.mlp.up.w"][1] *= 50.0  # one layer's
    gradients[140]["head.w"][3, 5] = 400.0
    return declared, params, gradients


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(x)) for x in tree.values()))


def by_zclip(gradients, declared, most):
    """Kumar et al. 2025, Alg. 1, with the largest norm and eps of their code."""
    del declared
    buffer, mean, var = [], None, None
    for g in gradients:
        size = norm(g)
        bound = size
        if mean is None:
            buffer.append(size)
            if len(buffer) == 25:
                mean, var = np.mean(buffer), np.var(buffer)
        else:
            std = np.sqrt(var)
            z = (size - mean) / (std + 1e-6)
            if z > 2.5:
                bound = mean + 2.5 * std / (z / 2.5)
            mean = 0.97 * mean + 0.03 * bound
            var = 0.97 * var + 0.03 * (bound - mean) ** 2
        factor = min(1.0, min(bound, most) / size)
        yield {k: factor * x for k, x in g.items()}


def by_adagc(gradients, declared, most):
    """Wang et al. 2025, Alg. 1; a tensor is one layer's."""
    gamma = {}
    for t, g in enumerate(gradients):
        together, out = min(1.0, most / norm(g)), {}
        for k, x in g.items():
            layers = x if declared[k].stack else x[None]
            clipped = []
            for i, layer in enumerate(layers):
                size = np.linalg.norm(layer)
                factor = together if t < 100 else min(1.05 * gamma[k, i] / size, 1.0)
                after = factor * size
                gamma[k, i] = min(gamma.get((k, i), np.inf), after) if t < 100 else 0.98 * gamma[k, i] + 0.02 * after
                clipped.append(factor * layer)
            out[k] = np.stack(clipped) if declared[k].stack else clipped[0]
        yield out


def by_spam(gradients, declared, most, beta2=0.95):
    """Huang et al. 2025, Alg. 1 without the resets, after a global clip; from step 20 on, as in their code."""
    v = {k: np.zeros(d.shape) for k, d in declared.items()}
    for t, g in enumerate(gradients, start=1):
        factor, out = min(1.0, most / norm(g)), {}
        for k, x in g.items():
            x = factor * x
            if t >= 20:
                x = np.where(x**2 > 5000 * v[k], np.sign(x) * np.sqrt(5000 * v[k]), x)
            v[k] = beta2 * v[k] + (1 - beta2) * x**2
            out[k] = x
        yield out


PAPERS = {"zclip": by_zclip, "adagc": by_adagc, "spam": by_spam}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "most"),
    [pytest.param("zclip", 1e9, marks=pytest.mark.slow), ("zclip", 10.0), ("adagc", 1.0), ("spam", 1e9)],
)
def test_clipped_gradients_are_the_papers(kind, most):
    """Read off RMSProp's v, the running mean of what the clip passes on, squared; and the ratio of norms."""
    declared, params, gradients = spiked()
    static, h = setting("rmsprop", optim__clip=kind, optim__clip_norm=most, optim__beta2=0.95, optim__weight_decay=0.0)
    expected = list(PAPERS[kind](gradients, declared, most))
    sizes = [(norm(after), norm(before)) for after, before in zip(expected, gradients, strict=True)]

    def watch(state):
        inner = state[1].inner if kind == "spam" else state[1]
        return inner.nu, clip.clip_ratio(1.0, most, state)

    _, (v, ratio) = by_chain(static, h, params, gradients, [0.0] * LONG, watch=watch)
    running = {k: np.zeros(d.shape) for k, d in declared.items()}
    for t, after in enumerate(expected):
        running = {k: 0.95 * running[k] + 0.05 * np.square(after[k]) for k in running}
        if t in (0, 24, 25, 40, 41, 99, 100, 120, 130, 140, 141, LONG - 1):
            ours = jax.tree.map(lambda x: x[t], v)  # noqa: B023
            for (path, x), (k, wanted) in zip(
                jax.tree_util.tree_leaves_with_path(ours), named(running).items(), strict=True
            ):
                np.testing.assert_allclose(x, wanted, rtol=3e-4, err_msg=f"{t} {k} {path}")
    shares = np.array([after / before for after, before in sizes])
    if kind != "spam":
        np.testing.assert_allclose(ratio, shares, rtol=1e-4)
    spike = {"zclip": 40, "adagc": 120, "spam": 140}[kind]
    assert shares[spike] < 0.95 * shares[spike - 1] and (kind == "adagc" or shares.max() == 1)


def named(flat):
    """The arrays in the order of a nested tree's leaves."""
    return {
        ".".join(key.key for key in path): flat[".".join(key.key for key in path)]
        for path, _ in jax.tree_util.tree_leaves_with_path(nested(flat))
    }


LIKE_ADAM = {"adamw", "nadamw"}  # their second moment is kept and read by Adam's lines


@pytest.mark.parametrize("name", others_slow(lambda name: name not in LIKE_ADAM, one_in(8, registry.OPTIMIZERS)))
def test_spam_is_refused_by_name_where_no_second_moment_is_kept(name):
    """Each optimizer that has one gives it: positive wherever a gradient was, after one step of the chain."""
    optimizer = registry.find_optimizer(name)
    if optimizer.second_moment is None:
        with pytest.raises(BadInput, match=f"optim.name='{name}' does not keep; nearest: optim.clip=adagc"):
            clip.refuse_unsupported(name, "spam", optimizer)
        return
    declared, params, gradients = problem()
    static, h = setting(name, optim__clip="spam")
    _, state = by_chain(static, h, params, gradients[:2], [0.0, 0.0], watch=lambda state: second(static, h, state))
    for part in state:
        assert part.v.keys() == declared.keys() and float(part.correction[-1]) > 0
        assert all((np.asarray(v[-1]) > 0).all() for v in part.v.values())


def second(static, h, state):
    return [part._replace(eps=0.0 * part.eps) for part in second_moments(static, h, state)]


def test_a_number_without_a_past_is_not_held_at_zero():
    """v of a row that no batch had is zero: SPAM's rule would clip its first gradient to nothing, and all later."""
    declared, params, gradients = spiked()
    late = [{k: g.copy() for k, g in each.items()} for each in gradients[:40]]
    for each in late[:30]:
        each["embed.w"][7] = 0.0
        each["final_norm.g"][:] = 0.0  # nor does a tensor's mean begin with nothing
    for kind in ("spam", "adagc"):
        static, h = setting("rmsprop", optim__clip=kind, optim__weight_decay=0.0)
        after, _ = by_chain(static, h, params, late, [1e-3] * 40)
        assert (after["embed.w"][7] != np.float32(params["embed.w"][7])).all(), kind
        assert (after["final_norm.g"] != np.float32(params["final_norm.g"])).all(), kind
    assert declared


def test_runs_that_clip_as_before_keep_their_identity():
    configs = [
        config_lib.resolve(config_lib.override(tiny.get_config(), {"optim.clip": k})) for k in ("global", "zclip")
    ]
    former = {key: value for key, value in config_lib.leaves(configs[0]).items() if key != "optim.clip"}
    assert identity(former) == config_lib.identity(configs[0]) != config_lib.identity(configs[1])


def test_the_command_refuses_it_before_anything_is_written(tmp_path, capsys):
    command = ["--config=configs/tiny.py", *SMALL, "--config.optim.clip=spam", "--config.optim.name=lion"]
    assert main(["train", *command, f"--workdir={tmp_path / 'run'}"]) == 2
    assert main(["optim", *command]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "optim.name='lion' does not keep; nearest: optim.clip=adagc" in line]) == 2
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("kind", one_in(3, PAPERS))
def test_each_packed_trial_clips_by_its_own_past(kind):
    _, params, gradients = spiked()
    static, h = setting("adamw", optim__clip=kind, optim__clip_norm=1.0)
    runs = [gradients[:30], [{k: 0.1 * x for k, x in g.items()} for g in gradients[30:60]]]
    trees = [nested({k: np.stack([g[k] for g in run]) for k in params}) for run in runs]

    def ratios(gradients):
        transform = build_optimizer_chain(static, h, 1e-3)
        start = nested(params)

        def step(state, gradient):
            _, state = transform.update(gradient, state, start)
            return state, clip.clip_ratio(optax.tree.norm(gradient), h.optim.clip_norm, state)

        return jax.lax.scan(step, transform.init(start), gradients)[1]

    together = jax.jit(jax.vmap(ratios))(jax.tree.map(lambda *x: jnp.stack(x), *trees))
    alone = np.stack([jax.jit(ratios)(tree) for tree in trees])
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert (alone[0] < 1).any() and not np.allclose(alone[0], alone[1])


MESH = """
import dataclasses, sys
import jax, numpy as np
from scalelab.config import Layout
from scalelab.train.step.program import PACKINGS
from tests.train.step.test_step import setting

shape = {"model.n_layers": 4, "model.n_heads": 4, "model.n_kv_heads": 2, "model.d_head": 4, "model.seq_len": 32}
for kind in ("zclip", "adagc", "spam"):
    static, h = setting(**shape, **{"optim.clip": kind, "optim.clip_norm": 0.5})
    h = jax.tree.map(float, h)
    tokens = np.cumsum(np.random.default_rng(0).integers(1, 3, (26, 8, 33)), axis=-1) % 32

    def run(layout):
        program = PACKINGS["turn"](dataclasses.replace(static, layout=layout), [h])
        states, ratios = program.init(), []
        for part in (tokens[:13], tokens[13:]):  # the state leaves the mesh in between, as in a checkpoint
            states, (log,) = program.advance(states, [part[:, program.rows]], 13)
            ratios += jax.device_get(log["clip_ratio"]).tolist()
            states = program.join(jax.device_get(program.separate(states)))
        return np.array(ratios), jax.device_get(program.separate(states)[0].opt_state)

    expected, state = run(Layout())
    got, other = run(Layout(**eval(sys.argv[1])))
    np.testing.assert_allclose(got, expected, rtol=2e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-5), state, other)
    assert expected.min() < 1, kind
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"stage": 2, "fsdp": 2, "tensor": 2, "microbatches": 2, "schedule": "circular", "rounds": 2},
    ],
    ids=str,
)
def test_a_mesh_clips_as_one_device_does(layout):
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", MESH, repr(layout)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
