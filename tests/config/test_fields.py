"""Records changed fast against dataclasses.replace, and hashes that stay in their process."""

import copy
import dataclasses
import pickle

import pytest

from scalelab import config as configs


def test_a_changed_record_is_that_of_the_standard_library():
    static = configs.static(configs.load("configs/tiny.py"))
    assert static.model.plain and hash(static)  # which are kept beside the fields, and must not go along
    changed = configs.with_fields(static.model, remat="full", seq_len=64)
    assert changed == dataclasses.replace(static.model, remat="full", seq_len=64) and changed.plain.seq_len == 64
    assert hash(changed) == hash(dataclasses.replace(static.model, remat="full", seq_len=64)) != hash(static.model)
    with pytest.raises(TypeError, match="ModelShape has no sequences"):
        configs.with_fields(static.model, sequences=1)


def test_a_hash_is_not_copied_to_another_process():
    static = configs.static(configs.load("configs/tiny.py"))
    hash(static)
    for other in (pickle.loads(pickle.dumps(static)), copy.deepcopy(static)):
        assert other == static and vars(other).keys() == {field.name for field in dataclasses.fields(static)}
