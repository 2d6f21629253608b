"""scalelab export hf RUN[@STEP] --out=DIR [--dtype=float32|bfloat16] [--family=NAME] [--ema | --average=K]

Write a run's weights (of its last step or of STEP, or an average) as a folder that Hugging Face's `transformers` loads
with equal logits: config.json, model.safetensors (in parts above 5 GB), the tokenizer of its data (tokenizer.json,
tokenizer_config.json, generation_config.json; not for bare ids), README.md, a model card from the run's record, and
scalelab.json, which records the weights' origin. The family follows from the model's options: Llama, Mistral, Qwen 2
and 3, OLMo 2 and 3, SmolLM3, StableLM, GPT-2, mixtures of experts, DeepSeek-V3 (docs/models.md has the table). Of
several that can express a model --family chooses one, such as phi3. A model that none can express is refused. RUN may
hold imported weights.

Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.

    scalelab export hf runs/mine --out=exported
"""

import dataclasses

from scalelab import api
from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json, folder_path


def main(argv: list[str]) -> int:
    """Export and print; exit codes in the module's docstring."""
    parser = Parser("export", __doc__)
    parser.add_argument("format", choices=["hf"], help="hf: the files of Hugging Face's transformers")
    add_weights_options(parser)
    parser.add_argument(
        "--out", required=True, type=folder_path, metavar="DIR", help="the folder to write; must not exist, or be empty"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the tensors written")
    parser.add_argument(
        "--family", default="", metavar="NAME", help="model_type to write, of those that can express the model"
    )
    options = parser.parse_args(argv)

    exported = api.export_hf(
        options.run, options.out, dtype=options.dtype, family=options.family, ema=options.ema, average=options.average
    )
    written, origin = exported.written, exported.origin
    if options.json != "-":
        print("\n".join(describe_export(written, origin, exported.no_tokenizer)))
    emit_json(dataclasses.asdict(written) | {"folder": str(written.folder), "origin": origin}, options.json)
    return 0


def describe_export(written, origin: dict, why: str = "") -> list[str]:
    """Describe what was written and how it was converted; `why`: the reason why no tokenizer was written."""
    weights = sum(name.endswith(".safetensors") for name in written.files)
    text = [
        f"{describe_weights(origin)} -> {written.folder}: {written.format}, {written.tensors} tensors of "
        f"{written.dtype}, {written.tensor_bytes / 1e6:.1f} MB in {weights} file{'s' * (weights != 1)}"
    ]
    if written.dtype != "float32":
        text.append(f"  rounded from float32 to {written.dtype}, to nearest even: logits will differ")
    if written.folded:
        factors = ", ".join(f"{name} x {factor:g}" for name, factor in written.folded.items())
        text.append(f"  multipliers of the parametrization are now part of the weights: {factors}")
    name, end = origin["data"]["tokenizer"], written.special_ids["eos_token_id"]
    ends = "which id ends a document is not known" if end is None else f"id {end} begins and ends a document"
    if why:
        text.append(
            f"  no tokenizer was written ({why}); the ids are those of {name or 'the model that was imported'}, {ends}"
        )
    else:
        text.append(f"  with its tokenizer {name}; {ends}")
    return [*text, f"  params_digest {origin['digest']}"]
