"""The compiled half of a resolved config: `static` decides the program; `traced.hparams` are its scalars."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from scalelab import user_code
from scalelab.config import mixture_text
from scalelab.config.choices import DOCUMENTS, GUARD_POLICIES, MOMENTS, PARAMETRIZATIONS, SKIPS, SPIKES, UPDATES
from scalelab.config.fields import fields_alone, kept_hash, with_fields
from scalelab.config.keys import traced_keys
from scalelab.config.steps import batch_ramp, stretches

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# Options of a shape that change neither its parameters nor its FLOPs, at their defaults.
PLAIN: dict[str, Any] = {
    "remat": "none", "attention": "plain", "expert_products": "auto", "sequence_parallel": False, "sums": "compute",
    "parts": 0, "expert_buffer": 0.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """Everything that decides the model's parameters and arithmetic; field by field as `configs/base.py` says."""

    __hash__, __getstate__ = kept_hash, fields_alone

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    vocab_size: int
    seq_len: int
    position: str
    rope_theta: float
    norm: str
    norm_eps: float
    mlp: str
    qk_norm: bool
    tied_head: bool
    bias: bool
    logit_softcap: float
    init_std: float
    remat: str
    attention: str
    rope_scaling: str
    rope_factor: float
    rope_original: int
    window: int
    global_every: int
    rope_local_theta: float
    nope_every: int
    block: str
    norm_place: str
    qk_norm_over: str
    qkv_bias: bool
    projection_std: float
    depth_scaled_init: bool
    logit_scale: str
    parametrization: str  # from parametrization.name: it changes forward multipliers, LRs, decay and eps
    base_width: int
    base_layers: int
    base_d_head: float
    n_experts: int = 0
    experts_per_token: int = 2
    d_expert: int = 0
    n_shared_experts: int = 0
    router_scores: str = "softmax"
    router_renormalize: bool = True
    router_scale: float = 1.0
    router_groups: int = 1
    router_groups_per_token: int = 1
    router_z_weight: float = 0.0
    balance_rate: float = 1e-3
    balance_weight: float = 0.0
    balance_sequence_weight: float = 0.0
    expert_capacity: float = 0.0
    expert_products: str = "auto"
    d_kv_latent: int = 0
    d_q_latent: int = 0
    d_head_rope: int = 64
    d_head_value: int = 0
    rope_mscale: float = 1.0
    rope_share: float = 1.0
    attention_softcap: float = 0.0
    sequence_parallel: bool = False  # from parallel.sequence: `tensor` splits the residual stream along the sequence
    sums: str = "compute"  # from parallel.sums
    parts: int = 0  # from parallel.parts
    expert_buffer: float = 0.0  # from parallel.expert_buffer

    @functools.cached_property
    def plain(self) -> "ModelShape":
        """Reset options that change neither parameters nor FLOPs to their defaults: fewer shapes to trace."""
        return with_fields(self, **PLAIN)

    @property
    def d_key(self) -> int:
        """Numbers of a head's query that are multiplied with as many of a key: with a latent those of both parts."""
        return self.d_head + (self.d_head_rope if self.d_kv_latent else 0)

    @property
    def d_value(self) -> int:
        """Numbers of a head's value."""
        return self.d_head_value if self.d_kv_latent else self.d_head

    @property
    def d_rotated(self) -> int:
        """Numbers of a head's query and key that RoPE rotates: of a latent's the last, else the first."""
        return self.d_head_rope if self.d_kv_latent else int(self.rope_share * self.d_head)

    @property
    def width_ratio(self) -> float:
        """m_d: width over the base's width; 1 if width changes nothing (standard)."""
        return self.d_model / self.base_width if PARAMETRIZATIONS[self.parametrization].width else 1.0

    @property
    def depth_ratio(self) -> float:
        """m_L: depth over the base's depth; 1 if depth changes nothing (standard, mup)."""
        return self.n_layers / self.base_layers if PARAMETRIZATIONS[self.parametrization].depth else 1.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many devices along each mesh axis (-1: the rest), and how they share the work; see configs/base.py."""

    __hash__, __getstate__ = kept_hash, fields_alone
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1
    stage: int = 1
    sequence: bool = False
    sums: str = "compute"
    parts: int = 0
    zero: int = 3
    schedule: str = "1f1b"
    microbatches: int = 1
    rounds: int = 1
    expert: int = 1
    expert_buffer: float = 0.0

    @property
    def devices(self) -> int:
        """The size of the mesh."""
        return self.batch_parts * self.tensor * self.context * self.stage

    @property
    def batch_parts(self) -> int:
        """The number of parts into which devices split a batch (`sharding.BATCH_AXES`)."""
        return self.data * self.fsdp * self.expert


@dataclasses.dataclass(frozen=True)
class Optim:
    """Options of an optimizer that decide its program; None: the optimizer lacks the option. See configs/base.py."""

    name: str = "adamw"
    nesterov: bool | None = None
    averaged: bool | None = None
    bias_correction: bool | None = None
    factored: bool | None = None
    scale: str | None = None
    newton_schulz: str | None = None
    every: int | None = None
    rank: int | None = None
    clip: str = "global"
    decay_embeddings: bool = True
    decay_vectors: bool = False
    groups: str = ""
    own: tuple[str, ...] = ()  # names in optim.own, for a user's own optimizer
    unset: tuple[str, ...] = ()  # numbers of a user's own optimizer that the config doesn't set


@dataclasses.dataclass(frozen=True)
class Guard:
    """Options of the guard that decide the program; see configs/base.py. `stages`: steps at which the mixture changes.

    A policy that is off has no other options.
    """

    policy: str = "off"
    detector: str = "log"
    window: int = 128
    spike: str = "skip"
    skip: str = "step"
    rerun: bool = False
    stages: tuple[int, ...] = ()

    @property
    def watches(self) -> bool:
        """Whether there is a guard."""
        return GUARD_POLICIES[self.policy].watches

    @property
    def acts(self) -> bool:
        """Whether an outlier's step is changed."""
        return GUARD_POLICIES[self.policy].acts

    @property
    def clips(self) -> bool:
        """Whether an outlier's gradient is clipped."""
        return self.acts and SPIKES[self.spike]

    @property
    def leaves_out(self) -> bool:
        """Whether a step may leave out a micro-batch that is not finite."""
        return self.acts and SKIPS[self.skip]


