"""Fake CPU devices of one process (`--xla_force_host_platform_device_count`): their collectives keep one order.

XLA's scheduler for CPUs (jaxlib 0.10 and 0.11) may start two exchanges of one device at a time. Where threads are more
than devices, as on 16 cores with 8 devices, both meet the other devices at one place, and the process aborts or crashes
(ring attention, three times of three). Where they are as few, each may wait for a device that has no thread left, until
XLA ends the process. Its older scheduler keeps them in order; programs compute the same.
"""

import os
from collections.abc import MutableMapping

FAKE_DEVICES = "xla_force_host_platform_device_count"
SCHEDULER = "xla_cpu_enable_concurrency_optimized_scheduler"


def order_collectives(environment: MutableMapping[str, str] = os.environ) -> None:
    """Ask XLA for its older scheduler where XLA_FLAGS makes fake devices; a scheduler that is set there stays.

    XLA reads its flags once, when jax starts: `import scalelab` calls this.
    """
    flags = environment.get("XLA_FLAGS", "")
    if FAKE_DEVICES in flags and SCHEDULER not in flags:
        environment["XLA_FLAGS"] = f"{flags} --{SCHEDULER}=false"
