"""Look at data: the rows of a step's batch, and what a corpus holds (`scalelab data show`, `data stats`)."""

import pathlib
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab.api.arguments import ANY_PATH, STORED, Facts, Path, check_arguments, optional, whole
from scalelab.api.door import Config, Overrides, load_config
from scalelab.data.batches.origins import make_excerpts
from scalelab.data.inspect.rows import Masks, Row, check_step, describe_rows
from scalelab.data.inspect.stats import SplitStats, source_epochs, split_stats
from scalelab.data.prepare import prepared
from scalelab.errors import BadInput, quote_path
from scalelab.model.attention.documents import DocumentEnds, prediction_targets
from scalelab.record import records
from scalelab.report.studies import corpora
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.run.sources import make_train_batches
from scalelab.train.single import load_run_dataset

if TYPE_CHECKING:
    from ml_collections import ConfigDict

TEXT = 60  # characters shown of each document's stretch


class DataShown(NamedTuple):
    """The rows that a step reads: `documents` is the config's data.documents, `seq_len` its length in tokens."""

    folder: str
    step: int
    seq_len: int
    documents: str
    rows: list[Row]


class DataStats(NamedTuple):
    """A corpus by source and split, and the epochs of the run that was asked about ([] without one).

    `lossy`: whether the tokenizer lost text, so that bits per byte are a lower bound.
    """

    folder: str
    seq_len: int
    fingerprint: str
    splits: list[SplitStats]
    epochs: list[Facts]
    lossy: bool


@check_arguments(source=STORED, step=optional(whole(1)))
def data_show(
    source: Path, *, config: Config | None = None, overrides: Overrides | None = None, step: int | None = None
) -> DataShown:
    """Show the rows that a step reads (`scalelab data show`): documents' borders, masked targets, source and position.

    `source`: a prepared folder, whose batches are those of `config` (default: configs/base.py) with `overrides`; or a
    run's folder, "RUN@STEP". Steps count from 1, as in metrics.jsonl; step 1 is the default.
    """
    folder, at = _split_step(str(source), step)
    tree = _read_config(folder, config, overrides)
    check_step(at, tree.train.steps)
    record = records.read_record(folder) if _is_run(folder) else {}
    if record.get("rewinds") or record.get("changes_by_hand"):
        raise BadInput(
            f"{folder} went back and passed over batches, which its config does not say: "
            f"`scalelab diagnose {quote_path(folder)} --batch={at}` reads the memory of its checkpoints"
        )
    dataset = load_run_dataset(tree)
    _check_same_data(folder, record, dataset.fingerprint)
    batches = make_train_batches(tree, dataset)
    masks = _mask_function(tree, dataset.separator)
    rows = describe_rows(dataset, batches.at(at - 1), at - 1, masks, make_excerpts(tree.data), TEXT)
    return DataShown(str(folder), at, tree.model.seq_len, tree.data.documents, rows)


@check_arguments(source=STORED)
def data_stats(source: Path, *, config: Config | None = None, overrides: Overrides | None = None) -> DataStats:
    """Count a corpus (`scalelab data stats`): documents, tokens, bytes a token, lengths against seq_len, copies, leaks.

    `source`: a prepared folder or a run's. With a run, a config or overrides also the epochs by source of that run.
    """
    folder = pathlib.Path(source)
    tree = _read_config(folder, config, overrides)
    dataset = load_run_dataset(tree)
    if _is_run(folder):
        _check_same_data(folder, records.read_record(folder), dataset.fingerprint)
    seq_len, epochs = tree.model.seq_len, []
    if _is_run(folder) or config is not None or overrides:
        epochs = source_epochs(make_train_batches(tree, dataset).seen(tree.train.steps))
    lossy = dataset.description.get("bpb_bound") == "lower"
    return DataStats(str(folder), seq_len, dataset.fingerprint, split_stats(dataset, seq_len), epochs, lossy)


@check_arguments(out=ANY_PATH)
def draw_data(shown: DataShown | DataStats, out: Path) -> str:
    """Write what `data_show` or `data_stats` returned as an HTML page (`scalelab data … --out`); returns its path."""
    if isinstance(shown, DataShown):
        title, rows = f"Step {shown.step} of {pathlib.Path(shown.folder).name}", shown.rows
        return str(corpora.write_rows_page(pathlib.Path(out), title, shown.seq_len, shown.documents, rows))
    if not isinstance(shown, DataStats):
        raise BadInput(f"shown={str(shown)[:60]} is not what data_show or data_stats returns")
    return str(corpora.write_stats_page(pathlib.Path(out), pathlib.Path(shown.folder).name, shown._asdict()))


def _split_step(source: str, step: int | None) -> tuple[pathlib.Path, int]:
    """(folder, step) of RUN@STEP, or of a folder and `step`."""
    head, sign, tail = source.rpartition("@")
    if sign and tail.isdecimal() and not pathlib.Path(source).exists():
        if step is not None:
            raise BadInput(f"{source} names a step, and --step={step} another: leave one out")
        return pathlib.Path(head), int(tail)
    return pathlib.Path(source), 1 if step is None else step


def _is_run(folder: pathlib.Path) -> bool:
    return (folder / "config.json").is_file()


def _read_config(folder: pathlib.Path, config: Config | None, overrides: Overrides | None) -> "ConfigDict":
    """The config of a run's folder; or of a prepared one: its data, and `config` or the defaults for the rest."""
    if _is_run(folder):
        if config is not None or overrides:
            raise BadInput(f"{folder} is a run with its own config: leave --config out, or name a prepared folder")
        return config_lib.resolve(config_from_facts({"config": records.read_config(folder)}), stored=True)
    for key in {"data.source", "data.path"} & set(overrides or ()):
        raise BadInput(
            f"--config.{key} names other data than {folder}: leave it out, or name those instead of {folder}"
        )
    index = prepared.read_prepared_index(prepared.prepared_folder(str(folder)))
    data = {"data.source": "prepared", "data.path": str(folder)}
    if config is None:
        data["model.vocab_size"] = index["tokenizer"]["vocab_size"]
    tree = config_lib.default_tree() if config is None else config
    return load_config(tree, {**data, **(overrides or {})})


def _check_same_data(folder: pathlib.Path, record: Facts, fingerprint: str) -> None:
    if record.get("data", {}).get("fingerprint") not in (None, fingerprint):
        raise BadInput(f"the data of {folder} are not those that it read: their fingerprint is {fingerprint} now")


def _mask_function(config: "ConfigDict", separator: int) -> Masks:
    """The targets that count, by the function that the training step calls."""
    ends = DocumentEnds(separator=jnp.int32(separator)) if config.data.documents == "mask" else None

    def counted(rows: np.ndarray) -> np.ndarray:
        return np.asarray(prediction_targets(jnp.asarray(rows), ends)) >= 0

    return counted
