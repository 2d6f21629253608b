"""Parameters in closed form from a stored config are those of the declarations."""

import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.configs.base import MODEL
from scalelab.model import count
from scalelab.record.soundness import size
from tests.quick import one_in

SMALL = {
    "n_layers": "3", "d_model": "32", "n_heads": "4", "n_kv_heads": "2", "vocab_size": "256", "seq_len": "16",
}  # fmt: skip
# At least one value of each key of the model that decides a shape, alone and several at once.
MODELS = [
    {}, {"position": "learned"}, {"position": "relative", "n_kv_heads": "4"}, {"position": "none"},
    {"block": "parallel"}, {"norm": "layernorm"}, {"norm": "layernorm_nobias"}, {"norm_place": "after"},
    {"norm_place": "around", "mlp": "geglu"},
    {"mlp": "gelu"}, {"mlp": "relu2"}, {"mlp": "relu"}, {"qk_norm": "true"}, {"tied_head": "true"}, {"bias": "true"},
    {"qk_norm": "true", "qk_norm_over": "projection"}, {"qkv_bias": "true"}, {"window": "4"}, {"d_head": "12"},
    {"window": "4", "global_every": "2"}, {"nope_every": "2"}, {"d_ff": "50"},
    {"block": "experts", "n_experts": "4", "d_expert": "24"},
    {"block": "experts", "n_experts": "5", "experts_per_token": "3", "n_shared_experts": "2", "mlp": "gelu",
     "qkv_bias": "true"},
    {"d_kv_latent": "24", "d_head_rope": "4", "n_kv_heads": "4"},
    {"d_kv_latent": "24", "d_q_latent": "40", "d_head_value": "6", "bias": "true", "n_kv_heads": "4"},
    {"bias": "true", "norm": "layernorm", "block": "parallel", "mlp": "gelu", "position": "learned"},
]  # fmt: skip


def load(**model):
    values = {f"model.{key}": value for key, value in (SMALL | model).items()}
    return config_lib.resolve(config_lib.override(base.get_config(), values))


@pytest.mark.parametrize(
    "model", one_in(2, [*MODELS, {"block": "parallel=1,sequential=2", "norm": "layernorm"}]), ids=str
)
def test_parameters_are_those_of_the_declarations(model):
    config = load(**model)
    assert size.count_parameters(config.to_dict()) == count.count_parameters(config_lib.static(config).model)


def test_what_is_not_known_is_not_counted():
    """A user's own block, a key of a later version, and a value that is not a size."""
    wrong = "parallel=1,sequential=x", "parallel=1,sequential=1", "mine:block"
    for changes in (*({"block": text} for text in wrong), {"tomorrow": 8}, {"d_ff": None}, {"n_layers": "two"}):
        content = load().to_dict()
        content["model"] |= changes
        assert size.count_parameters(content) is None
    content = load().to_dict()
    del content["model"]["norm_place"], content["model"]["qkv_bias"]  # of a version that did not have them
    assert size.count_parameters(content) == size.count_parameters(load().to_dict())


def test_every_choice_of_the_model_is_among_those_counted():
    for name in ("position", "norm", "norm_place", "mlp", "qk_norm_over", "block"):
        choices = set(MODEL[name].choices)
        assert choices == {model[name] for model in MODELS if name in model} | {MODEL[name].default}, name
