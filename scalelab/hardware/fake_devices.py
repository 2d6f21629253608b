"""Fake CPU devices of one process (`--xla_force_host_platform_device_count`): their exchanges neither stop nor collide.

Devices of jaxlib 0.10 and 0.11 meet each in a thread. They need not start their exchanges in one order: with a thread a
device, as on machines of few cores, one may wait in a gather for a device that waits in a permute, until XLA ends the
process after 40 s. Threads enough let both go on. With them XLA's newer scheduler for CPUs starts two permutes of one
device at once; they meet in one place, and the process aborts. The older one does not. Measured with a pipeline over
eight devices beside other work: with 8 threads it stood at once, with 64 it ran 150 times; a ring with the newer
scheduler and 16 threads or more aborted 7 times of 7, with the older one it ran 150 times. Programs compute the same.
"""

import os
import re
from collections.abc import MutableMapping

FAKE_DEVICES = "xla_force_host_platform_device_count"
SCHEDULER = "xla_cpu_enable_concurrency_optimized_scheduler"
THREADS = ("PJRT_NPROC", "NPROC")  # either tells jax's CPU client how many threads it has; never fewer than devices
THREADS_A_DEVICE = 8


def keep_exchanges_going(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the scheduler and the threads where XLA_FLAGS makes fake devices; what the user has set stays.

    XLA reads both once, when jax starts: `import scalelab` calls this.
    """
    flags = environment.get("XLA_FLAGS", "")
    devices = re.findall(rf"--{FAKE_DEVICES}=(\d+)", flags)
    if not devices:
        return
    if SCHEDULER not in flags:
        environment["XLA_FLAGS"] = f"{flags} --{SCHEDULER}=false"
    if not any(name in environment for name in THREADS):
        environment[THREADS[0]] = str(THREADS_A_DEVICE * int(devices[-1]))
