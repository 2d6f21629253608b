"""A trained run's model in a notebook: parameters, tokenizer, config, logits and samples."""

import dataclasses
import functools
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab import user_code
from scalelab.api.arguments import check_arguments, optional, whole
from scalelab.api.reading.tables import Source
from scalelab.errors import BadInput
from scalelab.evaluate import sample
from scalelab.evaluate.subject import EvaluatedModel, load_evaluated_model, load_model_tokenizer, next_token_logits

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run's weights on one device. `scalelab.evaluate` scores `model`; `model.origin` says which weights they are."""

    model: EvaluatedModel

    @property
    def params(self) -> Any:
        """The parameters: a nested dict of fp32 arrays, block parameters stacked along a leading `layers` axis."""
        return self.model.params

    @property
    def config(self) -> "ConfigDict":
        """The resolved config of the run."""
        return self.model.config

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the run's data: `encode(bytes)`, `decode(ids)`. BadInput if there is none."""
        return load_model_tokenizer(self.model)

    def logits(self, tokens: Any) -> np.ndarray:
        """Next-token logits of ids [S] or [B, S], S up to model.seq_len: [S, V] or [B, S, V] in fp32.

        BadInput for ids outside the vocabulary, or sequences that are too long.
        """
        try:
            ids = np.asarray(tokens)
        except ValueError as error:
            raise BadInput(f"tokens are not an array of ids: {str(error).partition(chr(10))[0]}") from None
        size, vocab = self.model.seq_len, self.config.model.vocab_size
        shape = "x".join(map(str, ids.shape))
        if ids.ndim not in (1, 2) or not np.issubdtype(ids.dtype, np.integer) or not 0 < ids.shape[-1] <= size:
            raise BadInput(f"tokens are {ids.dtype}[{shape}]; they must be ids [S] or [B, S], S = 1 to {size}")
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab):
            raise BadInput(f"tokens hold ids from {ids.min()} to {ids.max()}; the vocabulary has 0 to {vocab - 1}")
        separator = self.tokenizer.separator if self.config.data.documents == "mask" else 0
        logits = next_token_logits(self.model, np.atleast_2d(ids), separator)
        return logits if ids.ndim == 2 else logits[0]

    @check_arguments(tokens=optional(whole(1)), n=whole(1))
    def sample(
        self,
        prompt: str = "",
        tokens: int | None = None,
        n: int = 1,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Sample `n` continuations of `prompt`, each to its document's end or `tokens` tokens (`scalelab sample`)."""
        options = sample.SamplingOptions(temperature, top_k, top_p, seed)
        most = sample.default_tokens(self.model, self.tokenizer, prompt) if tokens is None else tokens
        drawn = sample.draw_samples(self.model, self.tokenizer, prompt, most, n, options)
        return [sample.decode_sample(self.tokenizer, one) for one in drawn]


@check_arguments(average=whole(1))
def load(run: Source, *, ema: bool = False, average: int = 1, trust: Collection[str] = ()) -> LoadedRun:
    """Load a run's weights: RUN (its last step) or "RUN@STEP"; the options are those of `scalelab eval`.

    BadInput for an absent run or step, or a run whose user code neither this program nor `trust` names;
    DamagedCheckpoint for a damaged step.
    """
    user_code.trust_names(*trust)
    return LoadedRun(load_evaluated_model(os.path.expanduser(run), ema, average))


def trust(*names: str) -> None:
    """Allow this program to run user code (`pkg.mod:fn`) that only a stored file names (`--trust`)."""
    for name in names:
        if not (isinstance(name, str) and all(name.partition(":"))):
            raise BadInput(f"{str(name)[:60]!r} is not of the form pkg.mod:fn")
    user_code.trust_names(*names)
