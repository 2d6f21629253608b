"""The runs: small models on mixtures of three corpora, a ladder on the even mixture, and two larger models."""

import json
import pathlib
import pydoc_data.topics
import sysconfig
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from ml_collections import ConfigDict

from scalelab import api
from scalelab import config as config_lib
from scalelab.configs import quickstart
from scalelab.model import count
from scalelab.record import listing, records
from scalelab.sweep.scaling.rules import small_bytes_rule

DOMAINS = ("code", "prose", "tables")
PARTS = 15  # shares are fifteenths: 1, 5, 9 or 13 of them on the lattice, so that no domain is unseen
LATTICE = tuple((1 + 4 * a, 1 + 4 * b, 13 - 4 * a - 4 * b) for a in range(4) for b in range(4 - a))
EVEN = (5, 5, 5)
HELD_OUT = ((3, 3, 9), (7, 7, 1), (3, 9, 3))  # mixtures that the laws have not seen
Shape = tuple[int, int]  # width, steps
PROXY: Shape = (24, 400)
LADDER: tuple[Shape, ...] = ((16, 250), PROXY, (32, 600), (40, 850))  # at the even mixture
LARGER: Shape = (56, 1300)
SEEDS, QUICK_SEEDS = (0, 1, 2, 3), (0, 1)
RULE = small_bytes_rule(quickstart.get_config())
Mixture = tuple[float, ...]


def write_corpora(folder: pathlib.Path) -> pathlib.Path:
    """Write three corpora of Python's standard library, and prepare them as bytes; returns the folder of shards."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    texts = {
        "code": (path.read_text() for path in sorted(library.glob("*.py"))),
        "prose": (text for _, text in sorted(pydoc_data.topics.topics.items())),
        "tables": (path.read_text() for path in sorted(library.glob("encodings/[cim]*.py"))),
    }
    place = folder / "corpora"
    place.mkdir(parents=True, exist_ok=True)
    for name, documents in texts.items():
        _write_documents(place / f"{name}.jsonl", documents)
    sources = [f"{name}={place / name}.jsonl" for name in DOMAINS]
    api.prepare(sources, "bytes", folder / "data", workers=1)
    return folder / "data"


def _write_documents(path: pathlib.Path, documents: Iterable[str]) -> None:
    if not path.exists():
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


def shares_text(shares: Mixture) -> str:
    """Shares as data.mixture writes them: fractions that sum to one exactly."""
    parts = [Fraction(share).limit_denominator(1000) for share in shares[:-1]]
    exact = [*parts, 1 - sum(parts, Fraction())]
    return ",".join(f"{name}={share}" for name, share in zip(DOMAINS, exact, strict=True))


def of_parts(parts: tuple[int, ...]) -> Mixture:
    """Fifteenths as shares."""
    return tuple(Fraction(part, PARTS) for part in parts)


def make_trial(data: pathlib.Path, mixture: Mixture, shape: Shape, seed: int) -> ConfigDict:
    """A run; learning rate, warm-up and beta2 by the rule of this family."""
    width, steps = shape
    return config_lib.resolve(config_lib.override(quickstart.get_config(), {
        "model.d_model": width, "model.d_ff": 4 * width, "data.source": "prepared", "data.path": str(data.resolve()),
        "data.mixture": shares_text(mixture), "train.steps": steps, "train.seed": seed,
        "train.global_batch": RULE.global_batch, "optim.beta2": RULE.beta2,
        "optim.peak_lr": RULE.peak_lr(steps=steps, d_model=width), "guard.policy": "off",
        "schedule.warmup_steps": max(RULE.warmup_least, round(RULE.warmup_share * steps)),
        "log.every_steps": steps // 10, "eval.every_steps": steps, "eval.batches": 64,
        "checkpoint.every_steps": steps,
    }))  # fmt: skip


def name_trial(label: str, shape: Shape, seed: int) -> str:
    """The run's name; `label` names its mixture."""
    return f"{label}-d{shape[0]}-s{shape[1]}-seed{seed}"


def label_of(parts: tuple[int, ...]) -> str:
    """The label of a mixture of fifteenths."""
    return "-".join(map(str, parts))


def make_proxies(data: pathlib.Path, seeds: Iterable[int]) -> dict[str, ConfigDict]:
    """The lattice and the held-out mixtures at the proxy's shape, and the ladder of the even mixture."""
    cells = [(parts, PROXY) for parts in (*LATTICE, *HELD_OUT)] + [(EVEN, shape) for shape in LADDER]
    return {
        name_trial(label_of(parts), shape, seed): make_trial(data, of_parts(parts), shape, seed)
        for parts, shape in dict.fromkeys(cells)
        for seed in seeds
    }


def make_larger(data: pathlib.Path, best: Mixture, seeds: Iterable[int]) -> dict[str, ConfigDict]:
    """The larger model on the best mixture and on the even one."""
    mixtures = {"best": best, label_of(EVEN): of_parts(EVEN)}
    return {
        name_trial(label, LARGER, seed): make_trial(data, mixture, LARGER, seed)
        for label, mixture in mixtures.items()
        for seed in seeds
    }


def count_flops(shape: Shape) -> float:
    """Training FLOPs of a run."""
    width, steps = shape
    model = config_lib.override(quickstart.get_config(), {"model.d_model": width, "model.d_ff": 4 * width})
    config = config_lib.resolve(model)
    tokens = steps * RULE.global_batch * config.model.seq_len
    return float(count.flops_per_token(config_lib.static(config).model)["exact"] * tokens)


def read_losses(folder: pathlib.Path, label: str, shape: Shape, seeds: Iterable[int]) -> np.ndarray:
    """Validation losses [seeds, domains] of a mixture's runs."""
    places = {place.name: place for place in listing.run_folders(folder)}
    rows = []
    for seed in seeds:
        lines = [row for row in records.read_metrics(places[name_trial(label, shape, seed)]) if "val_loss" in row]
        rows.append([float(lines[-1][f"val_loss/{name}"]) for name in DOMAINS])
    return np.array(rows)
