"""Serving memory against published worked figures, the cache that decoding really makes, and XLA's buffers."""

import os

import jax
import jax.numpy as jnp
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.model import decode, transformer
from scalelab.parallel.rules import NO_LIBRARY_FLAG
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.run.inference import decode_cache_bytes, inference_memory
from tests.quick import one_in

H100 = load_machine("h100")
LLAMA3_70B = {"d_model": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28_672, "vocab_size": 128_256,
              "seq_len": 8192}  # fmt: skip


def static(precision="fp32", **model):
    config = base.get_config()
    with config.unlocked():
        config.model.update(model)
    config.precision.name = precision
    return config_lib.static(config_lib.resolve(config))


def test_cache_of_the_scaling_books_transformer():
    """ "How to Scale Your Model", part 4: D 4096, F 4 D, V 32,000, 64 layers, int8: 512 kB a token."""
    of = static(d_model=4096, n_layers=64, n_heads=32, d_ff=16_384, vocab_size=32_000)
    assert inference_memory(of, H100, cache="int8").kv_bytes_per_token == 512 * 1024


def test_llama3_70b_as_the_scaling_book_serves_it():
    """Part 8: 160 KiB a token in int8, 5.3 GB a sequence of 32k, 1.3 TB for 240 of them; weights of 140, 70 and 35 GB.

    The book prints 45 GB for int4, which 70e9 half bytes are not.
    """
    of = static(**LLAMA3_70B)
    for form, weights, cache in (("bfloat16", 140e9, 324e3), ("int8", 70e9, 162e3), ("int4", 35e9, 81e3)):
        got = inference_memory(of, H100, weights=form, cache=form)
        assert got.components["weights"] == pytest.approx(weights, rel=0.01)
        assert got.kv_bytes_per_token == pytest.approx(cache, rel=0.012)
    one, many = (inference_memory(of, H100, batch, 32_768, cache="int8").components["kv_cache"] for batch in (1, 240))
    assert one == 160 * 1024 * 32_768 == pytest.approx(5.3e9, rel=0.015)
    assert many == pytest.approx(1.3e12, rel=0.01)


def test_sixteen_v5e_hold_it_in_bf16_and_eight_do_not():
    """The same table: 8.75 chips of 16 GB, so a slice of 16. 116 GB are left there for 43 caches of 8k by its round
    figures; of 16 GiB a chip, 133 GB for 49, less activations."""
    of = static("bf16", **LLAMA3_70B)
    eight, sixteen = (inference_memory(of, load_machine("v5e"), 1, 8192, tensor=n) for n in (8, 16))
    assert not eight.fits and eight.most_sequences == 0
    assert sixteen.fits and "8 key heads over 16 devices" in sixteen.notes[0]
    assert sixteen.components["weights"] == pytest.approx(140e9 / 16, rel=0.03)
    assert sixteen.components["kv_cache"] == 2 * 8192 * 80 * 128 * 2  # a whole head each, though eight would do
    int8 = inference_memory(of, load_machine("v5e"), 1, 8192, "int8", "int8", tensor=8)
    without_activations = (8 * 2**34 - 70.6e9) / (163_840 * 8192)
    assert int8.most_sequences == int(without_activations - 8 * int8.prefill_bytes / (163_840 * 8192)) == 47


VARIANTS = {
    "llama": {"n_kv_heads": 2},
    "learned": {"position": "learned", "tied_head": True, "bias": True, "mlp": "gelu"},
    "relative": {"position": "relative", "d_head": 24},
    "latent": {"d_kv_latent": 24, "d_head_rope": 6, "d_head_value": 4},
}


@pytest.mark.parametrize("name", one_in(6, VARIANTS))
def test_without_a_window_the_cache_is_that_of_decoding(name):
    """Keys and values to the byte; decoding also keeps a document's number (4 bytes) a token and three counters."""
    of = static(n_layers=3, d_model=32, n_heads=4, seq_len=64, **VARIANTS[name])
    got = inference_memory(of, H100, batch=5, context=48, cache="float32")
    made = decode.empty_cache(of.model, 5, 48)
    assert got.components["kv_cache"] == sum(x.nbytes for x in made.keys.values())
    assert got.own_cache_bytes == sum(x.nbytes for x in jax.tree.leaves(made))
    assert got.components["kv_cache"] == got.kv_bytes_per_token * 5 * 48


