"""One kind of work on one device."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Operation:
    """`times` a step: `flops` on `unit` (a format of `hardware.py`; "" none) and `bytes` of memory. `part`: where it belongs."""

    name: str
    part: str  # block | head | update
    unit: str
    flops: float
    bytes: float
    times: float
