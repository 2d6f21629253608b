"""Which parameters get what, from declared axes alone."""

import numpy as np
import pytest

from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.errors import BadInput
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import groups
from tests.model.shapes import shape
from tests.optim.frame import setting


def by_group(preset):
    names_by_group = {}
    for name, d in named_leaves(parameter_declarations(shape(preset))).items():
        names_by_group.setdefault(groups.parameter_group(d), set()).add(name)
    return names_by_group


def test_groups_of_three_families():
    llama, gpt2, chinchilla = (by_group(preset) for preset in ("llama", "gpt2", "chinchilla"))
    assert llama["embed"] == gpt2["embed"] == chinchilla["embed"] == {"embed.w"}
    assert llama["head"] == {"head.w"} and "head" not in gpt2  # it is the embedding, transposed
    assert gpt2["position"] == {"positions.w"}
    assert chinchilla["hidden"] == {f"blocks.attention.{x}.w" for x in "qkvor"} | {
        "blocks.mlp.up.w",
        "blocks.mlp.down.w",
    }
    assert {"blocks.attention.content_bias", "blocks.attention.q.b", "final_norm.g"} <= chinchilla["vector"]


def test_a_parameter_that_no_group_claims_is_an_error():
    with pytest.raises(AssertionError, match=r"\('embed',\) -> \(\) is claimed by no group"):
        groups.parameter_group(Declaration((4,), ("embed",), ()))


def test_vectors_and_tables_decay_if_asked():
    static, _ = setting("adamw", model__position="learned")
    everything = named_leaves(groups.decay_mask(static.model, setting("adamw", optim__decay_vectors=True)[0].optim))
    assert all(everything.values()) and len(everything) == len(named_leaves(parameter_declarations(static.model)))
    for keep, spared in ((True, set()), (False, {"embed.w", "positions.w"})):
        o = setting("adamw", optim__decay_embeddings=keep)[0].optim
        decays = named_leaves(groups.decay_mask(static.model, o))
        assert {n for n, d in decays.items() if d} == {n for n in decays if n.endswith(".w")} - spared


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embd=2", "'embd' is not a group of parameters; did you mean 'embed'?"),
        ("embed", "'embed' is not a name and a number"),
        ("head=-1", "'head=-1' is not a name and a number"),
    ],
)
def test_bad_multipliers_are_one_line(text, message):
    with pytest.raises(BadInput, match=r"optim\.groups") as caught:
        parse_group_multipliers(text)
    assert message in str(caught.value)


def test_matrices_fold_heads_and_keep_layers_as_a_batch():
    d = Declaration((2, 4, 3, 5), ("embed",), ("heads", "head_dim"), stack=("layers",))
    x = np.arange(2 * 4 * 15).reshape(2, 4, 3, 5)
    np.testing.assert_array_equal(groups.as_matrices(d, x), x.reshape(2, 4, 15))
    o = Declaration((2, 3, 5, 4), ("heads", "head_dim"), ("embed",), stack=("layers",))
    assert groups.matrix_shape(o) == (2, 15, 4)
