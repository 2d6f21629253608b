"""Memory of the host of a run whose moments lie there (`train.moments=pinned_host`)."""

import dataclasses

import jax

from scalelab.config import Static
from scalelab.hardware.host_memory import pool_gib
from scalelab.plan.machine.machine import Machine
from scalelab.train.step import state as state_lib

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Bytes of a host's memory for one process. `capacity`: of the host, None: not known, as `fits` is then.

    `pool_bytes`: what XLA may pin for the moments on a GPU; elsewhere it pins them alone. `save_bytes`: a save copies
    the whole state to the host before it writes.
    """

    moments_bytes: int
    pool_bytes: int
    save_bytes: int
    capacity: int | None

    @property
    def total(self) -> int:
        """The pool and the copy of a save."""
        return self.pool_bytes + self.save_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the host holds both."""
        return None if self.capacity is None else self.total <= self.capacity


def host_memory(static: Static, machine: Machine) -> HostMemory | None:
    """Memory that a run of `static` needs on a host of `machine`; None if its moments lie on the device."""
    moments = state_lib.host_bytes(static)
    if not moments:
        return None
    saved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state_lib.state_shapes(static)))
    on_gpu = not machine.chip.name.startswith(("TPU", "CPU"))
    return HostMemory(moments, pool_gib(moments) * GIB if on_gpu else moments, saved, machine.host_bytes)
