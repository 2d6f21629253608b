"""Precision policies: one record per name states every number format of a step; and the warnings about each.

`tests/precision/test_formats_in_jaxpr.py` checks each record against the formats in the step's jaxpr
(`precision/formats_in_jaxpr.py`).
"""

import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp

E4M3, E5M2, TF32 = "float8_e4m3fn", "float8_e5m2", "tensorfloat32"
SUMS = {"compute": True, "float32": False}  # of parallel.sums: whether partial products are sent in `Policy.compute`


@dataclasses.dataclass(frozen=True)
class Policy:
    """Formats by jax's names (`tensorfloat32`: fp32 whose products see 10 bits of mantissa).

    `forward` and `backward` are the operands of the layers' products: activations and weights, and the gradients that
    flow back; all other products (attention, head) take `compute`. Embedding, norms, softmax, biases and loss are fp32
    under every policy; the residual stream is summed in `residual`, so that fp8 does not degrade it.
    """

    name: str
    forward: str = "float32"  # operands of a layer's product
    backward: str = "float32"  # the gradient operand of the products in its backward pass
    compute: str = "float32"  # activations between layers, operands of attention and head
    residual: str = "float32"  # the stream to which every block adds
    accumulation: str = "float32"  # sums inside every product, and gradients of parameters summed over devices
    sums_in_compute: bool = False  # whether `tensor` adds up partial products in `compute`, not in fp32
    gradients: str = "float32"  # gradients of the parameters
    reductions: str = "float32"  # sums over tokens and features: norms, softmax, loss, gradients of biases
    logits: str = "float32"
    loss: str = "float32"
    parameters: str = "float32"  # as stored between steps; the update itself is in fp32
    rounding: Literal["nearest", "stochastic", "kahan"] = "nearest"  # of parameters to it (precision/rounding.py)
    moments: str = "float32"  # the optimizer's state, as stored between steps
    # Of fp8 operands: from the tensor's amax, from that of earlier steps, or from each block's.
    scaling: Literal["", "current", "delayed", "block"] = ""
    scaled_loss: bool = False  # dynamic loss scaling
    recomputed: bool = False  # no format: the backward computes each block once more (model.remat)
    parts: int = 1  # no format: of the sequence, when `tensor` adds up partial products (model/products/parts.py)
    harm: str = ""  # why the policy is not recommended

    @property
    def products(self) -> list[str]:
        """All pairs of operand formats, sorted. In attention and head, gradients stay fp32 up to their product."""
        pairs = {self.forward, self.compute, " x ".join(sorted({self.forward, self.backward}))}
        if self.compute != TF32:
            pairs.add(" x ".join(sorted({self.compute, "float32"})))
        return sorted(pairs)

    def of_model(self, sums: str, remat: str) -> "Policy":
        """The policy of a model with `parallel.sums` (compute: partial products are sent in its format) and `remat`.

        fp16 would lose small gradients that are sent in parts: their sums stay fp32.
        """
        narrow = SUMS[sums] and self.compute != "float16"
        return dataclasses.replace(self, sums_in_compute=narrow, recomputed=remat != "none")

    @property
    def unit(self) -> str:
        """The format that sets the rate of most products, by the names of `hardware/chips.py`."""
        return self.forward


def _half(name: str, dtype: str, **others: Any) -> Policy:
    return Policy(name, forward=dtype, backward=dtype, compute=dtype, residual=dtype, **others)


POLICIES = {
    "fp32": Policy("fp32"),
    "tf32": Policy("tf32", forward=TF32, backward=TF32, compute=TF32),
    "bf16": _half("bf16", "bfloat16"),
    # Micikevicius et al. 2018, "Mixed Precision Training": fp32 master weights, loss scaling
    "fp16": _half("fp16", "float16", scaled_loss=True),
    # Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3: e4m3 forward, e5m2 for gradients
    "fp8": Policy("fp8", E4M3, E5M2, "bfloat16", scaling="current"),
    "fp8_delayed": Policy("fp8_delayed", E4M3, E5M2, "bfloat16", scaling="delayed"),
    # DeepSeek-V3 (2024), section 3.3.2: 1 x 128 tiles of activations and gradients, 128 x 128 blocks of weights,
    # all e4m3
    "fp8_block": Policy("fp8_block", E4M3, E4M3, "bfloat16", scaling="block"),
    "fp16_unscaled": _half(
        "fp16_unscaled", "float16",
        harm="gradients below 2^-25 become zero where they pass through fp16: use fp16, which scales the loss",
    ),
    "bf16_moments": _half(
        "bf16_moments", "bfloat16", moments="bfloat16",
        harm="moments kept in bf16 (8 bits) stand still where a step moves them by less than 1/256 of their size, "
        "as beta2 above 0.996 does: use bf16, whose moments are fp32",
    ),
    "bf16_master": _half(
        "bf16_master", "bfloat16", parameters="bfloat16",
        harm="weights kept in bf16 (8 bits) lose every update smaller than 1/512 of the weight: use "
        "bf16_stochastic, which keeps them on average, or bf16, whose weights are fp32",
    ),
    "bf16_stochastic": _half("bf16_stochastic", "bfloat16", parameters="bfloat16", rounding="stochastic"),
    "bf16_kahan": _half("bf16_kahan", "bfloat16", parameters="bfloat16", rounding="kahan"),
}  # fmt: skip
FP32 = POLICIES["fp32"]


@functools.cache
def first_alike(name: str) -> str:
    """The first policy whose passes are those of this one: how parameters and moments are stored is no part of them."""

    def passes(name: str) -> Policy:
        policy = dataclasses.replace(POLICIES[name], name="", harm="")
        return dataclasses.replace(policy, parameters=FP32.parameters, rounding=FP32.rounding, moments=FP32.moments)

    return next(other for other in POLICIES if passes(other) == passes(name))


def array_dtype(name: str) -> jnp.dtype:
    """The dtype of arrays in a format: TF32 numbers are stored in fp32."""
    return jnp.dtype("float32" if name == TF32 else name)


def warnings_for(policy: Policy, backend: str) -> list[str]:
    """Warnings about a run under `policy` on this backend: its harm, and what is emulated."""
    warnings = [f"precision.name={policy.name!r}: {policy.harm}"] if policy.harm else []
    if policy.forward == TF32 and backend != "gpu":
        warnings.append(
            f"precision.name='tf32' is emulated on {backend}: operands of products are rounded to 10 bits of mantissa "
            "(lax.reduce_precision), then multiplied in fp32; no time is saved"
        )
    if policy.scaling and backend == "cpu":
        warnings.append(
            f"precision.name={policy.name!r}: this CPU has no fp8 units; operands are rounded to fp8 and multiplied "
            "wider, with the same result and no time saved"
        )
    return warnings
