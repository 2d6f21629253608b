"""A trace of chosen steps, `log.profile=100:103`, as XProf and TensorBoard's profile plugin read it.

RUN/profile/plugins/profile/DATE/HOST.xplane.pb   the trace, one marker a step
RUN/profile/memory.prof                           memory of the devices after the last of these steps, for pprof
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from scalelab.config.checks.validate import parse_profile


class Profiler:
    """Traces the steps of `log.profile`; without it, it does nothing."""

    def __init__(self, text: str, folder: pathlib.Path, step: int, progress: Callable[[dict[str, Any]], None]) -> None:
        self.window, self.folder, self.progress = parse_profile(text), folder / "profile", progress
        self.is_tracing = False
        if self.window and step >= self.window[0]:
            self._say(f"log.profile={text}: nothing is traced, as step {step} of this run is done already")
            self.window = None

    def stop_before(self, step: int) -> list[int]:
        """Give the steps at which the host has to look again: before the window, and at each of its steps."""
        if not self.window:
            return []
        first, last = self.window
        return [first - 1] if step < first - 1 else [step + 1] if step < last else []

    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Surround the dispatch of the steps after `step`: starts the trace, and marks the step in it."""
        if not self.window or step + 1 < self.window[0]:
            yield
            return
        if not self.is_tracing:
            jax.profiler.start_trace(str(self.folder))
            self.is_tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            yield

    def end(self, step: int, states: Any) -> None:
        """End the trace if `step` is the last of its steps: waits for it, writes the trace and the memory."""
        if self.is_tracing and self.window and step >= self.window[1]:
            jax.block_until_ready(states)
            self.close()

    def close(self) -> None:
        """Write what was traced, also where the run ends within the window."""
        if not self.is_tracing:
            return
        jax.profiler.stop_trace()
        jax.profiler.save_device_memory_profile(str(self.folder / "memory.prof"))
        self.is_tracing, self.window = False, None
        self._say(f"trace of log.profile: {self.folder}; `tensorboard --logdir={self.folder}` with xprof installed")

    def _say(self, text: str) -> None:
        self.progress({"note": text})
