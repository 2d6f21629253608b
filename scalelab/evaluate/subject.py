"""What is evaluated: weights of a run on this device, how its data were cut, and the scores of any tokens.

Shapes: B batch, S sequence.
"""

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab.config import Layout, Static, static
from scalelab.data.prepare.prepared import load_run_tokenizer
from scalelab.data.tokenizers import load
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.train.resume.weights import Weights, load_run_weights
from scalelab.train.step.gradients import document_ends

PADDING_ID = -1
CHUNK_TOKENS = 2**13  # tokens scored at once; more gain nothing on a CPU and little elsewhere


class EvaluatedModel(NamedTuple):
    """Weights, their program's static half for one device, and the parameters there. `config` is the run's, resolved."""

    config: ConfigDict
    static: Static
    params: Any
    origin: dict[str, Any]

    @property
    def seq_len(self) -> int:
        """The longest sequence it was trained on."""
        return self.static.model.seq_len


def load_evaluated_model(source: str, ema: bool = False, last: int = 1) -> EvaluatedModel:
    """The weights of RUN or RUN@STEP (see `weights.load_run_weights`), ready to be run."""
    return make_evaluated_model(load_run_weights(source, ema, last))


def make_evaluated_model(weights: Weights) -> EvaluatedModel:
    """Weights ready to be run, on one device and under the precision that they were trained in."""
    alone = dataclasses.replace(static(weights.config), layout=Layout())
    return EvaluatedModel(weights.config, alone, jax.device_put(weights.params), weights.origin)


def load_model_tokenizer(of: EvaluatedModel) -> Tokenizer:
    """The tokenizer of its data. BadInput where they have none, or where it is no longer the one it was trained with."""
    if entry := of.origin["data"].get("kept"):  # imported weights, with their own
        return load.load_indexed_tokenizer(entry, pathlib.Path(of.origin["run"]))
    found, trained = load_run_tokenizer(of.config.data), of.origin["data"]["tokenizer"]
    check_same_ids(of, found.name)
    if trained is None:
        raise BadInput(
            f"{of.origin['run']} holds imported weights, whose tokenizer is not known here: `scalelab import hf` keeps a tokenizer.json that fits"
        )
    return found


def check_same_ids(of: EvaluatedModel, name: str) -> None:
    """BadInput where a tokenizer, by its name, gives other ids than those the weights were trained on."""
    trained = of.origin["data"]["tokenizer"]
    if trained not in (None, name):
        raise BadInput(
            f"{of.origin['run']} was trained on ids of {trained!r}, these are of {name!r}: they mean other text"
        )


class TokenScores(NamedTuple):
    """Of each token of [B, S+1] after the first: nats [B, S], whether it counts, whether it was the likeliest.

    Padding doesn't count, nor does a document's first token where documents don't see each other; their nats are 0.
    """

    nats: np.ndarray
    counts: np.ndarray
    best: np.ndarray


def token_losses(of: EvaluatedModel, tokens: np.ndarray, separator: int) -> TokenScores:
    """The scores of `tokens` [B, S+1], as the run's training has them; `separator` is the id that ends a document."""
    found = _token_losses(of.static, of.params, np.asarray(tokens, np.int32), np.int32(separator))
    return TokenScores(*map(np.asarray, found))


@functools.partial(jax.jit, static_argnums=0)
def _token_losses(static: Static, params: Any, tokens: jax.Array, separator: jax.Array) -> tuple[jax.Array, ...]:
    policy = POLICIES[static.precision]
    inputs_BS, targets_BS, packed = documents.split_inputs_targets(
        tokens, document_ends(static, {"separator": separator})
    )
    with product_precision(policy):
        nll_BS, best_BS = transformer.token_losses(static.model, params, inputs_BS, targets_BS, policy, packed)
    return nll_BS, targets_BS >= 0, best_BS
