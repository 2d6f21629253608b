"""What-ifs of a replay: parse them from text, and apply them to a run's config, state and batches.

    clip=1,2; lr*=.7,1; skip=120..123; moments=keep,reset; guard=sigma; optim.beta2=.95

Parts are separated by `;`, values by `,`; every combination is one what-if. A key of the config may be given if its
value is traced: a changed shape would need another program and state.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from scalelab import config as config_lib
from scalelab.config.keys import key_records
from scalelab.errors import BadInput, nearest_hint

CLIP, LR, SKIP, MOMENTS, GUARD = "clip", "lr*", "skip", "moments", "guard"
CLIP_KEY = "optim.clip_norm"
WORDS = {MOMENTS: ("keep", "reset"), GUARD: ("log", "sigma")}
RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")
MOST = 64  # what-ifs at once


class WhatIf(NamedTuple):
    """One what-if. `overrides`: config keys; `lr_factor`: times the scheduled LR; `skip`: batches never taken.

    `reset_moments`: whether the optimizer starts fresh, with the weights kept, and the LR warms up again; `detector`:
    of a guard that skips outliers, or "" for the run's own guard; `clip_norm`: of gradients, None for the run's own.
    """

    name: str
    overrides: dict[str, str]
    lr_factor: float = 1.0
    skip: frozenset[int] = frozenset()
    reset_moments: bool = False
    detector: str = ""
    clip_norm: float | None = None


ORIGINAL = WhatIf("original", {})


def parse_what_ifs(texts: Sequence[str]) -> list[WhatIf]:
    """Parse the what-ifs of all `texts`, each a product of its parts, without empty ones. Raises BadInput."""
    parsed = {one.name: one for text in texts for one in _product(text) if one.name}
    if len(parsed) > MOST:
        raise BadInput(f"--what-if asks for {len(parsed)} what-ifs, at most {MOST} at once: leave values out")
    return list(parsed.values())


def _product(text: str) -> list[WhatIf]:
    parts = [part.strip() for part in text.split(";") if part.strip()]
    axes = []
    for part in parts:
        key, sign, values = part.partition("=")
        if not sign or not values.strip():
            raise BadInput(f"--what-if={text!r}: {part!r} is not KEY=VALUE,…, such as clip=1,2 or skip=120..123")
        axes.append([(_key(key.strip()), value.strip()) for value in values.split(",")])
    return [_what_if(dict(chosen)) for chosen in itertools.product(*axes)] if axes else []


def _key(key: str) -> str:
    """Complete a key's name. BadInput for a key that is unknown or decides a shape."""
    if key in (CLIP, LR, SKIP, MOMENTS, GUARD):
        return key
    record = key_records().get(key)
    if record is None:
        known = [CLIP, LR, SKIP, MOMENTS, GUARD, *config_lib.traced_keys()]
        raise BadInput(f"--what-if: no {key!r}{nearest_hint(key, known)}")
    if key not in config_lib.traced_keys() or key in ("train.steps", "train.seed"):
        raise BadInput(
            f"--what-if: {key} decides the program or the data of the run, and the checkpoint is of that; "
            f"what can change are traced numbers, such as clip, lr*, optim.beta2 (`scalelab config optim`)"
        )
    return key


def _what_if(chosen: dict[str, str]) -> WhatIf:
    overrides, names, one = dict[str, str](), [], ORIGINAL
    for key, value in chosen.items():
        if key in WORDS and value not in WORDS[key]:
            raise BadInput(f"--what-if: {key}={value}; it is one of {', '.join(WORDS[key])}")
        if key == LR:
            one = one._replace(lr_factor=_number(LR, value, 100, "factor", ".7"))
        elif key in (CLIP, CLIP_KEY):
            one = one._replace(clip_norm=_number(CLIP, value, 1e9, "norm", "1"))
        elif key == SKIP:
            one = one._replace(skip=_steps(value))
        elif key == MOMENTS:
            one = one._replace(reset_moments=value == "reset")
        elif key == GUARD:
            one = one._replace(detector=value)
        else:
            overrides[key] = value
        if not ((key == MOMENTS and not one.reset_moments) or (key == LR and one.lr_factor == 1.0)):
            names.append(f"{key}={value}")
    return one._replace(name=" ".join(names), overrides=overrides)


def _number(key: str, text: str, most: float, what: str, usual: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise BadInput(f"--what-if: {key}={text} is not a number; {usual} is usual") from error
    if not 0 < number <= most:
        raise BadInput(f"--what-if: {key}={text} is not a {what} above 0 and at most {most:g}; {usual} is usual")
    return number


def _steps(text: str) -> frozenset[int]:
    match = RANGE.fullmatch(text)
    if match is None or int(match[1]) < 1 or int(match[2] or match[1]) < int(match[1]):
        raise BadInput(f"--what-if: skip={text} is neither a step nor a range of steps such as 120..123")
    return frozenset(range(int(match[1]), int(match[2] or match[1]) + 1))
