"""What one run trains: config, static part with its layout, hparams and identity, made once at the door and passed
on.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.steps import schedule_steps
from scalelab.config.steps.stretches import Stretch
from scalelab.errors import BadInput
from scalelab.parallel import mesh
from scalelab.record.identity import identity
from scalelab.train.lineage import own_code
from scalelab.train.step import hooks
from scalelab.train.step.update.per_layer import refusals


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """One run's config and everything that follows from it; nothing downstream computes these again.

    `static` has the layout of the devices that are here. `hparams` are the traced scalars, those of the data
    (`h.dataset.separator`) included. `identity` is 16 hex digits over what is computed, `own_code` what is recorded of
    the users' functions that the config names.
    """

    config: ConfigDict
    static: config_lib.Static
    hparams: config_lib.Hparams
    identity: str
    own_code: own_code.OwnCode

    @functools.cached_property
    def stretches(self) -> Sequence[Stretch]:
        """The stretches of steps between which the config changed; the last one is that of `config`."""
        return schedule_steps.run_stretches(self.config)

    @functools.cached_property
    def origins(self) -> Mapping[str, str]:
        """Who set each value of the config."""
        return config_lib.config_value_origins(self.config)


def make_train_spec(config: ConfigDict, data_hparams: Mapping[str, float] | None = None) -> TrainSpec:
    """Split a resolved config. BadInput where its layout does not fit the devices here, or the user's functions it."""
    if config.model.remat == "auto":
        raise BadInput(
            "model.remat='auto' is chosen for one run, by `scalelab train`, `scalelab.api.train` and `scalelab plan`; "
            "nearest: what `scalelab plan` chooses for this config"
        )
    static = config_lib.static(config)
    static = dataclasses.replace(static, layout=mesh.resolve_layout(static.layout, jax.device_count()))
    hooks.refuse_unsupported(static)
    refusals.refuse_unsupported(static)
    refusals.refuse_missing_memory(static)
    code = own_code.describe_own_code(config)
    hparams = config_lib.replace_hparams(config_lib.hparams(config), data_hparams or {})
    return TrainSpec(config, static, hparams, identity(config_lib.leaves(config), (), code), code)
