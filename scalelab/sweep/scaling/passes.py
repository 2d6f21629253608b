"""How often a study's runs read their training data: a law of fresh tokens does not know what repetition costs."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Passes(NamedTuple):
    """Passes over `train_tokens` of the fitted run that makes most of them, and of the held-out run."""

    train_tokens: int
    fitted: float
    held_out: float


def count_passes(train_tokens: int, fitted: Iterable[float], held_out: float) -> Passes:
    """Count the passes of fitted runs of these numbers of tokens, and of the held-out one."""
    return Passes(train_tokens, max(fitted, default=0.0) / train_tokens, held_out / train_tokens)


def describe_passes(facts: Mapping[str, Any] | None) -> str:
    """Warn that the held-out run repeats its data, with what that means for the prediction; "" where it does not.

    `facts`: a `Passes` as a mapping, None of a study that did not count them.
    """
    if not facts or facts["held_out"] <= max(1.0, facts["fitted"]):
        return ""
    return (
        f"the held-out run reads its {facts['train_tokens']:,} training tokens {facts['held_out']:.2g} times, the "
        f"fitted runs at most {facts['fitted']:.2g} times: the law does not know that repeated tokens are worth less, "
        "much less beyond some 4 passes (Muennighoff et al. 2023); prepare more text, or predict a smaller run"
    )
