"""Use a trained run's weights: score, sample, export to and import from Hugging Face's files."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from scalelab import config as config_lib
from scalelab.api.arguments import FOLDER, Facts, Path, check_arguments, list_paths, optional, whole
from scalelab.api.door import Overrides, add_overrides, cache_programs
from scalelab.data.tokenizers.hf_json import spelled_tokens
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput
from scalelab.evaluate import evaluations, subject
from scalelab.evaluate import sample as sample_lib
from scalelab.evaluate import tasks as tasks_lib
from scalelab.evaluate.subject import load_model_tokenizer
from scalelab.hf.card import CardFacts, write_card
from scalelab.hf.formats import IRRELEVANT_KEYS, keys_without_effect
from scalelab.hf.write import DTYPES, WriteOptions, WrittenModel, find_format, write_model
from scalelab.record import records
from scalelab.train.resume.weights import (
    Weights,
    load_hf_tokenizer,
    load_hf_weights,
    load_run_weights,
    write_weights,
)
from scalelab.untrusted.paths import describe_link

if TYPE_CHECKING:
    from scalelab.evaluate.sample import Sample, SamplingOptions

Counted = Callable[[str, int, int], None]  # called with the work's name, how much is done, and of how much


def _uncounted(name: str, done: int, of: int) -> None:
    """Ignore a report."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Rows of evaluations.jsonl, the weights they score, sets they `replaced`, and why they were not written."""

    origin: Facts
    rows: list[Facts]
    replaced: list[str]
    not_written: str


