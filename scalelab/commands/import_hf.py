"""scalelab import hf DIR [--out=FOLDER]
scalelab import run SOURCE --workdir=D [--columns=FIELD=COLUMN,…]

`import hf` reads a Llama, Mistral, Qwen 2 or 3, OLMo 2 or 3, SmolLM3, Phi-3, StableLM, Granite, GPT-2, Mixtral,
Qwen3-MoE, OLMoE, DeepSeek-V3 or dense DeepSeek-V2 from the files of Hugging Face's `transformers` (docs/models.md has
the table) and prints the config that a run on these weights needs. Read are safetensors in fp32, bf16 or fp16, whole or
in parts; experts one by one, or all of a layer in one tensor. Nothing is unpickled, no code of the folder runs, and no
network is used. With --out the weights are written in fp32 to a folder for --init-from=FOLDER and `scalelab export`;
DIR's tokenizer.json goes with them if it fits, so that `scalelab eval --tasks` and `scalelab sample` can read text.
`scalelab train --init-from=hf:DIR` reads DIR directly.

`import run` reads the logs of runs that another program trained (W&B, TensorBoard, transformers' Trainer, JSON lines,
CSV, text logs; docs/foreign.md has the list) and writes each as a run folder with a record and without weights: one run
as D itself, several below D/runs. `runs`, `fit`, `compare`, `watch`, `diagnose` and `report` work on it; they also read
a SOURCE directly. A line says what was taken for what; --columns corrects it.

Exit code: 0 done, 2 bad input.

    scalelab import hf downloads/gpt2 --out=runs/gpt2
"""

from collections.abc import Mapping
from typing import Any

from scalelab import api
from scalelab.cli.foreign import EXAMPLE, HELP, parse_fields, show_progress, tell_runs
from scalelab.cli.parser import Parser, emit_json, folder_path
from scalelab.errors import BadInput

OF_RUNS, OF_WEIGHTS = ("workdir", "columns"), ("out",)  # options of each format


def main(argv: list[str]) -> int:
    """Import and print; exit codes in the module's docstring."""
    parser = Parser("import", __doc__)
    parser.add_argument(
        "format", choices=["hf", "run"], help="hf: the files of Hugging Face's transformers; run: others' logs"
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder with config.json and model.safetensors; or the logs of runs"
    )
    parser.add_argument(
        "--out", type=folder_path, metavar="FOLDER", help="where to write the weights; must not exist, or be empty"
    )
    parser.add_argument("--workdir", type=folder_path, metavar="D", help="where to write the runs")
    parser.add_argument("--columns", metavar="FIELD=COLUMN,…", help=f"{HELP}: {EXAMPLE}")
    options = parser.parse_args(argv)
    for name in OF_RUNS if options.format == "hf" else OF_WEIGHTS:
        if getattr(options, name) is not None:
            raise BadInput(f"--{name} has no effect with `import {options.format}`")
    return _import_weights(options) if options.format == "hf" else _import_runs(options)


def _import_runs(options: Any) -> int:
    if options.workdir is None:
        raise BadInput("--workdir=D is missing: where to write the runs")
    fields = parse_fields(options.columns)
    made = api.import_runs(options.source, options.workdir, columns=fields, progress=show_progress)
    tell_runs(made.lines, made.notes, made.left_out)
    if options.json != "-":
        print(f"{len(made.runs)} run{'s' * (len(made.runs) != 1)} in {made.folder}, {len(made.left_out)} left out")
    emit_json(made._asdict(), options.json)
    return 0


def _import_weights(options: Any) -> int:
    read = api.import_hf(options.source, options.out)
    if options.json != "-":
        print("\n".join(describe_import(read.model, read.origin, read.folder)))
        print(f"  tokenizer: {read.tokenizer.name}" if read.tokenizer else f"  no tokenizer: {read.no_tokenizer}")
    facts = {"model": read.model, "origin": read.origin, "folder": read.folder}
    emit_json(facts | {"tokenizer": read.tokenizer and read.tokenizer.name}, options.json)
    return 0


def describe_import(values: Mapping[str, object], origin: dict, out: str | None) -> list[str]:
    """Describe where the weights come from, how they were converted, and the config that fits them."""
    kinds = ", ".join(f"{count} of {dtype}" for dtype, count in origin["dtypes"].items())
    conversion = "already in float32" if set(origin["dtypes"]) == {"float32"} else "converted to float32, exactly"
    text = [
        f"{origin['hf']}: {origin['format']}; tensors: {kinds}, {conversion}",
        f"  params_digest {origin['digest']}",
    ]
    text += ["the config of a run that starts on them:", *(f"  config.model.{k} = {v!r}" for k, v in values.items())]
    if folded := origin.get("folded"):
        factors = ", ".join(f"{name} x {factor:g}" for name, factor in folded.items())
        text.insert(1, f"  multipliers of config.json are now part of the weights: {factors}")
    if left_out := origin.get("left_out"):
        text.insert(1, f"  {left_out} tensors of layers for multi-token prediction are left out")
    start = out or f"hf:{origin['hf']}"
    return [*text, f"  config.train.init_from = {start!r}"]
