"""All cases of the open half, by name."""

from checks.diagnosis.contract.open import code, healthy, leaves, logged, read, settings, state

PARTS = (code, leaves, read, logged, state, settings, healthy)
CASES = {case.name: case for part in PARTS for case in part.CASES}
