"""scalelab prepare --source=[NAME=]SPEC [--source=…] --tokenizer=T --out=DIR

Turn documents into token shards for a config's data.source="prepared", data.path=DIR. Run the command again to go on
after a kill or a signal; for a finished folder it verifies every byte and restores a damaged tokenizer. The result
doesn't depend on --workers.

SPEC is PATHS[#KEY][?FILTERS]. PATHS are files and globs, separated by commas, or a data set of TensorFlow Datasets.
The name of a file tells its format:
  .txt, .md, …            text, one document per file; above 1 MiB it is cut at line ends into documents of about 1 MiB
  .jsonl, .ndjson, .json  JSON lines: the text under --text-key of each
  .csv, .tsv              with a header line: the cells of column --text-key, also between semicolons
  .gz, .zst, .xz, .bz2    all of these compressed
  .tar, .zip              all of these inside; a tar of WebDataset needs a key: x.tar#txt, x.tar#json.caption
  .parquet, .arrow        column --text-key: strings, or lists of ready-made token ids
  a folder                by save_to_disk of Hugging Face's datasets, read as its .arrow files
  .npy                    ready-made tokens in one array of whole numbers, each document with its separator
  .bin                    ready-made tokens: nanoGPT's (uint16; uint32 where the vocabulary is larger) and llm.c's
  .bin with .idx          ready-made tokens: Megatron-LM's pairs
  tfds:NAME               array_record files of TensorFlow Datasets, without TensorFlow; in full
                          tfds:NAME[/CONFIG][:SPLIT][@DIR], with split train and DIR $TFDS_DATA_DIR, else
                          ~/tensorflow_datasets; feature --text-key; missing data are downloaded and prepared
KEY is the source's own --text-key; a dot leads into nested records (#meta.text). FILTERS, joined by &, leave out
records: lang=en|de, kind!=spam, score>=0.5, and sample=SHARE[:SEED], which takes documents by a hash of their content:
the same ones when files are added. Quote such a source: --source='code=x.parquet#meta.text?lang=en&sample=0.1'

With --chat a list of messages under the key is rendered by the tokenizer's chat template (chat_template.jinja or
tokenizer_config.json beside its tokenizer.json, or FILE); the loss is on the assistant's turns only.

Parts are sorted by name and files by resolved path, each file once: the order in which you list them doesn't matter.

DIR may be a folder in an object store, s3://bucket/path or gs://bucket/path; data.path then names it too.

T is one of:
  bytes      256 ids, no training; 0 ends a document
  bpe:V      byte-level BPE of V ids, trained on up to 32 MiB of training text from all over the corpus
  FILE       a tokenizer.json (Hugging Face), or a tiktoken ranks file (GPT-2 to GPT-4o, Llama 3 and 4, Qwen; any
             other file gets GPT-4's word split and, as the end of a document, an id after the last)
  ids:V      none, for ready-made tokens below V: bits per byte are then bits per token
Validation: --val-source=[NAME=]SPEC gives exactly its documents, and nothing else is held out. Without it a document is
held out if a hash of (--split-seed, its content) falls into --val-fraction of all hashes. Where whole documents miss
that share by a factor of 1.5 (one file, five books), longer ones are first cut at line ends into small pieces; a split
that is a factor of 2 off is refused. A file of a --source glob whose name says val, valid, test or dev is asked about.

Copies of documents, and validation documents that stand in the training text, are counted; --dedup leaves them out (of
both splits the copy in training goes): exact, or near (5-grams of tokens with a Jaccard similarity of 0.8 by MinHash;
needs scalelab[dedup]). A tokenizer from a file is tried: a sample of the text is encoded and decoded again, and if over
1 % of it is unknown, --lossy is needed.

Exit code: 0 done, 1 failed, 2 bad input (file, place and value), 75 stopped by a signal; the same command goes on.

    scalelab prepare --source="docs/*.md" --tokenizer=bpe:4096 --out=prepared
"""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scalelab import api
from scalelab.api.door import Shown
from scalelab.cli.parser import Parser, add_take_over_option, emit_json, print_table, work_path
from scalelab.cli.progress import PLAIN_EVERY_S
from scalelab.cli.terminal import print_report
from scalelab.signals import stop_on_signals
from scalelab.untrusted.text import escape_text


