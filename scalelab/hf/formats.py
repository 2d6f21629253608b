"""Formats of weights: one table of tensors (`places.py`) and one of config.json's keys, each read in both directions.

A model option that the format does not write, imply or safely ignore is refused by name.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf.options import HF_ROPE_GROUPS
from scalelab.hf.places import TensorRow

REQUIRED_KEY = object()  # value in `Format.absent`: config.json must have this key
UNSET = object()  # value in what `Format.read` returns: the key keeps its default
NULL = object()  # value in what `Format.write` returns: null, where None would leave the key out
UNKNOWN = "not known"  # value in `unsupported_keys`: a model option that the format can't name

# Fields of a ModelShape that don't change the weights' function, or are folded into the weights
# (`write.fold_multipliers`).
IRRELEVANT_KEYS = (
    *(
        "init_std",
        "projection_std",
        "depth_scaled_init",
        "remat",
        "attention",
        "sequence_parallel",
        "sums",
        "parts",
        "expert_buffer",
    ),
    *("parametrization", "base_width", "base_layers", "base_d_head"),
    *("router_z_weight", "balance_weight", "balance_sequence_weight", "expert_products"),
)
# Without effect unless the model has experts, or latent attention.
EXPERT_KEYS = (
    *("experts_per_token", "d_expert", "n_shared_experts", "router_scores", "router_renormalize", "router_scale"),
    *("router_groups", "router_groups_per_token", "balance_rate", "expert_capacity"),
)
LATENT_KEYS = ("d_q_latent", "d_head_rope", "d_head_value")

# Keys of config.json that change no logits: of training, of text generation, and of transformers itself.
NEUTRAL = frozenset({
    "model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "bos_token_id", "eos_token_id",
    "pad_token_id", "sep_token_id", "decoder_start_token_id", "return_dict", "is_encoder_decoder", "id2label",
    "label2id", "num_labels", "chunk_size_feed_forward", "task_specific_params", "tokenizer_class", "pretraining_tp",
    "gradient_checkpointing", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
    "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", "n_ctx", "auto_map", "max_length", "min_length", "do_sample", "temperature", "top_k",
    "top_p", "repetition_penalty", "num_beams", "num_return_sequences", "length_penalty", "diversity_penalty",
    "num_beam_groups", "unsloth_version", "unsloth_fixed", "cache_implementation", "problem_type",
    *HF_ROPE_GROUPS,
})  # fmt: skip

# Options that no format can express, and those of blocks that only formats of mixtures can.
COMMON_BLOCK = {"nope_every": 0, "norm_place": "before", "qkv_bias": False, "logit_scale": "none"}
COMMON_BLOCK |= {"rope_share": 1.0, "attention_softcap": 0.0}
PLAIN_BLOCK = COMMON_BLOCK | {"block": "sequential", "n_experts": 0, "d_kv_latent": 0}


@dataclasses.dataclass(frozen=True)
class Format:
    """One `model_type` of transformers. A dot in a name of config.json leads into an object.

    `keys`: config.model's name -> config.json's names, which must agree. `absent`: config.json's name -> the value that
    transformers assumes if it is missing. `ours`: values of config.model that the format implies; `limits(shape)`:
    those it requires of this shape. `theirs`: values that config.json must have, else it means another function.
    `buffers`: endings of tensors that hold constants, not weights. `extra`: further values of a config.json written
    here. `unused`: options of parts that no model of the format has. `fused`: the table of files in which one tensor
    holds all experts of a layer, as in transformers' memory since version 5; () if there are none. `code`: the
    `auto_map` of the first release, whose code transformers has since; any other is custom code. `beyond`: the name in
    config.json for a number of further layers in the files, which transformers leaves out, too.

    `told`: config.model's names that depend on several of config.json's names: `write(shape)` gives those,
    `read(config.json, values so far)` gives ours, from those and from the names `also`. `neutral`: further names that
    change no logits. Any other name is refused, unless its value means that something is off.

    `factors(config.json, shape)`: {layer: factor} on our parameters, by the multipliers of a config.json: with them a
    model without multipliers computes the same function. `implied(shape)`: the same of multipliers that stand in
    transformers' code; parameters that are written are divided by them.
    """

    name: str
    architecture: str
    prefix: str  # prefix of all tensors but the head; files of the bare model lack it
    keys: dict[str, tuple[str, ...]]
    absent: dict[str, Any]
    ours: dict[str, Any]
    theirs: dict[str, Any]
    limits: Callable[[ModelShape], dict[str, Any]]
    tensors: tuple[TensorRow, ...]
    buffers: tuple[str, ...]
    fused: tuple[TensorRow, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)
    beyond: str = ""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    write: Callable[[ModelShape], dict[str, Any]] = lambda shape: {}
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda content, values: {}
    also: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    factors: Callable[[Mapping[str, Any], ModelShape], dict[str, float]] = lambda content, shape: {}
    implied: Callable[[ModelShape], dict[str, float]] = lambda shape: {}


def to_hf_config(form: Format, shape: ModelShape, dtype: str, specials: Mapping[str, int | None]) -> dict[str, Any]:
    """The config.json of a model in this format, with its special ids (`SpecialIds.of_model`)."""
    mapped = {theirs: getattr(shape, ours) for ours, names in form.keys.items() for theirs in names}
    content: dict[str, Any] = {"model_type": form.name, "architectures": [form.architecture], "torch_dtype": dtype}
    content |= {**form.extra, **specials}
    for name, value in (mapped | form.theirs | form.write(shape)).items():
        group, _, key = name.rpartition(".")
        if value is not None:
            (content.setdefault(group, {}) if group else content)[key] = None if value is NULL else value
    return content


def from_hf_config(form: Format, content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of config.model from a config.json; None: derived by `config.resolve`. Raises BadInput."""
    for name, wanted in form.theirs.items():
        if (value := _look_up(form, content, name)) != wanted:
            raise BadInput(f"{name}={repr(value)[:40]}: only {wanted!r} can be read from {form.name}")
    _refuse_unknown(form, content)
    values = dict(form.ours)
    for ours, names in form.keys.items():
        given = {name: v for name in names if (v := _look_up(form, content, name, None)) is not None}
        if len(set(map(repr, given.values()))) > 1:
            raise BadInput(f"{' and '.join(f'{k}={v!r}' for k, v in given.items())}: they must agree")
        for name, value in given.items():
            if isinstance(value, dict | list) or len(repr(value)) > 40:
                raise BadInput(f"{name}={repr(value)[:40]} is not a number, word or truth value")
        values[ours] = next(iter(given.values())) if given else _look_up(form, content, names[0])
    return {key: value for key, value in (values | form.read(content, values)).items() if value is not UNSET}


