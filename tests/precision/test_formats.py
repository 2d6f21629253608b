"""Each format's range, spacing and overflow against ml_dtypes; casts into fp8; TF32 as a unit would round."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import key_records
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.parallel import rules
from scalelab.precision import fp8, products
from scalelab.precision.policy import E4M3, E5M2, FP32, POLICIES, array_dtype, warnings_for

FORMS = sorted(
    {f for p in POLICIES.values() for f in (p.forward, p.backward, p.compute)} - {"tensorfloat32", "float32"}
)
# (largest, smallest normal, smallest subnormal, spacing above 1) as the formats' papers give them
PUBLISHED = {
    "bfloat16": ((2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2**-7),
    "float16": (65504.0, 2.0**-14, 2.0**-24, 2**-10),
    E4M3: (448.0, 2.0**-6, 2.0**-9, 2**-3),
    E5M2: (57344.0, 2.0**-14, 2.0**-16, 2**-2),
}


def per_tensor(x, form):
    scale = fp8.fp8_scale(fp8.max_magnitude(x), form)
    return fp8.cast_to_fp8(x, scale, form), scale


@pytest.mark.parametrize("form", FORMS)
def test_range_and_spacing_are_the_published_ones(form):
    info, kind = ml_dtypes.finfo(form), np.dtype(form)
    largest, normal, subnormal, spacing = PUBLISHED[form]
    assert (float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)) == (
        largest,
        normal,
        subnormal,
    )
    above_one = [float(jnp.float32(1 + spacing * k).astype(form)) for k in (0.49, 0.51, 1.0)]
    assert above_one == [1.0, 1 + spacing, 1 + spacing]
    assert float(jnp.float32(0.49 * subnormal).astype(kind)) == 0 != float(jnp.float32(0.51 * subnormal).astype(kind))
    assert float(fp8.cast_to_fp8(jnp.float32(largest), jnp.float32(1), form)) == largest


def test_a_raw_cast_overflows_and_ours_is_clipped():
    assert np.isnan(np.float32(jnp.float32(465).astype(E4M3)))
    assert np.isinf(np.float32(jnp.float32(1e6).astype(E5M2)))
    for form, most in ((E4M3, 448), (E5M2, 57344)):
        for far in (1.05 * most, 1e6, 3e38, np.inf):
            assert [float(fp8.cast_to_fp8(jnp.float32(sign * far), jnp.float32(1), form)) for sign in (1, -1)] == [
                most,
                -most,
            ]
        assert np.isnan(np.float32(fp8.cast_to_fp8(jnp.float32(np.nan), jnp.float32(1), form)))


@pytest.mark.parametrize("form", [E4M3, E5M2])
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_a_tensor_is_scaled_onto_the_format_whatever_its_size(form, size):
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32) * np.float32(size)
    values, scale = jax.jit(lambda x: per_tensor(x, form))(x)
    assert values.dtype == form
    back = np.float64(values) * np.float64(scale)
    assert np.isfinite(back).all()
    if size > 1e-35:  # below, fp32 itself has no bits left
        info = ml_dtypes.finfo(form)
        assert np.abs(np.float64(values)).max() == float(info.max)
        error, step = np.abs(back - x), np.float64(scale) * float(info.smallest_subnormal)
        assert (error <= np.maximum(np.abs(x) * 2.0 ** -(info.nmant + 1), step / 2) * (1 + 1e-6)).all()


@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_a_tensors_scale_is_the_next_power_of_two(form):
    """So bf16 holds it, and the largest number lies in the upper half of the format's range."""
    most = float(ml_dtypes.finfo(form).max)
    amax = np.float32([most, most * 1.0001, 1.0, 3e-5, 0.7e30, most * 2**-100])
    scale = np.asarray(jax.jit(lambda amax: fp8.tensor_scale(amax, form))(amax))
    np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)
    assert ((amax / scale <= most) & (amax / scale > most / 2)).all() and (scale[0], scale[1]) == (1.0, 2.0)
    assert fp8.tensor_scale(jnp.float32(0), form) > 0
    assert [bool(jnp.isfinite(fp8.tensor_scale(jnp.float32(x), form))) for x in (np.inf, np.nan)] == [False, False]


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen():
    for cut in (per_tensor, fp8.quantize_tiles, fp8.quantize_blocks):
        values, scale = cut(jnp.zeros((4, 6)), E4M3)
        assert not np.float32(values).any() and np.isfinite(scale).all()
        for bad in (np.inf, -np.inf, np.nan):
            values, scale = cut(jnp.ones((4, 6)).at[2, 3].set(bad), E4M3)
            assert not np.isfinite(jnp.float32(values) * scale).all()


def to_tf32(x):
    """To nearest even on the bits: 13 of the 23 bits of the mantissa go."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint64(0x1FFF)
    return rounded.astype(np.uint32).view(np.float32)


def test_tf32_products_see_ten_bits_of_each_operand_forward_and_backward():
    random = np.random.default_rng(0)
    a, b, dy = (random.normal(size=s).astype(np.float32) for s in ((5, 7), (7, 3), (5, 3)))

    def traced(a, b):
        return products.fp32_einsum("ij,jk->ik", a, b)

    with products.product_precision(POLICIES["tf32"]):
        y, pull = jax.vjp(traced, a, b)
        result = (y, *pull(jnp.asarray(dy)))
    low_a, low_b, low_dy = (np.float64(to_tf32(x)) for x in (a, b, dy))
    for ours, theirs in zip(result, (low_a @ low_b, low_dy @ low_b.T, low_a.T @ low_dy), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    assert np.abs(np.float64(y) - np.float64(a) @ b).max() > 1e-5
    with products.product_precision(FP32):
        np.testing.assert_allclose(traced(a, b), np.float64(a) @ b, rtol=2e-6, atol=1e-6)


def test_every_policy_is_a_choice_says_what_it_is_and_warns_where_it_harms():
    assert set(key_records()["precision.name"].choices) == set(POLICIES)
    for name, policy in POLICIES.items():
        assert policy.name == name and jnp.issubdtype(array_dtype(policy.forward), jnp.floating)
        warnings = warnings_for(policy, "cpu")
        assert bool(warnings) == (name not in ("fp32", "bf16", "fp16", "bf16_stochastic", "bf16_kahan")), name
        assert all(f"precision.name={name!r}" in line and "\n" not in line for line in warnings)
        assert warnings_for(policy, "gpu") == ([warnings[0]] if policy.harm else [])
    harmful = {name for name, policy in POLICIES.items() if policy.harm}
    assert harmful == {"fp16_unscaled", "bf16_moments", "bf16_master"}


def test_delayed_scaling_refuses_a_pipeline_and_names_what_goes():
    config = config_lib.resolve(
        config_lib.override(tiny.get_config(), {"precision.name": "fp8_delayed", "parallel.stage": 2})
    )
    with pytest.raises(BadInput, match=r"fp8_delayed' with parallel.stage=2: .*nearest: precision.name='fp8'$"):
        rules.check_layout(config_lib.static(config), config_lib.static(config).layout)
