"""Rebuild the batch of a step from (seed, step): its sequences ranked by gradient norm, with their origins."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.data.batches.origins import locate_window, make_excerpts
from scalelab.data.dataset import Dataset
from scalelab.data.shards import Split
from scalelab.data.sources.sources import source_files
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.subject import Subject, load_subject
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.declare import with_variables
from scalelab.precision.policy import POLICIES
from scalelab.record import records
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.state import model_variables

EXCERPT = 60  # characters shown of a sequence


class Sequence(NamedTuple):
    """One row of a batch. `loss` in nats a token, `grad_norm` of its mean loss, both on the weights of `weights_step`.

    `document`: number of its first document in the shard, which begins `offset` tokens before; `file`: "" if the source
    has no files; `excerpt`: the row's beginning, escaped.
    """

    row: int
    window: int
    loss: float
    grad_norm: float
    source: str
    shard: str
    token: int
    document: int
    offset: int
    file: str
    excerpt: str


def describe_batch(evidence: Evidence, step: int) -> tuple[int, list[Sequence]]:
    """Describe a batch: (the saved step whose weights score it, its sequences by falling gradient norm).

    `step` counts as in metrics.jsonl: step 1 reads batch 0. BadInput for a step that the run does not have, or without
    a checkpoint or the data.
    """
    if evidence.data is None:
        raise BadInput(f"--batch needs the run's data: {evidence.no_data}")
    if not 1 <= step <= evidence.steps:
        raise BadInput(f"--batch={step}: the run has steps 1 to {evidence.steps}")
    data, subject = evidence.data, _subject_before(evidence, step)
    number = subject.shift.number(step - 1)
    batches = data.batches.at(number)
    windows = batches.window_numbers(number)
    losses, norms = _scores(subject, step, batches.batch(number))
    config = config_from_facts({"config": records.read_config(evidence.folder)})
    files, excerpt = training_files(config, data.dataset), make_excerpts(config.data)
    rows = []
    for row, window in enumerate(windows.tolist()):
        if window >= 0:
            text = excerpt(batches.windows[np.array([window])][0], EXCERPT)
            origin = locate_window(data.dataset, batches.windows.views[0].shape[1] - 1, window)
            place = origin.source, origin.shard, origin.token, origin.document, origin.offset
            file = dict(enumerate(files.get(origin.source, []))).get(origin.number, "")
            rows.append(Sequence(row, window, float(losses[row]), float(norms[row]), *place, file, text))
    return subject.step, sorted(rows, key=lambda row: -row.grad_norm)


def _subject_before(evidence: Evidence, step: int) -> Subject:
    """Load the run at the last intact step saved before `step`, or at its first. BadInput if none is intact."""
    saved, damage = sorted(evidence.manifests, key=lambda s: (s >= step, abs(s - step))), list(evidence.damage)
    for each in saved:
        try:
            return load_subject(evidence, each)
        except DamagedCheckpoint as why:
            damage.append(str(why))
    reason = f": {damage[0]}" if damage else ""
    raise BadInput(f"--batch={step}: {evidence.folder} has no intact checkpoint whose weights could score it{reason}")


def _scores(subject: Subject, step: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute (loss [B], gradient norm [B]) of each row on the subject's weights."""
    static = subject.static
    variables = model_variables(subject.state)
    ends, policy = document_ends(static, subject.h, jnp.int32(step - 1)), POLICIES[static.precision]

    def mean_loss(params: Any, row: jax.Array) -> jax.Array:
        tokens = documents.split_inputs_targets(row[None], ends)
        sums = transformer.split_loss(static.model, with_variables(params, variables), tokens, 0.0, policy)
        # Only this field is differentiated; without z-loss it is the loss, with the losses that blocks have.
        return sums.objective / jnp.maximum(sums.tokens, 1.0)

    @jax.jit
    def scores(params: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
            loss, grads = jax.value_and_grad(mean_loss)(params, row)
            return loss, optax.tree.norm(grads)

        return jax.lax.map(one, tokens)

    losses, norms = scores(subject.params, jnp.asarray(tokens))
    return np.asarray(losses), np.asarray(norms)


def training_files(config: Any, dataset: Dataset) -> dict[str, list[str]]:
    """Find the file of each training document by comparing lengths; {} if the source has no files."""
    files = source_files(config.data)
    if not files:
        return {}
    (part,) = dataset.parts
    lengths, splits = _lengths(part.train), _lengths(part.val)
    held_out = {length: splits.count(length) for length in splits}
    names: list[str] = []
    for path in files:
        size = path.stat().st_size
        if len(names) < len(lengths) and lengths[len(names)] == size:
            names.append(str(path))
        elif size and not held_out.get(size):
            return {}  # the files have changed since the shards were made
    return {part.name: names} if len(names) == len(lengths) else {}


def _lengths(split: Split) -> list[int]:
    """Bytes of each document of a split of bytes, without the separator."""
    return [int(length) - 1 for offsets in split.offsets for length in np.diff(offsets)]
