"""The order of training windows: one permutation per epoch, computed on demand, never stored.

A Feistel network over the next even power of two, applied until the value is inside the range (Black & Rogaway 2002,
section 4). The n-th window of a 10^12-token corpus costs as little as that of a small one. Integer arithmetic only:
the order is the same with every numpy and on every machine.
"""

import numpy as np

FEISTEL_ROUNDS = 6


def window_numbers(positions: np.ndarray, n_windows: int, seed: int, stream: tuple[int, ...] = ()) -> np.ndarray:
    """The windows (int64 in [0, n_windows)) at `positions` of the endless stream of shuffled epochs.

    Position p belongs to epoch p // n_windows; each epoch has every window exactly once. Each `stream` of a seed has
    its own order.
    """
    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)
    numbers = np.empty_like(places)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        numbers[inside] = permute_positions(places[inside], n_windows, (seed, int(epoch), *stream))
    return numbers


def permute_positions(places: np.ndarray, n: int, key: tuple[int, ...]) -> np.ndarray:
    """Images of `places` under a pseudo-random permutation of range(n).

    `key` chooses the permutation: numbers >= 0, the last not 0 if there are more than two.
    """
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    round_keys = np.random.SeedSequence(key).generate_state(FEISTEL_ROUNDS, np.uint64)
    values = _feistel(places.astype(np.uint64), half_bits, round_keys)
    while (outside := values >= n).any():  # less than 3 of 4 values are outside, so a few turns are enough
        values[outside] = _feistel(values[outside], half_bits, round_keys)
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half_bits: int, round_keys: np.ndarray) -> np.ndarray:
    bits, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & low
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & low)
    return (left << bits) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """A 64-bit finaliser: two multiply-xorshift turns (constants of Stafford's mix 13, as in splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