def test_a_cache_of_latents_is_whole_on_every_device():
    """DeepSeek-V2, sec. 2.1.2: a token's latent and the key that all heads share."""
    of = static(n_layers=3, d_model=32, n_heads=4, seq_len=64, d_kv_latent=24, d_head_rope=6)
    one, two = (inference_memory(of, H100, batch=5, context=48, tensor=n) for n in (1, 2))
    assert one.components["kv_cache"] == two.components["kv_cache"] == 5 * 48 * 3 * (24 + 6) * 2
    assert one.notes == () and two.notes == (
        "each of 2 devices holds the whole cache, as latents have no heads to split",
    )


def test_windows_are_held_and_no_more():
    """Layers 1 and 3 of 4 hold 16 tokens of 64; decoding holds them all, in every layer."""
    of = static(n_layers=4, d_model=32, n_heads=4, seq_len=64, window=16, global_every=2)
    got = inference_memory(of, H100, batch=2, cache="float32")
    assert got.components["kv_cache"] == 2 * (2 * 64 + 2 * 16) * 2 * 32 * 4
    assert decode_cache_bytes(of, 2, 64) > 2 * 4 * 64 * 2 * 32 * 4
    assert "2 of 4 layers hold their window of 16 tokens" in got.notes[0]


def test_weights_are_all_parameters_and_devices_split_them():
    of = static(n_layers=2, d_model=64, n_heads=4)
    one, two = (inference_memory(of, H100, weights="float32", tensor=n).components["weights"] for n in (1, 2))
    parameters = jax.eval_shape(lambda: transformer.init_params(of.model, jax.random.key(0)))
    assert one == sum(4 * x.size for x in jax.tree.leaves(parameters))
    whole = sum(4 * x.size for path, x in jax.tree_util.tree_leaves_with_path(parameters) if path[-1].key == "g")
    assert two == (one - whole) / 2 + whole


LARGEST = {
    "feed-forward": (2048, {"d_ff": 512}),
    "attention": (2048, {"n_heads": 16, "d_head": 16}),
    "logits": (64, {"vocab_size": 8192, "mlp": "gelu"}),
}


@pytest.mark.skipif(NO_LIBRARY_FLAG in os.environ["XLA_FLAGS"], reason="without XLA's library it is another program")
@pytest.mark.parametrize(("tokens", "changes"), one_in(4, LARGEST.values()), ids=LARGEST)
def test_activations_are_xlas_buffers_to_a_tenth(tokens, changes):
    """One token each of many sequences, whose cache of one token is next to nothing: what remains are activations."""
    of = static(**{"n_layers": 2, "d_model": 64, "n_heads": 4, "seq_len": 8} | changes)
    params = jax.tree.map(
        lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), transformer.parameter_declarations(of.model)
    )
    cache = jax.eval_shape(lambda: decode.empty_cache(of.model, tokens, 1))

    def likeliest(params, tokens, cache):
        return decode.decode_tokens(of.model, params, tokens, cache)[0].argmax(axis=-1)

    lowered = jax.jit(likeliest).lower(params, jax.ShapeDtypeStruct((tokens, 1), jnp.int32), cache)
    held = lowered.compile().memory_analysis().temp_size_in_bytes
    assert inference_memory(of, H100, batch=tokens, context=1).decode_bytes == pytest.approx(held, rel=0.1)


def test_mistakes_are_refused():
    with pytest.raises(BadInput, match=r"no format 'int3'; did you mean 'int"):
        inference_memory(static(), H100, weights="int3")
    with pytest.raises(BadInput, match="context=-1 is not a count"):
        inference_memory(static(), H100, context=-1)