@dataclasses.dataclass(frozen=True)
class Static:
    """All that decides the compiled program. Runs with equal `Static` share one compilation."""

    __hash__, __getstate__ = kept_hash, fields_alone

    model: ModelShape
    optim: Optim
    schedule: str
    decay_shape: str
    wd_shape: str
    precision: str
    global_batch: int
    accumulate: int
    layout: Layout
    ema: bool = False  # from train.ema: whether an average of the weights is kept
    batch_ramp: tuple[int, ...] = ()  # from schedule.batch_*: steps from which on one micro-batch more is taken
    # From log.stretches: the stretches of a run whose batch or length changed.
    past: tuple[stretches.PastStretch, ...] = ()
    documents: str = "cross"  # from data.documents
    seq_warmup: bool = False  # from schedule.seq_start: whether attention begins with shorter sequences
    layers: bool = False  # from log.layers_every: whether the program can measure its layers
    own_loss: str = ""  # from train.loss, train.metrics and eval.metrics: functions of the user
    own_metrics: str = ""
    own_eval_metrics: str = ""
    guard: Guard = Guard()
    updates: str = "whole"  # from train.updates: whether weights are updated after the backward or layer by layer in it
    moments: str = "device"  # from train.moments: the memory in which the optimizer's state lies
    sources: tuple[str, ...] = ()  # hashes of users' functions: two folders may have functions of one name

    @property
    def masks_documents(self) -> bool:
        """Whether attention stops at the ends of documents."""
        return DOCUMENTS[self.documents]

    @property
    def updates_layers(self) -> bool:
        """Whether each layer is updated as its gradient arises."""
        return UPDATES[self.updates]

    @property
    def moments_on_host(self) -> bool:
        """Whether the optimizer's state lies in the host's memory."""
        return MOMENTS[self.moments]


def static(config: "ConfigDict") -> Static:
    """The compiled half of a resolved config."""
    unused = {} if config.model.d_kv_latent else {"d_head_rope": 64, "d_head_value": 0}  # the shape's defaults
    shape = ModelShape(
        **config.model.to_dict() | unused,
        parametrization=config.parametrization.name,
        **{key: config.parametrization[key] for key in ("base_width", "base_layers", "base_d_head")},
        sequence_parallel=config.parallel.sequence and config.parallel.tensor != 1,
        sums=config.parallel.sums if config.parallel.tensor != 1 else "compute",
        expert_buffer=config.parallel.expert_buffer if config.parallel.expert != 1 else 0.0,
        parts=config.parallel.parts if config.parallel.sequence and config.parallel.tensor != 1 else 0,
    )
    train, schedule = config.train, config.schedule
    # A trunk uses the program of a run planned with its end: equal bits then do not depend on the compiler.
    shape_of_lr = "wsd" if schedule.name == "constant" else schedule.name
    named = {field.name: config.optim[field.name] for field in dataclasses.fields(Optim) if field.name in config.optim}
    optim = Optim(**named | {"own": tuple(sorted(config.optim.own)), "unset": unset_numbers(config)})
    own = {"own_loss": train.loss, "own_metrics": train.metrics, "own_eval_metrics": config.eval.metrics}
    options = own | {
        "schedule": shape_of_lr, "decay_shape": schedule.decay_shape, "wd_shape": schedule.wd_shape,
        "precision": config.precision.name, "global_batch": train.global_batch, "accumulate": train.accumulate,
        "layout": Layout(**config.parallel.to_dict()), "ema": train.ema > 0,
        "batch_ramp": batch_ramp.batch_ramp_steps(config), "past": stretches.past_stretches(config),
        "documents": config.data.documents, "seq_warmup": schedule.seq_start is not None,
        "layers": config.log.layers_every > 0, "guard": _guard(config), "updates": train.updates,
        "moments": train.moments, "sources": user_code.loaded_hashes(config.optim.name, schedule.name, *own.values()),
    }  # fmt: skip
    return Static(shape, optim, **options)


def _guard(config: "ConfigDict") -> Guard:
    if not GUARD_POLICIES[config.guard.policy].watches:
        return Guard()
    options = {field.name: config.guard[field.name] for field in dataclasses.fields(Guard) if field.name != "stages"}
    return Guard(**options, stages=tuple(stage.step for stage in mixture_text.parse_mixture(config.data.mixture)[1:]))


def unset_numbers(config: "ConfigDict") -> tuple[str, ...]:
    """Numbers of a user's own optimizer (`pkg.mod:fn`) that the config doesn't set; () for scalelab's optimizers."""
    keys = [key.removeprefix("optim.") for key in traced_keys() if key.startswith("optim.")]
    return tuple(key for key in keys if config.optim[key] is None) if ":" in config.optim.name else ()
