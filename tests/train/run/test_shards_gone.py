"""A shard that goes away under a run, or is cut: one line, and nothing lost."""

import pytest

from scalelab.errors import BadInput
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config


@pytest.mark.full
@pytest.mark.parametrize("remaining", [None, pytest.param(1000, marks=pytest.mark.slow)], ids=["deleted", "cut"])
def test_it_ends_the_run_in_one_line_and_put_back_it_goes_on_to_the_same_bits(tmp_path, remaining):
    made = config(
        data__cache_dir=str(tmp_path / "cache"), train__steps=8, train__steps_per_dispatch=2, checkpoint__every_steps=2
    )
    whole = train_single(made, tmp_path / "whole")
    (shard,) = (tmp_path / "cache").rglob("train-*.tokens")
    content = shard.read_bytes()

    def lose(output):
        if output.get("step") == 4:
            shard.unlink(missing_ok=True)  # train and evaluation both say step 4
            if remaining:
                shard.write_bytes(content[:remaining])

    with pytest.raises(
        BadInput, match="is gone since" if remaining is None else f"has {remaining} bytes, and had"
    ) as caught:
        train_single(made, tmp_path / "run", lose)
    assert str(shard) in str(caught.value) and "\n" not in str(caught.value)
    shard.write_bytes(content)
    again = train_single(made, tmp_path / "run")
    assert again["resumed_from"] >= 2 and again["params_digest"] == whole["params_digest"]
