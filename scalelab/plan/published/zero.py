"""Model states of a device under ZeRO by its paper's count: 2 bytes of weights, 2 of gradients, K of the rest.

Our own step keeps fp32 weights and no copy of them between steps: `memory/memory.py` counts that.
"""

DEVICES = (1, 4, 16, 64, 256, 1024)
# Rajbhandari et al. 2020 (arXiv 1910.02054), table 1: parameters -> stage -> GB a device on so many. Read off a
# transcript of the paper's page on 2026-11-27.
TABLE_1 = {
    7.5e9: {
        1: ("120", "52.5", "35.6", "31.4", "30.4", "30.1"),
        2: ("120", "41.3", "21.6", "16.6", "15.4", "15.1"),
        3: ("120", "30", "7.5", "1.88", "0.47", "0.12"),
    },
    128e9: {
        1: ("2048", "896", "608", "536", "518", "513"),
        2: ("2048", "704", "368", "284", "263", "257"),
        3: ("2048", "512", "128", "32", "8", "2"),
    },
    1e12: {
        1: ("16000", "7000", "4750", "4187", "4046", "4011"),
        2: ("16000", "5500", "2875", "2218", "2054", "2013"),
        3: ("16000", "4000", "1000", "250", "62.5", "15.6"),
    },
}
ADAM = 12  # K: fp32 weights, momentum and variance (Rajbhandari et al. 2020, section 3.1)


def state_bytes(parameters: float, devices: int, stage: int, k: float = ADAM) -> float:
    """Bytes a device of weights, gradients and optimizer state (Rajbhandari et al. 2020, section 5 and Table 1).

    Stage 0 splits nothing, 1 the optimizer state (P_os), 2 gradients too (P_os+g), 3 weights too (P_os+g+p). `k`: bytes
    a parameter of optimizer state, fp32 weights included.
    """
    shares = [devices if stage >= least else 1 for least in (3, 2, 1)]
    return parameters * sum(size / share for size, share in zip((2, 2, k), shares, strict=True))
