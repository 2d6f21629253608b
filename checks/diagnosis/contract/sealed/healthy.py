"""Odd runs that are as they should be. None may raise an alarm, and none is quieted by `--accept`."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, Case
from checks.diagnosis.contract.sealed.code import NARROW


def _odd(name: str, about: str, changes: Mapping[str, Any] | None = None, seed: int = 91, **more: Any) -> Case:
    return Case(name, HEALTHY, about, None, changes or {}, (NARROW,), seed=seed, **more)


CASES = (
    _odd(
        "gpt2",
        "learned positions, LayerNorm, GELU, biases, tied head",
        {
            "model.position": "learned",
            "model.norm": "layernorm",
            "model.norm_eps": 1e-5,
            "model.mlp": "gelu",
            "model.bias": True,
            "model.tied_head": True,
            "model.init_std": 0.02,
            "model.projection_std": 0.02,
        },
    ),
    _odd("relative positions", "as in Chinchilla", {"model.position": "relative", "model.mlp": "gelu"}),
    _odd("no positions", "attention alone orders the tokens", {"model.position": "none"}),
    _odd("one layer", "the shallowest model", {"model.n_layers": 1}),
    _odd("eight thin layers", "a deep and narrow model", {"model.n_layers": 8, "model.d_model": 24}),
    _odd("parallel blocks", "one norm for both branches", {"model.block": "parallel"}),
    _odd(
        "unequal stacks",
        "a sequential block, then parallel ones",
        {"model.block": "sequential=1,parallel=2", "model.n_layers": 3},
    ),
    _odd("norms after", "OLMo 2's, with QK-norm", {"model.norm_place": "after", "model.qk_norm": True}),
    _odd("a sandwich", "an own block with norms on both sides", {"model.block": "mine:sandwich"}),
    _odd("an own parallel block", "an own block with one norm", {"model.block": "mine:attention_alone_first"}),
    _odd(
        "windows and a cap",
        "windows in half the layers, logits capped",
        {"model.window": 16, "model.global_every": 2, "model.logit_softcap": 30.0},
    ),
    _odd("shared keys", "one key head for all queries", {"model.n_kv_heads": 1}),
    _odd("muP", "muP at three quarters of its base", {"parametrization.name": "mup", "parametrization.base_width": 64}),
    _odd("muon at its rate", "Muon", {"optim.name": "muon", "optim.peak_lr": 2e-2, "optim.rest_lr": 1e-2}),
    _odd("lion at its rate", "Lion", {"optim.name": "lion", "optim.peak_lr": 1e-3}),
    _odd("adafactor", "no first moment kept whole", {"optim.name": "adafactor"}),
    _odd("heavy ball", "momentum", {"optim.name": "momentum", "optim.peak_lr": 0.3}),
    _odd(
        "unit gradients",
        "an own optimizer",
        {"optim.name": "mine:plain_momentum", "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.weight_decay": 0.0},
        question="decay_wrong",
    ),
    _odd("a slow second moment", "beta2 of .999 in a run of 160 steps", {"optim.beta2": 0.999}),
    _odd("an average of the weights", "EMA beside the weights", {"train.ema": 0.95}),
    _odd("a sawtooth", "an own schedule that restarts", {"schedule.name": "mine:sawtooth"}),
    _odd(
        "wsd-s",
        "two decays in a run",
        {"schedule.name": "wsd_s", "schedule.cycles": 2, "schedule.cycle_growth": 2.0, "schedule.final_share": 0.1},
    ),
    _odd(
        "growing decay", "weight decay along a cosine", {"schedule.wd_shape": "cosine", "schedule.wd_final_share": 4.0}
    ),
    _odd(
        "sequences that grow", "a ramp of the length", {"schedule.seq_start": 16, "schedule.seq_warmup_tokens": 40_000}
    ),
    _odd("batches in stages", "a batch that jumps", {"train.accumulate": 4, "schedule.batch_stages": "2; 80: 8"}),
    _odd(
        "a curriculum",
        "easy source first, then the other: declared as a mixture of two stages",
        {"data.mixture": "a=0.9,b=0.1; 80: a=0.2,b=0.8"},
        prepared=True,
    ),
    _odd(
        "resumed twice as long",
        "stopped, extended, and gone on with a cosine that is longer",
        {"train.steps": 80, "schedule.name": "wsd", "schedule.decay_steps": 0},
        later={"train.steps": 160, "schedule.decay_steps": 40},
    ),
    _odd("fp16 in parts", "fp16 and four micro-batches", {"precision.name": "fp16", "train.accumulate": 4}),
    _odd("bf16 rounded by chance", "bf16 weights with stochastic rounding", {"precision.name": "bf16_stochastic"}),
    _odd("two replicas", "a mesh of two CPU devices", {"parallel.data": 2}, devices=2),
    _odd("two documents", "a corpus of two long documents", {"data.source": "mine:one_poem"}),
    _odd("numbers in order", "an easy corpus: the loss is soon very low", {"data.source": "mine:counting"}),
    _odd("two tongues", "programs and tables of digits: batches differ a lot", {"data.source": "mine:two_tongues"}),
    _odd(
        "a tiny rate by choice",
        "a run that goes on at a tenth of its LR, asked for by --lr-factor",
        {"train.steps": 120, "schedule.name": "constant"},
        later={"train.steps": 160},
        later_options=("--lr-factor=0.1",),
        question="lr_too_low",
    ),
)
