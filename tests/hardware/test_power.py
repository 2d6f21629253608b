"""Board power against energies that others have published from the same products."""

import pytest

from scalelab.hardware import chips
from scalelab.hardware.power import BOARD_WATTS, board_watts


def test_bloom_took_the_energy_that_its_authors_state():
    """Luccioni et al. 2022 (arXiv 2211.02001), table 3: 1,082,990 hours of an A100 80GB at its TDP are 433,196 kWh."""
    watts = board_watts(chips.find_chip("NVIDIA A100-SXM4-80GB"))
    assert watts * 1_082_990 / 1000 == pytest.approx(433_196, abs=1)


def test_llama_ran_at_the_power_of_its_model_card():
    """Llama 3.1's model card, "training energy use": H100-80GB hardware, of a TDP of 700 W."""
    assert board_watts(chips.find_chip("NVIDIA H100 80GB HBM3")) == 700


def test_only_known_chips_have_a_power_and_tpus_have_none():
    names = {chip.name for chip in chips.CHIPS.values()}
    assert set(BOARD_WATTS) <= names
    assert not [name for name in BOARD_WATTS if name.startswith("TPU")]
