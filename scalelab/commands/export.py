"""scalelab export hf RUN[@STEP] --out=DIR [--dtype=float32|bfloat16] [--ema | --average=K]

Write a run's weights (of its last step, or of STEP; or an average of them) as a folder that Hugging Face's `transformers` loads with equal logits:
config.json, model.safetensors (in parts above 5 GB) and scalelab.json, which says where they come from. A Llama becomes
LlamaForCausalLM (MistralForCausalLM with a window), a GPT-2 GPT2LMHeadModel; a model that none can express is refused. RUN may hold imported weights.
"""

import dataclasses

from scalelab.commands.shared import Parser, add_weights, emit, folder_path, headline


def main(argv: list[str]) -> int:
    """Exit code 0, 1 where the checkpoint is damaged, 2 for bad input."""
    parser = Parser("export", __doc__)
    parser.add_argument("format", choices=["hf"], help="hf: the files of Hugging Face's transformers")
    add_weights(parser)
    parser.add_argument(
        "--out", required=True, type=folder_path, metavar="DIR", help="the folder to write; must not exist, or be empty"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the tensors written")
    options = parser.parse_args(argv)

    from scalelab.hf.write import write
    from scalelab.train.weights import of_run

    weights = of_run(options.run, options.ema, options.average)
    written = write(options.out, weights.shape, weights.params, weights.origin, options.dtype)
    if options.json != "-":
        print("\n".join(lines(written, weights.origin)))
    emit(dataclasses.asdict(written) | {"folder": str(written.folder), "origin": weights.origin}, options.json)
    return 0


def lines(written, origin: dict) -> list[str]:
    """What was written, and what became of it on the way."""
    weights = sum(name.endswith(".safetensors") for name in written.files)
    text = [
        f"{headline(origin)} -> {written.folder}: {written.format}, {written.tensors} tensors of "
        f"{written.dtype}, {written.tensor_bytes / 1e6:.1f} MB in {weights} file{'s' * (weights != 1)}"
    ]
    if written.dtype != "float32":
        text.append(f"  rounded from float32 to {written.dtype}, to nearest even: logits will differ")
    if written.folded:
        factors = ", ".join(f"{name} x {factor:g}" for name, factor in written.folded.items())
        text.append(f"  multipliers of the parametrization are now part of the weights: {factors}")
    tokenizer = origin["data"]["tokenizer"]
    text.append(f"  no tokenizer is written; the ids are those of {tokenizer or 'the model that was imported'}")
    return [*text, f"  params_digest {origin['digest']}"]