def _refuse_unknown(form: Format, content: Mapping[str, Any]) -> None:
    """Raise BadInput for a name of config.json of which nobody here knows what it changes, unless it is off."""
    mapped = {name.partition(".")[0] for names in form.keys.values() for name in names}
    known = {*mapped, *form.absent, *form.theirs, *form.extra, *form.also, *form.neutral, form.beyond, *NEUTRAL}
    for name, value in content.items():
        if value and name not in known and not name.startswith("_"):
            raise BadInput(
                f"{name[:40]}={repr(value)[:40]}: {form.name} as known here has no such key, and what it changes would "
                "be lost; nearest: take it out if it changes no logits"
            )


def _look_up(form: Format, content: Any, name: str, *default: Any) -> Any:
    for key in name.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    if content is None:
        content = default[0] if default else form.absent[name]
    if content is REQUIRED_KEY:
        raise BadInput(f"{name} is missing")
    return content


def unsupported_keys(form: Format, shape: ModelShape) -> dict[str, tuple[Any, Any]]:
    """`{config.model's key: (value, the value that the format can express)}` for everything that it can't express.

    An option unknown to the format has the value `UNKNOWN`.
    """
    demanded = form.ours | form.limits(shape)
    refused = {key: (getattr(shape, key), v) for key, v in demanded.items() if getattr(shape, key) != v}
    known = {*form.keys, *demanded, *form.told, *form.unused, *IRRELEVANT_KEYS, *keys_without_effect(shape)}
    known |= set() if demanded.get("qk_norm") else {"qk_norm_over"}
    unknown = [field.name for field in dataclasses.fields(shape) if field.name not in known]
    return refused | {key: (getattr(shape, key), UNKNOWN) for key in unknown}


def keys_without_effect(shape: Any) -> set[str]:
    """Keys of parts that this model doesn't have."""
    layers = [(getattr(shape, key), (key,)) for key in ("global_every", "rope_local_theta")]  # off
    parts = [(shape.n_experts, EXPERT_KEYS), (shape.d_kv_latent, LATENT_KEYS), (shape.qk_norm, ("qk_norm_over",))]
    return {key for part, keys in [*parts, *layers] if not part for key in keys}
