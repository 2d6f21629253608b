"""One tiny byte model, trained once a process, that the tests of this room (and of its commands) score."""

import functools
import os
import pathlib
import shutil
import tempfile

import jax
import numpy as np

from scalelab.evaluate import subject
from scalelab.model import transformer
from scalelab.train.resume.weights import load_run_weights
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config

TEXT = ["def f(x):\n    return [x, (x)]\n", "for i in range(9):\n    print(i)\n", "while x:\n    x = g[x]\n"]


@functools.cache
def texts() -> str:
    """A glob of twelve files of 300 to 3,000 bytes."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ["SCALELAB_TEST_FOLDER"]))
    chance = np.random.RandomState(0)
    for i in range(12):
        (folder / f"{i}.txt").write_text("".join(TEXT[j] for j in chance.randint(3, size=10 + 8 * i)))
    return f"{folder}/*.txt"


def settings(**changes):
    """Its config: bytes, two checkpoints, an average of the weights."""
    data = {"data__source": "text", "data__path": texts(), "data__val_fraction": 0.3}
    sizes = {
        "model__seq_len": 32,
        "model__n_layers": 2,
        "train__ema": 0.7,
        "checkpoint__keep_last": 9,
        "optim__peak_lr": 0.03,
    }
    return config(**data | sizes | changes)


@functools.cache
def trained() -> pathlib.Path:
    """Its folder. Tests that write into it take a `copy`."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ["SCALELAB_TEST_FOLDER"])) / "run"
    train_single(settings(), folder)
    return folder


def copy(to: pathlib.Path) -> pathlib.Path:
    """The run as one's own."""
    shutil.copytree(trained(), to)
    return to


@functools.cache
def loaded() -> subject.EvaluatedModel:
    """Its weights."""
    return subject.make_evaluated_model(load_run_weights(str(trained())))


plain = jax.jit(transformer.next_token_logits, static_argnums=0)  # of a row alone


def log_softmax(logits):
    """In float64."""
    x = np.asarray(logits, np.float64)
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
