"""Odd runs that are as they should be. None may raise an alarm, and none is quieted by `--accept`."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Case

# 5 % of the optimizer's usual steps, no more than a half: what each row says is all that is odd.
_CONSTANT = {"schedule.name": "constant"}


def _odd(name: str, about: str, changes: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, HEALTHY, about, None, changes or {}, more.pop("sizes", (SMALL,)), **more)


CASES = (
    _odd("plain", "configs/tiny at a smaller width"),
    _odd(
        "no weight decay",
        "decay left out on purpose, for a short run",
        {"optim.weight_decay": 0.0},
        question="decay_wrong",
    ),
    _odd("warm restarts", "cosines that begin again twice", {"schedule.name": "cosine_restarts", "schedule.cycles": 3}),
    _odd(
        "no warm-up at a low rate",
        "a rate so low that it needs no warm-up",
        {"schedule.warmup_steps": 0, "optim.peak_lr": 3e-3},
    ),
    _odd("half of the run is warm-up", "a long warm-up, and no more", {"schedule.warmup_steps": 80}),
    _odd("constant rate", "a trunk from which decays will branch", _CONSTANT),
    _odd("wsd", "a trunk and its decay", {"schedule.name": "wsd", "schedule.final_share": 0.0}),
    _odd("decay to zero", "a linear fall to zero", {"schedule.name": "linear", "schedule.final_share": 0.0}),
    _odd("z-loss", "PaLM's", {"train.z_loss": 1e-4}),
    _odd("four micro-batches", "one batch in four parts", {"train.accumulate": 4}),
    _odd(
        "one sequence a batch",
        "the smallest batch there is",
        {"train.global_batch": 1, "optim.peak_lr": 3e-3, "train.steps": 200},
    ),
    _odd("two sequences, fp16", "small batches in fp16", {"train.global_batch": 2, "precision.name": "fp16"}),
    _odd("bf16", "bf16 products", {"precision.name": "bf16"}),
    _odd("fp8", "fp8 products", {"precision.name": "fp8"}),
    _odd(
        "large vocabulary",
        "8,192 ids for bytes: most rows are never read",
        {"model.vocab_size": 8192},
        question="vocabulary_mismatch",
    ),
    _odd("resumed", "stopped at a half and gone on", {**_CONSTANT, "train.steps": 80}, later={"train.steps": 160}),
    _odd("frozen embedding, declared", "optim.groups says that the embedding has no LR", {"optim.groups": "embed=0"}),
    _odd("slow head, declared", "optim.groups says that the head has a tenth", {"optim.groups": "head=0.1"}),
    _odd("branches from zero", "a block whose branches begin at zero", {"model.block": "mine:zero_gain"}),
    _odd("small gains", "LayerScale", {"model.block": "mine:gained"}),
    _odd("a loss of the block", "activation regularization in an own block", {"model.block": "mine:quiet"}),
    _odd("a term of the loss", "a little of the entropy", {"train.loss": "mine:confidence"}),
    _odd(
        "signs",
        "an own sign optimizer",
        {"optim.name": "mine:signs", "optim.peak_lr": 1e-3, "optim.beta1": 0.9, "optim.weight_decay": 0.1},
    ),
    _odd("a triangle", "an own schedule", {"schedule.name": "mine:triangle"}),
    _odd("stairs", "an own schedule that halves the LR at thirds", {"schedule.name": "mine:stairs"}),
    _odd("an own metric", "numbers of the user's in the log", {"train.metrics": "mine:moved"}),
    _odd("four long documents", "a corpus of four documents", {"data.source": "mine:one_document"}),
    _odd(
        "lines as documents",
        "documents of a line each, masked from each other",
        {"data.source": "mine:short_lines", "data.documents": "mask"},
    ),
    _odd("a flat loss", "a corpus that has nothing to learn beyond its letters", {"data.source": "mine:letters"}),
    _odd(
        "two epochs and more",
        "a small corpus, read several times, and said so",
        {"data.unique_tokens": "20000"},
        question="repeated_data",
    ),
    _odd("sgd", "plain SGD", {"optim.name": "sgd", "optim.peak_lr": 0.5}),
    _odd(
        "a rising batch",
        "a batch that grows",
        {"train.accumulate": 4, "schedule.batch_start": 2, "schedule.batch_warmup_tokens": 30_000},
    ),
)
