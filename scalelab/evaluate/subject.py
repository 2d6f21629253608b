"""The evaluated model: a run's weights on one device, its tokenizer, and scores of any tokens.

Shapes: B batch, S sequence.
"""

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout, Static, group_hparams
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
CHUNK_TOKENS = 2**13  # tokens scored at once; more are not faster on a CPU and hardly elsewhere


class EvaluatedModel(NamedTuple):
    """A run's parameters on one device, with its resolved `config` and the static half of the program there."""

    config: ConfigDict
    static: Static
    params: Any
    origin: dict[str, Any]

    @property
    def seq_len(self) -> int:
        """The length of the sequences in training."""
        return self.static.model.seq_len


def load_evaluated_model(source: str, ema: bool = False, last: int = 1) -> EvaluatedModel:
    """Load the weights of RUN or RUN@STEP (see `weights.load_run_weights`) for evaluation."""
    return make_evaluated_model(load_run_weights(source, ema, last))


def make_evaluated_model(weights: Weights) -> EvaluatedModel:
    """Put weights on one device, under the precision of their training."""
    alone = dataclasses.replace(config_lib.static(weights.config), layout=Layout())
    return EvaluatedModel(weights.config, alone, jax.device_put(weights.params), weights.origin)


def load_model_tokenizer(model: EvaluatedModel) -> Tokenizer:
    """Load the tokenizer of the model's data. BadInput if there is none, or if it is not the one of the training."""
    if entry := model.origin["data"].get("kept"):  # imported weights come with their own
        return load.load_indexed_tokenizer(entry, pathlib.Path(model.origin["run"]))
    tokenizer, trained = load_run_tokenizer(model.config.data), model.origin["data"]["tokenizer"]
    check_same_ids(model, tokenizer.name)
    if trained is None:
        raise BadInput(
            f"{model.origin['run']} holds imported weights, whose tokenizer is not known here: `scalelab import hf` "
            "keeps a tokenizer.json that fits"
        )
    return tokenizer


def check_same_ids(model: EvaluatedModel, name: str) -> None:
    """Raise BadInput if the tokenizer of this name gives other ids than those the weights were trained on."""
    trained = model.origin["data"]["tokenizer"]
    if trained not in (None, name):
        raise BadInput(
            f"{model.origin['run']} was trained on ids of {trained!r}, these are of {name!r}: they mean other text"
        )


class TokenScores(NamedTuple):
    """Scores of the tokens [B, S+1] after the first: nats [B, S], whether each counts, whether it was the likeliest.

    Padding doesn't count, nor does a document's first token if documents are masked from each other; their nats are 0.
    """

    nats: np.ndarray
    counts: np.ndarray
    best: np.ndarray


def token_losses(model: EvaluatedModel, tokens: np.ndarray, separator: int) -> TokenScores:
    """Score `tokens` [B, S+1] as in the run's training; `separator` is the id that ends a document."""
    scores = _token_losses(model.static, model.params, np.asarray(tokens, np.int32), np.int32(separator))
    return TokenScores(*map(np.asarray, scores))


@functools.partial(jax.jit, static_argnums=0)
def _token_losses(static: Static, params: Any, tokens: jax.Array, separator: jax.Array) -> tuple[jax.Array, ...]:
    policy = POLICIES[static.precision]
    ends = document_ends(static, group_hparams({"dataset.separator": separator}))
    inputs_BS, targets_BS, packed = documents.split_inputs_targets(tokens, ends)
    with product_precision(policy):
        nll_BS, best_BS = transformer.token_losses(static.model, params, inputs_BS, targets_BS, policy, packed)
    return nll_BS, targets_BS >= 0, best_BS


def next_token_logits(model: EvaluatedModel, tokens: np.ndarray, separator: int) -> np.ndarray:
    """Next-token logits [B, S, V] in fp32 after each of `tokens` [B, S], as in the run's training."""
    return np.asarray(_next_token_logits(model.static, model.params, np.asarray(tokens, np.int32), np.int32(separator)))


@functools.partial(jax.jit, static_argnums=0)
def _next_token_logits(static: Static, params: Any, tokens: jax.Array, separator: jax.Array) -> jax.Array:
    policy, ends = POLICIES[static.precision], document_ends(static, group_hparams({"dataset.separator": separator}))
    packed = None if ends is None else documents.document_segments(tokens, *ends)
    with product_precision(policy):
        return transformer.next_token_logits(static.model, params, tokens, policy, packed)
