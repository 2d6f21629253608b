"""Fake CPU devices of one process (`--xla_force_host_platform_device_count`): their exchanges neither stop nor collide.

Devices of jaxlib 0.10 and 0.11 meet each in a thread. They need not start their exchanges in one order: with a thread a
device, as on machines of few cores, one may wait in a gather for a device that waits in a permute, until XLA ends the
process after 40 s. Threads enough let both go on. With them XLA's newer scheduler for CPUs starts two permutes of one
device at once; they meet in one place, and the process aborts or crashes. The older one does not. Seen on 2026-11-28: a
pipeline over eight devices beside other work stood with 8 threads, and ran 150 times in a process with 64; a ring, run
up to 20 times in a process with 16 or 32 threads, ended each of six processes with the newer scheduler, and ran 150
times in one with the older and 64 threads. The results of these runs were equal bit for bit. The older one still runs
exchanges in a loop beside later ones that need nothing from it; those of a shard_map all have one channel, so one is
taken for another. Seen on 2026-11-29: document numbers that went around beside keys ended three processes of three with
64 threads, none with 8. No program of ours may have two such chains; a ring gathers the document numbers at once.
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
