"""How `config` walks through `scalelab train`: one tiny run under `sys.setprofile`, in any checkout.

`python tests/config_walk.py` with PYTHONPATH=ROOT is the traced run, and prints JSON; `measure(ROOT)` starts it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from typing import Any

DEFINITION = """**The walk of `config`.** One run of two steps is traced. A handover is a pair (function of one room,
function of another room that it calls, directly or through a library) where the whole `ConfigDict`, or the
`TrainSpec` that holds it, is among the arguments, itself or in a list; repeated calls count once. A room is a folder
of `scalelab/` or a file on its ground floor. A handover comes back if its room has had the config before; three rows
have files in the place of rooms. The last
two rows count calls by other rooms of the rooms that read configs (`config`; before the move `config.py`, `tree.py`,
`validate.py`, `lengths.py`, `ramp.py`, `shares.py` and `defaults.py`): each derives again something that follows
from the config alone. The last row has those that split or identify it."""
READERS = ("config", "tree", "validate", "lengths", "ramp", "shares", "defaults")
RUN = [
    "train", "--config=configs/tiny.py", "--config.data.source=synthetic", "--config.data.n_tokens=20000",
    "--config.model.d_model=16", "--config.model.n_layers=1", "--config.model.n_heads=2", "--config.model.seq_len=16",
    "--config.train.global_batch=2", "--config.train.steps=2", "--config.eval.batches=1",
]  # fmt: skip


def measure(root: pathlib.Path) -> dict[str, int]:
    """Rooms and files that the config enters, handovers, those that come back, calls of the rooms that read configs."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "SCALELAB_CACHE": folder}
        command = [sys.executable, __file__, *RUN, f"--workdir={folder}/run", "--json=" + f"{folder}/answer.json"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the traced run failed: {done.stderr[-2000:]}")
    between = json.loads(done.stdout.splitlines()[-1])
    handovers = [[room_of(a), f, room_of(b), g, calls] for a, f, b, g, calls in between if room_of(a) != room_of(b)]
    rooms, comes_back = _count_returns([room for _, _, room, _, _ in handovers], "commands")
    files, returns = _count_returns([file for _, _, file, _, _ in between], between[0][0])
    asked = sum(calls for source, _, room, _, calls in handovers if room in READERS and source not in READERS)
    split = sum(calls for *_, name, calls in handovers if name in ("static", "hparams", "identity"))
    return {
        "rooms that config enters in a run": rooms,
        "handovers of config": len(handovers),
        "handovers that come back to a room": comes_back,
        "files that config enters in a run": files,
        "handovers of config between files": len(between),
        "handovers that come back to a file": returns,
        "calls that derive from config again": asked,
        "of these, static, hparams and identity": split,
    }


def room_of(file: str) -> str:
    """train/run/loop.py -> train; errors.py -> errors."""
    return file.split("/")[0].removesuffix(".py")


def _count_returns(places: list[str], first: str) -> tuple[int, int]:
    """(different places, those that were there before) of a walk from `first`."""
    seen, returns = {first}, 0
    for place in places:
        returns += place in seen
        seen.add(place)
    return len(seen), returns


class Walk:
    """The profiler: `handovers` maps (file, function, file, function) to the number of calls, in order of the first."""

    def __init__(self, root: pathlib.Path) -> None:
        self.package = str(root / "scalelab") + os.sep
        self.files: dict[Any, str | None] = {}
        self.handovers: dict[tuple[str, str, str, str], int] = {}

    def file(self, code: Any) -> str | None:
        """The file of a code object below the package; None outside."""
        if code not in self.files:
            inside = code.co_filename.startswith(self.package) and code.co_name != "<module>"
            self.files[code] = code.co_filename.removeprefix(self.package) if inside else None
        return self.files[code]

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """A profile function: notes each call that hands the config over to another file."""
        file = self.file(frame.f_code) if event == "call" else None
        if file is None:
            return
        caller = frame.f_back
        while caller and self.file(caller.f_code) is None:
            caller = caller.f_back
        source = self.file(caller.f_code) if caller else None
        if source in (None, file) or not any(map(_holds_config, _arguments(frame))):
            return
        assert caller and source
        key = (source, caller.f_code.co_qualname, file, frame.f_code.co_qualname)
        self.handovers[key] = self.handovers.get(key, 0) + 1


def _arguments(frame: Any) -> list[Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return [frame.f_locals.get(name) for name in code.co_varnames[:count]]


def _holds_config(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_config, value[:4]))
    if type(value).__name__ == "TrainSpec":
        return True
    return type(value).__name__ == "ConfigDict" and "train" in value and "model" in value


def main() -> int:
    """Run `scalelab` with the given arguments under the profiler, and print its handovers as JSON."""
    from scalelab import __main__ as door

    walk = Walk(pathlib.Path(door.__file__).parents[1])
    threading.setprofile(walk)
    sys.setprofile(walk)
    code = door.main(sys.argv[1:])
    sys.setprofile(None)
    print(json.dumps([[*key, calls] for key, calls in walk.handovers.items()]))
    return code


if __name__ == "__main__":
    sys.exit(main())