@check_arguments(average=whole(1))
def evaluate(
    run: Path,
    *,
    data: Path | None = None,
    tasks: Path | Sequence[Path] = (),
    overrides: Overrides | None = None,
    sequences: int = 1000,
    ema: bool = False,
    average: int = 1,
    progress: Counted = _uncounted,
) -> Evaluated:
    """Score a run's weights on its data, other data, or tasks, and write the scores down (`scalelab eval`).

    `run`: a folder, or "RUN@STEP"; `data`: a prepared folder; `overrides`: other data, by the keys of `data`; `tasks`:
    files of tasks; `sequences`: the most to score of each source; 0: all. BadInput as the command.
    """
    cache_programs()
    other = {"data.source": "prepared", "data.path": os.fspath(data)} if data else {}
    requested = [tasks_lib.read_task(os.fspath(path)) for path in list_paths(tasks)]
    model = subject.load_evaluated_model(os.fspath(run), ema, average)
    config = evaluations.override_data(model.config, add_overrides(overrides, other))
    rows = evaluations.evaluate_tasks(model, requested, progress)
    rows = [*evaluations.evaluate_data(model, config, sequences, progress), *rows]
    folder = model.origin["run"]
    is_link = pathlib.Path(folder).is_symlink()  # a link may be another's and lead elsewhere
    replaced = [] if is_link else evaluations.write_evaluations(folder, rows)
    return Evaluated(model.origin, rows, replaced, describe_link(folder) if is_link else "")


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Continuations with their `texts`, in the order of the prompts, and the weights that made them."""

    origin: Facts
    prompts: list[str]
    choice: "SamplingOptions"
    samples: "list[Sample]"
    texts: list[str]
    special_tokens: tuple[str, ...] = ()  # spelled in a prompt, and read as tokens


@check_arguments(tokens=optional(whole(1)), samples=whole(1), average=whole(1))
def sample(
    run: Path,
    prompt: str | Sequence[str] = "",
    *,
    tokens: int | None = None,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    ema: bool = False,
    average: int = 1,
    progress: Counted = _uncounted,
) -> Sampled:
    """Continue prompts with a run's weights (`scalelab sample`): up to the end of the document, or `tokens` tokens.

    `prompt`: one or several, which are one batch; `samples`: of each.
    """
    cache_programs()
    model = subject.load_evaluated_model(os.fspath(run), ema, average)
    tokenizer = subject.load_model_tokenizer(model)
    prompts = list(prompt)  # the decorator made a list of one
    most = sample_lib.default_tokens(model, tokenizer, *prompts) if tokens is None else tokens
    options = sample_lib.SamplingOptions(temperature, top_k, top_p, seed)
    count = lambda done, of: progress("tokens", done, of)  # noqa: E731
    drawn = sample_lib.draw_samples(model, tokenizer, prompts, most, samples, options, count)
    texts = [sample_lib.decode_sample(tokenizer, each) for each in drawn]
    special = dict.fromkeys(token for text in prompts for token in spelled_tokens(tokenizer, text))
    return Sampled(model.origin, prompts, options, drawn, texts, tuple(special))


@dataclasses.dataclass(frozen=True)
class Exported:
    """An export: files written, their weights, and why no tokenizer was written ("": it was)."""

    written: WrittenModel
    origin: Facts
    no_tokenizer: str


@check_arguments(out=FOLDER, average=whole(1))
def export_hf(
    run: Path,
    out: Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    family: str = "",
    ema: bool = False,
    average: int = 1,
) -> Exported:
    """Write a run's weights as a folder that `transformers` loads with equal logits (`scalelab export hf`).

    `family`: of several families of models that can express it, this one (`FORMATS`); "": the first.
    """
    if dtype not in DTYPES:
        raise BadInput(f"dtype={dtype!r} is not a type of tensors; known: {', '.join(DTYPES)}")
    weights = load_run_weights(os.fspath(run), ema, average)
    tokenizer, why = _find_tokenizer(weights)
    begins = not config_lib.static(weights.config).masks_documents  # else a document begins with its own first token
    card = write_card(find_format(weights.shape, family), weights.shape, _card_facts(weights), begins, dtype)
    options = WriteOptions(dtype, family, begins, card)
    written = write_model(pathlib.Path(out), weights.shape, weights.params, weights.origin, options, tokenizer)
    return Exported(written, weights.origin, why)


def _card_facts(weights: Weights) -> CardFacts:
    folder = pathlib.Path(weights.origin["run"])
    record = records.read_record(folder) if (folder / "record.json").exists() else {}
    return CardFacts(weights.config.to_dict(), record, weights.origin, records.read_evaluations(folder))


def _find_tokenizer(weights: Any) -> tuple[Tokenizer | None, str]:
    """Find the data's tokenizer (None: unknown), and why its file can't be written ("": it can)."""
    name = weights.origin["data"]["tokenizer"] or ""
    if ids := re.fullmatch(r"ids-(\d+)(?:-(\d+))?", name):
        return id_tokenizer(int(ids[1]), int(ids[2] or 0)), "the data are token ids without one"
    if name == "bytes":
        return byte_tokenizer(), ""
    try:
        return load_model_tokenizer(weights), ""
    except BadInput as reason:
        return None, str(reason)


@dataclasses.dataclass(frozen=True)
class Imported:
    """Imported weights: values of `model` that fit them, their origin, and the folder they were written to.

    `no_tokenizer`: why there is none.
    """

    model: Mapping[str, object]
    origin: Facts
    folder: str | None
    tokenizer: Tokenizer | None
    no_tokenizer: str


@check_arguments(out=optional(FOLDER))
def import_hf(folder: Path, out: Path | None = None) -> Imported:
    """Read a model of `transformers`, dense or a mixture, and with `out` write its weights (`scalelab import hf`)."""
    weights = load_hf_weights(pathlib.Path(folder))
    tokenizer, why = load_hf_tokenizer(pathlib.Path(folder), weights.shape.vocab_size)
    if out:
        write_weights(pathlib.Path(out), weights, tokenizer)
    hidden = {*IRRELEVANT_KEYS, *keys_without_effect(weights.shape)}
    values = {key: value for key, value in weights.config.model.items() if key not in hidden}
    return Imported(values, weights.origin, str(out) if out else None, tokenizer, why)