def main(argv: list[str]) -> int:
    """Prepare a corpus; exit codes in the module's docstring."""
    parser = Parser("prepare", __doc__)
    add = parser.add_argument
    add("--source", action="append", required=True, metavar="[NAME=]SPEC", help="documents; repeat it for more parts")
    add("--tokenizer", required=True, metavar="T", help="bytes, bpe:V, ids:V or a file")
    add("--out", required=True, type=work_path, metavar="DIR|URL", help="the folder to make, or to go on with")
    add("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="K", help="processes; default: the cores")
    add("--text-key", default="text", metavar="KEY", help="the field or column of the text; default: text")
    add("--separator", default="", metavar="TOKEN|ID", help="what ends a document, if T doesn't tell it")
    add("--val-fraction", type=float, metavar="F", help="share of the text held out; default: 0.1")
    add("--val-source", action="append", default=[], metavar="[NAME=]SPEC", help="the validation set; may be repeated")
    add("--train-on-all", action="store_true", help="train on files of globs whose names say val, valid, test or dev")
    add("--dedup", nargs="?", const="exact", default="", choices=["", "exact", "near"], help="leave copies out")
    add("--lossy", action="store_true", help="take a tokenizer that has no tokens for over 1 %% of the text")
    add("--split-seed", type=int, default=0, metavar="N", help="which documents are held out; default: 0")
    add("--chat", nargs="?", const="", metavar="FILE", help="read lists of messages; FILE: another template")
    add("--skip-bad", action="store_true", help="leave out documents that can't be read, and count them")
    add_take_over_option(parser)
    options = parser.parse_args(argv)

    result = api.prepare(
        options.source,
        options.tokenizer,
        options.out,
        workers=options.workers,
        text_key=options.text_key,
        separator=options.separator,
        val_fraction=options.val_fraction,
        val_source=options.val_source,
        split_seed=options.split_seed,
        train_on_all=options.train_on_all,
        dedup=options.dedup,
        lossy=options.lossy,
        skip_bad=options.skip_bad,
        chat=options.chat,
        take_over=options.take_over,
        progress=print_report,
        display=_show_bar,
    )
    if result is None:
        print(f"scalelab: stopped; the same command goes on with {options.out}", file=sys.stderr)
        return 75
    if options.json != "-":
        _show(result)
    emit_json(result, options.json)
    return 0


@contextlib.contextmanager
def _show_bar(title: str, steps: Mapping[str, int], folder: pathlib.Path | None = None) -> Iterator[Shown]:
    """Show a corpus's bar and take the signals that stop it, as a `Display`."""
    with _Bar(title) as bar, stop_on_signals() as stop:
        yield Shown(bar.update, lambda names: None, stop)


class _Bar:
    """Progress in units and shards, with the rate: a bar on a terminal, a line every 10 s elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.console = Console(file=sys.stderr)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
        self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
        self.tasks: dict[str, Any] = {}
        self.started: dict[str, float] = {}
        self.last_print = time.monotonic()

    def __enter__(self) -> "_Bar":
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:  # rich prints an empty line for a bar that stops without a start
            self.bar.stop()

    def update(self, facts: dict[str, Any]) -> None:
        """Update the bar by one report of `corpus.prepare_corpus`."""
        if "note" in facts:
            self.console.print(facts["note"], markup=False, highlight=False, soft_wrap=True)
            return
        phase, now = facts["phase"], time.monotonic()
        elapsed = now - self.started.setdefault(phase, now)
        rate = f"{facts['n_tokens'] / elapsed:,.0f} tokens/s" if facts["n_tokens"] and elapsed else ""
        if self.console.is_terminal:
            if phase not in self.tasks:
                self.tasks[phase] = self.bar.add_task(phase, total=facts["of"], rate="")
            self.bar.update(self.tasks[phase], completed=facts["done"], rate=rate)
        elif now - self.last_print > PLAIN_EVERY_S:
            self.last_print = now
            print(f"{self.title}: {phase} {facts['done']}/{facts['of']}  {rate}", file=sys.stderr, flush=True)


def _show(result: dict[str, Any]) -> None:
    cells = []
    for part in result["parts"]:
        left_out = part["n_bad"] + sum(part[key] or 0 for key in ("dropped", "near_dropped"))
        counts = (part["train_documents"] + part["val_documents"], part["train_tokens"], part["val_tokens"])
        cells.append([part["name"], *(f"{n:,}" for n in counts), f"{part['bytes_per_token']:.3f}", f"{left_out:,}"])
    print_table(("part", "documents", "tokens", "validation", "bytes a token", "left out"), cells)
    for part in result["parts"]:
        lines = [*_split_lines(part), *_copy_lines(part, result["dedup"])]
        print("\n".join(f"{escape_text(part['name'])}: {line}" for line in lines))
    tokenizer = result["tokenizer"]
    status = f"{result['seconds']:.1f} s"
    if result.get("finished_before"):
        restored = ", ".join(result["mended"])
        status = f"finished before, {f'restored: {restored}; all else' if restored else 'every file'} unchanged"
    vocab_size = tokenizer["vocab_size"]
    print(
        f"{result['folder']}: {status}; tokenizer {tokenizer['name']}, {vocab_size} ids, {tokenizer['separator']} ends "
        f"a document; fingerprint {result['fingerprint']}\n"
        f'read it with data.source="prepared", data.path="{result["folder"]}", model.vocab_size={vocab_size}'
    )
    if (result["round_trip"] or {}).get("lossy"):
        unknown = result["round_trip"]["unknown_share"]
        print(f"bits per byte are a lower bound: the tokenizer loses text ({unknown:.1%} of a sample is unknown to it)")


def _split_lines(part: dict[str, Any]) -> Iterator[str]:
    """The split of a part in words: share got beside share asked, and how documents were cut."""
    split, n = part["split"], part["train_documents"] + part["val_documents"]
    pieces = "pieces" if "cut_bytes" in split else "documents"
    if not split["asked"]:
        held = f"{part['val_documents']:,} documents are the validation set"
        yield held if part["val_tokens"] else "all documents are trained on"
        return
    text = f"validation holds {split['bytes']:.1%} of the bytes ({split['asked']:.1%} asked) and "
    yield text + f"{part['val_documents']:,} of {n:,} {pieces} ({split['documents']:.1%})"
    if "cut_bytes" in split:
        size = f"{split['cut_bytes']:,}"
        yield f"whole documents miss that share, so long ones are cut at line ends into pieces of about {size} bytes"


def _copy_lines(part: dict[str, Any], dedup: str) -> Iterator[str]:
    """The copies of a part's documents in words; nothing of a folder from before they were counted."""
    if part["duplicates"] is None:
        return
    verb = "stood" if dedup else "stand"
    copies = f"{part['duplicates']:,} documents are copies of earlier ones"
    hint = "; --dedup leaves copies out" if part["duplicates"] + part["leaks"] and not dedup else ""
    yield f"{copies}, {part['leaks']:,} validation documents {verb} in the training text{hint}"
    if part["overlaps"]:
        near = "" if dedup == "near" else "; --dedup=near leaves out near copies"
        yield f"{part['overlaps']:,} more validation documents stand there for 80 % or more, counted in n-grams{near}"
    if dedup:
        dropped = f"{part['dropped']:,} copies and {part['near_dropped']:,} near copies are left out"
        yield dropped + f", {part['near_leaks']:,} of them near copies of validation documents"
