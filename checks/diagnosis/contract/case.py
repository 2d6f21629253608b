"""A case: a fault as a user could have made it, or an odd run that is as it should be; with what a right answer says.

A case is written from the contract in words (checks/diagnosis/contract.md), before any check of it. Its values are
those of the command line; `mine:NAME` is a function of the half's `mine.py`, copied beside the config file as a user's
own module.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

LINES = ("code", "leaves", "read", "logged", "state", "settings")
HEALTHY = "healthy"

# On top of configs/tiny.py (Python's own text as bytes): a line a step, so that few steps say much.
BASE: dict[str, Any] = {
    "model.d_model": 32, "model.n_heads": 2, "model.seq_len": 64, "train.global_batch": 8, "train.steps": 160,
    "schedule.warmup_steps": 10, "eval.every_steps": 40, "eval.batches": 2, "log.every_steps": 1,
    "log.layers_every": 10, "checkpoint.every_steps": 40, "checkpoint.keep_every": 40,
}  # fmt: skip
# The two sizes of a case that names no others.
SMALL: dict[str, Any] = {}
LARGER: dict[str, Any] = {"model.d_model": 64, "model.n_layers": 3, "model.n_heads": 4, "model.seq_len": 96}
SIZES = (SMALL, LARGER)


class Edit(NamedTuple):
    """In a copy of the package: `old`, which stands once in `file` (below scalelab/), becomes `new`."""

    file: str
    old: str
    new: str


class Answer(NamedTuple):
    """What a right answer says of a fault.

    The first finding is right if one of `words` begins a word of its cause or sentence, whatever its case, and its knob
    has none of `wrong` in it. `knobs`: parts of the keys that would help, any of which may be named; (): the fault is
    in code or data, so a knob of the config is not asked for.
    """

    words: tuple[str, ...]
    knobs: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ("peak_lr", "clip_norm", "init_std", "warmup", "weight_decay", "z_loss", "precision.name")


class Case(NamedTuple):
    """One case. `line` of the contract, or `healthy`, which has no `answer`.

    `edits` fork the package while the run trains, and while it is judged unless `judged_clean` (then the fault is in
    the past: an older version, another machine). With `later` the run ends at its steps and then goes on with these
    values, `later_edits` and `later_options`. `doctor`: a function of `doctored.py` that edits the finished folder.
    `without`: values of the run that harm is measured against, beside the edits left out; None: nothing to compare
    with (`harm` says why). `devices`: CPU devices of the process. `prepared`: data are two prepared sources, a and b.
    `asked`: an option of `diagnose` that says what of the program is asked; "": as it is typed.
    `question`: a cause that may fairly be asked of a healthy run.
    """

    name: str
    line: str
    about: str
    answer: Answer | None = None
    changes: Mapping[str, Any] = {}
    sizes: tuple[Mapping[str, Any], ...] = SIZES
    edits: tuple[Edit, ...] = ()
    later: Mapping[str, Any] | None = None
    later_edits: tuple[Edit, ...] = ()
    later_options: tuple[str, ...] = ()
    doctor: str = ""
    without: Mapping[str, Any] | None = {}
    devices: int = 1
    prepared: bool = False
    asked: str = "--live"
    judged_clean: bool = False
    harm: str = ""
    question: str = ""
    seed: int = 0
