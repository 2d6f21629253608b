"""Small corpora of random letters: no two documents share a stretch of text by chance."""

import numpy as np
import pytest

from scalelab.data.sources.sources import DataConfig


@pytest.fixture
def corpus(tmp_path):
    """Forty files of 500 to 3,000 bytes; a config that reads them with its cache beside them."""
    random = np.random.default_rng(0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02d}.txt").write_bytes(random.integers(32, 127, random.integers(500, 3000), np.uint8).tobytes())
    return DataConfig(source="text", path=str(folder / "*.txt"), cache_dir=str(tmp_path / "cache"))
