"""What the benchmark keeps: the parts that were measured, beside those that were not."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.speed.benchmarks import __main__ as benchmarks
from checks.speed.benchmarks.steps import linen, peers


def test_a_part_is_kept_with_its_machine_and_date_and_the_others_stay(tmp_path, monkeypatch):
    file = tmp_path / "benchmarks.json"
    file.write_text(json.dumps({"machine": "old", "date": "2026-01-01", "step": [1], "laws": {"fit_s": 2}}))
    monkeypatch.setattr(benchmarks, "RESULTS", file)
    benchmarks.store_part("step", {"machine": "new", "date": "2026-02-02", "step": [3]}, rounds=7)
    benchmarks.store_part("optimizers", {"machine": "new", "date": "2026-02-02", "optimizers": [4]}, rounds=3)
    result = json.loads(file.read_text())
    assert (result["machine"], result["step"], result["laws"], result["optimizers"]) == ("old", [3], {"fit_s": 2}, [4])
    new = {"machine": "new", "date": "2026-02-02"}
    assert result["measured"] == {"step": new | {"rounds": 7}, "optimizers": new | {"rounds": 3}}


@pytest.mark.full
def test_the_peer_in_linen_has_the_parameters_of_a_gpt_without_biases_and_sees_no_later_token():
    vocab, width, layers, length = 11, 8, 2, 6
    model = linen.Decoder(vocab, width, layers, 2, length)
    tokens = jnp.arange(length)[None]
    params = model.init(jax.random.key(0), tokens)
    counted = sum(x.size for x in jax.tree.leaves(params))
    assert counted == (vocab + length) * width + layers * (12 * width**2 + 2 * width) + width
    logits, changed = model.apply(params, tokens), model.apply(params, tokens.at[0, -1].set(9))
    np.testing.assert_array_equal(logits[:, :-1], changed[:, :-1])
    assert not np.array_equal(logits[:, -1], changed[:, -1])


@pytest.mark.slow
def test_peers_take_turns_and_one_whose_library_is_missing_is_left_out_with_the_reason():
    result = peers.measure_peers("tiny", rounds=2, steps=2)
    assert result.keys() == {"scalelab", "torch", "linen"}
    assert result["scalelab"]["time_over_ours"] == [1.0, 1.0, 1.0]
    low, high = result["linen"]["time_over_ours"][1:]
    assert 0 < low <= high
    assert "ms" in result["torch"] or "torch" in result["torch"]["left_out"]
