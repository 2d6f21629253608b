"""How much a run reads of each data source: planned, and up to a step."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab.config import mixture_text
from scalelab.config.steps import schedule_steps, stretches
from scalelab.data.batches.batches import Begin, TrainBatches, train_batches
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput


def make_train_batches(config: ConfigDict, dataset: Dataset) -> TrainBatches:
    """The training batches of a config, those of its noted stretches one after the other.

    BadInput if its mixture or its cap doesn't fit the sources.
    """
    batches: TrainBatches | None = None
    *former, last = schedule_steps.run_stretches(config)
    for stretch in former:
        try:
            batches = _stretch_batches(dataset, stretch, batches)
        except BadInput:  # they were read from other data, which are not here
            batches = None
    return _stretch_batches(dataset, last._replace(**stretches.data_order(config)), batches)


def _stretch_batches(dataset: Dataset, stretch: stretches.Stretch, earlier: TrainBatches | None) -> TrainBatches:
    """The batches of a stretch after those of the `earlier` one."""
    begin = Begin(stretch.step, stretch.batch, stretch.position, stretch.by_source, earlier) if stretch.batch else None
    size = stretch.rows * stretch.accumulate, stretch.seed, stretch.accumulate, stretch.ramp
    return train_batches(dataset, stretch.seq_len, *size, stretch.mixture, stretch.unique_tokens, begin)


def reports_sources(config: ConfigDict, dataset: Dataset) -> bool:
    """Whether to report sources one by one: there are several, or the only one is capped."""
    return len(dataset.parts) > 1 or bool(config.data.unique_tokens)


def source_columns(seen: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """`{source: (tokens, epochs)}` as columns of a metrics line."""
    return {f"tokens/{name}": n for name, (n, _) in seen.items()} | {
        f"epochs/{name}": e for name, (_, e) in seen.items()
    }


def describe_split(dataset: Dataset) -> str:
    """Describe the split that training made: share got beside share asked; "" for data that came with their split."""
    facts = dataset.description.get("split")
    if not facts:
        return ""
    what = "pieces" if "cut_bytes" in facts else "documents"
    text = f"validation: {facts['bytes']:.1%} of the bytes ({facts['asked']:.1%} asked)"
    text += f", {facts['documents']:.1%} of the {what}"
    if "cut_bytes" in facts:
        text += "; whole documents miss that share, so long ones are cut at line ends into pieces of about "
        text += f"{facts['cut_bytes']:,} bytes"
    return text


def plan_sources(config: ConfigDict, dataset: Dataset) -> tuple[dict[str, Any], str]:
    """How much the run will read of each source: (for its record, in words). BadInput as `make_train_batches`."""
    read = make_train_batches(config, dataset)
    if not reports_sources(config, dataset):
        return {}, ""
    total, in_use = read.seen(config.train.steps), read.unique_tokens
    sizes = {part.name: part for part in dataset.parts}
    facts = {
        name: {
            "tokens": tokens,
            "epochs": epochs,
            "unique_tokens": in_use[name],
            "val_tokens": sizes[name].val.n_tokens,
            "bytes_per_token": sizes[name].bytes_per_token,
        }
        for name, (tokens, epochs) in total.items()
    }
    stages = [
        {"step": stage.step, "shares": {name: float(share) for name, share in stage.shares.items()}}
        for stage in mixture_text.parse_mixture(config.data.mixture)
    ]
    everything = sum(tokens for tokens, _ in total.values())
    words = [
        f"{name} {tokens / everything:.1%} of the tokens, {epochs:.3g} epochs of {in_use[name]:,}"
        for name, (tokens, epochs) in total.items()
    ]
    by = config.data.mixture or "natural proportions"
    return {"mixture": stages, "sources": facts}, f"sources ({by}): {'; '.join(words)}"
