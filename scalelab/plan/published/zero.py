"""Model states of a device under ZeRO, as its paper counts them (mixed precision: 2 bytes of weights, 2 of gradients, K of the rest).

Our own step keeps fp32 weights and no copy of them between steps: `memory/memory.py` counts that.
"""

ADAM = 12  # K: fp32 weights, momentum and variance (Rajbhandari et al. 2020, section 3.1)


def state_bytes(parameters: float, devices: int, stage: int, k: float = ADAM) -> float:
    """Bytes a device of weights, gradients and optimizer state (Rajbhandari et al. 2020, section 5 and Table 1).

    Stage 0 splits nothing, 1 the optimizer state (P_os), 2 gradients too (P_os+g), 3 weights too (P_os+g+p). `k`: bytes a
    parameter of optimizer state, fp32 weights included.
    """
    shares = [devices if stage >= least else 1 for least in (3, 2, 1)]
    return parameters * sum(size / share for size, share in zip((2, 2, k), shares, strict=True))
